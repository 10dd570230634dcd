"""Event files of one world of ranks -> numpy arrays, made for runs of millions of operations.

Lines go through the C parser of `json` and into flat arrays; no object is made per operation. A file cut off anywhere
is read up to its last whole line. All times are absolute nanoseconds of the rank's clock.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpdp.errors import EventError
from cpdp.profiler.lines import FORMAT, NEVER, OP_FIELDS

Ints = NDArray[np.int64]

WIDTH = len(OP_FIELDS)


@dataclass(frozen=True)
class Steps:
    """One row per step: its number, begin, end and what the profiler cost in it."""

    n: Ints
    begin: Ints
    end: Ints
    overhead: Ints

    def __len__(self) -> int:
        """How many."""
        return len(self.n)


@dataclass(frozen=True)
class Ops:
    """One row per operation, in the order in which they were written; NEVER where a moment was not seen."""

    head: Ints
    seq: Ints
    issued: Ints
    called: Ints
    finished: Ints
    wait_from: Ints
    wait_to: Ints

    def __len__(self) -> int:
        """How many."""
        return len(self.head)

    def take(self, rows: Any) -> Ops:
        """Some of them."""
        return Ops(*(getattr(self, name)[rows] for name in ("head", "seq", *OP_FIELDS[2:])))


@dataclass(frozen=True)
class RankLog:
    """All that one rank wrote. `spans` rows are (step index, phase, from, to), `waits` rows (step index, why, from,
    to); a step index counts rows of `steps`, and the tail that never ended has the index after the last.
    """

    path: Path
    start: Mapping[str, Any]
    groups: Mapping[int, Mapping[str, Any]]
    heads: tuple[Mapping[str, Any], ...]
    steps: Steps
    spans: Ints
    waits: Ints
    ops: Ops
    end: Mapping[str, Any] | None
    now: Mapping[str, Any] | None = None
    """The last line of a step that was under way when the file ends."""
    tail: bool = False
    problem: str | None = None
    offset_ns: float = 0.0
    """What was added to every time of this rank, on average, to bring it onto rank 0's clock."""
    uncertainty_ns: int | None = None
    """By how much that may be wrong at most; None when no offset was measured."""

    @property
    def rank(self) -> int:
        """The rank."""
        return int(self.start["rank"])

    @property
    def place(self) -> str:
        """Where the rank ran: the lab's worker, or the launch, or the host."""
        return str(self.start.get("worker") or self.start.get("launch") or self.start.get("host"))

    def column(self, key: str, default: Any = None) -> list[Any]:
        """A value of every head, in order."""
        return [head.get(key, default) for head in self.heads]


@dataclass
class _Raw:
    start: dict[str, Any] | None = None
    groups: dict[int, dict[str, Any]] = field(default_factory=dict)
    heads: dict[int, dict[str, Any]] = field(default_factory=dict)
    steps: array[int] = field(default_factory=lambda: array("q"))
    ops: array[int] = field(default_factory=lambda: array("q"))
    op_counts: array[int] = field(default_factory=lambda: array("q"))
    spans: array[int] = field(default_factory=lambda: array("q"))
    span_counts: array[int] = field(default_factory=lambda: array("q"))
    waits: array[int] = field(default_factory=lambda: array("q"))
    wait_counts: array[int] = field(default_factory=lambda: array("q"))
    end: dict[str, Any] | None = None
    now: dict[str, Any] | None = None
    tail: dict[str, Any] | None = None
    clocks: list[tuple[int, int, int]] = field(default_factory=list)


