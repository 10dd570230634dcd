"""Events of a run -> pandas tables: steps, cells, network, eval. Pure; `rundir` reads and `store` writes.

One row of `steps` is one step of one rank; one row of `cells` is one cell of the matrix, its times averaged
over the measured (not warm-up) steps and over the ranks, which keeps computation + exposed + rest = step
exact. A cell that failed, was interrupted or never started has its row too, with its state and the reasons.
What is not known is missing (null in JSON, a dash in a printed table), never a made-up number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cpdp import padding, wire
from cpdp.errors import EventError, RunFolderError
from cpdp.events import EVALUATED, EventLog, StepEvent
from cpdp.exposure import StepBreakdown, break_down
from cpdp.rundir import CellData, RunData

CAUSES = ("gradients", "parameters", "update")
"""Causes of exposed time that always have a column; a strategy may add others."""

PARTS = ("step_ms", "computation_ms", "exposed_ms", "hidden_ms", "rest_ms")
CELL = ("cell", "phase", "label", "strategy", "period", "params", "repeat")
STEP = (*CELL, "rank", "n", "epoch", "warmup", "boundary", "start_s", *PARTS)
STEP_END = ("payload_bytes", "loss", "overhead_us", "tau", "drawn_ms", "excess_ms")
CELLS = (*CELL, "seed", "valid", "state", "reasons", "steps", "ranks", *PARTS)
CELLS_END = (
    "payload_bytes_per_step", "wire_bytes_per_step", "queue_drops", "lateness_p99_us", "wall_s", "train_s", "accuracy",
    "loss", "train_loss", "overran_share", "excess_share",
)  # fmt: skip
NETWORK = ("link", "direction", "quantity", "unit", "asked", "achieved", "low", "high", "ok")
EVAL = (*CELL, "n", "epoch", "train_s", "wall_s", "accuracy", "loss", *EVALUATED)


NUMBERS = ("accuracy", "loss", "tau", *EVALUATED)
"""Columns of numbers whose names do not say so."""


@dataclass(frozen=True)
class Tables:
    """The four tables of a run, as written to tables/."""

    steps: pd.DataFrame
    cells: pd.DataFrame
    network: pd.DataFrame
    eval: pd.DataFrame


def build(run: RunData) -> Tables:
    """All tables of a run, whole or as far as it got."""
    steps: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    evals: list[dict[str, Any]] = []
    for cell in run.cells:
        rows, problems = step_rows(cell)
        steps += rows
        evals += eval_rows(cell)
        cells.append(cell_row(cell, rows, problems))
    causes = _causes(steps)
    return Tables(
        steps=_frame(steps, (*STEP, *causes, *STEP_END)),
        cells=_frame(cells, (*CELLS, *causes, *CELLS_END)),
        network=network_frame(run.network),
        eval=_frame(evals, EVAL),
    )


def build_cell(run: RunData, cell_id: str) -> dict[str, Any]:
    """The row of one cell alone."""
    cell = next(one for one in run.cells if one.id == cell_id)
    return cell_row(cell, *step_rows(cell))


def _causes(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Columns of exposed time by cause: the usual three, then any other in the order in which they appear."""
    names = dict.fromkeys(cause_column(cause) for cause in CAUSES)
    for row in rows:
        names |= dict.fromkeys(key for key in row if key.startswith("exposed_") and key != "exposed_ms")
    return tuple(names)


def cause_column(cause: str) -> str:
    """The column of exposed time of one cause."""
    return f"exposed_{cause}_ms"


def _frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame([[row.get(column) for column in columns] for row in rows], columns=list(columns))
    for column in columns:
        if column.endswith(("_ms", "_s", "_us", "per_step", "drops")) or column in NUMBERS:
            frame[column] = frame[column].astype(float)
        elif column.startswith("exposed_"):
            frame[column] = frame[column].astype(float).fillna(0.0)
    return frame


def _head(cell: CellData) -> dict[str, Any]:
    """The columns that say which cell a row belongs to."""
    spec = cell.cell["strategy"]
    params = {key: value for key, value in spec.items() if key not in ("name", "period")}
    return {
        "cell": cell.id,
        "phase": cell.cell["phase"],
        "label": cell.cell["label"],
        "strategy": spec["name"],
        "period": spec.get("period", 1),
        "params": json.dumps(params, sort_keys=True),
        "repeat": cell.cell["repeat"],
    }


