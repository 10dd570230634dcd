"""AdaComm against its rule, and that workers with different clocks and losses always agree on the next boundary."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import cpdp
from cpdp import strategies
from cpdp.errors import StrategyError, UsageError
from cpdp.recorder import StepRecorder
from tests.unit.problem import SIZE, Workers, assert_same, data, start, take_step, train
from tests.unit.ranks import run_ranks, start_workers

RATES = [0.2] * 20 + [0.05] * 20


def mean_loss(workers, step):
    """The loss before each worker's step, as its training loop sees it."""
    losses = []
    for worker, theta in enumerate(workers.theta):
        x, y = data(worker, step)
        losses.append(np.mean(np.log(np.cosh(x @ theta - y))))
    return losses


def adacomm(world, rates, tau0, interval, *, gamma=0.5, power=0.5, beta=0.0, momentum=0.0, cap=1000, saturate=True):
    """The rule written from the paper, with intervals counted in steps; returns thetas and periods by step."""
    workers, history, periods = Workers(world, momentum), [], []
    x0, u = start(), np.zeros(SIZE)
    tau, since, interval_start, losses, first, lr0 = tau0, 0, 0, [], None, None
    for n, lr in enumerate(rates, start=1):
        losses += mean_loss(workers, n - 1)
        workers.step(n - 1, lr)
        since += 1
        if since == tau:
            u = beta * u + (x0 - workers.mean()) / lr
            x0 = x0 - lr * u
            workers.set_all(x0)
            workers.buffer = [np.zeros(SIZE) for _ in workers.buffer]
            loss, losses, since = np.mean(losses), [], 0
            if first is None:
                first, lr0 = loss, lr
            elif n - interval_start >= interval:
                new = math.ceil(math.sqrt(loss / first) * (lr0 / lr) ** power * tau0)
                tau = min(cap, new if new < tau or not saturate else max(1, math.floor(gamma * tau)))
                interval_start = n
        history.append(list(workers.theta))
        periods.append(tau)
    return history, periods


def train_adacomm(rank, strategy, momentum):
    kept = []
    history = train(rank, strategy, RATES, optimizer=momentum, configure=kept.append)
    return history, kept[0].period


@pytest.mark.parametrize(
    ("options", "momentum", "arguments"),
    [
        ("tau0=5,interval_steps=8", "0.0", {}),
        ("tau0=8,interval_steps=1,gamma=0.8", "0.8", {"gamma": 0.8}),
        ("tau0=5,interval_steps=8,beta=0.3", "0.8", {"beta": 0.3}),
        ("tau0=4,interval_steps=4,lr_power=0,gamma=1", "0.0", {"power": 0.0, "gamma": 1.0}),
        ("tau0=3,interval_steps=3,saturate=false,max_period=5", "0.0", {"saturate": False, "cap": 5}),
    ],
)
def test_adacomm_follows_its_rule_on_the_losses_of_all_workers(options, momentum, arguments):
    world = 3
    tau0, interval = (int(part.split("=")[1]) for part in options.split(",")[:2])
    theirs, periods = adacomm(world, RATES, tau0, interval, momentum=float(momentum), **arguments)
    assert len(set(periods)) > 1  # the period did change
    results = run_ranks(world, train_adacomm, f"adacomm:{options}", momentum)
    assert_same([history for history, _ in results], theirs)
    assert [period for _, period in results] == [periods[-1]] * world


def train_two(rank, first, second, optimizer):
    return train(rank, first, [0.1] * 24, optimizer=optimizer), train(rank, second, [0.1] * 24, optimizer=optimizer)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("adacomm:tau0=4,interval_steps=1000,buffers=keep", "localsgd:k=4,epoch_end=false"),
        ("adacomm:tau0=4,interval_steps=1000,beta=0.3", "slowmo:k=4,beta=0.3,buffers=reset"),
    ],
)
def test_a_period_that_never_changes_is_the_fixed_strategy_bit_for_bit(first, second):
    for a, b in run_ranks(3, train_two, first, second, "0.8"):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


