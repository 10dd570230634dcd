"""What exposed time was made of: queue, wait for a peer, latency, bytes, other traffic, protocol, copies. Pure.

Two stages. `exposure` needs one rank: where the main thread stood still, step by step. `split` needs all ranks and what
is known of the network, and takes every interval of standing still apart, one after the other:

    copy      after the last operation was done (buckets are copied back into gradients)
    peer      while the operation that finished next was not yet issued by every rank of its group
    bytes     the floor set by the rate: the operations' bytes, as far as they crossed in the interval
    latency   the floor set by the path: one-way trips of the library's algorithm times the delay, last operation
    queue     the last operation was ready everywhere, but the library had not started it
    traffic   bytes of others on the same link, seen by the interface's counters
    protocol  the rest: slow start, windows, segment limits, ready notices

Each takes at most what those before it left, so the parts sum to the interval, always. Without a rate or a delay, what
would be bytes or latency is `transfer`, which is the name for "crossing, not taken apart".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpdp.profiler.columns import Ints, RankLog
from cpdp.profiler.lines import NEVER, PHASES, WHYS

Floats = NDArray[Any]

PARTS = ("queue", "peer", "latency", "bytes", "traffic", "protocol", "copy")
"""Columns of the split; they sum to the exposed time."""

SLACK_NS = 500_000
"""An operation's end is stamped by a callback, which may run a moment after the waiting thread went on."""

MEASURED_BY_WAIT = ("send", "recv")
BACKWARD = WHYS.index("backward")


@dataclass(frozen=True)
class Path:
    """What is known of the way between the members of a group: round trip in ns, payload bytes per second."""

    rtt_ns: float | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Changing:
    """A path that changes: `paths[i]` holds from `since_ns[i]` on; the first also before."""

    since_ns: tuple[int, ...] = (0,)
    paths: tuple[Path, ...] = (Path(),)

    def values(self, times: Ints, name: str) -> Floats:
        """A value at each of some moments; NaN where unknown."""
        known = [getattr(path, name) for path in self.paths]
        table = np.array([np.nan if value is None else float(value) for value in known])
        return table[np.clip(np.searchsorted(np.array(self.since_ns), times, side="right") - 1, 0, None)]


@dataclass(frozen=True)
class Exposure:
    """One rank's standing still: disjoint intervals in order, and per step sums in ns."""

    step: Ints
    why: Ints
    begin: Ints
    end: Ints
    phases: Ints
    """(steps, phases): time in each phase, standing still not counted."""
    exposed: Ints
    hidden: Ints


@dataclass(frozen=True)
class Matched:
    """Per operation of one rank: when every rank had issued it, who was last, and how many ranks are in its group."""

    ready: Ints
    last_rank: Ints
    known: Floats
    world: Ints


@dataclass(frozen=True)
class Split:
    """Per step of one rank: ns of each of `PARTS`, and by rank the time waited for it."""

    parts: dict[str, Floats]
    waited_for: dict[int, float] = field(default_factory=dict)
    worst: tuple[int, int, float] | None = None
    """(row of the operation, late rank, ns): the longest wait for a peer."""


