"""A phase's race in words and tables: time to a training loss, and the runtime per iteration beside the delay model.

Pure: `race` lines -> columns of text for the terminal (`screen`) and the report, and numbers for `cpdp show --json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cpdp.race import Racer, Runtime
from cpdp.summary import Spread

RACE = ("strategy", "s to\nloss", "speed-\nup", "final\nloss", "least\nloss", "test\nacc. %", "steps", "s in\nsteps")
MODEL = ("strategy", "tau", "comp.\nms", "slowest\nms", "model\nms", "avg.\nms", "step\nms", "model\nms", "off\n%",
         "speed-\nup", "model")  # fmt: skip
DASH = "–"


def race_rows(racers: Sequence[Racer]) -> list[list[str]]:
    """One row per strategy under the heads of `RACE`."""
    return [
        [
            one.label, _spread(one.to_loss_s, 1), _number(one.speedup, 2), _spread(one.final_loss, 4),
            _spread(one.least_loss, 4), _spread(one.final_accuracy and one.final_accuracy.scaled(100), 1),
            f"{one.steps:.0f}", _spread(one.total_s, 1),
        ]
        for one in racers
    ]  # fmt: skip


def model_rows(runtimes: Sequence[Runtime]) -> list[list[str]]:
    """One row per strategy under the heads of `MODEL`."""
    return [
        [
            one.label, f"{one.tau:.1f}", f"{one.computation_ms:.1f}", f"{one.slowest_ms:.1f}",
            f"{one.expected_slowest_ms:.1f}", f"{one.sync_ms:.0f}", f"{one.step_ms:.1f}", f"{one.predicted_ms:.1f}",
            f"{100 * (one.step_ms / one.predicted_ms - 1):+.1f}", f"{one.speedup:.2f}", f"{one.predicted_speedup:.2f}",
        ]
        for one in runtimes
    ]  # fmt: skip


def race_caption(racers: Sequence[Racer]) -> str:
    """What the race's columns mean."""
    first = racers[0]
    return (
        f"Seconds in steps to a training loss of {first.target:.4g} (all workers' training data, the averaged model;"
        f" between two evaluations a straight line in log loss). Speed-up over {first.baseline}."
    )


def model_caption(runtimes: Sequence[Runtime]) -> str:
    """Where the ratio comes from, and what stands beside what."""
    return (
        f"Per iteration, measured beside the model E[slowest of the workers' means of tau steps] + D / tau. D/y ="
        f" {runtimes[0].ratio:.2f}: measured on the emulated network, D from the last worker's start to the last one's"
        " result (avg.), y the computation. Constant times: speed-up (1+a)/(1+a/tau); exponential: slowest y H_m."
    )


def race_sentences(phase: str, racers: Sequence[Racer]) -> list[str]:
    """Who reaches the loss first, and who ends with a higher one than the synchronous strategy."""
    times = sorted((one.to_loss_s.mean, one) for one in racers if one.to_loss_s and one.speedup)
    if not times:
        return []
    named = ", ".join(f"{one.label} {time:.1f} s ({one.speedup:.2f}x)" for time, one in times)
    return [f"{phase}: time in training steps to a training loss of {racers[0].target:.4g}: {named}."]


def race_json(phase: str, one: Racer) -> dict[str, Any]:
    """A racer for `cpdp show --json`."""
    return {"phase": phase, **asdict(one)}


def model_json(phase: str, one: Runtime) -> dict[str, Any]:
    """A runtime for `cpdp show --json`."""
    return {"phase": phase, **asdict(one)}


def _number(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def _spread(value: Spread | None, digits: int) -> str:
    if value is None:
        return DASH
    mean, low, high = (f"{one:.{digits}f}" for one in (value.mean, value.low, value.high))
    return mean if low == high else f"{mean} ({low}-{high})"
