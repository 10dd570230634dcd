"""Hierarchical averaging: its limits are DDP and Local SGD, and one copy per site crosses between sites."""

import os
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch import nn

import cpdp
from cpdp.collectives import Collectives
from cpdp.errors import StrategyError
from cpdp.events import Operation
from cpdp.recorder import StepRecorder
from cpdp.wire import least_crossing
from tests.unit.problem import SIZE, Workers, assert_same, take_step, train
from tests.unit.ranks import run_ranks

RATES = [0.1] * 17


def both(rank, sites, first, second, optimizer):
    os.environ["NETLAB_SITE"] = sites[rank]
    return train(rank, first, RATES, optimizer=optimizer), train(rank, second, RATES, optimizer=optimizer)


def test_one_site_is_ddp_bit_for_bit():
    for a, b in run_ranks(3, both, "aaa", "hierarchical:k=4", "ddp", "0.8"):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_one_worker_per_site_is_local_sgd_bit_for_bit():
    for a, b in run_ranks(3, both, "abc", "hierarchical:k=4", "localsgd:k=4,epoch_end=false", "0.8"):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("sites", ["abb", "aba"])
def test_averaging_across_sites_after_every_plain_step_is_ddp(sites):
    for a, b in run_ranks(3, both, sites, "hierarchical:k=1", "ddp", "0.0"):
        assert np.allclose(a, b, rtol=0, atol=1e-14)


def one(rank, sites, strategy):
    os.environ["NETLAB_SITE"] = sites[rank]
    return train(rank, strategy, RATES, optimizer="0.8")


@pytest.mark.parametrize("sites", ["abb", "aba", "baa"])
def test_hierarchical_averaging_follows_its_rule_with_sites_of_different_size(sites):
    workers, history = Workers(3, 0.8), []
    for step, lr in enumerate(RATES):
        own = workers.gradients(step)
        members = {site: [i for i, name in enumerate(sites) if name == site] for site in sites}
        within = [np.mean([own[i] for i in members[site]], axis=0) for site in sites]
        workers.step(step, lr, gradients=within)
        if (step + 1) % 4 == 0:
            workers.set_all(sum(len(m) * workers.theta[m[0]] for m in members.values()) / 3)
        history.append(list(workers.theta))
    assert_same(run_ranks(3, one, sites, "hierarchical:k=4"), history)


def wire(rank, sites):
    os.environ["NETLAB_SITE"] = sites[rank]
    events = []
    net = nn.Sequential(nn.Linear(SIZE, 1, bias=False)).double()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, opt, "hierarchical:k=2", recorder=recorder)
    with recorder.paused():
        pass
    for step in range(4):
        take_step(net, opt, model, rank, step)
    model.close()
    ops = [[op for op in event.ops if not op.purpose.endswith("buckets")] for event in events]
    crossing = [least_crossing(event.ops) for event in events]
    return [sorted((op.kind, op.purpose, op.bytes) for op in step) for step in ops], crossing


def test_gradients_stay_in_the_site_and_one_copy_per_site_crosses():
    size = 8 * SIZE
    gradients, passed_on = ("all_reduce", "site.gradients", size), ("broadcast", "site.parameters", size)
    between = ("all_reduce", "parameters", size)
    alone, first, second = run_ranks(3, wire, "abb")
    assert alone == ([[], [between], [], [between]], [0, size, 0, size])
    assert first == ([[gradients], [between, gradients, passed_on]] * 2, [0, size, 0, size])
    assert second == ([[gradients], [gradients, passed_on]] * 2, [0, 0, 0, 0])


def test_bytes_within_a_site_are_not_expected_on_the_wan():
    ops = [Operation("all_reduce", purpose, 100, 0, 1) for purpose in ("site.gradients", "parameters")]
    assert least_crossing(ops) == 100


def nowhere(rank):
    os.environ["NETLAB_SITE"] = ["a", ""][rank]
    try:
        train(rank, "hierarchical:k=2", RATES)
    except StrategyError as error:
        return str(error)
    return None


def test_every_worker_must_know_its_site():
    for said in run_ranks(2, nowhere):
        assert said.startswith("hierarchical: rank 1 does not know its site: NETLAB_SITE is not set")


def limits(rank):
    whole = Collectives()
    part = whole.part([0, 1], "site.")
    found = whole._timeout(), part and part._timeout()
    whole.close()
    return found


def test_a_part_of_the_group_keeps_the_groups_time_limit():
    thirty = timedelta(seconds=30)  # what `ranks` opens its groups with; torch's default would be 30 minutes
    assert run_ranks(3, limits) == [(thirty, thirty), (thirty, thirty), (thirty, None)]
