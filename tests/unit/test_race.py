"""Trainings against each other: time to a loss by hand-made curves, and the delay model against its formulas."""

import math
import random

import pandas as pd
import pytest

from cpdp import race
from cpdp.events import EventLog, Operation, Span, StartEvent, StepEvent
from cpdp.padding import Padding
from cpdp.rundir import CellData
from cpdp.runtime_model import drawn_slowest_ns, harmonic, slowest_ns, slowest_of_means

MS = 1_000_000
SYNC = {"name": "pasgd", "period": 1, "label": "pasgd K=1"}
SIXTEEN = {"name": "pasgd", "period": 16, "label": "pasgd K=16"}


def test_a_loss_is_reached_between_two_evaluations_on_a_straight_line_of_logarithms():
    # From 1 to 0.01 in 10 s: 0.1 half way.
    assert race.time_to([0.0, 10.0], [1.0, 0.01], 0.1) == pytest.approx(5.0)
    assert race.time_to([0.0, 10.0], [1.0, 0.5], 0.1) is None
    assert race.time_to([3.0, 10.0], [0.05, 0.01], 0.1) == 3.0
    assert race.time_to([0.0, 4.0, 8.0], [1.0, math.nan, 0.01], 0.1) == 8.0


def curve(label, cell, seconds, losses):
    rows = [
        {"phase": "p", "label": label, "cell": cell, "n": 8 * i, "train_s": s, "train_loss": loss, "accuracy": 0.9}
        for i, (s, loss) in enumerate(zip(seconds, losses, strict=True))
    ]
    return rows


def test_speed_up_is_the_baselines_mean_time_over_each_strategys():
    evals = pd.DataFrame(
        curve("pasgd K=1", "a", [0, 10, 20], [1.0, 0.1, 0.01]) + curve("pasgd K=16", "b", [0, 4, 8], [1.0, 0.01, 0.001])
    )
    phase = {"name": "p", "strategies": [SIXTEEN, SYNC], "target_loss": 0.1}
    fast, slow = race.racers(phase, evals)
    assert (slow.label, slow.baseline, slow.speedup) == ("pasgd K=1", "pasgd K=1", pytest.approx(1.0))
    assert fast.to_loss_s.mean == pytest.approx(2.0)
    assert fast.speedup == pytest.approx(5.0)
    assert fast.final_loss.mean == 0.001
    without = race.racers({**phase, "target_loss": None}, evals)  # what the synchronous one reached
    assert {one.target for one in without} == {0.01}
    assert without[0].speedup == pytest.approx(20 / 4)
    assert race.racers({"name": "p", "strategies": [SIXTEEN]}, evals) == ()


@pytest.mark.parametrize("tau", [1, 2, 7, 16, 100])
def test_the_slowest_mean_of_exponentials_is_what_drawing_them_gives(tau):
    draw = random.Random(tau)
    rounds = 40_000 // tau + 2000
    means = (max(sum(draw.expovariate(1) for _ in range(tau)) / tau for _ in range(4)) for _ in range(rounds))
    assert slowest_of_means(tau, 4) == pytest.approx(sum(means) / rounds, rel=0.02)


def test_the_models_special_cases():
    assert harmonic(4) == pytest.approx(25 / 12)
    assert slowest_of_means(1, 8) == harmonic(8)
    assert slowest_ns(Padding(40 * MS), 16, 4) == 40 * MS
    assert slowest_ns(Padding(40 * MS, "exponential"), 1, 4) == pytest.approx(40 * MS * 25 / 12)
    # Shifted: a constant of 10 ms and an exponential of mean 30 ms.
    assert slowest_ns(Padding(40 * MS, "shifted", 10 * MS), 1, 4) == pytest.approx(10 * MS + 30 * MS * 25 / 12)
    assert slowest_ns(Padding(40 * MS, factors=(1, 3)), 4, 2) == pytest.approx(120 * MS)
    assert drawn_slowest_ns(Padding(40 * MS), 1, 4, 0, 8) == 40 * MS


def cell(spec, tau, steps, *, y=40, d=160, workers=4):
    """Workers in step: y ms of computation each step, d ms of averaging behind every tau-th."""
    logs = []
    for rank in range(workers):
        events, now = [StartEvent(rank, workers, "x", 0, "h")], 0
        for n in range(1, steps + 1):
            end, ops = now + y * MS, ()
            spans = [Span("forward", now, end)]
            if n % tau == 0:
                ops = (Operation("all_reduce", "parameters", 4, end, end + d * MS),)
                spans.append(Span("exposed.parameters", end, end + d * MS))
                end += d * MS
            events.append(StepEvent(n, 0, False, n % tau == 0, now, end, tuple(spans), ops))
            now = end
        logs.append(EventLog(None, tuple(events)))
    head = {"id": spec["label"], "phase": "p", "label": spec["label"], "strategy": spec, "repeat": 1, "seed": 1}
    return CellData(head, {"ok": True}, tuple(logs), ())


def test_constant_times_give_the_papers_speed_up_exactly():
    phase = {"name": "p", "strategies": [SYNC, SIXTEEN], "compute": Padding(40 * MS).to_json()}
    slow, fast = race.runtimes(phase, [cell(SYNC, 1, 32), cell(SIXTEEN, 16, 40)])
    a = 160 / 40
    assert (slow.ratio, slow.sync_ms, slow.step_ms) == (pytest.approx(a), 160.0, 200.0)
    assert fast.tau == 16.0  # the 8 steps behind the last averaging are no whole round
    assert fast.step_ms == pytest.approx(50.0)
    assert fast.speedup == pytest.approx((1 + a) / (1 + a / 16))
    assert fast.predicted_speedup == pytest.approx(fast.speedup)
    assert fast.slowest_ms == pytest.approx(40.0)


def test_there_is_no_model_for_a_phase_that_is_not_padded():
    phase = {"name": "p", "strategies": [SYNC], "compute": None}
    assert race.runtimes(phase, [cell(SYNC, 1, 4)]) == ()
