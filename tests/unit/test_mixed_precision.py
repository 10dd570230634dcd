"""Mixed precision, accumulation and clipping under every strategy: a step that a GradScaler skips is still a step.

The numpy side scales nothing: whatever the scales are, unscaled gradients are the same, and a skipped step is no step.
"""

import numpy as np
import pytest
import torch
from torch import nn

import cpdp
from cpdp.errors import UsageError
from cpdp.recorder import StepRecorder
from tests.unit.problem import SIZE, Workers, assert_same, data, gradient, log_cosh, optimizer_for, start
from tests.unit.ranks import run_ranks
from tests.unit.test_contract import SPECS

STEPS, LR = 14, 0.1
BROKEN = {0: (4, 9), 1: (6,), 2: ()}
"""Steps (from 0) in which a worker's gradients overflow."""


def amp(rank, strategy, broken, *, momentum="0.8", known=True, clip=None, unscale=False, growth=3):
    """A loop as torch's documentation writes it; what each worker holds after every step, and its scale."""
    torch.manual_seed(0)
    net = nn.Linear(SIZE, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start())[None] + rank)
    opt = optimizer_for(net.parameters(), momentum, LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=growth)
    model = cpdp.DataParallel(net, opt, strategy, steps_per_epoch=7, scaler=scaler if known else None)
    seen, scales = [], []
    for step in range(STEPS):
        x, y = (torch.from_numpy(part) for part in data(rank, step))
        opt.zero_grad()
        loss = log_cosh(model(x).squeeze(1) - y)
        model.observe_loss(loss)
        scaler.scale(loss * float("inf") if step in broken[rank] else loss).backward()
        if unscale:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(opt)
        scaler.update()
        seen.append(net.weight.detach().numpy().ravel().copy())
        scales.append(scaler.get_scale())
    steps = model.upcoming.n - 1
    model.close()
    return seen, scales, steps


@pytest.mark.parametrize("strategy", SPECS)
def test_a_scaler_that_skips_on_one_worker_leaves_all_workers_in_the_same_step(strategy, monkeypatch):
    monkeypatch.setenv("NETLAB_SITE", "a")
    found = run_ranks(3, amp_in_sites, strategy)
    assert [steps for _, _, steps in found] == [STEPS] * 3
    assert all(np.isfinite(theta).all() for seen, _, _ in found for theta in seen)


def amp_in_sites(rank, strategy):
    import os

    os.environ["NETLAB_SITE"] = ["a", "b", "b"][rank]
    return amp(rank, strategy.replace("p=2", "p=1"), BROKEN)  # its model has one layer


def skipping(world, *, period, reduces, beta=None, average=True):
    """Local SGD (and CPDP with `reduces`) whose workers leave out the steps in which their gradients overflow."""
    workers, history = Workers(world, 0.8), []
    ref, v = start(), np.zeros(SIZE)
    for step in range(STEPS):
        boundary = (step % 7 + 1) % period == 0 or (step + 1) % 7 == 0
        own = workers.gradients(step)
        skips = [step in BROKEN[worker] for worker in range(world)]
        if boundary and reduces:
            own, skips = [np.mean(own, axis=0)] * world, [any(skips)] * world
        for worker in range(world):
            if not skips[worker]:
                workers.buffer[worker] = 0.8 * workers.buffer[worker] + own[worker]
                workers.theta[worker] = workers.theta[worker] - LR * workers.buffer[worker]
        if boundary and average:
            mean = workers.mean()
            if beta is not None:
                v = beta * v + (mean - ref)
                mean = ref = ref + v
            workers.set_all(mean)
        history.append(list(workers.theta))
    return history


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        ("localsgd:k=5", {"period": 5, "reduces": False}),
        ("ddp", {"period": 1, "reduces": True, "average": False}),
        ("cpdp:k=5,beta=0.3", {"period": 5, "reduces": True, "beta": 0.3}),  # step 5 is broken on rank 0: all skip it
        ("cpdp:k=7,beta=0.3", {"period": 7, "reduces": True, "beta": 0.3}),  # step 7 is broken on rank 1
        ("cpdp-fused:k=5,beta=0.3", {"period": 5, "reduces": False, "beta": 0.3}),
    ],
)
def test_scaled_training_is_the_unscaled_rule_without_the_skipped_steps(strategy, rule):
    found = run_ranks(3, amp, strategy, BROKEN)
    assert_same([seen for seen, _, _ in found], skipping(3, **rule))
    by_worker = [scales for _, scales, _ in found]
    if strategy == "ddp":
        assert by_worker[0] == by_worker[1] == by_worker[2]
    else:  # local steps: each scaler has gone its own way, and the mean of gradients was right all the same
        assert len({tuple(scales) for scales in by_worker}) > 1