def merge(index: Ints, why: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Disjoint intervals that cover the same time; each keeps step and reason of its first."""
    keep = end > begin
    index, why, begin, end = (column[keep] for column in (index, why, begin, end))
    order = np.lexsort((end, begin))
    index, why, begin, end = (column[order] for column in (index, why, begin, end))
    if not len(begin):
        return index, why, begin, end
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], begin[1:] > reach[:-1]))
    starts = np.flatnonzero(first)
    return index[starts], why[starts], begin[starts], np.maximum.reduceat(end, starts)


def covered(begin: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """How much of each [low, high] is covered by the disjoint, ordered intervals."""
    if not len(begin):
        return np.zeros(len(low), dtype=np.int64)
    total = np.concatenate(([0], np.cumsum(end - begin)))

    def up_to(moments: Ints) -> Ints:
        i = np.searchsorted(begin, moments, side="right") - 1
        inside = np.clip(moments - begin[np.clip(i, 0, None)], 0, (end - begin)[np.clip(i, 0, None)])
        result: Ints = np.where(i < 0, 0, total[np.clip(i, 0, None)] + inside)
        return result

    return up_to(high) - up_to(low)


def exposure(log: RankLog) -> Exposure:
    """Where one rank stood still, and what it did otherwise."""
    count = len(log.steps)
    rows = log.waits[log.waits[:, 0] < count]
    low, high = log.steps.begin[rows[:, 0]], log.steps.end[rows[:, 0]]
    begin, end = np.clip(rows[:, 2], low, high), np.clip(rows[:, 3], low, high)
    index, why, begin, end = merge(rows[:, 0], rows[:, 1], begin, end)
    spans = log.spans[log.spans[:, 0] < count]
    still = covered(begin, end, spans[:, 2], spans[:, 3])
    phases = np.zeros((count, len(PHASES)), dtype=np.int64)
    np.add.at(phases, (spans[:, 0], spans[:, 1]), spans[:, 3] - spans[:, 2] - still)
    exposed = np.bincount(index, weights=end - begin, minlength=count).astype(np.int64)
    ops = log.ops
    done = ops.finished != NEVER
    _, _, moving, moved = merge(ops.head[done], ops.head[done], ops.issued[done], ops.finished[done])
    under = covered(moving, moved, log.steps.begin, log.steps.end)
    both = covered(moving, moved, begin, end)
    hidden = under - np.bincount(index, weights=both, minlength=count).astype(np.int64)
    return Exposure(index, why, begin, end, phases, exposed, hidden)


def started(log: RankLog) -> Ints:
    """When the library started each operation: an estimate from gloo's queue, first in first out on N threads.

    An operation starts when it is issued or when fewer than N of those before it are unfinished, whichever is later.
    Other backends, sends and receives start when they are issued.
    """
    ops = log.ops
    result = ops.issued.copy()
    groups = np.array(log.column("g", 0), dtype=np.int64)
    queued = np.array([kind not in MEASURED_BY_WAIT for kind in log.column("kind")], dtype=bool)
    for number, group in log.groups.items():
        threads = group.get("threads")
        if group.get("backend") != "gloo" or not threads or not len(ops):
            continue
        rows = np.flatnonzero((groups[ops.head] == number) & queued[ops.head] & (ops.finished != NEVER))
        rows = rows[np.argsort(ops.seq[rows], kind="stable")]
        if len(rows) > threads:
            free = np.sort(ops.finished[rows])[: len(rows) - threads]
            late = rows[threads:]
            result[late] = np.minimum(np.maximum(ops.issued[late], free), ops.finished[late])
    return result


def match(logs: Sequence[RankLog]) -> list[Matched]:
    """Match operations across ranks by group and sequence number, sends with receives by peer and number."""
    collective: dict[str, list[tuple[int, Ints]]] = {}
    sends: dict[tuple[str, str, int, int], tuple[Ints, Ints]] = {}
    for which, log in enumerate(logs):
        for key, rows in _lanes(log).items():
            if len(key) == 1:
                collective.setdefault(key[0], []).append((which, rows))
            else:
                sends[(key[0], key[1], log.rank, int(key[2]))] = (log.ops.seq[rows], log.ops.issued[rows])
    found = [_unmatched(log) for log in logs]
    for name, members in collective.items():
        _match_group(logs, found, name, members)
    for which, log in enumerate(logs):
        _match_peers(log, found[which], sends)
    return found


def _lanes(log: RankLog) -> dict[tuple[str, ...], Ints]:
    """Rows of operations that are numbered together: (group,) or (group, kind, peer)."""
    lanes: dict[tuple[str, ...], list[int]] = {}
    for number, head in enumerate(log.heads):
        name = str(log.groups[head["g"]]["name"])
        peer = head["kind"] in MEASURED_BY_WAIT
        lanes.setdefault((name, head["kind"], str(head.get("peer", -1))) if peer else (name,), []).append(number)
    lane_of = np.zeros(len(log.heads), dtype=np.int64)
    for lane, numbers in enumerate(lanes.values()):
        lane_of[numbers] = lane
    rows = lane_of[log.ops.head] if len(log.ops) else np.zeros(0, dtype=np.int64)
    return {key: np.flatnonzero(rows == lane) for lane, key in enumerate(lanes)}


def _unmatched(log: RankLog) -> Matched:
    sizes = np.array([len(log.groups[head["g"]]["ranks"]) for head in log.heads], dtype=np.int64)
    count = len(log.ops)
    world = sizes[log.ops.head] if count else np.zeros(0, dtype=np.int64)
    return Matched(log.ops.issued.copy(), np.full(count, log.rank), np.zeros(count, dtype=bool), world)


def _match_group(logs: Sequence[RankLog], found: list[Matched], name: str, members: list[tuple[int, Ints]]) -> None:
    expected = max(
        len(group["ranks"]) for which, _ in members for group in logs[which].groups.values() if group["name"] == name
    )
    length = max((int(logs[which].ops.seq[rows].max()) + 1 for which, rows in members if len(rows)), default=0)
    issued = np.full((len(members), length), np.iinfo(np.int64).min)
    for line, (which, rows) in enumerate(members):
        issued[line, logs[which].ops.seq[rows]] = logs[which].ops.issued[rows]
    ready = issued.max(axis=0)
    complete = (issued != np.iinfo(np.int64).min).sum(axis=0) == expected
    last = np.array([logs[which].rank for which, _ in members])[issued.argmax(axis=0)]
    for which, rows in members:
        seq = logs[which].ops.seq[rows]
        found[which].ready[rows] = ready[seq]
        found[which].last_rank[rows] = last[seq]
        found[which].known[rows] = complete[seq]


def _match_peers(log: RankLog, found: Matched, sends: Mapping[tuple[str, str, int, int], tuple[Ints, Ints]]) -> None:
    """A receive is ready when its send was issued; a send (which gloo completes when the peer takes it) likewise."""
    for key, rows in _lanes(log).items():
        if len(key) == 1:
            continue
        other = "recv" if key[1] == "send" else "send"
        theirs = sends.get((key[0], other, int(key[2]), log.rank))
        if theirs is None:
            continue
        at = np.full(int(max(theirs[0].max(initial=-1), log.ops.seq[rows].max(initial=-1))) + 1, NEVER)
        at[theirs[0]] = theirs[1]
        issued = at[log.ops.seq[rows]]
        found.ready[rows] = np.maximum(issued, log.ops.issued[rows])
        found.last_rank[rows] = np.where(issued > log.ops.issued[rows], int(key[2]), log.rank)
        found.known[rows] = issued != NEVER
        found.world[rows] = 2


def wire_share(kind: str, world: int) -> float:
    """Bytes that one rank sends (or receives) over those of the tensor, in a bandwidth-optimal algorithm."""
    if world <= 1 or kind == "barrier":
        return 0.0
    share = {"all_reduce": 2 * (world - 1) / world, "reduce_scatter": (world - 1) / world}
    share |= {"all_gather": (world - 1) / world, "all_to_all": (world - 1) / world}
    return share.get(kind, 1.0)


def trips(kind: str, world: int, size: int, backend: str) -> float:
    """One-way trips that follow each other in one operation: what the path's delay makes it take at least.

    A ring takes 2 (p - 1) steps for an all-reduce. gloo sends each step only when the receiver's ready notice is there,
    so a step is a round trip; its reduce-scatter is an all-reduce whose result is cut; a tensor of at most 4 bytes
    travels without notices. Measured on 2 and 3 ranks at 20 and 60 ms: equal to these within 3 %.
    """
    if world <= 1:
        return 0.0
    depth = float(np.ceil(np.log2(world)))
    ring = {"all_reduce": 2.0 * (world - 1), "reduce_scatter": world - 1.0, "all_gather": world - 1.0}
    if backend != "gloo":
        return ring.get(kind, depth if kind in ("barrier", "broadcast", "reduce") else 1.0)
    notice = 1 if kind == "all_reduce" and size <= 4 else 2
    if kind == "reduce_scatter":
        return 4.0 * (world - 1)
    if kind in ring:
        return notice * ring[kind]
    if kind == "broadcast":
        return 2.0 * float(np.floor(np.log2(world)))
    return 2.0 * depth if kind in ("barrier", "reduce") else 1.0


def split(
    log: RankLog,
    seen: Exposure,
    matched: Matched,
    paths: Mapping[str, Changing],
    others: tuple[Ints, Ints] | None = None,
) -> Split:
    """Take one rank's exposed time apart. `paths` by group name; `others`: (times, bytes of others so far)."""
    count = len(log.steps)
    total = (seen.end - seen.begin).astype(np.float64)
    ops, begun = log.ops, started(log)
    rows = np.flatnonzero(ops.finished != NEVER)
    rows = rows[np.argsort(ops.finished[rows], kind="stable")]
    which = np.searchsorted(seen.begin, ops.finished[rows], side="left") - 1
    inside = which >= 0
    inside[inside] &= ops.finished[rows[inside]] <= seen.end[which[inside]] + SLACK_NS
    rows, which = rows[inside], which[inside]
    number = len(total)
    if not len(rows):
        return _nothing_known(seen, total, count)
    finish = np.minimum(ops.finished[rows], seen.end[which])
    same = np.concatenate(([False], which[1:] == which[:-1]))
    before = np.where(same, np.concatenate(([0], finish[:-1])), seen.begin[which])
    peer_op = np.clip(np.minimum(matched.ready[rows], finish) - before, 0, None) * matched.known[rows]
    peer = np.bincount(which, weights=peer_op, minlength=number)
    last = np.full(number, -1)
    last[which] = np.arange(len(rows))  # the last assignment stays: operations are in order of their ends
    has = last >= 0
    ended = np.where(has, finish[last], seen.begin)
    ends_in_copy = has & (seen.why == BACKWARD)
    copy = np.where(ends_in_copy, seen.end - ended, 0).astype(np.float64)
    left = total - copy - peer
    active_from = np.maximum(begun[rows], np.minimum(matched.ready[rows], ops.finished[rows]))
    active = np.maximum(ops.finished[rows] - active_from, 1)
    crossing = np.clip(finish - np.maximum(active_from, seen.begin[which]), 0, None) / active
    floor_bytes, floor_latency = _floors(log, matched, paths, rows, active_from)
    bytes_floor = np.bincount(which, weights=floor_bytes * crossing, minlength=number)
    bytes_ns, left = _take(bytes_floor, left)
    latency_floor = np.where(has, (floor_latency * crossing)[last], 0.0)
    latency_ns, left = _take(latency_floor, left)
    waiting = np.clip(np.minimum(begun[rows], finish) - np.maximum(matched.ready[rows], seen.begin[which]), 0, None)
    queue_ns, left = _take(np.where(has, waiting[last], 0).astype(np.float64), left)
    traffic_ns, left = _take(_others(seen, others, paths), left)
    parts = dict(zip(PARTS, (queue_ns, peer, latency_ns, bytes_ns, traffic_ns, left, copy), strict=True))
    sums = {name: np.bincount(seen.step, weights=part, minlength=count) for name, part in parts.items()}
    late = matched.last_rank[rows]
    waited = {int(rank): float(peer_op[late == rank].sum()) for rank in np.unique(late) if rank != log.rank}
    top = int(np.argmax(peer_op))
    return Split(sums, waited, (int(rows[top]), int(late[top]), float(peer_op[top])))


def _nothing_known(seen: Exposure, total: Floats, count: int) -> Split:
    """Standing still of which no operation tells anything."""
    zeros = np.zeros(count)
    sums = dict.fromkeys(PARTS, zeros)
    return Split(sums | {"protocol": np.bincount(seen.step, weights=total, minlength=count)})


def _take(wanted: Floats, left: Floats) -> tuple[Floats, Floats]:
    taken = np.minimum(np.nan_to_num(wanted), np.clip(left, 0, None))
    return taken, left - taken


def _floors(
    log: RankLog, matched: Matched, paths: Mapping[str, Changing], rows: Ints, moments: Ints
) -> tuple[Floats, Floats]:
    """Nanoseconds that each operation's bytes, and its rounds, take at least; NaN becomes nothing later."""
    heads = log.ops.head[rows]
    per_byte, one_way = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    group_of = np.array(log.column("g", 0), dtype=np.int64)[heads]
    for number, group in log.groups.items():
        path = paths.get(str(group["name"]))
        here = group_of == number
        if path is not None and here.any():
            per_byte[here] = 1e9 / path.values(moments[here], "bytes_per_s")
            one_way[here] = path.values(moments[here], "rtt_ns") / 2
    world = matched.world[rows]
    share, hops = np.zeros(len(rows)), np.zeros(len(rows))
    for number in np.unique(heads):
        head = log.heads[number]
        backend = str(log.groups[head["g"]].get("backend"))
        for size in np.unique(world[heads == number]):
            here = (heads == number) & (world == size)
            share[here] = wire_share(head["kind"], int(size)) * head["bytes"]
            hops[here] = trips(head["kind"], int(size), head["bytes"], backend)
    return np.nan_to_num(share * per_byte), np.nan_to_num(hops * one_way)


def _others(seen: Exposure, others: tuple[Ints, Ints] | None, paths: Mapping[str, Changing]) -> Floats:
    """Nanoseconds that others' bytes took on the link, in each interval."""
    if others is None or len(others[0]) < 2 or not paths:
        return np.zeros(len(seen.begin))
    moved = np.interp(seen.end, *others) - np.interp(seen.begin, *others)
    slowest = np.nanmin(
        np.stack([np.nan_to_num(path.values(seen.begin, "bytes_per_s"), nan=np.inf) for path in paths.values()]), axis=0
    )
    taken: Floats = np.clip(moved, 0, None) * 1e9 / slowest
    return taken
