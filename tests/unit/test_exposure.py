"""The parts of a step, held to sums that can be done by hand."""

import pytest

from cpdp.errors import EventError
from cpdp.events import Operation, Span, StepEvent
from cpdp.exposure import break_down, bytes_sent, length, subtract, union


def step(spans, ops=(), start=0, end=1_000):
    return StepEvent(
        1,
        0,
        False,
        True,
        start,
        end,
        tuple(Span(*s) for s in spans),
        tuple(Operation("all_reduce", *o) for o in ops),
    )


def test_computation_exposed_and_rest_sum_to_the_step():
    parts = break_down(
        step(
            [
                ("data", 0, 10),
                ("forward", 10, 110),
                ("backward", 110, 310),
                ("exposed.gradients", 310, 610),
                ("optimizer", 615, 625),
                ("exposed.parameters", 625, 925),
                ("update", 925, 990),
            ]
        )
    )
    assert parts.computation_ns == 10 + 100 + 200 + 10
    assert parts.exposed_by_cause == {"gradients": 300, "parameters": 300, "update": 65}
    assert parts.exposed_ns == 665
    assert parts.rest_ns == 1_000 - 320 - 665
    assert parts.step_ns == parts.computation_ns + parts.exposed_ns + parts.rest_ns
    assert parts.rest_share == pytest.approx(0.015)


def test_hidden_is_communication_beneath_computation_only():
    # Two overlapping operations cover 150..600; 400..650 is exposed: 250 ns were hidden beneath the backward
    # pass.
    parts = break_down(
        step(
            [("backward", 100, 400), ("exposed.gradients", 400, 650)],
            [("gradients", 40, 150, 450), ("gradients", 40, 300, 600)],
        )
    )
    assert parts.hidden_ns == 250
    assert parts.payload_bytes == 80


def test_an_exposed_span_inside_an_operation_is_cut_out_of_it():
    parts = break_down(
        step([("exposed.gradients", 300, 400), ("exposed.parameters", 600, 700)], [("gradients", 4, 200, 900)])
    )
    assert parts.hidden_ns == 700 - 100 - 100


def test_a_step_without_communication_has_zeros():
    parts = break_down(step([("forward", 0, 500), ("backward", 500, 1_000)]))
    assert (parts.exposed_ns, parts.hidden_ns, parts.rest_ns, parts.payload_bytes) == (0, 0, 0, 0)
    assert parts.exposed_by_cause == {}


def test_a_step_of_no_length_has_no_share():
    assert break_down(step([], end=0)).rest_share is None


def test_an_operation_outside_its_step_counts_only_inside():
    parts = break_down(step([("forward", 0, 1_000)], [("parameters", 4, -500, 100), ("parameters", 4, 950, 2_000)]))
    assert parts.hidden_ns == 100 + 50


def test_an_operation_whose_end_was_never_seen_counts_to_the_end_of_the_step():
    assert break_down(step([("forward", 0, 1_000)], [("parameters", 4, 900, None)])).hidden_ns == 100


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([("forward", 0, 500), ("backward", 499, 600)], "overlap"),
        ([("forward", 0, 1_001)], "leaves its step"),
        ([("forward", 500, 400)], "leaves its step"),
        ([("nap", 0, 1)], "unknown span 'nap'"),
    ],
)
def test_spans_that_cannot_be_are_refused(spans, message):
    with pytest.raises(EventError, match=message):
        break_down(step(spans))


def test_union_joins_what_touches_and_drops_what_is_empty():
    assert union([(5, 9), (1, 3), (3, 5), (20, 20), (30, 31)]) == [(1, 9), (30, 31)]
    assert length([(1, 9), (30, 31)]) == 9


def test_subtract_cuts_holes_at_every_position():
    assert subtract([(0, 10), (20, 30)], [(2, 3), (8, 22), (29, 40)]) == [(0, 2), (3, 8), (22, 29)]
    assert subtract([(0, 10)], [(0, 10)]) == []
    assert subtract([(0, 10)], []) == [(0, 10)]


@pytest.mark.parametrize(
    ("kind", "world", "sent"),
    [
        ("all_reduce", 1, 0),
        ("all_reduce", 2, 1_000),
        ("all_reduce", 4, 1_500),
        ("all_gather", 4, 750),
        ("barrier", 4, 0),
    ],
)
def test_ring_traffic_per_rank(kind, world, sent):
    assert bytes_sent(kind, 1_000, world) == sent


def test_an_unknown_collective_has_no_traffic_formula():
    with pytest.raises(EventError, match="known: all_gather"):
        bytes_sent("shuffle", 1, 2)