def test_cpdp_says_that_it_must_know_the_scaler():
    for said in run_ranks(2, unknown_scaler, "cpdp:k=5"):
        assert said == (
            "step 1: cpdp averages gradients after local steps, in which each worker's GradScaler may have gone down "
            "alone; pass it: DataParallel(..., scaler=scaler)"
        )
    assert run_ranks(2, unknown_scaler, "localsgd:k=5") == [None] * 2
    assert run_ranks(2, unknown_scaler, "cpdp:k=1") == [None] * 2


def unknown_scaler(rank, strategy):
    try:
        amp(rank, strategy, {0: (), 1: ()}, known=False)
    except UsageError as error:
        return str(error)
    return None


def test_a_disabled_scaler_changes_nothing():
    for scaled, plain in run_ranks(2, disabled_and_none):
        assert all(np.array_equal(a, b) for a, b in zip(scaled, plain, strict=True))


def disabled_and_none(rank):
    seen = []
    for scaler in (torch.amp.GradScaler("cpu", enabled=False), None):
        net = nn.Linear(SIZE, 1, bias=False).double()
        with torch.no_grad():
            net.weight.copy_(torch.from_numpy(start())[None])
        opt = optimizer_for(net.parameters(), "0.8", LR)
        model = cpdp.DataParallel(net, opt, "cpdp:k=3,epoch_end=false", scaler=scaler)
        for step in range(6):
            x, y = (torch.from_numpy(part) for part in data(rank, step))
            opt.zero_grad()
            loss = log_cosh(model(x).squeeze(1) - y)
            (scaler.scale(loss) if scaler else loss).backward()
            scaler.step(opt) if scaler else opt.step()
            if scaler:
                scaler.update()
        seen.append(net.weight.detach().numpy().copy())
        model.close()
        assert not hasattr(opt, "_step_supports_amp_scaling")
    return seen


def clipped(world, norm, *, reduces, period):
    workers, history = Workers(world, 0.8), []
    for step in range(STEPS):
        own = workers.gradients(step)
        if reduces:
            own = [np.mean(own, axis=0)] * world
        own = [g * min(1.0, norm / (np.linalg.norm(g) + 1e-6)) for g in own]
        workers.step(step, LR, gradients=own)
        if not reduces and ((step % 7 + 1) % period == 0 or (step + 1) % 7 == 0):
            workers.set_all(workers.mean())
        history.append(list(workers.theta))
    return history


@pytest.mark.parametrize(("strategy", "reduces"), [("ddp", True), ("localsgd:k=3", False)])
def test_clipping_bounds_the_mean_gradient_where_it_is_averaged_and_each_workers_own_where_not(strategy, reduces):
    found = run_ranks(3, with_clipping, strategy)
    assert_same([seen for seen, _, _ in found], clipped(3, 0.4, reduces=reduces, period=3), tolerance=1e-9)


def with_clipping(rank, strategy):
    return amp(rank, strategy, {0: (), 1: (), 2: ()}, clip=0.4, unscale=True)


def accumulated(rank, strategy, micro_batches, last):
    """`micro_batches` a step, and a last step of the epoch with `last` of them, the last of which is a short batch."""
    net = nn.Linear(SIZE, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start())[None])
    opt = optimizer_for(net.parameters(), "0.8", LR)
    model = cpdp.DataParallel(net, opt, strategy, steps_per_epoch=3)
    seen = []
    for step in range(6):
        count = last if step % 3 == 2 else micro_batches
        opt.zero_grad()
        for micro in model.accumulate(range(count)):
            x, y = (torch.from_numpy(part) for part in micro_batch(rank, step, micro, short=step % 3 == 2))
            (log_cosh(model(x).squeeze(1) - y) / count).backward()
        opt.step()
        seen.append(net.weight.detach().numpy().ravel().copy())
    model.close()
    return seen


def micro_batch(worker, step, micro, *, short):
    """Four examples, or in a short batch one on worker 0, two on worker 1 and so on: they do not divide."""
    x, y = data(worker, 100 * step + micro)
    rows = worker + 1 if short and micro == 0 else len(y)
    return x[:rows], y[:rows]


def numpy_accumulated(world, period, micro_batches, last, *, reduces):
    workers, history = Workers(world, 0.8), []
    for step in range(6):
        count = last if step % 3 == 2 else micro_batches
        own = [
            np.mean(
                [gradient(theta, *micro_batch(w, step, micro, short=step % 3 == 2)) for micro in range(count)], axis=0
            )
            for w, theta in enumerate(workers.theta)
        ]
        if reduces:
            own = [np.mean(own, axis=0)] * world
        workers.step(step, LR, gradients=own)
        if not reduces and ((step % 3 + 1) % period == 0 or step % 3 == 2):
            workers.set_all(workers.mean())
        history.append(list(workers.theta))
    return history


