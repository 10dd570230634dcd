"""Schedules that an experiment can name: their boundaries, by the rules' own arithmetic, and that workers agree."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import cpdp
from cpdp.schedule import lupa_period, lupa_slope
from tests.unit.ranks import run_ranks


def boundaries(rank, strategy, steps=40, rates=None):
    """Steps at which a strategy synchronised, and the period in force at each step, on one rank."""
    torch.manual_seed(rank)
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = cpdp.DataParallel(net, optimizer, strategy)
    found, periods = [], []
    generator = torch.Generator().manual_seed(100 + rank)
    for n in range(1, steps + 1):
        if rates:
            optimizer.param_groups[0]["lr"] = rates(n)
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=generator)).square().mean().backward()
        periods.append(model.strategy.current_period)
        optimizer.step()
        if model.at_boundary:
            found.append(n)
    saved = model.training_state()
    model.close()
    return found, periods, [p.detach().clone() for p in net.parameters()], saved["strategy"].get("progress")


def falling(n):
    return 0.1 if n <= 20 else 0.05


def alone(strategy, **more):
    return boundaries(0, strategy, **more)[0]


def test_a_fixed_rule_is_pasgd():
    assert alone("scheduled:k=6") == alone("pasgd:tau=6") == [6, 12, 18, 24, 30, 36]


def test_linear_goes_from_first_to_last():
    # After step n the next period is round(1 + 9 n / 20): 1 -> 1, 2 -> 2, 4 -> 3, 7 -> 4, 11 -> 6, 17 -> 9, 26 -> 10.
    assert alone("scheduled:rule=linear,k=1,last=10,over=20") == [1, 2, 4, 7, 11, 17, 26, 36]


def test_step_changes_the_period_once():
    assert alone("scheduled:rule=step,k=4,last=10,over=12") == [4, 8, 12, 22, 32]


def test_qsr_quadruples_the_period_when_the_learning_rate_halves():
    # (0.2 / 0.1)^2 = 4; from step 21 on (0.2 / 0.05)^2 = 16.
    assert alone("scheduled:rule=qsr,k=2,alpha=0.2", rates=falling) == [2, 6, 10, 14, 18, 22, 38]
    assert alone("scheduled:rule=qsr,k=5,alpha=0.2", steps=20) == [5, 10, 15, 20]  # never below the base


def test_lupa_grows_with_the_round():
    slope = lupa_slope(40, 8, 2)
    expected, n, number = [], 2, 0
    while n <= 40:
        expected.append(n)
        number += 1
        n += lupa_period(number, 2, slope)
    assert alone("scheduled:rule=lupa,k=2,over=40,rounds=8") == expected


@pytest.mark.parametrize("rule", ["linear", "adpsgd"])
def test_workers_agree_on_every_boundary_and_end_equal(rule):
    results = run_ranks(3, boundaries, f"scheduled:rule={rule},k=3,last=7,over=30,measure=3")
    assert results[0][0] == results[1][0] == results[2][0]
    assert results[0][3] == results[1][3] == results[2][3]


def test_adpsgd_lengthens_where_workers_differ_less_than_at_first():
    found = run_ranks(2, boundaries, "scheduled:rule=adpsgd,k=3,measure=2", 60)
    steps, periods, _, progress = found[0]
    assert steps[:3] == [3, 6, 9]
    assert len(progress["ratios"]) == 2
    changes = {b - a for a, b in pairwise(periods)}
    assert changes <= {-1, 0, 1}
    assert max(periods) > 3  # the loss falls, gradients shrink, and the workers drift apart less