class Scripted:
    """A worker whose clock and losses are written down: every boundary reads the clock once."""

    def __init__(self, rank, options, tick):
        self.strategy = strategies.build(f"adacomm:{options}")
        readings = iter(range(10_000))
        self.strategy.clock = lambda: tick * next(readings)
        self.net = nn.Linear(2, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.events = []
        self.model = cpdp.DataParallel(self.net, self.opt, self.strategy, recorder=StepRecorder(self.events.append))

    def step(self, loss):
        self.opt.zero_grad()
        self.model(torch.ones(1, 2)).sum().backward()
        if loss is not None:
            self.model.observe_loss(loss)
        self.opt.step()


def different_clocks(rank):
    # A boundary every 1 s on rank 0 and every 3 s on rank 1: 2 s in the mean. T0 = 5 s is over after 3 boundaries.
    worker = Scripted(rank, "tau0=8,interval=5", tick=1 if rank == 0 else 3)
    for n in range(1, 61):
        mean = 4.0 if n <= 16 else 1.0
        worker.step(mean + (0.5 if rank == 0 else -0.5))
    worker.model.close()
    return [event.n for event in worker.events if event.boundary], worker.strategy.period


def test_workers_with_different_clocks_and_losses_end_an_interval_in_the_same_step():
    # Rounds of 8 end at 8, 16, 24. There the mean clock shows 6 s and F / F_0 = 1 / 4: tau = 8 / 2 = 4. Three more
    # rounds of 4 end at 28, 32, 36; the loss stands still, so 2: 38, 40, 42; then 1.
    expected = [8, 16, 24, 28, 32, 36, 38, 40, 42, *range(43, 61)]
    assert run_ranks(2, different_clocks) == [(expected, 1)] * 2


def test_the_first_round_measures_even_when_it_outlasts_the_interval():
    worker = Scripted(0, "tau0=4,interval=1", tick=10)
    for _ in range(7):
        worker.step(2.0)
    assert worker.strategy.period == 4
    worker.step(0.125)  # the second round's mean: (3 x 2 + 0.125) / 4, root 0.875, times 4 = 3.5
    assert worker.strategy.period == 4 // 2  # 4 is not less than 4: halved


def test_a_loss_that_is_no_number_leaves_the_period():
    worker = Scripted(0, "tau0=2,interval_steps=1", tick=1)
    for loss in (1.0, 1.0, math.nan, math.nan):
        worker.step(loss)
    assert worker.strategy.period == 2


def test_without_saturation_a_period_grows_with_the_loss_up_to_the_cap():
    worker = Scripted(0, "tau0=2,max_period=5,interval_steps=1,saturate=false", tick=1)
    for n in range(1, 15):
        worker.step(1.0 if n <= 2 else 4.0 if n <= 4 else 100.0)
    # sqrt(4 / 1) 2 = 4 after step 4, then sqrt(100) 2 = 20, capped at 5.
    assert [event.n for event in worker.events if event.boundary] == [2, 4, 8, 13]


def test_a_first_period_beyond_the_cap_is_refused():
    with pytest.raises(StrategyError, match="period=50 is longer than max_period=3"):
        Scripted(0, "tau0=50,max_period=3", tick=1)


def test_a_loop_that_never_tells_its_loss_is_told_how():
    worker = Scripted(0, "tau0=2", tick=1)
    worker.step(None)
    with pytest.raises(UsageError, match=r"step 2: adacomm follows the training loss .* model.observe_loss"):
        worker.step(None)


def agreement_bytes(rank):
    events = []
    net = nn.Linear(SIZE, 1, bias=False).double()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, opt, "adacomm:tau0=2,interval_steps=99", recorder=recorder)
    with recorder.paused():
        pass
    for step in range(4):
        take_step(net, opt, model, rank, step)
    model.close()
    return [sorted((op.purpose, op.bytes) for op in event.ops) for event in events]


def test_agreeing_costs_thirty_two_bytes_at_boundaries():
    wave = [("agreement", 32), ("parameters", 8 * SIZE)]
    assert run_ranks(2, agreement_bytes) == [[[], wave, [], wave]] * 2


def test_a_workload_without_a_loss_is_refused_before_the_first_step(tmp_path):
    workload = {"name": "resnet50-cifar100", "compute": "replayed"}
    cell = {"strategy": {"name": "adacomm"}, "workload": workload, "steps": 2}
    (worker,) = start_workers(cell, tmp_path, world=1)
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 2
    assert "adacomm follows the loss, and this workload reports none" in errors
