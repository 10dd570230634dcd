"""Trainings against each other: time to a given training loss, and the runtime per iteration beside the delay model.

Pure: a run's events and its table of evaluations -> `Racer` and `Runtime` lines, which the terminal, `cpdp show --json`
and the report print. Communication is never assumed: D is what the averagings took on the emulated network, from the
moment the last worker began one to the moment the last worker had its result, and the ratio a is D over the time
that the computation took.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from cpdp import padding
from cpdp.events import EventLog, StepEvent
from cpdp.rundir import CellData
from cpdp.runtime_model import drawn_slowest_ns, slowest_ns
from cpdp.summary import Spread, spread
from cpdp.tables import dilation, state_of

MODELLED = ("pasgd", "localsgd", "adacomm", "scheduled")
"""Strategies that do what the delay model describes: local steps, then one averaging that everybody waits for."""


@dataclass(frozen=True)
class Racer:
    """One strategy of a phase on its way to a training loss. Times are seconds spent in steps."""

    label: str
    target: float
    baseline: str
    reached: int
    repeats: int
    to_loss_s: Spread | None
    speedup: float | None
    """The baseline's mean time to the loss over this one's."""
    final_loss: Spread | None
    least_loss: Spread | None
    final_accuracy: Spread | None
    total_s: Spread | None
    steps: float


@dataclass(frozen=True)
class Runtime:
    """One strategy's iteration: what it took, and what the delay model says. Times are milliseconds per step, but
    `sync_ms`, the time of one averaging (D). `tau` is the mean length of a round.
    """

    label: str
    tau: float
    ratio: float
    """a = D / y, of the synchronous strategy."""
    computation_ms: float
    slowest_ms: float
    expected_slowest_ms: float
    drawn_slowest_ms: float
    sync_ms: float
    step_ms: float
    predicted_ms: float
    speedup: float
    predicted_speedup: float


def baseline(phase: Mapping[str, Any]) -> str | None:
    """The label of the synchronous strategy: averaging after every step, or else DDP."""
    specs = list(phase["strategies"])
    every = [one for one in specs if one["name"] in ("pasgd", "localsgd", "postlocal") and one.get("period") == 1]
    found = next(iter([*every, *(one for one in specs if one["name"] == "ddp")]), None)
    return None if found is None else str(found["label"])


def racers(phase: Mapping[str, Any], evals: pd.DataFrame) -> tuple[Racer, ...]:
    """Every strategy of a phase that evaluates its training loss, in the experiment's order."""
    known = evals[(evals["phase"] == phase["name"]) & evals["train_loss"].notna()]
    base = baseline(phase)
    if known.empty or base is None or base not in set(known["label"]):
        return ()
    runs = {str(label): [cell.sort_values("n") for _, cell in group.groupby("cell", sort=False)]
            for label, group in known.groupby("label", sort=False)}  # fmt: skip
    target = phase.get("target_loss")
    if target is None:
        target = max(float(cell["train_loss"].min()) for cell in runs[base])
    order = [str(one["label"]) for one in phase["strategies"]]
    reference = _mean_time(runs[base], float(target))
    return tuple(_racer(label, runs[label], float(target), base, reference) for label in order if label in runs)


def _racer(label: str, cells: Sequence[pd.DataFrame], target: float, base: str, reference: float | None) -> Racer:
    times = [time_to(cell["train_s"].tolist(), cell["train_loss"].tolist(), target) for cell in cells]
    mine = _mean_time(cells, target)
    return Racer(
        label=label,
        target=target,
        baseline=base,
        reached=sum(1 for one in times if one is not None),
        repeats=len(cells),
        to_loss_s=spread(times),
        speedup=reference / mine if reference and mine else None,
        final_loss=spread(float(cell["train_loss"].iloc[-1]) for cell in cells),
        least_loss=spread(float(cell["train_loss"].min()) for cell in cells),
        final_accuracy=spread(float(cell["accuracy"].iloc[-1]) for cell in cells),
        total_s=spread(float(cell["train_s"].iloc[-1]) for cell in cells),
        steps=sum(float(cell["n"].iloc[-1]) for cell in cells) / len(cells),
    )


def _mean_time(cells: Sequence[pd.DataFrame], target: float) -> float | None:
    """Mean over repeats; None unless all of them got there."""
    times = [time_to(cell["train_s"].tolist(), cell["train_loss"].tolist(), target) for cell in cells]
    known = [one for one in times if one is not None]
    return sum(known) / len(known) if known and len(known) == len(times) else None


