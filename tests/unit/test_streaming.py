"""Streaming and eager DiLoCo against independent numpy implementations; fragments; what crosses the wire."""

import numpy as np
import pytest
import torch
from torch import nn

import cpdp
from cpdp.errors import StrategyError
from cpdp.flat import flatten, trained_parameters
from cpdp.fragments import split
from cpdp.quantise import BLOCK, decode, encode, encoded_bytes
from cpdp.recorder import StepRecorder
from tests.unit.problem import SIZE, Workers, assert_same, data, log_cosh, start, train
from tests.unit.ranks import run_ranks

RATES = [0.1] * 26


def one(rank, strategy):
    return train(rank, strategy, RATES, optimizer="0.8")


# Eager DiLoCo.


def eager(world, period, eta, mu):
    workers, history = Workers(world, 0.8), []
    began = [start() for _ in range(world)]
    before, m = None, [np.zeros(SIZE) for _ in range(world)]
    for step, lr in enumerate(RATES):
        workers.step(step, lr)
        if (step + 1) % period == 0:
            now = [x0 - x for x0, x in zip(began, workers.theta, strict=True)]
            if before is None:
                mixed = [own / world for own in now]
            else:  # one's own new update, and of the others what was sent a round ago
                mixed = [(sum(before) - before[i] + now[i]) / world for i in range(world)]
            m = [mu * old + g for old, g in zip(m, mixed, strict=True)]
            began = [x0 - eta * (mu * v + g) for x0, v, g in zip(began, m, mixed, strict=True)]
            workers.theta, before = list(began), now
        history.append(list(workers.theta))
    return history


@pytest.mark.parametrize(("eta", "mu"), [(0.4, 0.9), (0.7, 0.0)])
def test_eager_diloco_follows_its_rule(eta, mu):
    strategy = f"eager:k=4,outer_lr={eta},outer_momentum={mu}"
    assert_same(run_ranks(3, one, strategy), eager(3, 4, eta, mu))


def eager_and_diloco(rank):
    options = "outer_lr=0.6,outer_momentum=0.7"
    return one(rank, f"eager:k=4,{options}"), one(rank, f"diloco:k=4,{options}")


def test_a_lone_eager_worker_is_diloco():
    eager_alone, diloco = eager_and_diloco(0)
    assert np.allclose(eager_alone, diloco, rtol=0, atol=1e-12)


# Streaming DiLoCo, on a model of three layers.

WIDTH = 3