@pytest.mark.parametrize(("strategy", "reduces"), [("ddp", True), ("localsgd:k=2", False)])
@pytest.mark.parametrize(("micro", "last"), [(3, 3), (4, 2), (1, 1)])
def test_accumulated_and_short_batches_count_every_worker_alike(strategy, reduces, micro, last):
    # As with torch's DDP: the mean of the workers' means, however many examples each of them had.
    ours = run_ranks(3, accumulated, strategy, micro, last)
    assert_same(ours, numpy_accumulated(3, 2, micro, last, reduces=reduces))


class Partial(nn.Module):
    """A frozen layer, and a branch that only some steps of some workers use."""

    def __init__(self):
        super().__init__()
        self.frozen, self.used, self.branch = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x, branch):
        hidden = self.frozen(x)
        return self.branch(hidden) + self.used(hidden) if branch else self.used(hidden)


def partly_used(rank, strategy):
    torch.manual_seed(rank)
    net = Partial()
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.1)
    events = []
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, opt, strategy, steps_per_epoch=4, recorder=recorder)
    for step in range(8):
        opt.zero_grad()
        model(torch.full((2, 3), 1.0 + rank + step), branch=(step + rank) % 3 == 0).square().sum().backward()
        model.observe_loss(1.0)
        opt.step()
    model.close()
    return [p.detach().clone() for p in net.parameters()]


NEVER_EQUAL = ("cocod", "overlap", "cpdp-overlapped", "hierarchical", "eager", "streaming")
EXACT = [
    spec for spec in SPECS if "powersgd" not in spec and "search" not in spec and spec.split(":")[0] not in NEVER_EQUAL
]


@pytest.mark.parametrize("strategy", EXACT)
def test_frozen_parameters_stay_and_those_that_only_some_workers_use_are_equal_after_a_boundary(strategy):
    if strategy.split(":")[0] in ("ddp", "cpdp", "postlocal"):
        strategy += ("," if ":" in strategy else ":") + "find_unused=true"
    if "k=3" in strategy or "tau0" in strategy:
        strategy = strategy.replace("k=3", "k=4").replace("tau0=4", "tau0=8").replace("tau0=3", "tau0=4")
        strategy = strategy.replace("warmup=2", "warmup=4").replace("interval_steps=3", "interval_steps=9")
    strategy = strategy.replace("last=1", "last=4").replace("measure=2", "measure=9")  # periods that end with step 8
    first, second = run_ranks(2, partly_used, strategy)
    torch.manual_seed(0)
    fresh = Partial()
    for a, b, c in zip(first, second, fresh.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c) == (not c.requires_grad)


def autocast_bf16(rank, strategy):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(SIZE, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    model = cpdp.DataParallel(net, opt, strategy, steps_per_epoch=10)
    losses = []
    for step in range(40):
        x, y = (torch.from_numpy(part).float() for part in data(rank, step % 10))
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        assert out.dtype == torch.bfloat16
        loss = (out.squeeze(1).float() - y).square().mean()
        model.observe_loss(loss)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    model.close()
    return {p.dtype for p in net.parameters()}, np.mean(losses[:10]), np.mean(losses[-10:])


@pytest.mark.parametrize("strategy", ["ddp", "cpdp:k=4", "slowmo:k=4,beta=0.3", "cpdp-overlapped:k=4"])
def test_autocast_trains_under_a_strategy_with_parameters_in_full_precision(strategy):
    for dtypes, before, after in run_ranks(2, autocast_bf16, strategy):
        assert dtypes == {torch.float32}
        assert after < 0.5 * before


def test_torch_refuses_synchronised_batch_norm_on_a_cpu():
    """Its kernels are a GPU's: under gloo on a CPU there is nothing that a strategy could offer."""
    for said in run_ranks(2, synchronised_batch_norm):
        assert said == [
            "SyncBatchNorm layers only work with GPU modules",
            "SyncBatchNorm expected input tensor to be on GPU",
        ]


def synchronised_batch_norm(rank):
    said = []
    for strategy in ("ddp", "localsgd:k=2,epoch_end=false"):
        net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        try:
            cpdp.DataParallel(net, opt, strategy)(torch.ones(4, 2))
        except ValueError as error:
            said.append(str(error).split(" or XPU")[0])
    return said


def test_without_a_scaler_the_optimizer_is_left_as_it_is():
    net = nn.Linear(2, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    model = cpdp.DataParallel(net, opt, "localsgd:k=2,epoch_end=false")
    model.close()
    assert not hasattr(opt, "_step_supports_amp_scaling")