def step_rows(cell: CellData) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per rank and step of a cell, and what was wrong with steps that could not be split."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    head = _head(cell)
    origin = min((log.steps[0].start_ns for log in cell.logs if log.steps), default=0)
    for log in cell.logs:
        rank = log.start.rank if log.start else None
        for step in log.steps:
            try:
                rows.append({**head, "rank": rank, **_step_row(step, origin, dilation(cell))})
            except EventError as error:
                problems.append(f"rank {rank}: {error}")
    return rows, problems


def dilation(cell: CellData) -> float:
    """How many times slower the clock of a cell ran: times are divided by it, so that they are the described ones."""
    return float(cell.cell.get("dilation", 1.0))


def _step_row(step: StepEvent, origin_ns: int, slower: float) -> dict[str, Any]:
    parts = break_down(step)
    row = _times(step, parts, origin_ns)
    for key in row if slower != 1 else ():
        row[key] = None if row[key] is None else row[key] / slower
    return {
        "n": step.n,
        "epoch": step.epoch,
        "warmup": step.warmup,
        "boundary": step.boundary,
        **row,
        "payload_bytes": parts.payload_bytes,
        "loss": step.loss,
        "tau": step.facts.get("period"),
    }


def _times(step: StepEvent, parts: StepBreakdown, origin_ns: int) -> dict[str, Any]:
    """All of a step's columns that are times, on the clock of the run."""
    causes = {cause_column(cause): 0.0 for cause in CAUSES}
    causes |= {cause_column(cause): ns / 1e6 for cause, ns in parts.exposed_by_cause.items()}
    return {
        "start_s": (step.start_ns - origin_ns) / 1e9,
        "step_ms": parts.step_ns / 1e6,
        "computation_ms": parts.computation_ns / 1e6,
        "exposed_ms": parts.exposed_ns / 1e6,
        "hidden_ms": parts.hidden_ns / 1e6,
        "rest_ms": parts.rest_ns / 1e6,
        **causes,
        "overhead_us": step.overhead_ns / 1e3,
        "drawn_ms": _milli(step.facts.get(padding.DRAWN)),
        "excess_ms": _milli(step.facts.get(padding.EXCESS)),
    }


def _milli(ns: Any) -> float | None:
    return None if ns is None else float(ns) / 1e6


def cell_row(cell: CellData, rows: Sequence[Mapping[str, Any]], problems: Sequence[str]) -> dict[str, Any]:
    """The row of one cell: means over its measured steps and ranks, what it sent, whether it counts and why
    not.
    """
    measured = [row for row in rows if not row["warmup"]]
    reasons = [*_reasons(cell), *cell.problems, *problems]
    if cell.started and not measured and state_of(cell) != "failed":
        reasons.append("no measured step")
    means = [*PARTS, *_causes(rows)] if measured else []
    evals = eval_rows(cell)
    return {
        **_head(cell),
        "seed": cell.cell.get("seed"),
        "valid": state_of(cell) == "done" and not reasons,
        "state": state_of(cell),
        "reasons": "; ".join(reasons),
        "steps": len({row["n"] for row in measured}),
        "ranks": len({row["rank"] for row in measured}),
        **{name: _mean(row.get(name, 0.0) for row in measured) for name in means},
        "payload_bytes_per_step": _mean(row["payload_bytes"] for row in measured) if measured else None,
        "wire_bytes_per_step": wire.busiest(wire_per_step(cell)),
        **_health(cell),
        "wall_s": cell.done.get("wall_s") if cell.done else None,
        "train_s": max((row["start_s"] + row["step_ms"] / 1e3 for row in rows), default=None),
        "accuracy": evals[-1]["accuracy"] if evals else None,
        "loss": evals[-1]["loss"] if evals else None,
        "train_loss": evals[-1]["train_loss"] if evals else None,
        **_overrun(cell),
    }


def _overrun(cell: CellData) -> dict[str, float]:
    """How much of padded computation took longer than drawn; nothing of a cell that was not padded."""
    found = padding.overrun(step for log in cell.logs for step in _measured(log))
    return {} if found is None else {"overran_share": found.share, "excess_share": found.excess_share}


