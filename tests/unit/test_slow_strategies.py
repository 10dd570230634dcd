"""SlowMo, BMUF and post-local SGD against their published rules, their special cases and torch's own classes."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

import cpdp
from cpdp.errors import StrategyError, UsageError
from cpdp.recorder import StepRecorder
from tests.unit.problem import BATCH, SIZE, Workers, assert_same, data, log_cosh, start, take_step, train
from tests.unit.ranks import run_ranks

CONSTANT = [0.1] * 24
DECAYED = [0.1] * 9 + [0.05] * 7 + [0.005] * 8  # the rate falls inside rounds and between them


def slowmo(world, rates, period, alpha, beta, momentum, buffers):
    """The rule as the paper prints it, u in units of a gradient."""
    workers, history = Workers(world, momentum), []
    x0, u = start(), np.zeros(SIZE)
    for step, lr in enumerate(rates):
        workers.step(step, lr)
        if (step + 1) % period == 0:
            u = beta * u + (x0 - workers.mean()) / lr
            x0 = x0 - alpha * lr * u
            workers.set_all(x0)
            if buffers == "reset":
                workers.buffer = [np.zeros(SIZE) for _ in workers.buffer]
            elif buffers == "average":
                workers.buffer = [np.mean(workers.buffer, axis=0)] * world
        history.append(list(workers.theta))
    return history


@pytest.mark.parametrize("buffers", ["reset", "keep", "average"])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.6), (0.7, 0.4)])
def test_slowmo_follows_the_published_rule_while_the_learning_rate_falls(alpha, beta, buffers):
    strategy = f"slowmo:k=4,alpha={alpha},beta={beta},buffers={buffers}"
    ours = run_ranks(3, train_momentum, strategy, DECAYED)
    assert_same(ours, slowmo(3, DECAYED, 4, alpha, beta, 0.8, buffers))


def train_momentum(rank, strategy, rates):
    return train(rank, strategy, rates, optimizer="0.8")


def train_plain(rank, strategy, rates):
    return train(rank, strategy, rates)


def train_two(rank, first, second, options):
    return train(rank, first, CONSTANT, **options), train(rank, second, CONSTANT, **options)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("slowmo:k=4,alpha=1,beta=0,buffers=keep", "localsgd:k=4,epoch_end=false"),
        ("bmuf:k=4,bm=0", "localsgd:k=4,epoch_end=false"),
        ("bmuf:k=4,bm=0.5", "slowmo:k=4,beta=0.5,buffers=keep"),  # a constant learning rate
        ("postlocal:k=4", "localsgd:k=4,epoch_end=false"),
        ("postlocal:k=4,warmup=24", "ddp"),
    ],
)
def test_special_cases_are_the_same_strategy_bit_for_bit(first, second):
    for a, b in run_ranks(3, train_two, first, second, {"optimizer": "0.8"}):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("strategy", ["slowmo:k=1,beta=0,buffers=keep", "bmuf:k=1,bm=0", "postlocal:k=1"])
def test_averaging_after_every_plain_step_is_ddp(strategy):
    for a, b in run_ranks(2, train_two, strategy, "ddp", {}):
        assert np.allclose(a, b, rtol=0, atol=1e-14)


def test_large_batch_momentum_is_slowmo_with_a_period_of_one():
    # SlowMo with tau = 1, alpha = 1 on plain SGD is SGD with momentum beta on the mean gradient.
    for a, b in run_ranks(2, slow_and_fast_momentum):
        assert np.allclose(a, b, rtol=0, atol=1e-13)


def slow_and_fast_momentum(rank):
    return train(rank, "slowmo:k=1,beta=0.8", CONSTANT), train(rank, "ddp", CONSTANT, optimizer="0.8")


@pytest.mark.parametrize("strategy", ["slowmo:k=4,beta=0,buffers=keep", "bmuf:k=4,bm=0", "postlocal:k=4,warmup=3"])
def test_equal_data_on_all_workers_is_one_worker(strategy):
    (alone,) = run_ranks(1, train_two, strategy, "ddp", {"optimizer": "0.8", "alike": True})
    for by_rank in run_ranks(2, train_two, strategy, "ddp", {"optimizer": "0.8", "alike": True}):
        for history in by_rank:  # DDP as well: the mean of equal gradients
            assert np.allclose(history, alone[0], rtol=0, atol=1e-13)


def test_one_worker_without_momentum_is_lookahead():
    ours = train(0, "slowmo:k=5,alpha=0.5,beta=0,buffers=keep", CONSTANT)
    workers, slow, history = Workers(1), start(), []
    for step, lr in enumerate(CONSTANT):
        workers.step(step, lr)
        if (step + 1) % 5 == 0:
            slow = slow + 0.5 * (workers.theta[0] - slow)
            workers.set_all(slow)
        history.append(list(workers.theta))
    assert_same([ours], history)


def bmuf(world, rates, period, momentum, block_lr, *, nesterov):
    workers, history = Workers(world, 0.8), []
    x, s = start(), np.zeros(SIZE)
    for step, lr in enumerate(rates):
        workers.step(step, lr)
        if (step + 1) % period == 0:
            s = momentum * s + block_lr * np.mean([x - theta for theta in workers.theta], axis=0)
            x = x - s
            if nesterov:
                x = x - momentum * s
            workers.set_all(x)
        history.append(list(workers.theta))
    return history


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("momentum", "block_lr"), [(0.5, 1.0), (0.4, 0.6)])
def test_bmuf_follows_the_published_rule(momentum, block_lr, nesterov):
    strategy = f"bmuf:k=4,bm={momentum},blr={block_lr},nesterov={nesterov}"
    ours = run_ranks(2, train_momentum, strategy, DECAYED)
    assert_same(ours, bmuf(2, DECAYED, 4, momentum, block_lr, nesterov=nesterov))


def test_slowmo_and_bmuf_part_when_the_learning_rate_falls():
    slow = slowmo(2, DECAYED, 4, 1.0, 0.5, 0.8, "keep")
    block = bmuf(2, DECAYED, 4, 0.5, 1.0, nesterov=False)
    assert np.allclose(slow[8], block[8], rtol=0, atol=1e-12)  # until the rate has changed at a boundary
    assert np.abs(slow[-1][0] - block[-1][0]).max() > 1e-3


def post_local_torch(rank, period, warmup):
    """torch's own: its communication hook for the warm-up, its averager and optimizer for what follows."""
    net = nn.Linear(SIZE, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start())[None])
    model = DistributedDataParallel(net)
    state = hook.PostLocalSGDState(
        process_group=None,
        subgroup=dist.new_subgroups(1)[0],
        start_localSGD_iter=warmup,
        post_local_gradient_allreduce=False,
    )
    model.register_comm_hook(state, hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=period, warmup_steps=warmup + period - 1)
    opt = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8), averager)
    seen = []
    for step in range(24):
        x, y = (torch.from_numpy(part) for part in data(rank, step))
        opt.zero_grad()
        log_cosh(model(x).squeeze(1) - y).backward()
        opt.step()
        seen.append(net.weight.detach().numpy().ravel().copy())
    return seen


