"""What the wrapper records over real gloo: every collective, and waiting where the waiting was."""

import itertools
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import cpdp
from cpdp import tap
from cpdp.collectives import CHUNK_BYTES, RAMP, RAMP_OPERATIONS, Collectives
from cpdp.events import StepEvent
from cpdp.exposure import break_down
from cpdp.recorder import StepRecorder
from tests.unit.ranks import run_ranks


def train(rank, strategy, steps=6, sleep_rank=None, sleep_s=0.0, hooks=True, features=64):
    """Train a small network; before the last step's forward pass one rank sleeps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(features, features), nn.BatchNorm1d(features), nn.Linear(features, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    events: list[StepEvent] = []
    recorder = StepRecorder(events.append)
    supported = tap.Tap.attach
    if not hooks:
        tap.Tap.attach = lambda self: None
    model = cpdp.DataParallel(net, optimizer, strategy, steps_per_epoch=steps, recorder=recorder)
    tap.Tap.attach = supported
    model.collectives.barrier()
    with recorder.paused():
        pass
    for step in range(steps):
        recorder.switch("data")
        if rank == sleep_rank and step == steps - 1:
            time.sleep(sleep_s)
        optimizer.zero_grad()
        model(torch.randn(8, features)).square().mean().backward()
        optimizer.step()
    model.close()
    return events


PARAMETERS = 4 * (64 * 64 + 64 + 64 + 64 + 64 + 1)
STATISTICS = 4 * (64 + 64)


def by_purpose(event):
    sent = {}
    for op in event.ops:
        sent[op.purpose] = sent.get(op.purpose, 0) + op.bytes
        assert event.start_ns <= op.issued_ns <= op.finished_ns <= event.end_ns
    return sent


def test_ddps_own_all_reduces_are_seen_with_their_bytes_and_ends():
    for events in run_ranks(2, train, "ddp"):
        for event in events[2:]:  # the first two also agree on buckets
            assert by_purpose(event) == {"gradients": PARAMETERS, "buffers": STATISTICS + 8}


def test_local_sgd_sends_parameters_and_statistics_at_boundaries_only():
    for events in run_ranks(2, train, "localsgd:k=3"):
        for event in events:
            expected = {"parameters": PARAMETERS, "buffers": STATISTICS} if event.n % 3 == 0 else {}
            assert by_purpose(event) == expected
            assert event.boundary == (event.n % 3 == 0)


def test_cpdp_sends_gradients_too_and_hides_nothing_between_boundaries():
    for events in run_ranks(2, train, "cpdp:k=3"):
        last = by_purpose(events[5])
        assert last == {"gradients": PARAMETERS, "parameters": PARAMETERS, "buffers": STATISTICS}
        assert events[4].ops == ()
        parts = break_down(events[4])
        assert (parts.exposed_ns, parts.hidden_ns) == (0, 0)


@pytest.mark.parametrize("strategy", ["ddp", "localsgd:k=3", "cpdp:k=3"])
def test_computation_exposed_and_rest_are_the_step_on_every_rank(strategy):
    for events in run_ranks(2, train, strategy):
        for before, event in itertools.pairwise(events):
            parts = break_down(event)
            assert parts.step_ns == parts.computation_ns + parts.exposed_ns + parts.rest_ns
            assert parts.rest_ns >= 0
            assert event.start_ns == before.end_ns


@pytest.mark.parametrize(("strategy", "cause"), [("localsgd:k=3", "parameters"), ("cpdp:k=3", "gradients")])
def test_a_rank_that_sleeps_is_exposed_time_on_the_other(strategy, cause):
    # Rank 1 sleeps 200 ms before the last step: rank 0 waits for it in the step's first collective, rank 1 does not.
    first, second = run_ranks(2, train, strategy, 6, 1, 0.2)
    waited, slept = break_down(first[-1]), break_down(second[-1])
    assert 150e6 < waited.exposed_by_cause[cause] < 400e6
    assert slept.exposed_by_cause.get(cause, 0) < 100e6
    assert slept.computation_ns > 200e6
    assert sum(waited.exposed_by_cause.values()) - waited.exposed_by_cause[cause] < 100e6


def test_with_ddp_a_sleeping_rank_is_waited_for_where_the_step_communicates_first():
    # Rank 0's broadcast of statistics does not wait for a receiver that sleeps; its gradients do.
    first, _ = run_ranks(2, train, "ddp", 6, 1, 0.2)
    exposed = break_down(first[-1]).exposed_by_cause
    assert 150e6 < exposed["gradients"] + exposed.get("buffers", 0) < 400e6


def test_without_hooks_in_torch_the_same_operations_are_reported():
    for events in run_ranks(2, train, "cpdp:k=3", 6, None, 0.0, False):
        assert by_purpose(events[5]) == {"gradients": PARAMETERS, "parameters": PARAMETERS, "buffers": STATISTICS}
        assert events[4].ops == ()
    for events in run_ranks(2, train, "ddp", 6, None, 0.0, False):
        assert by_purpose(events[5]) == {"gradients": PARAMETERS}  # what DDP broadcasts is not seen then


def test_chunks_cover_a_buffer_once_start_small_and_respect_the_size():
    collectives = Collectives()
    flat = torch.empty(23_705_252)
    pieces = collectives.chunks(flat)
    assert pieces[0].start == 0
    assert pieces[-1].stop == flat.numel()
    assert all(a.stop == b.start for a, b in itertools.pairwise(pieces))
    sizes = [4 * (piece.stop - piece.start) for piece in pieces]
    assert sizes[:RAMP_OPERATIONS] == [RAMP[0]] * RAMP_OPERATIONS
    assert sizes[RAMP_OPERATIONS : 2 * RAMP_OPERATIONS] == [RAMP[1]] * RAMP_OPERATIONS
    assert set(sizes[2 * RAMP_OPERATIONS : -1]) == {CHUNK_BYTES}
    assert 0 < sizes[-1] <= CHUNK_BYTES


@pytest.mark.parametrize("numel", [0, 1, 2, 131_072, 131_073])
def test_small_buffers_travel_in_few_chunks(numel):
    pieces = Collectives().chunks(torch.empty(numel))
    assert sum(piece.stop - piece.start for piece in pieces) == numel
    assert len(pieces) == -(-numel // 131_072)


def sums(rank, sizes, dtype):
    results = []
    collectives = Collectives(chunk_bytes=1024)
    for size in sizes:
        flat = torch.arange(size, dtype=dtype) + rank
        seen = [chunk for _, chunk in collectives.sum_in_chunks([(flat, "test")])]
        results.append((flat, sum(chunk.stop - chunk.start for chunk in seen)))
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_sums_of_any_size_and_type_are_exact_on_three_ranks(dtype):
    sizes = [1, 2, 3, 255, 256, 257, 500]
    for results in run_ranks(3, sums, sizes, dtype, contexts=2):
        for size, (flat, covered) in zip(sizes, results, strict=True):
            assert torch.equal(flat, 3 * torch.arange(size, dtype=dtype) + 3)
            assert covered == size


def average_for_a_moment(rank):
    tensor = torch.tensor([1.0, 5.0]) * (rank + 1)
    with Collectives().averaged([tensor]):
        inside = tensor.tolist()
    return inside, tensor.tolist(), dist.get_rank()


def test_an_average_for_evaluation_leaves_the_replicas_as_they_were():
    for rank, (inside, after, _) in enumerate(run_ranks(2, average_for_a_moment)):
        assert inside == [1.5, 7.5]
        assert after == [1.0 * (rank + 1), 5.0 * (rank + 1)]
