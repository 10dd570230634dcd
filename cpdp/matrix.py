"""Experiment -> the cells to run, in their order, and the resolved configuration that a run stores. Pure.

Order: phase after phase; within a phase one repeat after the other, and within a repeat all strategies in an
order drawn from the recorded seed. So a machine that gets slower during the run touches every strategy alike,
and the same seed gives the same order.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpdp import padding, strategies
from cpdp.errors import ExperimentError
from cpdp.experiment import Experiment, slug
from cpdp.padding import Padding
from cpdp.phase import Phase
from netlab import Profile

FORMAT = 1
"""Version of resolved.json; a resume of a newer one is refused."""

CONFIGURATION = ("experiment", "cells")
"""Keys of resolved.json that make a run the run that was asked for."""


@dataclass(frozen=True)
class Cell:
    """One job: a strategy, once, on the workload of its phase. `repeat` counts from 1."""

    id: str
    phase: Phase
    label: str
    strategy: Mapping[str, Any]
    repeat: int
    dilation: float = 1.0

    @property
    def seed(self) -> int:
        """Every strategy of a repeat starts from the same seed; repeats differ."""
        return self.phase.seed + self.repeat - 1

    @property
    def total_steps(self) -> int | None:
        """Steps with warm-up; None where the workload's data set decides."""
        return None if self.phase.steps is None else self.phase.steps + self.phase.warmup_steps

    @property
    def compute(self) -> Padding | None:
        """The times of padded computation on the clock on which the cell runs."""
        asked = self.phase.compute
        return None if asked is None else padding.from_json(asked).dilated(self.dilation)

    def spec(self) -> dict[str, Any]:
        """What the worker is told (cell.json)."""
        return {
            "id": self.id,
            "strategy": dict(self.strategy),
            "repeat": self.repeat,
            "seed": self.seed,
            "workload": dict(self.phase.workload),
            "optimizer": dict(self.phase.optimizer),
            "steps": self.phase.steps,
            "warmup_steps": self.phase.warmup_steps,
            "steps_per_epoch": self.phase.steps_per_epoch,
            "epochs": self.phase.epochs,
            "gloo_contexts": self.phase.gloo_contexts,
            "timeout_s": self.phase.timeout_s * self.dilation,
            "checkpoint": self.phase.checkpoint,
            "duration_s": self.phase.duration_s and self.phase.duration_s * self.dilation,
            "evaluate_every": self.phase.evaluate_every,
            "local_models": self.phase.local_models,
            "compute": self.compute and self.compute.to_json(),
            "dilation": self.dilation,
        }

    def listed(self) -> dict[str, Any]:
        """Its line in resolved.json, from which the tables know where an event file belongs."""
        return {
            "id": self.id,
            "phase": self.phase.name,
            "label": self.label,
            "strategy": dict(self.strategy),
            "repeat": self.repeat,
            "seed": self.seed,
            **({} if self.dilation == 1 else {"dilation": self.dilation}),
        }


def cells(experiment: Experiment) -> tuple[Cell, ...]:
    """All cells in the order in which they run."""
    draw = random.Random(experiment.order_seed)
    found = [cell for phase in experiment.phases for cell in _phase_cells(phase, draw)]
    drawn = [replace(cell, dilation=experiment.dilation) for cell in found]
    width = max(2, len(str(len(drawn))))
    return tuple(_named(cell, number, width) for number, cell in enumerate(drawn, start=1))


def _phase_cells(phase: Phase, draw: random.Random) -> Iterator[Cell]:
    labels = label_all(phase.strategies)
    for repeat in range(1, phase.repeats + 1):
        order = list(range(len(phase.strategies)))
        draw.shuffle(order)
        for index in order:
            yield Cell("", phase, labels[index], phase.strategies[index], repeat)


def _named(cell: Cell, number: int, width: int) -> Cell:
    name = slug(cell.label.lower())
    return replace(cell, id=f"{number:0{width}d}-{name}-r{cell.repeat}")


def label_all(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short name for each strategy of a phase: "cpdp K=4" where that tells them apart, else with all
    options.

    Raises ExperimentError when the same strategy is listed twice.
    """
    short = [_short(spec) for spec in specs]
    labels = [text if short.count(text) == 1 else _long(spec) for text, spec in zip(short, specs, strict=True)]
    for label in labels:
        if labels.count(label) > 1:
            raise ExperimentError(f"strategies: {label} is listed twice; use repeats to run it more than once")
    return labels


def _short(spec: Mapping[str, Any]) -> str:
    period = spec.get("period")
    return str(spec["name"]) if period is None else f"{spec['name']} K={period}"


def _long(spec: Mapping[str, Any]) -> str:
    return strategies.from_mapping(spec).label


def resolve(experiment: Experiment, profile: Profile, versions: Mapping[str, str | None]) -> dict[str, Any]:
    """Everything that was decided before the first cell, as resolved.json stores it."""
    network = {
        "name": profile.name,
        "asked": experiment.network,
        "path": profile.path,
        "sha256": hashlib.sha256(profile.text.encode()).hexdigest(),
        "text": profile.text,
        "files": dict(profile.files),
    }
    chosen = cells(experiment)
    raw = experiment.to_json()
    for phase, stored in zip(experiment.phases, raw["phases"], strict=True):
        labels = label_all(phase.strategies)
        stored["strategies"] = [{"label": label, **spec} for label, spec in zip(labels, phase.strategies, strict=True)]
    return {
        "format": FORMAT,
        "experiment": {**raw, "network": network},
        "cells": [cell.listed() for cell in chosen],
        "versions": dict(versions),
    }


def unresolve(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment's part of resolved.json without what `resolve` added: `experiment.from_json` reads it."""
    raw = json.loads(json.dumps(resolved["experiment"]))
    raw["network"] = raw["network"]["asked"]
    for phase in raw["phases"]:
        for spec in phase["strategies"]:
            spec.pop("label", None)
    return dict(raw)


def first_difference(old: Any, new: Any, key: str = "") -> str | None:
    """Where two configurations differ first: "experiment.phases[0].steps: 12 there, 16 here"; None when
    equal.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = [*old, *(name for name in new if name not in old)]
        pairs = [(f"{key}.{name}" if key else name, old.get(name), new.get(name)) for name in names]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{key}[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return None if old == new else f"{key}: {_brief(old)} there, {_brief(new)} here"
    return next((found for name, a, b in pairs if (found := first_difference(a, b, name))), None)


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_resumable(stored: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Raise ExperimentError unless a run can go on with this configuration and these versions.

    The commit may differ: it changes with every text that is corrected.
    """
    if int(stored.get("format", 0)) > FORMAT:
        raise ExperimentError(f"{where} was written by a newer version (format {stored['format']})")
    there, here = (_comparable(tree) for tree in (stored, now))
    for part in there:
        difference = first_difference(there[part], here[part], part)
        if difference:
            raise ExperimentError(
                f"{where} cannot be resumed, its cells would not be comparable: {difference}."
                " Start a new run, or ask for what that run was started with"
            )


def _comparable(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs must share. The profile counts by its content, wherever its file lies."""
    tree: dict[str, Any] = json.loads(json.dumps({part: resolved[part] for part in (*CONFIGURATION, "versions")}))
    tree["versions"].pop("commit", None)
    for key in ("path", "asked", "text"):
        tree["experiment"]["network"].pop(key, None)
    return tree