def post_local_both(rank, period, warmup):
    ours = train(rank, f"postlocal:k={period},warmup={warmup}", CONSTANT, optimizer="0.8")
    return ours, post_local_torch(rank, period, warmup)


@pytest.mark.parametrize(("period", "warmup"), [(4, 5), (3, 0), (5, 1)])
def test_post_local_sgd_is_torchs_hook_averager_and_optimizer(period, warmup):
    for ours, torchs in run_ranks(2, post_local_both, period, warmup):
        assert np.allclose(ours, torchs, rtol=0, atol=1e-14)


def averager_both(rank, period):
    ours = train(rank, f"localsgd:k={period},epoch_end=false", CONSTANT, optimizer="0.8")
    net = nn.Linear(SIZE, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start())[None])
    averager = PeriodicModelAverager(period=period, warmup_steps=period - 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8)
    seen = []
    for step in range(24):
        x, y = (torch.from_numpy(part) for part in data(rank, step))
        opt.zero_grad()
        log_cosh(net(x).squeeze(1) - y).backward()
        opt.step()
        averager.average_parameters(net.parameters())
        seen.append(net.weight.detach().numpy().ravel().copy())
    return ours, seen


@pytest.mark.parametrize("period", [3, 7])  # torch warns about a period of 1
def test_local_sgd_is_torchs_periodic_model_averager(period):
    for ours, torchs in run_ranks(3, averager_both, period):
        assert np.allclose(ours, torchs, rtol=0, atol=1e-14)


