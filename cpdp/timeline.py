"""Events -> strips of a timeline: the last steps of each strategy as rank 0 spent them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cpdp.events import StepEvent
from cpdp.exposure import COMPUTATION, Interval, cause_of, clip, union
from cpdp.rundir import CellData, RunData

Bar = tuple[float, float]
"""Start and length in milliseconds from the strip's start."""


@dataclass(frozen=True)
class Strip:
    """Some successive steps of one strategy."""

    label: str
    steps: int
    length_ms: float
    computation: tuple[Bar, ...]
    exposed: tuple[Bar, ...]
    moving: tuple[Bar, ...]
    edges: tuple[float, ...]
    """Where steps begin and end."""


def strips(run: RunData, phase: str, labels: Sequence[str]) -> list[Strip]:
    """One strip per strategy that has measured steps: as many steps as the longest period among them."""
    cells = {label: cell for label in labels if (cell := _pick(run, phase, label))}
    if not cells:
        return []
    periods = [int(cell.cell["strategy"].get("period", 1)) for cell in cells.values()]
    count = max(1, min(max(periods), *(len(_measured(cell)) for cell in cells.values())))
    return [strip(label, _whole(_measured(cell), count)) for label, cell in cells.items()]


def _pick(run: RunData, phase: str, label: str) -> CellData | None:
    """The first cell of a strategy that counts, else the first with measured steps."""
    found = [c for c in run.cells if (c.cell["phase"], c.cell["label"]) == (phase, label) and _measured(c)]
    return next((cell for cell in found if (cell.done or {}).get("valid")), found[0] if found else None)


def _measured(cell: CellData) -> list[StepEvent]:
    log = next((log for log in cell.logs if log.start and log.start.rank == 0), None)
    return [step for step in log.steps if not step.warmup] if log else []


def _whole(steps: Sequence[StepEvent], count: int) -> list[StepEvent]:
    """The last `count` steps that end with a boundary, so that a period is shown whole; else simply the last."""
    ends = [i for i, step in enumerate(steps, start=1) if step.boundary and i >= count]
    end = ends[-1] if ends else len(steps)
    return list(steps[max(0, end - count) : end])


def strip(label: str, steps: Sequence[StepEvent]) -> Strip:
    """The strip of these successive steps."""
    start, end = steps[0].start_ns, steps[-1].end_ns
    spans = [span for step in steps for span in step.spans]
    computing = union((span.start_ns, span.end_ns) for span in spans if span.name in COMPUTATION)
    exposed = union((span.start_ns, span.end_ns) for span in spans if cause_of(span) is not None)
    moving = union(
        (op.issued_ns, step.end_ns if op.finished_ns is None else op.finished_ns) for step in steps for op in step.ops
    )
    edges = (0.0, *((step.end_ns - start) / 1e6 for step in steps))
    return Strip(
        label, len(steps), (end - start) / 1e6, _bars(computing, start), _bars(exposed, start),
        _bars(clip(moving, (start, end)), start), edges,
    )  # fmt: skip


def _bars(intervals: Iterable[Interval], origin: int) -> tuple[Bar, ...]:
    return tuple(((a - origin) / 1e6, (b - a) / 1e6) for a, b in intervals)