class Layers(nn.Module):
    """Three vectors that are added: each gets the same gradient, and each is a layer of its own."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(SIZE, 1, bias=False) for _ in range(3))

    def forward(self, x):
        return sum((n + 1) * part(x) for n, part in enumerate(self.parts)).squeeze(1)


def layers_of(net):
    return np.stack([part.weight.detach().numpy().ravel() for part in net.parts])


def first_layers():
    return np.stack([start() * (1 - n / 3) for n in range(3)])


def stream(rank, strategy, events=None):
    net = Layers().double()
    with torch.no_grad():
        for part, values in zip(net.parts, first_layers(), strict=True):
            part.weight.copy_(torch.from_numpy(values)[None] + rank)
    opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.8)
    recorder = None if events is None else StepRecorder(events.append)
    model = cpdp.DataParallel(net, opt, strategy, recorder=recorder)
    if recorder:
        with recorder.paused():
            pass
    seen = []
    for step in range(len(RATES)):
        x, y = (torch.from_numpy(part) for part in data(rank, step))
        opt.zero_grad()
        log_cosh(model(x) - y).backward()
        opt.step()
        seen.append(layers_of(net))
    model.close()
    return seen


def short(update, form):
    """An update after it was encoded and decoded, in numpy."""
    if form == "full":
        return update
    if form == "float16":
        return update.astype(np.float16).astype(float)
    levels = {"int8": 127, "int4": 7}[form]
    scale = float(np.float32(np.abs(update).max() / levels)) or 1.0
    return np.round(update / scale) * scale


def numpy_stream(world, period, members, delay, alpha, form, eta=0.7, mu=0.9):
    """`members` are the layers of each fragment."""
    theta = [first_layers() for _ in range(world)]
    buffer = [np.zeros((3, SIZE)) for _ in range(world)]
    ref, m, sent, history = first_layers(), np.zeros((3, SIZE)), [], []
    factors = np.array([1, 2, 3])[:, None]

    def merge(n):
        while sent and n - sent[0][0] >= delay:
            _, rows, mean = sent.pop(0)
            m[rows] = mu * m[rows] + mean
            ref[rows] = ref[rows] - eta * (mu * m[rows] + mean)
            for worker in range(world):
                theta[worker][rows] = alpha * theta[worker][rows] + (1 - alpha) * ref[rows]

    for n in range(1, len(RATES) + 1):
        for worker in range(world):
            x, y = data(worker, n - 1)
            residual = np.tanh(x @ (factors * theta[worker]).sum(axis=0) - y)
            buffer[worker] = 0.8 * buffer[worker] + factors * (x.T @ residual / len(y))
            theta[worker] = theta[worker] - 0.03 * buffer[worker]
        merge(n)
        for p, rows in enumerate(members):
            if (n - (p + 1) * period // len(members)) % period == 0:
                updates = [short((ref[rows] - own[rows]).ravel(), form) for own in theta]
                sent.append((n, rows, np.mean(updates, axis=0).reshape(len(rows), SIZE)))
                merge(n)
        history.append([own.copy() for own in theta])
    return history


@pytest.mark.parametrize("form", ["full", "float16", "int8", "int4"])
@pytest.mark.parametrize(
    ("options", "members", "delay", "alpha"),
    [
        ("p=3,delay=2,alpha=0.5", [[0], [1], [2]], 2, 0.5),
        ("p=2,pattern=strided,delay=1,alpha=0.25", [[0, 2], [1]], 1, 0.25),
        ("p=2,pattern=sequential,delay=0,alpha=0", [[0, 1], [2]], 0, 0.0),
        ("p=1,delay=6,alpha=0.5", [[0, 1, 2]], 6, 0.5),
        ("p=3,delay=5,alpha=0.5", [[0], [1], [2]], 5, 0.5),  # several on their way at once
    ],
)
def test_streaming_diloco_follows_the_published_rule(options, members, delay, alpha, form):
    ours = run_ranks(3, stream, f"streaming:k=6,{options},exchange={form}")
    expected = numpy_stream(3, 6, members, delay, alpha, form)
    assert len(expected) == len(ours[0])
    for step, thetas in enumerate(expected):
        for worker, theta in enumerate(thetas):
            assert np.allclose(ours[worker][step], theta, rtol=0, atol=1e-9), (step, worker)


def streaming_and_diloco(rank):
    return one(rank, "streaming:k=5,p=1,delay=0,alpha=0"), one(rank, "diloco:k=5")


def test_one_fragment_without_delay_is_diloco():
    for a, b in run_ranks(2, streaming_and_diloco):
        assert np.allclose(a, b, rtol=0, atol=1e-12)


def bytes_sent(rank, strategy):
    events = []
    stream(rank, strategy, events)
    return [sum(op.bytes for op in event.ops if op.purpose == "parameters") for event in events]


@pytest.mark.parametrize(
    ("form", "size"), [("full", 8 * SIZE), ("float16", 2 * SIZE), ("int8", 4 + SIZE), ("int4", 4 + (SIZE + 1) // 2)]
)
def test_each_fragment_is_sent_in_its_own_step_and_in_the_bytes_of_its_format(form, size):
    # K = 6, three fragments of one layer: steps 2, 4, 6 and so on, one fragment each.
    expected = [size if n % 2 == 0 else 0 for n in range(1, len(RATES) + 1)]
    assert run_ranks(2, bytes_sent, f"streaming:k=6,p=3,delay=1,exchange={form}") == [expected] * 2


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("streaming:k=3,p=4", "fragments=4 need steps of their own, and period=3 has fewer"),
        ("streaming:k=3,p=2,delay=4", "delay=4 is longer than period=3"),
        ("streaming:k=9,p=4", "fragments=4 needs as many layers with parameters; the model has 3"),
    ],
)
def test_fragments_that_cannot_be_are_refused(strategy, message):
    with pytest.raises(StrategyError, match=message):
        stream(0, strategy)


def test_fragments_hold_whole_layers_and_together_the_whole_model_once():
    net = nn.Sequential(
        nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Linear(2, 3)
    )
    net[5].weight.requires_grad_(False)
    net[2].weight = nn.Parameter(net[2].weight.detach())
    buffers = flatten(trained_parameters(net))
    for pattern in ("sequential", "strided"):
        for count in (1, 2, 3, 5):
            fragments = split(net, buffers, count, pattern)
            covered = sorted(i for f in fragments for _, piece in f.pieces for i in range(piece.start, piece.stop))
            assert covered == list(range(buffers[0].data.numel()))
            assert all(f.pieces for f in fragments)
    first, _ = split(net, buffers, 2, "strided")
    assert len(first.pieces) == 3  # layers 0, 2 and 4
    (whole,) = split(net, buffers, 1, "strided")
    assert whole.pieces == ((0, slice(0, buffers[0].data.numel())),)
    packed = first.gather([buffers[0].data])
    for part, target in first.parts(packed, [buffers[0].data]):
        assert torch.equal(part, target)


@pytest.mark.parametrize("numel", [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3])
@pytest.mark.parametrize(("form", "levels"), [("int4", 7), ("int8", 127), ("float16", None)])
def test_encoded_numbers_are_as_long_as_stated_and_off_by_half_a_level_at_most(form, levels, numel):
    generator = torch.Generator().manual_seed(numel)
    values = torch.randn(numel, generator=generator) * 3
    data_ = encode(values, form)
    assert data_.dtype == torch.uint8
    assert data_.numel() == encoded_bytes(numel, form)
    again = decode(data_, form, numel, torch.float32)
    if levels is None:
        assert torch.equal(again, values.half().float())
        return
    for at in range(0, numel, BLOCK):
        block, back = values[at : at + BLOCK], again[at : at + BLOCK]
        unit = block.abs().max() / levels
        assert (block - back).abs().max() <= unit / 2 * (1 + 1e-5)
        assert torch.isclose(back.abs().max(), block.abs().max(), rtol=1e-6)  # the largest is met


def test_zeros_stay_zeros_and_equal_numbers_equal_bytes():
    zeros = torch.zeros(300)
    for form in ("int4", "int8", "float16"):
        assert torch.equal(decode(encode(zeros, form), form, 300, torch.float32), zeros)
        values = torch.linspace(-1, 1, 300)
        assert torch.equal(encode(values, form), encode(values.clone(), form))
