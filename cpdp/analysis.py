"""A run folder -> everything that is printed about it: tables, summary, trainings, differences. Read once,
shown often.

`cpdp show`, the closing table of `cpdp compare`, the report and the notebook all start here, so that they
cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cpdp import explain, jsonfile, race, race_view, summary, tables
from cpdp.profiler import compared
from cpdp.race import Racer, Runtime
from cpdp.rundir import RunData, RunDir, read_run
from cpdp.summary import Spread, Summary, Training
from cpdp.tables import Tables

TARGET_ACCURACY = 0.95
"""Target of a training phase that names none."""


@dataclass(frozen=True)
class Analysis:
    """One run, understood."""

    run: RunData
    tables: Tables
    summary: Summary
    trainings: Mapping[str, tuple[Training, ...]]
    differences: tuple[str, ...]
    cautions: tuple[str, ...] = ()
    races: Mapping[str, tuple[Racer, ...]] = field(default_factory=dict)
    runtimes: Mapping[str, tuple[Runtime, ...]] = field(default_factory=dict)

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The rows of the table of cells, unknown numbers as None."""
        return [dict(row) for row in jsonfile.plain(self.tables.cells.to_dict("records"))]

    @property
    def valid(self) -> bool:
        """Every cell of the matrix was measured and counts."""
        return bool(len(self.tables.cells)) and bool(self.tables.cells["valid"].all())


def analyse(run: RunData) -> Analysis:
    """Understand a run, whole or as far as it got."""
    built = tables.build(run)
    summed = summary.summarise(run, built.cells)
    trainings = {}
    for phase in run.resolved["experiment"]["phases"]:
        if phase["kind"] == "training":
            order = [str(strategy["label"]) for strategy in phase["strategies"]]
            evals = built.eval[built.eval["phase"] == phase["name"]]
            target = phase.get("target_accuracy") or TARGET_ACCURACY
            trainings[str(phase["name"])] = summary.trainings(evals, order, float(target))
    cautions = tuple(explain.cautions(run.resolved["experiment"]))
    differences = tuple(explain.differences(summed, run.network))
    phases = run.resolved["experiment"]["phases"]
    races = {str(phase["name"]): race.racers(phase, built.eval) for phase in phases}
    runtimes = {str(phase["name"]): race.runtimes(phase, run.cells) for phase in phases}
    return Analysis(run, built, summed, trainings, differences, cautions, races, runtimes)


def open_run(folder: RunDir) -> Analysis:
    """Read and understand a run folder."""
    return analyse(read_run(folder))


def to_json(found: Analysis) -> dict[str, Any]:
    """What `cpdp show --json` prints and the report embeds. The keys are a contract: docs/reference/run-
    folder.md.
    """
    causes = [name for name in found.tables.cells.columns if name.startswith("exposed_") and name != "exposed_ms"]
    wire = {cell.id: tables.wire_per_step(cell) for cell in found.run.cells}
    earlier = {cell.id: list((cell.done or {}).get("earlier_attempts", ())) for cell in found.run.cells}
    by_network = {cell.id: compared.parts(cell.logs, found.run.network) for cell in found.run.cells}
    cells = [
        {
            **_cell_json(cell, causes, wire[str(cell["cell"])]),
            "exposed_by_network": by_network[str(cell["cell"])],
            "earlier_attempts": earlier[str(cell["cell"])],
        }
        for cell in found.cells
    ]
    network = found.run.network
    value = {
        "run": str(found.run.path),
        "name": found.run.name,
        "valid": found.valid,
        "complete": found.run.complete,
        "network": None if network is None else {key: network.get(key) for key in ("ok", "carrier", "links")},
        "cells": cells,
        "strategies": [_line_json(line, found.summary) for line in found.summary.lines()],
        "trainings": [_training_json(phase, one) for phase, many in found.trainings.items() for one in many],
        "races": [race_view.race_json(phase, one) for phase, many in found.races.items() for one in many],
        "runtimes": [race_view.model_json(phase, one) for phase, many in found.runtimes.items() for one in many],
        "differences": list(found.differences),
        "cautions": list(found.cautions),
    }
    plain: dict[str, Any] = jsonfile.plain(value)
    return plain


def _cell_json(
    cell: Mapping[str, Any], causes: list[str], wire_per_direction: Mapping[str, float] | None
) -> dict[str, Any]:
    kept = {key: value for key, value in cell.items() if key not in causes and key not in ("cell", "params", "reasons")}
    by_cause = {name.removeprefix("exposed_").removesuffix("_ms"): cell[name] for name in causes}
    unknown = cell["exposed_ms"] is None
    return {
        "id": cell["cell"],
        **kept,
        "reasons": [reason for reason in str(cell["reasons"]).split("; ") if reason],
        "wire_bytes_per_step_by_direction": wire_per_direction,
        "exposed_by_cause": dict.fromkeys(by_cause) if unknown else by_cause,
    }


def _line_json(line: summary.Line, summed: Summary) -> dict[str, Any]:
    row = line.published
    return {
        "phase": line.phase, "label": line.label, "strategy": line.strategy, "period": line.period,
        "cells": line.cells, "valid_cells": line.valid, "counted": line.counted,
        **{name: _spread_json(line.values[name]) for name in summary.PER_STEP},
        "share_of_ddp": _spread_json(line.share_of_ddp),
        "exposed_s_per_epoch": _spread_json(line.epoch_s),
        "steps_per_epoch": summed.steps_per_epoch[line.phase],
        "published_exposed_s_per_epoch": row.exposed_s if row else None,
        "published_share_of_ddp": line.published_share,
    }  # fmt: skip


def _training_json(phase: str, one: Training) -> dict[str, Any]:
    return {
        "phase": phase, "label": one.label, "target": one.target, "reached": one.reached, "repeats": one.repeats,
        "final": _spread_json(one.final), "best": _spread_json(one.best),
        "to_target_s": _spread_json(one.to_target_s), "total_s": _spread_json(one.total_s),
    }  # fmt: skip


def _spread_json(value: Spread | None) -> dict[str, Any] | None:
    return None if value is None else {"mean": value.mean, "low": value.low, "high": value.high, "n": value.n}