def state_of(cell: CellData) -> str:
    """done, failed, interrupted (events, but no end) or missing (never started)."""
    if cell.done is None:
        return "interrupted" if cell.started else "missing"
    return "done" if cell.done.get("ok") else "failed"


def _reasons(cell: CellData) -> list[str]:
    """Why a cell must not be counted, as far as the run itself noted it."""
    if cell.done is None:
        return ["interrupted before its end" if cell.started else "not run"]
    return [str(reason) for reason in cell.done.get("reasons", ())]


def _health(cell: CellData) -> dict[str, Any]:
    """What the emulation said about itself while the cell ran: packets its queues dropped, and how late it
    was.
    """
    ways = ((cell.done or {}).get("health") or {}).get("directions", ())
    late = [way["lateness_p99_us"] for way in ways if way.get("lateness_p99_us") is not None]
    drops = [way["drops_queue"] for way in ways if way.get("drops_queue") is not None]
    return {
        "queue_drops": float(sum(drops)) if drops else None,
        "lateness_p99_us": max(late, default=None),
    }


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def wire_per_step(cell: CellData) -> dict[str, float] | None:
    """Bytes that crossed each WAN direction per measured step; None without measured steps or samples."""
    windows = [_measured(log) for log in cell.logs]
    measured = [steps for steps in windows if steps]
    if not measured:
        return None
    start = min(steps[0].start_ns for steps in measured)
    end = max(steps[-1].end_ns for steps in measured)
    moved = wire.bytes_between(cell.traffic, start, end)
    count = max(len(steps) for steps in measured)
    return None if moved is None else {name: total / count for name, total in moved.items()}


def _measured(log: EventLog) -> list[StepEvent]:
    return [step for step in log.steps if not step.warmup]


def eval_rows(cell: CellData) -> list[dict[str, Any]]:
    """Accuracy after each evaluation, as the lowest rank saw it.

    `train_s` is the time spent in steps up to there, `wall_s` includes the evaluations themselves. A cell that went
    on from a checkpoint begins with what it had evaluated before; the time in which it stood still does not count.
    """
    log = next((log for log in cell.logs if log.evals), None)
    if log is None or not log.steps:
        return []
    before: Mapping[str, Any] = log.start.before if log.start else {}
    rows = [{**_head(cell), **row} for row in before.get("evals", ())]
    for event in log.evals:
        spent = before.get("train_ns", 0) + sum(s.end_ns - s.start_ns for s in log.steps if s.n <= event.n)
        wall = before.get("wall_ns", 0) + max(0, event.t_ns - log.steps[0].start_ns)
        rows.append(
            {
                **_head(cell),
                "n": event.n,
                "epoch": event.epoch,
                "train_s": spent / 1e9 / dilation(cell),
                "wall_s": wall / 1e9 / dilation(cell),
                "accuracy": event.accuracy,
                "loss": event.loss,
                **{key: getattr(event, key) for key in EVALUATED},
            }
        )
    return rows


def network_frame(network: Mapping[str, Any] | None) -> pd.DataFrame:
    """What was achieved against what was asked, one row per link, direction and quantity."""
    links = network.get("links", ()) if network else ()
    return pd.DataFrame([[row.get(key) for key in NETWORK] for row in links], columns=list(NETWORK))


def store(tables: Tables, folder: Path) -> None:
    """Write every table as Parquet and CSV. Raises RunFolderError when that is impossible."""
    try:
        folder.mkdir(exist_ok=True)
        for name in ("steps", "cells", "network", "eval"):
            frame: pd.DataFrame = getattr(tables, name)
            if name == "network":
                frame = frame.map(_as_text).astype(object).where(frame.notna(), None)
            frame.to_parquet(folder / f"{name}.parquet", index=False)
            frame.to_csv(folder / f"{name}.csv", index=False)
    except OSError as error:
        raise RunFolderError(f"cannot write {folder}: {error.strerror or error}") from error


def _as_text(value: object) -> object:
    """One type per column: a quantity may be given as text with its unit or as a number."""
    return value if value is None or isinstance(value, bool) else str(value)
