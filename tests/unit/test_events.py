"""Events survive a round trip, a kill and a number that is not finite."""

import json
import math

import pytest

from cpdp.errors import EventError
from cpdp.events import (
    EndEvent,
    EvalEvent,
    EventWriter,
    Operation,
    Span,
    StartEvent,
    StepEvent,
    finite,
    from_line,
    read_events,
    to_line,
)

START = StartEvent(1, 2, "cpdp:k=4,beta=0.3", 100, "sophia-0", details={"torch": "2.14.1", "pid": 7})
STEP = StepEvent(
    n=17,
    epoch=0,
    warmup=False,
    boundary=True,
    start_ns=1_000,
    end_ns=2_000,
    spans=(Span("forward", 1_000, 1_300), Span("exposed.parameters", 1_300, 1_900)),
    ops=(
        Operation("all_reduce", "parameters", 94_800_000, 1_310, 1_890),
        Operation("all_reduce", "gradients", 4, 1, None),
    ),
    loss=0.125,
    overhead_ns=12,
)
EVAL = EvalEvent(48, 1, 5_000, 0.97, 0.25, 30)
END = EndEvent(9_000, ok=True)


@pytest.mark.parametrize("event", [START, STEP, EVAL, END, EndEvent(9, ok=False, reason="peer gone")])
def test_every_event_reads_back_as_it_was_written(event):
    assert from_line(to_line(event)) == event


def test_the_step_line_has_the_agreed_keys():
    line = json.loads(to_line(STEP))
    assert line["k"] == "step"
    assert line["t"] == [1_000, 2_000]
    assert line["spans"][1] == ["exposed.parameters", 1_300, 1_900]
    assert line["ops"][1] == ["all_reduce", "gradients", 4, 1, None]
    assert "notes" not in line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_becomes_null_and_a_note(value):
    loss, notes = finite("loss", value)
    assert loss is None
    assert notes == (f"loss is {value}",)


def test_a_finite_number_needs_no_note():
    assert finite("loss", 0.5) == (0.5, ())
    assert finite("loss", None) == (None, ())


def test_a_number_that_json_cannot_hold_is_refused_by_the_writer_and_by_the_reader():
    with pytest.raises(EventError, match="use null and a note"):
        to_line(EvalEvent(1, 1, 1, math.nan, 0.0))
    with pytest.raises(EventError, match="NaN"):
        from_line('{"k":"eval","n":1,"epoch":1,"t":1,"accuracy":NaN,"loss":null}')


def test_a_file_without_its_end_is_a_killed_rank(tmp_path):
    path = tmp_path / "rank-0.events.jsonl"
    with EventWriter(path) as writer:
        for event in (START, STEP, EVAL):
            writer.write(event)
        log = read_events(path)  # before close: each event has already reached the kernel
    assert log.events == (START, STEP, EVAL)
    assert (log.start, log.steps, log.evals, log.end, log.problem) == (START, (STEP,), (EVAL,), None, None)


def test_a_file_cut_at_any_byte_keeps_every_whole_line(tmp_path):
    whole = "".join(to_line(event) + "\n" for event in (START, STEP, END)).encode()
    path = tmp_path / "rank-0.events.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        log = read_events(path)
        assert len(log.events) == whole[:cut].count(b"\n")
        torn = cut > 0 and whole[cut - 1 : cut] != b"\n"
        assert (log.problem is not None) == torn
        if torn:
            assert f"{path}:{len(log.events) + 1}: the last line is torn" in log.problem


def test_a_damaged_line_in_the_middle_names_file_and_line(tmp_path):
    path = tmp_path / "rank-0.events.jsonl"
    path.write_bytes(to_line(START).encode() + b"\n\xff\xfe\n" + to_line(END).encode() + b"\n")
    with pytest.raises(EventError, match=r"rank-0\.events\.jsonl:2: "):
        read_events(path)
    path.write_text(to_line(START) + '\n{"k":"dance"}\n')
    with pytest.raises(EventError, match=r":2: not an event: KeyError: 'dance'"):
        read_events(path)


def test_a_newer_format_is_refused():
    with pytest.raises(EventError, match="newer"):
        from_line(to_line(START).replace('"v":1', '"v":2'))


def test_an_empty_file_is_a_rank_killed_before_its_first_event(tmp_path):
    path = tmp_path / "rank-0.events.jsonl"
    EventWriter(path).close()
    log = read_events(path)
    assert (log.events, log.start, log.end, log.problem) == ((), None, None, None)