def wire(rank, strategy, optimizer):
    events = []
    net = nn.Linear(SIZE, 1, bias=False).double()
    opt = (
        torch.optim.Adam(net.parameters(), lr=0.01)
        if optimizer == "adam"
        else torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    )
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, opt, strategy, recorder=recorder)
    with recorder.paused():
        pass  # what the start itself sent belongs to no step
    for step in range(4):
        take_step(net, opt, model, rank, step)
    state = [sorted((k, v.tolist()) for k, v in opt.state[p].items()) for p in net.parameters() if p in opt.state]
    model.close()
    sent = [sorted((op.purpose, op.bytes) for op in event.ops if op.purpose != "buckets") for event in events]
    return sent, state


@pytest.mark.parametrize(("optimizer", "kinds"), [("sgd", 1), ("adam", 2)])
def test_averaged_buffers_cross_the_wire_once_and_are_equal_everywhere(optimizer, kinds):
    strategy = "slowmo:k=2,buffers=average"
    by_rank = run_ranks(2, wire, strategy, optimizer)
    for ops, state in by_rank:
        boundary = [("optimizer", 8 * SIZE * kinds), ("parameters", 8 * SIZE)]
        assert ops == [[], boundary, [], boundary]
        assert state == by_rank[0][1]


def test_reset_forgets_all_state_of_any_optimizer():
    for ops, state in run_ranks(2, wire, "slowmo:k=2,buffers=reset", "adam"):
        assert [sum(size for _, size in step) for step in ops] == [0, 8 * SIZE, 0, 8 * SIZE]
        assert state == []


def test_gradients_travel_in_the_warm_up_and_parameters_after_it():
    for ops, _ in run_ranks(2, wire, "postlocal:k=2,warmup=2", "sgd"):
        assert ops == [[("gradients", 8 * SIZE)]] * 2 + [[], [("parameters", 8 * SIZE)]]


def test_a_learning_rate_that_falls_to_zero_is_refused_where_the_rule_divides_by_it():
    with pytest.raises(UsageError, match=r"slowmo: the learning rate was \[0.1\] .* is \[0.0\] now"):
        train(0, "slowmo:k=2,beta=0.5", [0.1, 0.1, 0.1, 0.0])
    train(0, "slowmo:k=2,beta=0", [0.1, 0.1, 0.1, 0.0])


def test_parameter_groups_must_keep_the_proportion_of_their_learning_rates():
    def run(factor):
        net = nn.Linear(SIZE, 2)
        opt = torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.02}], lr=0.1)
        model = cpdp.DataParallel(net, opt, "slowmo:k=1,beta=0.5")
        for step in range(2):
            opt.zero_grad()
            model(torch.randn(BATCH, SIZE)).square().mean().backward()
            opt.param_groups[0]["lr"] = 0.1 / (1 + step)
            opt.param_groups[1]["lr"] = 0.02 / (1 + factor * step)
            opt.step()

    run(1)
    with pytest.raises(UsageError, match="different factors"):
        run(2)


def test_a_warm_up_in_epochs_needs_their_length():
    net = nn.Linear(2, 1)
    with pytest.raises(StrategyError, match="warmup_epochs needs the length"):
        cpdp.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), "postlocal:k=2,warmup_epochs=1")
