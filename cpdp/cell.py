"""What one rank is told: cell.json -> `Cell`, every key checked before a process group is opened.

Flow: experiment -> cell.json -> `read_cell` -> worker. The same file is given to all ranks of a job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpdp import padding
from cpdp.errors import CellError
from cpdp.padding import Padding
from cpdp.strategies import StrategySpec, from_mapping
from cpdp.workloads import check

_KNOWN = (
    "id", "strategy", "repeat", "seed", "workload", "optimizer", "steps", "warmup_steps", "steps_per_epoch", "epochs",
    "gloo_contexts", "timeout_s", "checkpoint", "duration_s", "evaluate_every", "local_models", "compute", "dilation",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One job: a strategy on a workload. Either `steps` (measured ones, after the warm-up) or `epochs` is
    given.
    """

    id: str
    strategy: StrategySpec
    workload: Mapping[str, Any]
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    repeat: int = 1
    steps: int | None = None
    epochs: int | None = None
    warmup_steps: int = 0
    steps_per_epoch: int | None = None
    gloo_contexts: int = 4
    timeout_s: float = 120.0
    checkpoint: int | None = None
    """Steps between two checkpoints; None: none is taken, and none is looked for."""
    duration_s: float | None = None
    """Seconds of training, evaluations not counted; it ends at the first evaluation from then on."""
    evaluate_every: int | None = None
    local_models: bool = False
    compute: Padding | None = None
    dilation: float = 1.0

    def identity(self) -> dict[str, Any]:
        """What decides the bits of the run: a checkpoint taken with other values belongs to another run."""
        kept = (
            "seed",
            "steps",
            "epochs",
            "warmup_steps",
            "steps_per_epoch",
            "duration_s",
            "evaluate_every",
            "dilation",
        )
        shown = {"strategy": self.strategy.label, "workload": dict(self.workload), "optimizer": dict(self.optimizer)}
        return {**shown, **{key: getattr(self, key) for key in kept}}

    def total_steps(self, steps_per_epoch: int | None) -> float:
        """Optimizer steps of the whole job, warm-up included; no end where a duration is given. Raises CellError when
        nothing says how many.
        """
        if self.duration_s is not None:
            return math.inf
        if self.steps is not None:
            return self.warmup_steps + self.steps
        if self.epochs is not None and steps_per_epoch is not None:
            return self.epochs * steps_per_epoch
        raise CellError(f"cell {self.id}: needs steps, or epochs of a known length (steps_per_epoch)")


def read_cell(path: Path) -> Cell:
    """Read a cell file. Raises CellError, StrategyError or WorkloadError naming the file, the key and the
    value.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CellError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CellError(f"{path}: expected an object with {', '.join(_KNOWN)}")
    return parse_cell(raw, str(path))


def parse_cell(raw: Mapping[str, Any], where: str) -> Cell:
    """Check the contents of a cell file; `where` names it in messages."""
    for key in raw:
        if key not in _KNOWN:
            raise CellError(f"{where}: unknown key {key!r}; valid: {', '.join(_KNOWN)}")
    for key in ("strategy", "workload"):
        if not isinstance(raw.get(key), dict):
            raise CellError(f"{where}: {key}: expected a mapping with a name, got {raw.get(key)!r}")
    optimizer = raw.get("optimizer") or {}
    if not isinstance(optimizer, dict):
        raise CellError(f"{where}: optimizer: expected a mapping, got {optimizer!r}")
    check(raw["workload"])
    cell = Cell(
        id=str(raw.get("id", "cell")),
        strategy=from_mapping(raw["strategy"]),
        workload=raw["workload"],
        optimizer=optimizer,
        seed=_whole(raw, where, "seed", 0) or 0,
        repeat=_whole(raw, where, "repeat", 1) or 1,
        steps=_whole(raw, where, "steps", 0),
        epochs=_whole(raw, where, "epochs", 1),
        warmup_steps=_whole(raw, where, "warmup_steps", 0) or 0,
        steps_per_epoch=_whole(raw, where, "steps_per_epoch", 1),
        gloo_contexts=_whole(raw, where, "gloo_contexts", 1) or 4,
        timeout_s=_seconds(raw, where, "timeout_s", 120.0) or 120.0,
        checkpoint=_whole(raw, where, "checkpoint", 1),
        duration_s=_seconds(raw, where, "duration_s", None),
        evaluate_every=_whole(raw, where, "evaluate_every", 1),
        local_models=bool(raw.get("local_models", False)),
        compute=padding.from_json(raw["compute"]) if raw.get("compute") else None,
        dilation=_seconds(raw, where, "dilation", 1.0) or 1.0,
    )
    if sum(length is not None for length in (cell.steps, cell.epochs, cell.duration_s)) != 1:
        raise CellError(f"{where}: exactly one of steps, epochs and duration_s must be given")
    return cell


def _whole(raw: Mapping[str, Any], where: str, key: str, low: int) -> int | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise CellError(f"{where}: {key}: {value!r} is not allowed; a whole number from {low}")
    return value


def _seconds(raw: Mapping[str, Any], where: str, key: str, default: float | None) -> float | None:
    value = raw.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86_400:
        raise CellError(f"{where}: {key}: {value!r} is not allowed; seconds above 0, up to 86400")
    return float(value)
