"""Padded computation: drawn times follow their distribution, streams are apart, and real steps take the drawn time."""

import math
import time

import pytest
import torch

from cpdp import padding
from cpdp.errors import CellError
from cpdp.events import EventLog, StepEvent
from cpdp.padder import Padder
from cpdp.padding import Padding
from cpdp.recorder import StepRecorder

MS = 1_000_000
STEPS = 20_000


def times(made, rank=0, seed=1, steps=STEPS):
    return [made.drawn_ns(seed, rank, n) for n in range(1, steps + 1)]


def test_constant_times_are_the_mean_and_a_factor_slows_one_rank():
    made = Padding(40 * MS, factors=(1.0, 2.5))
    assert set(times(made, rank=0, steps=50)) == {40 * MS}
    assert set(times(made, rank=1, steps=50)) == {100 * MS}
    assert set(times(made, rank=2, steps=50)) == {40 * MS}  # beyond the list


@pytest.mark.parametrize(("name", "shift"), [("exponential", 0), ("shifted", 10 * MS)])
def test_random_times_have_the_mean_the_spread_and_the_tail_of_their_distribution(name, shift):
    mean = 40 * MS
    drawn = times(Padding(mean, name, shift))
    average = sum(drawn) / STEPS
    spread = math.sqrt(sum((one - average) ** 2 for one in drawn) / STEPS)
    # Standard error of the mean is (mean - shift) / sqrt(20000), 0.7 %; four of them.
    assert abs(average - mean) < 0.03 * (mean - shift)
    assert spread == pytest.approx(mean - shift, rel=0.05)
    assert min(drawn) >= shift
    beyond = sum(1 for one in drawn if one > shift + 3 * (mean - shift)) / STEPS
    assert beyond == pytest.approx(math.exp(-3), rel=0.15)


def test_the_slowest_of_four_takes_the_harmonic_number_of_means():
    made = Padding(MS, "exponential")
    slowest = sum(max(made.drawn_ns(3, rank, n) for rank in range(4)) for n in range(1, STEPS + 1)) / STEPS
    assert slowest / MS == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4, rel=0.03)


def test_ranks_seeds_and_steps_have_streams_of_their_own_and_any_step_can_be_asked_again():
    made = Padding(MS, "exponential")
    assert times(made, rank=0, steps=100) == times(made, rank=0, steps=100)
    assert made.drawn_ns(1, 0, 77) == times(made, rank=0, steps=100)[76]
    for other in (times(made, rank=1, steps=100), times(made, seed=2, steps=100)):
        assert not set(other) & set(times(made, rank=0, steps=100))


def test_stragglers_come_as_often_and_as_slow_as_asked():
    made = Padding(MS, straggler_chance=0.05, straggler_factor=8)
    drawn = times(made)
    assert set(drawn) == {MS, 8 * MS}
    assert drawn.count(8 * MS) / STEPS == pytest.approx(0.05, rel=0.15)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"step_ns": 0}, "step: 0 ns is not allowed"),
        ({"step_ns": 1, "times": "gauss"}, "times: 'gauss' is not allowed; one of constant, exponential, shifted"),
        ({"step_ns": 5, "times": "shifted", "shift_ns": 6}, "shift: 6 ns is not allowed"),
        ({"step_ns": 5, "shift_ns": 1}, "shift: 1 ns is not allowed; only when shifted"),
        ({"step_ns": 5, "factors": [1, 0]}, "factors"),
        ({"step_ns": 5, "overrun": 2}, "overrun: 2 is not allowed"),
        ({"stepp": 5}, "stepp"),
    ],
)
def test_what_is_wrong_with_a_padding_is_named(raw, message):
    with pytest.raises(CellError, match=message):
        padding.from_json(raw)


def log(*excesses, drawn=10 * MS, warmup=False):
    steps = tuple(
        StepEvent(n, 0, warmup, True, 0, drawn, (), (), facts={"drawn_ns": drawn, "excess_ns": one})
        for n, one in enumerate(excesses, start=1)
    )
    return EventLog(None, steps)


def test_a_run_whose_real_steps_are_longer_too_often_says_so_and_by_how_much():
    made = Padding(10 * MS, overrun=0.25)
    assert padding.faults(made, [log(0, 0, 0, 2 * MS)]) == []  # 1 of 4
    assert padding.faults(made, [log(0, 0, MS, MS)]) == []  # a tenth of the mean is not an overrun
    (said,) = padding.faults(made, [log(0, 0, 2 * MS, 3 * MS)])
    assert "50.0% of the steps (allowed: 25.0%), which added 12.5% to the time drawn" in said
    assert padding.faults(None, [log(MS * 50)]) == []
    assert padding.faults(made, [log(5 * MS, warmup=True)]) == []


def model(width=16):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))


def padded_steps(drawn, steps=12, work=0.0):
    """Step times of a small model under a padder, and what its events say."""
    net, events = model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    recorder = StepRecorder(events.append)
    padder = Padder(lambda n: drawn, optimizer, recorder)
    padder.attach(net)
    took = []
    for n in range(1, steps + 1):
        began = time.monotonic_ns()
        padder.begin(n)
        padder.loaded()
        optimizer.zero_grad()
        loss = net(torch.ones(4, 8)).sum()
        time.sleep(work)
        loss.backward()
        optimizer.step()
        took.append(time.monotonic_ns() - began)
        recorder.end_step(n, 0, boundary=True)
    return sorted(took)[steps // 2], events, net


def test_a_step_takes_the_drawn_time_work_included():
    for work in (0.0, 0.008):
        took, events, _ = padded_steps(30 * MS, work=work)
        assert 28 * MS < took < 36 * MS
        assert {event.facts["drawn_ns"] for event in events} == {30 * MS}


def test_work_longer_than_the_drawn_time_is_counted_with_its_excess():
    took, events, _ = padded_steps(5 * MS, work=0.02)
    assert took >= 20 * MS
    excess = sorted(event.facts["excess_ns"] for event in events)[6]
    assert 14 * MS < excess < 30 * MS


def test_padding_changes_no_bit_of_the_training():
    _, _, padded = padded_steps(2 * MS)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(padded.parameters(), net.parameters(), strict=True))


def test_gradients_of_the_last_layers_are_there_before_those_of_the_first():
    net, seen, began = model(width=64), [], 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    padder = Padder(lambda n: 60 * MS, optimizer, StepRecorder(lambda event: None))
    padder.attach(net)
    net[2].weight.register_post_accumulate_grad_hook(lambda _: seen.append((time.monotonic_ns() - began) / MS))
    for n in (1, 2):  # macs: 512 for the first layer, 64 for the last
        began = time.monotonic_ns()
        padder.begin(n)
        padder.loaded()
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    # A third of 60 ms forward, then 64 / 576 of the other 40 ms.
    assert 24 - 1 < seen[1] < 24.4 + 10