def read(path: Path) -> RankLog:
    """Read one rank's file. Raises EventError for one that is not a profile's, OSError when it cannot be read."""
    raw = _Raw()
    problem = None
    for number, line in _lines(path):
        if not line.endswith(b"\n"):
            problem = f"{path}:{number}: the last line is torn, not used"
            break
        try:
            _take(raw, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise EventError(f"{path}:{number}: not a profiler's event: {error!r}") from error
    if raw.start is None:
        raise EventError(f"{path}: holds no start line")
    return _finish(path, raw, problem)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from enumerate(file, start=1)


def _take(raw: _Raw, line: dict[str, Any]) -> None:
    kind = line["k"]
    if kind in ("step", "tail"):
        _take_step(raw, line, kind)
    elif kind == "op":
        raw.heads[line["h"]] = line
    elif kind == "group":
        raw.groups[line["g"]] = line
    elif kind == "start":
        if line["v"] != FORMAT:
            raise ValueError(f"format {line['v']}, this version reads {FORMAT}")
        raw.start = line
    elif kind == "end":
        raw.end = line
    elif kind == "now":
        raw.now = line
    elif kind == "clock":
        raw.clocks.append((line["t"], line["offset"], line["uncertainty"]))


def _take_step(raw: _Raw, line: dict[str, Any], kind: str) -> None:
    begin, end = line["t"]
    raw.steps.extend((line["n"], begin, end, line["c"]))
    raw.ops.extend(line["o"])
    raw.op_counts.append(len(line["o"]) // WIDTH)
    raw.spans.extend(line["s"])
    raw.span_counts.append(len(line["s"]) // 3)
    raw.waits.extend(line["w"])
    raw.wait_counts.append(len(line["w"]) // 3)
    raw.now = None
    if kind == "tail":
        raw.tail = line


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, dtype=np.int64)


def _finish(path: Path, raw: _Raw, problem: str | None) -> RankLog:
    assert raw.start is not None
    steps = _ints(raw.steps).reshape(-1, 4).copy()
    shift = _shift(raw.clocks, steps[:, 1])
    steps[:, 1:3] += shift[:, None]
    begin = steps[:, 1]
    whole = steps[:-1] if raw.tail is not None else steps
    ops = _ints(raw.ops).reshape(-1, WIDTH)
    base = np.repeat(begin, _ints(raw.op_counts))
    times = {name: np.where(ops[:, i] == NEVER, NEVER, ops[:, i] + base) for i, name in enumerate(OP_FIELDS) if i >= 2}
    if len(ops):  # an operation issued exactly one nanosecond before its line's step cannot be told from NEVER
        times["issued"] = ops[:, 2] + base
    return RankLog(
        path=path,
        start=raw.start,
        groups=raw.groups,
        heads=tuple(raw.heads[h] for h in sorted(raw.heads)),
        steps=Steps(*(np.ascontiguousarray(whole[:, i]) for i in range(4))),
        spans=_triples(raw.spans, raw.span_counts, begin),
        waits=_triples(raw.waits, raw.wait_counts, begin),
        ops=Ops(ops[:, 0].copy(), ops[:, 1].copy(), **times),
        end=raw.end,
        now=raw.now,
        tail=raw.tail is not None,
        problem=problem,
        offset_ns=float(shift.mean()) if len(shift) else 0.0,
        uncertainty_ns=max((uncertainty for _, _, uncertainty in raw.clocks), default=None),
    )


def _shift(clocks: list[tuple[int, int, int]], moments: Ints) -> Ints:
    """The measured offset at some moments, between two measurements along a line; zero where none was measured."""
    if not clocks:
        return np.zeros(len(moments), dtype=np.int64)
    times, offsets = np.array([t for t, _, _ in clocks]), np.array([offset for _, offset, _ in clocks])
    drift = np.interp(moments, times, (offsets - offsets[0]).astype(np.float64))
    result: Ints = offsets[0] + drift.astype(np.int64)
    return result


def _triples(values: array[int], counts: array[int], begin: Ints) -> Ints:
    """(step index, number, from, to) out of flat relative triples."""
    triples = _ints(values).reshape(-1, 3)
    index = np.repeat(np.arange(len(begin)), _ints(counts))
    base = begin[index]
    return np.column_stack([index, triples[:, 0], triples[:, 1] + base, triples[:, 2] + base])
