"""DDP with torch's communication hooks, against an independent numpy implementation and for what they send."""

import numpy as np
import pytest
import torch
from torch import nn

import cpdp
from cpdp import strategies
from cpdp.errors import StrategyError
from cpdp.recorder import StepRecorder
from tests.unit.problem import SIZE, Workers, data, log_cosh, start
from tests.unit.ranks import run_ranks

STEPS, LR = 12, 0.1


def single(rank, strategy):
    """Single-precision weights after every step, and the bytes of gradients that a step sent."""
    net = nn.Linear(SIZE, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start())[None])
    opt = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.8)
    events = []
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, opt, strategy, recorder=recorder)
    with recorder.paused():
        pass
    seen = []
    for step in range(STEPS):
        x, y = (torch.from_numpy(part).float() for part in data(rank, step))
        opt.zero_grad()
        log_cosh(model(x).squeeze(1) - y).backward()
        opt.step()
        seen.append(net.weight.detach().numpy().ravel().astype(float))
    model.close()
    sent = [sum(op.bytes for op in event.ops if op.purpose == "gradients") for event in events]
    return seen, sent


def halves(round_to):
    """Each worker rounds its gradient to a short type, divides there, and sums of two are rounded there."""
    workers, history = Workers(2, 0.8), []
    for step in range(STEPS):
        short = [round_to(round_to(g) / 2) for g in workers.gradients(step)]
        workers.step(step, LR, gradients=[round_to(short[0] + short[1])] * 2)
        history.append(workers.theta[0])
    return history


def to_half(values):
    return values.astype(np.float16).astype(float)


def to_bfloat(values):
    """Round to nearest even on the upper 16 bits of a single."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(float)


@pytest.mark.parametrize(("hook", "round_to", "unit"), [("fp16", to_half, 2.0**-11), ("bf16", to_bfloat, 2.0**-8)])
def test_half_precision_gradients_follow_their_rounding_and_halve_the_bytes(hook, round_to, unit):
    (seen, sent), (other, _) = run_ranks(2, single, f"ddp:hook={hook}")
    expected = halves(round_to)
    plain = halves(lambda values: values)
    for ours, theirs, rounded in zip(seen, other, expected, strict=True):
        assert np.array_equal(ours, theirs)
        # a gradient that lies on the edge between two short numbers may be rounded the other way: one unit of one step
        assert np.abs(ours - rounded).max() < 0.2 * unit
    assert np.abs(seen[-1] - plain[-1]).max() > 1e-6  # and it is not what full precision gives
    assert sent == [2 * SIZE] * STEPS


ROWS, COLUMNS, RANK, BEGIN = 12, 16, 2, 3


def matrix_gradient(worker, step, weight):
    """Of half the squared distance to a matrix that drifts, and differs between workers."""
    generator = np.random.default_rng(100 * step + worker)
    return weight - generator.standard_normal((ROWS, COLUMNS))


def power_sgd(rank, strategy):
    net = nn.Linear(COLUMNS, ROWS, bias=False).double()
    nn.init.zeros_(net.weight)
    opt = torch.optim.SGD(net.parameters(), lr=LR)
    events = []
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, opt, strategy, recorder=recorder)
    with recorder.paused():
        pass
    seen = []
    for step in range(STEPS):
        opt.zero_grad()
        wanted = torch.from_numpy(matrix_gradient(rank, step, np.zeros((ROWS, COLUMNS))))
        # the gradient of sum(out * eye-picked) is what we choose: W - target, written as a loss of the output
        out = model(torch.eye(COLUMNS, dtype=torch.float64)).T
        (0.5 * (out + wanted).square().sum()).backward()
        opt.step()
        seen.append(net.weight.detach().numpy().copy())
    model.close()
    sent = [sum(op.bytes for op in event.ops if op.purpose == "gradients") for event in events]
    return seen, sent


class NumpyPowerSgd:
    """Algorithm 1 of arXiv 1905.13727 for one matrix: one power iteration from the last Q, with error feedback."""

    def __init__(self, world):
        self.errors = [np.zeros((ROWS, COLUMNS)) for _ in range(world)]
        first = np.random.RandomState(0).randint(1_000_000_000)
        torch.manual_seed(first)
        self.q = torch.randn(1, COLUMNS, RANK, dtype=torch.float64)[0].numpy()

    def mean(self, gradients):
        owed = [g + e for g, e in zip(gradients, self.errors, strict=True)]
        q, _ = np.linalg.qr(self.q)
        p, _ = np.linalg.qr(sum(m @ q for m in owed))
        self.q = np.mean([m.T @ p for m in owed], axis=0)
        approximation = p @ self.q.T
        self.errors = [m - approximation for m in owed]
        return approximation


def test_power_sgd_is_its_algorithm_and_sends_two_thin_factors():
    (seen, sent), (other, _) = run_ranks(2, power_sgd, f"ddp:hook=powersgd,rank={RANK},start={BEGIN}")
    compressor, weight = NumpyPowerSgd(2), np.zeros((ROWS, COLUMNS))
    for step in range(STEPS):
        gradients = [weight + matrix_gradient(worker, step, np.zeros((ROWS, COLUMNS))) for worker in range(2)]
        mean = np.mean(gradients, axis=0) if step < BEGIN else compressor.mean(gradients)
        weight = weight - LR * mean
        assert np.array_equal(seen[step], other[step])
        assert np.allclose(seen[step], weight, rtol=0, atol=1e-10), step
    assert sent == [8 * ROWS * COLUMNS] * BEGIN + [8 * RANK * (ROWS + COLUMNS)] * (STEPS - BEGIN)


def test_power_sgd_before_its_second_step_is_refused():
    with pytest.raises(StrategyError, match="start: '1' is not allowed; a whole number from 2"):
        strategies.parse("ddp:hook=powersgd,start=1")


def test_power_sgd_with_unused_parameters_is_refused():
    net = nn.Linear(2, 1)
    with pytest.raises(StrategyError, match="powersgd hook waits for ever"):
        cpdp.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), "ddp:hook=powersgd,find_unused=true")
