"""The cells of a compared run, taken apart by the analysis that a profiled script has: logs -> `RankLog` -> parts.

A compared run's events say which spans were exposed and which operations were on their way. Operations of one purpose
are issued in the same order by every rank, so purpose and number match them; where ranks disagree about how many there
were (groups of some ranks only), nothing is claimed. Delay and rate are those that the network was verified to have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cpdp.events import EventLog, StepEvent
from cpdp.exposure import EXPOSED_PREFIX
from cpdp.profiler import split
from cpdp.profiler.columns import Ops, RankLog, Steps
from cpdp.profiler.lines import NEVER, PHASES, WHYS
from cpdp.profiler.split import PARTS, Changing, Path

THREADS_PER_CONTEXT = 2
"""How many operations gloo runs at once on each of its contexts."""


def parts(logs: Sequence[EventLog], network: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Milliseconds of exposed communication per measured step, by cause, over all ranks; None where nobody can tell.

    The parts sum to what the cell's spans `exposed.*` sum to.
    """
    known = [log for log in logs if log.start is not None and log.steps]
    if not known or len({_issued(log) for log in known}) != 1:
        return None
    ranks = [_rank_log(log) for log in known]
    path = _path(network)
    sums = dict.fromkeys(PARTS, 0.0)
    steps = 0
    for log, rank, matched in zip(known, ranks, split.match(ranks), strict=True):
        measured = np.array([not step.warmup for step in log.steps])
        ways = {str(group["name"]): Changing(paths=(path,)) for group in rank.groups.values()}
        found = split.split(rank, split.exposure(rank), matched, ways)
        steps += int(measured.sum())
        for part in PARTS:
            sums[part] += float(found.parts[part][measured].sum()) / 1e6
    return {part: total / steps for part, total in sums.items()} if steps else None


def _issued(log: EventLog) -> tuple[tuple[str, int], ...]:
    """How many operations of each purpose a rank issued."""
    counts: dict[str, int] = {}
    for step in log.steps:
        for op in step.ops:
            if op.bytes:  # the rest of an operation that outlives its step has none: it was counted where it began
                counts[op.purpose] = counts.get(op.purpose, 0) + 1
    return tuple(sorted(counts.items()))


def _path(network: Mapping[str, Any] | None) -> Path:
    """The longest round trip and the lowest rate that were achieved."""
    rows = [row for row in (network or {}).get("links") or () if row.get("achieved") is not None]
    trips = [row["achieved"] * 1e6 for row in rows if (row["quantity"], row["unit"]) == ("rtt", "ms")]
    rates = [row["achieved"] * 1e6 / 8 for row in rows if (row["quantity"], row["unit"]) == ("rate", "Mbit/s")]
    return Path(max(trips, default=None), min(rates, default=None))


def _rank_log(log: EventLog) -> RankLog:
    assert log.start is not None
    contexts = log.start.details.get("gloo_contexts")
    threads = contexts * THREADS_PER_CONTEXT if isinstance(contexts, int) else None
    groups: dict[int, dict[str, Any]] = {}
    heads: dict[tuple[str, str, int], dict[str, Any]] = {}
    numbers: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    for step in log.steps:
        for op in step.ops:
            if not op.bytes:
                continue
            if op.purpose not in numbers:
                members = list(range(log.start.world))
                groups[len(groups)] = {"name": op.purpose, "ranks": members, "backend": "gloo", "threads": threads}
                numbers[op.purpose] = 0
            group = list(numbers).index(op.purpose)
            head = heads.setdefault((op.purpose, op.kind, op.bytes), {
                "h": len(heads), "g": group, "kind": op.kind, "bytes": op.bytes})  # fmt: skip
            end = NEVER if op.finished_ns is None else op.finished_ns
            rows.append((head["h"], numbers[op.purpose], op.issued_ns, op.issued_ns, end, NEVER, NEVER))
            numbers[op.purpose] += 1
    table = np.array(rows, dtype=np.int64).reshape(-1, 7)
    return RankLog(
        path=log.path, start={"rank": log.start.rank, "world": log.start.world}, groups=groups,
        heads=tuple(heads.values()), steps=_steps(log.steps), spans=_rows(log.steps, exposed=False),
        waits=_rows(log.steps, exposed=True), ops=Ops(*(table[:, i].copy() for i in range(7))), end=None,
    )  # fmt: skip


def _steps(steps: Sequence[StepEvent]) -> Steps:
    table = np.array([(s.n, s.start_ns, s.end_ns, s.overhead_ns) for s in steps], dtype=np.int64)
    return Steps(*(table[:, i].copy() for i in range(4)))


def _rows(steps: Sequence[StepEvent], *, exposed: bool) -> Any:
    """(step index, phase or why, from, to) of the spans of computation, or of those that were exposed."""
    rows = []
    for index, step in enumerate(steps):
        for span in step.spans:
            if span.name.startswith(EXPOSED_PREFIX) == exposed:
                kind = WHYS.index("wait") if exposed else PHASES.index(span.name if span.name in PHASES else "other")
                rows.append((index, kind, span.start_ns, span.end_ns))
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def sentences(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per strategy: its mean exposed communication by cause, of the cells that can be taken apart."""
    known: dict[str, list[Mapping[str, float]]] = {}
    for cell in cells:
        if cell["exposed_by_network"] is not None:
            known.setdefault(f"{cell['phase']}, {cell['label']}", []).append(cell["exposed_by_network"])
    lines = []
    for label, found in known.items():
        means = {part: sum(one[part] for one in found) / len(found) for part in PARTS}
        lines.append(f"{label}: " + ", ".join(f"{part} {mean:.1f}" for part, mean in means.items() if mean >= 0.05))
    return ["exposed communication by cause, ms per step:", *(f"  {line}" for line in lines)] if lines else []
