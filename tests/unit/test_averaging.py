"""Averaging at 48 sizes and types, and the degenerate cases in which strategies are each other."""

import os

import numpy as np
import pytest
import torch
from torch import nn

import cpdp
from cpdp.collectives import CHUNK_BYTES
from tests.unit.problem import train
from tests.unit.ranks import run_ranks

RATES = [0.1] * 17

# Nothing, one number, odd ones, a chunk and its neighbours, and one with a rest, of each type.
SIZES = [0, 1, 2, 3, 5, 31, 257, 4099, "chunk-1", "chunk", "chunk+1", "2chunk+7"]
TYPES = ["float16", "bfloat16", "float32", "float64"]


def elements(size, dtype):
    if not isinstance(size, str):
        return size
    chunk = CHUNK_BYTES // 8 // torch.empty(0, dtype=dtype).element_size()  # the tests' chunk: an eighth
    return {"chunk-1": chunk - 1, "chunk": chunk, "chunk+1": chunk + 1, "2chunk+7": 2 * chunk + 7}[size]


class Bare(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.values = nn.Parameter(values)


def average(rank, size, kind):
    """Whole numbers whose sum every type holds: the mean of rank + i and its like is exact."""
    dtype = getattr(torch, kind)
    count = elements(size, dtype)
    net = Bare(((torch.arange(count) % 13) + 3 * rank).to(dtype))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    model = cpdp.DataParallel(net, opt, "localsgd:k=1")
    model.collectives.chunk_bytes = CHUNK_BYTES // 8
    with torch.no_grad():
        net.values.copy_(((torch.arange(count) % 13) + 3 * rank).to(dtype))
    opt.step()
    model.close()
    expected = ((torch.arange(count) % 13) + 3).to(dtype)  # the mean over ranks 0, 1, 2 of 3 rank
    return torch.equal(net.values.detach(), expected), net.values.dtype == dtype


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_an_average_is_exact_at_every_size_and_type(size, kind):
    assert run_ranks(3, average, size, kind) == [(True, True)] * 3


def test_there_are_48_of_them():
    assert len(SIZES) * len(TYPES) == 48


# With K = 1, plain SGD and no momentum of its own, every strategy that waits is synchronous SGD.

EVERY_STEP = [
    "localsgd:k=1",
    "cpdp:k=1,beta=0",
    "cpdp-fused:k=1,beta=0",
    "postlocal:k=1",
    "slowmo:k=1,alpha=1,beta=0",
    "bmuf:k=1,bm=0",
    "adacomm:tau0=1",
    "diloco:k=1,outer_lr=1,outer_momentum=0",
    "streaming:k=1,p=1,delay=0,alpha=0,outer_lr=1,outer_momentum=0",
    "hierarchical:k=1",
    "ddp:hook=powersgd,start=1000",
]


def both(rank, first, second, sites, optimizer="0.0", alike=False):
    os.environ["NETLAB_SITE"] = sites[rank]
    options = {"optimizer": optimizer, "alike": alike}
    return train(rank, first, RATES, **options), train(rank, second, RATES, **options)


@pytest.mark.parametrize("strategy", EVERY_STEP)
def test_a_period_of_one_without_momentum_is_synchronous_sgd(strategy):
    for ours, ddp in run_ranks(3, both, strategy, "ddp", "abb"):
        assert np.allclose(ours, ddp, rtol=0, atol=1e-13)


PERIODIC = [
    "slowmo:k=4,alpha=1,beta=0,buffers=keep",
    "bmuf:k=4,bm=0",
    "cpdp-fused:k=4,beta=0,epoch_end=false",
    "postlocal:k=4",
    "adacomm:tau0=4,interval=1000000,buffers=keep",
    "diloco:k=4,outer_lr=1,outer_momentum=0",
    "streaming:k=4,p=1,delay=0,alpha=0,outer_lr=1,outer_momentum=0",
    "hierarchical:k=4",  # one worker a site
]


@pytest.mark.parametrize("strategy", PERIODIC)
def test_without_their_own_momentum_periodic_strategies_are_local_sgd(strategy):
    for ours, local in run_ranks(3, both, strategy, "localsgd:k=4,epoch_end=false", "abc", "0.8"):
        assert np.allclose(ours, local, rtol=0, atol=1e-13)


ALONE = [*PERIODIC, "localsgd:k=4,epoch_end=false", "cpdp:k=4,beta=0,epoch_end=false", "cocod:k=4", "ddp:hook=fp16",
         "cpdp-overlapped:k=4,beta=0,delay=2,epoch_end=false"]  # fmt: skip


@pytest.mark.parametrize("strategy", ALONE)
def test_one_worker_without_a_strategys_momentum_trains_alone(strategy):
    ours, alone = both(0, strategy, "ddp", "a", "0.8")
    assert np.allclose(ours, alone, rtol=0, atol=1e-13)


@pytest.mark.parametrize("strategy", [one for one in ALONE if "fp16" not in one])
def test_equal_data_on_all_workers_is_one_worker(strategy):
    (alone, _), *_ = [both(0, "ddp", "ddp", "a", "0.8", alike=True)]
    for ours, _ in run_ranks(3, both, strategy, "ddp", "abb", "0.8", True):
        assert np.allclose(ours, alone, rtol=0, atol=1e-13)


def test_a_hierarchy_of_one_level_is_its_flat_strategy():
    for one_site, ddp in run_ranks(3, both, "hierarchical:k=4", "ddp", "aaa", "0.8"):
        assert all(np.array_equal(a, b) for a, b in zip(one_site, ddp, strict=True))
    for own_sites, local in run_ranks(3, both, "hierarchical:k=4", "localsgd:k=4,epoch_end=false", "abc", "0.8"):
        assert all(np.array_equal(a, b) for a, b in zip(own_sites, local, strict=True))
