"""SlowMo beside fairscale's, Local SGD, DiLoCo and Streaming DiLoCo beside torchft's: equal parameters in every step.

Both packages are needed by these tests alone (`pip install -e '.[parity]'`); without them the tests say so and skip.
"""

import importlib.util
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import cpdp
from tests.unit.problem import SIZE, data, log_cosh, optimizer_for, start, train
from tests.unit.ranks import run_ranks
from tests.unit.test_streaming import RATES, Layers, first_layers, layers_of, stream

CONSTANT = [0.1] * 24


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package} to compare with: pip install -e '.[parity]'")


def linear(dtype=torch.float64):
    net = nn.Linear(SIZE, 1, bias=False).to(dtype)
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start())[None])
    return net


def steps(rank, net, opt, after=lambda: None, model=None):
    seen = []
    for step in range(len(CONSTANT)):
        x, y = (torch.from_numpy(part).to(net.weight.dtype) for part in data(rank, step))
        opt.zero_grad()
        log_cosh((model or net)(x).squeeze(1) - y).backward()
        opt.step()
        after()
        seen.append(net.weight.detach().numpy().ravel().copy())
    return seen


def slowmo_both(rank, alpha, beta, period):
    strategy = f"slowmo:k={period},alpha={alpha},beta={beta},buffers=keep"
    net = linear(torch.float32)  # fairscale takes nothing else
    opt = optimizer_for(net.parameters(), "0.8", 0.1)
    ours = steps(rank, net, opt, model=cpdp.DataParallel(net, opt, strategy))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # written for an older torch
        from fairscale.experimental.nn.data_parallel import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel

        net = linear(torch.float32)
        opt = optimizer_for(net.parameters(), "0.8", 0.1)
        model = SlowMoDistributedDataParallel(
            net,
            nprocs_per_node=1,
            slowmo_lr=alpha,
            slowmo_momentum=beta,
            slowmo_frequency=period,
            slowmo_base_algorithm=SlowMoBaseAlgorithm.LOCALSGD,
            localsgd_frequency=period,
            slowmo_memory_efficient=False,
            global_group=dist.group.WORLD,
        )
        if not torch.cuda.is_available():
            torch.cuda.synchronize = lambda: None  # it waits for a GPU that gloo does not need
        model._init_global_momentum_buffers(opt)  # else it takes the parameters after the first step for the start
        return ours, steps(rank, net, opt, lambda: model.perform_slowmo(opt), model)


@needs("fairscale")
@pytest.mark.parametrize(("alpha", "beta", "period"), [(1.0, 0.5, 4), (0.7, 0.3, 3), (1.0, 0.0, 5)])
def test_slowmo_is_fairscales(alpha, beta, period):
    for ours, theirs in run_ranks(2, slowmo_both, alpha, beta, period):
        assert np.allclose(ours, theirs, rtol=0, atol=2e-6)  # single precision, ours in another unit of the momentum


class Mean:
    """The work that torchft waits for: a mean over the ranks."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.work = dist.all_reduce(tensor, async_op=True)

    def wait(self):
        self.work.wait()
        self.tensor /= dist.get_world_size()
        return True


class Manager:
    """What of torchft's manager its algorithms call, without its fault tolerance: all ranks are always there."""

    _use_async_quorum = False

    def __init__(self):
        self.commits = 0

    def start_quorum(self):
        pass

    def allreduce(self, tensor, should_quantize=False):
        assert not should_quantize
        return Mean(tensor)

    def should_commit(self):
        self.commits += 1
        return True

    def current_step(self):
        return self.commits

    def disallow_state_dict_read(self):
        pass

    def allow_state_dict_read(self):
        pass

    def register_state_dict_fn(self, key, load, save):
        pass


def torchft():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchft import local_sgd
    return local_sgd


def local_sgd_both(rank, period):
    ours = train(rank, f"localsgd:k={period},epoch_end=false", CONSTANT, optimizer="0.8")
    net = linear()
    opt = optimizer_for(net.parameters(), "0.8", 0.1)
    with torchft().LocalSGD(Manager(), net, opt, sync_every=period):
        return ours, steps(rank, net, opt)


@needs("torchft")
@pytest.mark.parametrize("period", [1, 5])
def test_local_sgd_is_torchfts(period):
    for ours, theirs in run_ranks(3, local_sgd_both, period):
        assert np.allclose(ours, theirs, rtol=0, atol=1e-14)


def diloco_both(rank, inner):
    ours = train(rank, "diloco:k=6,outer_lr=0.5,outer_momentum=0.8", CONSTANT, optimizer=inner)
    net = linear()
    opt = optimizer_for(net.parameters(), inner, 0.1)
    outer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.8, nesterov=True)
    with torchft().DiLoCo(Manager(), [net], opt, outer, sync_every=6):
        return ours, steps(rank, net, opt)


@needs("torchft")
@pytest.mark.parametrize("inner", ["0.8", "adamw"])
def test_diloco_is_torchfts(inner):
    for ours, theirs in run_ranks(2, diloco_both, inner):
        assert np.allclose(ours, theirs, rtol=0, atol=1e-13)


def streaming_both(rank, alpha):
    ours = stream(rank, f"streaming:k=6,p=3,delay=0,alpha={alpha}")
    net = Layers().double()
    with torch.no_grad():
        for part, values in zip(net.parts, first_layers(), strict=True):
            part.weight.copy_(torch.from_numpy(values)[None])
    opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.8)
    outer = [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True) for part in net.parts]
    theirs = []
    with torchft().DiLoCo(Manager(), list(net.parts), opt, outer, sync_every=6, fragment_update_alpha=alpha):
        for step in range(len(RATES)):
            x, y = (torch.from_numpy(part) for part in data(rank, step))
            opt.zero_grad()
            log_cosh(net(x) - y).backward()
            opt.step()
            theirs.append(layers_of(net))
    return ours, theirs


@needs("torchft")
def test_streaming_diloco_is_torchfts_where_nothing_is_late():
    # torchft sends `delay` steps before a fragment's turn and merges in it; ours sends in it and merges later.
    for ours, theirs in run_ranks(2, streaming_both, 0.0):
        assert np.allclose(ours, theirs, rtol=0, atol=1e-12)