def time_to(seconds: Sequence[float], losses: Sequence[float], target: float) -> float | None:
    """When a loss was first reached, between two evaluations by a straight line in the loss's logarithm."""
    if losses and losses[0] <= target:
        return seconds[0]
    for (before, after), (high, low) in zip(pairwise(seconds), pairwise(losses), strict=True):
        if low <= target:
            if not (low > 0 and math.isfinite(high)):
                return after
            return before + (after - before) * math.log(high / target) / math.log(high / low)
    return None


def runtimes(phase: Mapping[str, Any], cells: Sequence[CellData]) -> tuple[Runtime, ...]:
    """The delay model beside a padded phase; nothing where computation was not padded or no strategy is synchronous."""
    base = baseline(phase)
    if phase.get("compute") is None or base is None:
        return ()
    asked = padding.from_json(phase["compute"])
    mine = [cell for cell in cells if cell.cell["phase"] == phase["name"] and state_of(cell) == "done"]
    found = {str(cell.cell["label"]): _measure(cell, asked) for cell in mine if _modelled(cell)}
    if base not in found:
        return ()
    sync_ms, reference = found[base].sync_ms, found[base]
    predicted = {label: one.expected_ms + sync_ms / one.tau for label, one in found.items()}
    return tuple(
        Runtime(
            label, one.tau, sync_ms / reference.computation_ms, one.computation_ms, one.step_ms - one.sync_ms / one.tau,
            one.expected_ms, one.drawn_ms, one.sync_ms, one.step_ms, predicted[label],
            reference.step_ms / one.step_ms, predicted[base] / predicted[label],
        )
        for label, one in found.items()
    )  # fmt: skip


def _modelled(cell: CellData) -> bool:
    return cell.cell["strategy"]["name"] in MODELLED and bool(cell.logs) and all(log.steps for log in cell.logs)


@dataclass(frozen=True)
class _Measured:
    tau: float
    computation_ms: float
    step_ms: float
    sync_ms: float
    expected_ms: float
    drawn_ms: float


def _measure(cell: CellData, asked: padding.Padding) -> _Measured:
    """Means over the whole rounds of a cell: rounds are alike on every rank."""
    rounds = list(_rounds(cell.logs[0].steps))
    workers, seed = len(cell.logs), int(cell.cell.get("seed") or 0)
    count = sum(len(one) for one in rounds) or 1
    inside = {step.n for one in rounds for step in one}
    steps = [step for log in cell.logs for step in log.steps if step.n in inside]
    syncs = list(_syncs_ns(cell.logs, {one[-1].n for one in rounds}))
    expected = sum(len(one) * slowest_ns(asked, len(one), workers, seed) for one in rounds)
    ms = 1e6 * dilation(cell)
    drawn = sum(len(one) * drawn_slowest_ns(asked, seed, workers, one[0].n - 1, len(one)) for one in rounds)
    return _Measured(
        tau=count / max(1, len(rounds)),
        computation_ms=sum(_computation_ns(step) for step in steps) / max(1, len(steps)) / ms,
        step_ms=sum(step.end_ns - step.start_ns for step in steps) / max(1, len(steps)) / ms,
        sync_ms=sum(syncs) / max(1, len(syncs)) / ms,
        expected_ms=expected / count / 1e6,
        drawn_ms=drawn / count / 1e6,
    )


def _rounds(steps: Sequence[StepEvent]) -> Iterator[list[StepEvent]]:
    """Whole rounds, each ending with its boundary."""
    current: list[StepEvent] = []
    for step in steps:
        current.append(step)
        if step.boundary:
            yield current
            current = []


def _computation_ns(step: StepEvent) -> int:
    from cpdp.exposure import break_down

    return break_down(step).computation_ns


def _syncs_ns(logs: Sequence[EventLog], ends: Collection[int]) -> Iterator[int]:
    """Each averaging, from the moment the last rank began it to the moment the last rank had the result."""
    for steps in zip(*([step for step in log.steps if step.n in ends] for log in logs), strict=False):
        finished = [op.finished_ns for step in steps for op in step.ops if op.finished_ns is not None]
        if all(step.ops for step in steps) and len(finished) == sum(len(step.ops) for step in steps):
            yield max(finished) - max(min(op.issued_ns for op in step.ops) for step in steps)
