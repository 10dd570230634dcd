"""What travels beneath local steps: CoCoD-SGD, Overlap-Local-SGD and late CPDP against their rules; fused CPDP."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import cpdp
from cpdp.errors import StrategyError
from cpdp.events import EndEvent, EventWriter, Operation, StepEvent, read_events
from cpdp.exposure import break_down
from cpdp.recorder import StepRecorder
from cpdp.wire import window
from tests.unit.problem import SIZE, Workers, assert_same, data, log_cosh, optimizer_for, start, take_step, train
from tests.unit.ranks import run_ranks

RATES = [0.1] * 11 + [0.04] * 12


def one(rank, strategy, optimizer):
    return train(rank, strategy, RATES, optimizer=optimizer)


def test_cocod_follows_the_published_rule():
    workers, history = Workers(3, 0.8), []
    sent = [start() for _ in range(3)]
    for step, lr in enumerate(RATES):
        workers.step(step, lr)
        if (step + 1) % 4 == 0:
            mean = np.mean(sent, axis=0)
            workers.theta = [mean + (theta - own) for theta, own in zip(workers.theta, sent, strict=True)]
            sent = list(workers.theta)
        history.append(list(workers.theta))
    assert_same(run_ranks(3, one, "cocod:k=4", "0.8"), history)


@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 0.7), (0.3, 0.0), (1.0, 0.4)])
def test_overlap_local_sgd_follows_the_authors_code_while_the_learning_rate_falls(alpha, beta):
    workers, history, z = Workers(3, 0.8), [], start()
    u = [np.zeros(SIZE) for _ in range(3)]
    for step, lr in enumerate(RATES):
        workers.step(step, lr)
        if (step + 1) % 3 == 0:
            workers.theta = [(1 - alpha) * x + alpha * z for x in workers.theta]
            u = [beta * old - x / lr + z / lr for old, x in zip(u, workers.theta, strict=True)]
            z = np.mean([z - lr * own for own in u], axis=0)
        history.append(list(workers.theta))
    assert_same(run_ranks(3, one, f"overlap:k=3,alpha={alpha},beta={beta}", "0.8"), history)


def late_cpdp(world, period, beta, delay, *, fused):
    workers, history = Workers(world, 0.8), []
    ref, v, sent, due = start(), np.zeros(SIZE), None, 0
    for n, lr in enumerate(RATES, start=1):
        boundary = n % period == 0
        own = workers.gradients(n - 1)
        reduced = [np.mean(own, axis=0)] * world if boundary and not fused else own
        workers.step(n - 1, lr, gradients=reduced)
        if sent is not None and (n == due or boundary):
            v = beta * v + (np.mean(sent, axis=0) - ref)
            ref = ref + v
            workers.theta = [theta + (ref - old) for theta, old in zip(workers.theta, sent, strict=True)]
            sent = None
        if boundary:
            sent, due = list(workers.theta), n + delay
        history.append(list(workers.theta))
    return history


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("beta", "delay"), [(0.3, 1), (0.3, 4), (0.6, 2)])
def test_late_cpdp_merges_what_arrives_with_the_progress_made_meanwhile(beta, delay, fused):
    strategy = f"cpdp-overlapped:k=4,beta={beta},delay={delay},fused={fused},epoch_end=false"
    assert_same(run_ranks(2, one, strategy, "0.8"), late_cpdp(2, 4, beta, delay, fused=fused))


def two(rank, first, second, optimizer, alike=False):
    options = {"optimizer": optimizer, "alike": alike}
    return train(rank, first, RATES, **options), train(rank, second, RATES, **options)


def test_fused_cpdp_without_momentum_a_whole_period_late_is_cocod():
    late = "cpdp-overlapped:k=4,beta=0,epoch_end=false"
    for a, b in run_ranks(3, two, late, "cocod:k=4", "0.8"):
        assert np.allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("strategy", ["cocod:k=3", "cpdp-overlapped:k=3,beta=0,delay=2,epoch_end=false"])
def test_one_worker_that_overlaps_its_own_mean_trains_alone(strategy):
    ours, plain = two(0, strategy, "localsgd:k=3,epoch_end=false", "0.8")
    assert np.allclose(ours, plain, rtol=0, atol=1e-13)


@pytest.mark.parametrize("strategy", ["cocod:k=3", "cpdp-overlapped:k=3,beta=0,delay=1,fused=false,epoch_end=false"])
def test_equal_data_on_all_workers_is_one_worker(strategy):
    for a, b in run_ranks(2, two, strategy, "ddp", "0.8", True):
        assert np.allclose(a, b, rtol=0, atol=1e-13)


def test_a_delay_beyond_the_period_is_refused():
    with pytest.raises(StrategyError, match="delay=5 is longer than period=4"):
        train(0, "cpdp-overlapped:k=4,delay=5,epoch_end=false", RATES)


# Fused reconciliation: what is equal and what is not.

UNFUSED, FUSED = "cpdp:k=4,beta=0.3,epoch_end=false", "cpdp-fused:k=4,beta=0.3,epoch_end=false"


def at_boundaries(history):
    return history[3::4]


@pytest.mark.parametrize("optimizer", ["0.0", "decay"])
def test_with_plain_sgd_fused_and_unfused_cpdp_agree_at_every_boundary(optimizer):
    for unfused, fused in run_ranks(3, two, UNFUSED, FUSED, optimizer):
        assert len(at_boundaries(fused)) == 5
        assert np.allclose(at_boundaries(unfused), at_boundaries(fused), rtol=0, atol=1e-13)
        assert np.allclose(unfused[:3], fused[:3], rtol=0, atol=0)  # local steps: the same, too


def test_with_momentum_they_agree_at_the_first_boundary_and_part_after_it():
    for unfused, fused in run_ranks(3, two, UNFUSED, FUSED, "0.8"):
        first, *later = [np.abs(a - b).max() for a, b in zip(*map(at_boundaries, (unfused, fused)), strict=True)]
        assert first < 1e-13
        assert min(later) > 1e-6


def test_with_adamw_they_part_at_the_first_boundary():
    for unfused, fused in run_ranks(3, two, UNFUSED, FUSED, "adamw"):
        assert np.abs(unfused[3] - fused[3]).max() > 1e-6


@pytest.mark.parametrize("optimizer", ["0.8", "adamw"])
def test_fused_cpdp_is_bmuf_with_a_block_learning_rate_of_one(optimizer):
    for fused, block in run_ranks(3, two, FUSED, "bmuf:k=4,bm=0.3", optimizer):
        assert np.allclose(fused, block, rtol=0, atol=1e-14)


def momentum_buffers(rank, strategy):
    net = nn.Linear(SIZE, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start())[None])
    opt = optimizer_for(net.parameters(), "0.8", 0.1)
    model = cpdp.DataParallel(net, opt, strategy)
    for step in range(4):
        take_step(net, opt, model, rank, step)
    model.close()
    return opt.state[net.weight]["momentum_buffer"].numpy().ravel().copy()


def test_after_the_first_boundary_the_mean_of_the_momentum_buffers_is_equal_and_each_buffer_is_not():
    unfused, fused = (run_ranks(3, momentum_buffers, strategy) for strategy in (UNFUSED, FUSED))
    assert np.allclose(np.mean(unfused, axis=0), np.mean(fused, axis=0), rtol=0, atol=1e-14)
    assert all(np.abs(a - b).max() > 1e-3 for a, b in zip(unfused, fused, strict=True))


def wire(rank, strategy, events):
    net = nn.Linear(SIZE, 1, bias=False).double()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, opt, strategy, recorder=recorder)
    with recorder.paused():
        pass
    return net, opt, model


def bytes_of(rank, strategy):
    events = []
    net, opt, model = wire(rank, strategy, events)
    for step in range(4):
        take_step(net, opt, model, rank, step)
    model.close()
    return [
        sorted((op.purpose, op.bytes) for op in event.ops if op.bytes and op.purpose != "buckets") for event in events
    ]


@pytest.mark.parametrize(
    ("strategy", "purposes"),
    [
        (UNFUSED.replace("k=4", "k=2"), ["gradients", "parameters"]),
        (FUSED.replace("k=4", "k=2"), ["parameters"]),
        ("cpdp-overlapped:k=2,delay=1,epoch_end=false", ["parameters"]),
        ("cocod:k=2", ["parameters"]),
        ("overlap:k=2", ["parameters"]),
    ],
)
def test_a_boundary_sends_one_model_per_collective(strategy, purposes):
    boundary = [(purpose, 8 * SIZE) for purpose in purposes]
    assert run_ranks(2, bytes_of, strategy) == [[[], boundary, [], boundary]] * 2


def late_peer(rank):
    """Rank 1 sends 200 ms late: for rank 0 the wave is under way during two steps and hidden beneath them."""
    events = []
    _, opt, model = wire(rank, "cpdp-overlapped:k=2,beta=0,epoch_end=false", events)
    for step in range(5):
        if step == 1 and rank == 1:
            time.sleep(0.2)
        x, y = (torch.from_numpy(part) for part in data(rank, step))
        opt.zero_grad()
        loss = log_cosh(model(x).squeeze(1) - y)
        if step == 2:
            time.sleep(0.1)
        loss.backward()
        opt.step()
    model.close()
    return [(event, break_down(event)) for event in events]


def test_what_travels_is_hidden_in_the_steps_beneath_it_and_its_bytes_count_once():
    (_, sends), (event, beneath) = run_ranks(2, late_peer)[0][1:3]
    assert sends.payload_bytes == 8 * SIZE
    assert beneath.payload_bytes == 0
    assert [(op.purpose, op.bytes) for op in event.ops] == [("parameters", 0)]
    assert event.ops[0].issued_ns == event.start_ns
    assert 0.09e9 < beneath.hidden_ns <= beneath.step_ns  # the sleep of 100 ms, at the least


def test_the_wait_for_what_has_not_arrived_is_exposed():
    _, waits = run_ranks(2, late_peer)[0][3]
    assert 0 < waits.exposed_by_cause["parameters"] < 0.2e9


def test_the_bytes_of_a_run_are_counted_until_what_it_left_on_its_way_has_arrived(tmp_path):
    def log(rank, *events):
        path = tmp_path / f"rank-{rank}.events.jsonl"
        with EventWriter(path) as writer:
            for event in events:
                writer.write(event)
        return read_events(path)

    step = StepEvent(1, 0, False, True, 100, 200, (), (Operation("all_reduce", "parameters", 8, 190, None),))
    ended, killed = log(0, step, EndEvent(900, ok=True)), log(1, replace(step, start_ns=90))
    assert window([ended, killed]) == (90, 900)
    assert window([killed]) == (90, 200)
    assert window([log(2, EndEvent(900, ok=True))]) is None


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2, affine=False)
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        return self.linear(self.norm(x))


def running_means(rank, strategy):
    net = Normed()
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    model = cpdp.DataParallel(net, opt, strategy)
    seen = []
    for step in range(4):
        opt.zero_grad()
        net.norm.momentum = 0.0
        if step == 1:
            net.norm.running_mean.fill_(1.0 + rank)
        model(torch.randn(4, 2)).sum().backward()
        opt.step()
        seen.append(net.norm.running_mean.tolist())
    model.close()
    return seen


@pytest.mark.parametrize("strategy", ["cocod:k=2", "cpdp-overlapped:k=2,epoch_end=false"])
def test_running_statistics_become_the_mean_of_those_that_were_sent(strategy):
    for rank, seen in enumerate(run_ranks(2, running_means, strategy)):
        assert seen[1] == seen[2] == [1.0 + rank] * 2
        assert seen[3] == [1.5] * 2
