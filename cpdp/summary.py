"""Cells -> one line per strategy: means and spread over repeats, share of DDP's exposed time, published
figures.

Pure. The live view, the closing table, `cpdp show`, the plots and the report all print these numbers and
compute none of their own. Means are over a strategy's valid cells; a strategy without a valid cell is still
shown, from the cells that have numbers, with `counted` False.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from cpdp.published import Published, PublishedRow, published_for
from cpdp.rundir import RunData
from cpdp.tables import PARTS

STEPS_PER_EPOCH = 48
"""Steps of the epoch in which exposed seconds are given when the run's paper names no other number."""

PER_STEP = (*PARTS, "payload_bytes_per_step", "wire_bytes_per_step", "queue_drops", "accuracy", "train_s", "wall_s")


@dataclass(frozen=True)
class Spread:
    """Mean over repeats, with the smallest and largest repeat beside it."""

    mean: float
    low: float
    high: float
    n: int

    def scaled(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(self.mean * factor, self.low * factor, self.high * factor, self.n)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean, minimum and maximum of what is known; None when nothing is."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return Spread(sum(known) / len(known), min(known), max(known), len(known)) if known else None


@dataclass(frozen=True)
class Line:
    """One strategy of one phase. Times in milliseconds per step, `epoch_s` in seconds per epoch."""

    phase: str
    label: str
    strategy: str
    period: int
    cells: int
    valid: int
    counted: bool
    values: Mapping[str, Spread | None]
    causes: Mapping[str, float]
    share_of_ddp: Spread | None = None
    epoch_s: Spread | None = None
    published: PublishedRow | None = None
    published_share: float | None = None

    def mean(self, name: str) -> float | None:
        """Mean of one of `PER_STEP`, None when unknown."""
        found = self.values.get(name)
        return found.mean if found else None


@dataclass(frozen=True)
class Summary:
    """All strategies of a run, phase by phase, in the experiment's order."""

    phases: Mapping[str, tuple[Line, ...]]
    published: Mapping[str, Published] = field(default_factory=dict)
    """By phase, where a paper measured the same workload on the same network."""
    steps_per_epoch: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> list[Line]:
        """Every line, phase after phase."""
        return [line for lines in self.phases.values() for line in lines]


def summarise(run: RunData, cells: pd.DataFrame) -> Summary:
    """Sum a run up from its table of cells."""
    phases: dict[str, tuple[Line, ...]] = {}
    published: dict[str, Published] = {}
    epochs: dict[str, int] = {}
    network = str(run.resolved["experiment"]["network"]["name"])
    for phase in run.resolved["experiment"]["phases"]:
        name = str(phase["name"])
        paper = published_for(network, str(phase["workload"]["name"])) if phase["kind"] == "replayed" else None
        epochs[name] = paper.steps_per_epoch if paper else int(phase.get("steps_per_epoch") or STEPS_PER_EPOCH)
        if paper:
            published[name] = paper
        order = [str(strategy["label"]) for strategy in phase["strategies"]]
        phases[name] = phase_lines(cells[cells["phase"] == name], name, order, paper, epochs[name])
    return Summary(phases, published, epochs)


def phase_lines(
    cells: pd.DataFrame, phase: str, order: Sequence[str], paper: Published | None, steps_per_epoch: int
) -> tuple[Line, ...]:
    """The lines of one phase, in the order in which the experiment lists its strategies."""
    groups = {str(label): group for label, group in cells.groupby("label", sort=False)}
    lines = [_line(phase, label, groups[label], paper, steps_per_epoch) for label in order if label in groups]
    ddp = next((line for line in lines if line.strategy == "ddp"), None)
    base = ddp.mean("exposed_ms") if ddp else None
    return tuple(_with_share(line, base) for line in lines)


def _line(phase: str, label: str, group: pd.DataFrame, paper: Published | None, steps_per_epoch: int) -> Line:
    first = group.iloc[0]
    valid = group[group["valid"].astype(bool)]
    used = valid if len(valid) else group
    values = {name: spread(_known(used, name)) for name in PER_STEP}
    exposed = values["exposed_ms"]
    row = paper.find(str(first["strategy"]), int(first["period"])) if paper else None
    return Line(
        phase=phase,
        label=label,
        strategy=str(first["strategy"]),
        period=int(first["period"]),
        cells=len(group),
        valid=len(valid),
        counted=bool(len(valid)),
        values=values,
        causes=_cause_means(used),
        epoch_s=exposed.scaled(steps_per_epoch / 1e3) if exposed else None,
        published=row,
        published_share=paper.share_of_ddp(row) if paper and row else None,
    )


def _known(frame: pd.DataFrame, column: str) -> list[float]:
    return [float(value) for value in frame[column].dropna()]


def _cause_means(frame: pd.DataFrame) -> dict[str, float]:
    """Mean exposed milliseconds per step by cause, of the cells that measured something."""
    causes: dict[str, float] = {}
    for column in frame.columns:
        if column.startswith("exposed_") and column != "exposed_ms":
            values = _known(frame[frame["exposed_ms"].notna()], column)
            if values:
                causes[column.removeprefix("exposed_").removesuffix("_ms")] = sum(values) / len(values)
    return causes


def _with_share(line: Line, ddp_exposed_ms: float | None) -> Line:
    """The same line with its share of DDP's mean exposed time; no share of nothing."""
    exposed = line.values["exposed_ms"]
    if not exposed or not ddp_exposed_ms:
        return line
    return replace(line, share_of_ddp=exposed.scaled(1 / ddp_exposed_ms))


@dataclass(frozen=True)
class Training:
    """What a strategy's training came to: accuracies are shares of one, times are seconds spent in steps."""

    label: str
    target: float
    final: Spread | None
    best: Spread | None
    to_target_s: Spread | None
    """Of the repeats that reached the target; None when none did."""
    reached: int
    repeats: int
    total_s: Spread | None


def trainings(evals: pd.DataFrame, order: Sequence[str], target: float) -> tuple[Training, ...]:
    """One line per strategy of a training phase, in the experiment's order, if it was evaluated."""
    groups = {str(label): group for label, group in evals.groupby("label", sort=False)}
    return tuple(_training(label, groups[label], target) for label in order if label in groups)


def _training(label: str, group: pd.DataFrame, target: float) -> Training:
    cells = [cell.sort_values("n") for _, cell in group.groupby("cell", sort=False)]
    firsts = [cell[cell["accuracy"] >= target] for cell in cells]
    reached = [float(first["train_s"].iloc[0]) for first in firsts if len(first)]
    return Training(
        label=label,
        target=target,
        final=spread(float(cell["accuracy"].iloc[-1]) for cell in cells),
        best=spread(float(cell["accuracy"].max()) for cell in cells),
        to_target_s=spread(reached),
        reached=len(reached),
        repeats=len(cells),
        total_s=spread(float(cell["train_s"].iloc[-1]) for cell in cells),
    )
