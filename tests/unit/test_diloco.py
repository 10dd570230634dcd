"""DiLoCo against its rule, torch's own outer optimizer, and Local SGD."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.unit.problem import SIZE, Workers, assert_same, data, log_cosh, optimizer_for, start, train
from tests.unit.ranks import run_ranks

RATES = [0.1] * 24


def with_momentum(rank, strategy):
    return train(rank, strategy, RATES, optimizer="0.8")


@pytest.mark.parametrize("nesterov", [True, False])
def test_diloco_follows_the_published_rule(nesterov):
    workers, history, theta, m = Workers(3, 0.8), [], start(), np.zeros(SIZE)
    for step, lr in enumerate(RATES):
        workers.step(step, lr)
        if (step + 1) % 5 == 0:
            delta = np.mean([theta - own for own in workers.theta], axis=0)
            m = 0.9 * m + delta
            theta = theta - 0.7 * ((0.9 * m + delta) if nesterov else m)
            workers.set_all(theta)
        history.append(list(workers.theta))
    assert_same(run_ranks(3, with_momentum, f"diloco:k=5,nesterov={nesterov}"), history)


def outer_step_by_torch(rank):
    """AdamW inside and torch's SGD outside, exchanged with blocking all-reduces."""
    ours = train(rank, "diloco:k=6,outer_lr=0.5,outer_momentum=0.8", RATES, optimizer="adamw")
    net = nn.Linear(SIZE, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start())[None])
    inner = optimizer_for(net.parameters(), "adamw", 0.1)
    kept = nn.Parameter(net.weight.detach().clone())
    outer = torch.optim.SGD([kept], lr=0.5, momentum=0.8, nesterov=True)
    seen = []
    for step in range(len(RATES)):
        x, y = (torch.from_numpy(part) for part in data(rank, step))
        inner.zero_grad()
        log_cosh(net(x).squeeze(1) - y).backward()
        inner.step()
        if (step + 1) % 6 == 0:
            kept.grad = (kept - net.weight).detach()
            dist.all_reduce(kept.grad)
            kept.grad /= dist.get_world_size()
            outer.step()
            with torch.no_grad():
                net.weight.copy_(kept)
        seen.append(net.weight.detach().numpy().ravel().copy())
    return ours, seen


def test_diloco_with_adamw_inside_is_torchs_nesterov_sgd_on_the_mean_update():
    for ours, torchs in run_ranks(2, outer_step_by_torch):
        assert np.allclose(ours, torchs, rtol=0, atol=1e-13)


def with_and_without(rank, nesterov):
    plain = train(rank, f"diloco:k=4,outer_lr=1,outer_momentum=0,nesterov={nesterov}", RATES, optimizer="adamw")
    return plain, train(rank, "localsgd:k=4,epoch_end=false", RATES, optimizer="adamw")


@pytest.mark.parametrize("nesterov", [True, False])
def test_an_outer_step_of_one_without_momentum_is_local_sgd_bit_for_bit(nesterov):
    for a, b in run_ranks(3, with_and_without, nesterov):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def diloco_and_slowmo(rank):
    outer = train(rank, "diloco:k=4,outer_momentum=0.6,outer_lr=0.7,nesterov=false", RATES)
    return outer, train(rank, "slowmo:k=4,beta=0.6,alpha=0.7", RATES)


def test_diloco_without_nesterov_is_slowmo_at_a_constant_learning_rate():
    for outer, slow in run_ranks(2, diloco_and_slowmo):
        assert np.allclose(outer, slow, rtol=0, atol=1e-13)
