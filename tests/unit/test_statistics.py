"""BatchNorm's running statistics at a boundary: averaged, rank 0's, or each worker's own."""

import pytest
import torch
from torch import nn

import cpdp
from cpdp import strategies
from cpdp.errors import StrategyError
from cpdp.recorder import StepRecorder
from tests.unit.ranks import run_ranks

WAVES = [
    "localsgd:k=2,epoch_end=false",
    "cpdp:k=2,epoch_end=false",
    "cpdp-fused:k=2,epoch_end=false",
    "slowmo:k=2",
    "bmuf:k=2",
    "diloco:k=2",
    "adacomm:tau0=2",
    "postlocal:k=2",
]
LATE = ["cocod:k=2", "overlap:k=2", "cpdp-overlapped:k=2,epoch_end=false"]


def means(rank, strategy, steps):
    """Running means after each step; each worker sets its own before the second."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    events = []
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, opt, strategy, recorder=recorder)
    with recorder.paused():
        pass
    seen = []
    net[1].momentum = 0.0  # the forward pass leaves the statistics alone
    for step in range(steps):
        opt.zero_grad()
        if step == 1:
            net[1].running_mean.fill_(0.1 + 0.2 * rank)
        model.observe_loss(1.0)
        model(torch.randn(4, 2)).sum().backward()
        opt.step()
        seen.append(net[1].running_mean.tolist())
    model.close()
    sent = sum(op.bytes for event in events for op in event.ops if op.purpose == "buffers")
    return seen[-1], sent


def exactly(values):
    return torch.tensor(values, dtype=torch.float32).tolist()


@pytest.mark.parametrize(
    ("policy", "expected"), [("average", [0.3, 0.3, 0.3]), ("broadcast", [0.1, 0.1, 0.1]), ("local", [0.1, 0.3, 0.5])]
)
@pytest.mark.parametrize(("strategy", "steps"), [*((one, 2) for one in WAVES), *((one, 4) for one in LATE)])
def test_statistics_follow_the_policy(strategy, steps, policy, expected):
    found = run_ranks(3, means, f"{strategy},statistics={policy}", steps)
    for (seen, sent), value in zip(found, exactly(expected), strict=True):
        if policy == "average":
            assert seen == pytest.approx([value] * 2, rel=1e-6)
        else:  # not a bit of another value
            assert seen == [value] * 2
        assert (sent > 0) == (policy != "local")


@pytest.mark.parametrize(("policy", "expected"), [("broadcast", [0.1] * 3), ("local", [0.1, 0.3, 0.5])])
@pytest.mark.parametrize("strategy", ["ddp", "postlocal:warmup=9"])
def test_ddp_broadcasts_before_the_next_forward_pass_or_leaves_them_local(strategy, policy, expected):
    joined = f"{strategy}{',' if ':' in strategy else ':'}statistics={policy}"
    for (seen, sent), value in zip(run_ranks(3, means, joined, 3), exactly(expected), strict=True):
        assert seen == [value] * 2
        assert (sent > 0) == (policy == "broadcast")


def test_what_is_not_a_policy_is_refused():
    with pytest.raises(StrategyError, match="statistics: 'average' is not allowed; one of broadcast, local"):
        strategies.parse("ddp:statistics=average")
    with pytest.raises(StrategyError, match="one of average, broadcast, local"):
        strategies.parse("localsgd:statistics=synchronised")


def learned(rank, strategy):
    """The running mean of a feature that is 3 on rank 0 and 5 on rank 1, after 60 steps."""
    net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    model = cpdp.DataParallel(net, opt, strategy)
    for _ in range(60):
        opt.zero_grad()
        model.observe_loss(1.0)
        model(torch.full((4, 1), 3.0 + 2 * rank)).sum().backward()
        opt.step()
    with model.collectives.averaged(list(net.buffers())[:2]):
        mean = net[0].running_mean.item()
    model.close()
    return mean


@pytest.mark.parametrize("strategy", [*WAVES, *LATE, "cpdp-overlapped:k=4,delay=2,epoch_end=false", "eager:k=4"])
def test_statistics_follow_the_data_under_every_strategy(strategy):
    for mean in run_ranks(2, learned, strategy):
        assert mean == pytest.approx(4.0, abs=0.35)  # the mean over the workers
