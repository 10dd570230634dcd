"""A profiled run as one Chrome trace, which ui.perfetto.dev opens: pure.

Per rank a process with a track for what the main thread did, one for standing still, and per operation slices of queue,
wait for a peer and transfer on tracks of their own; per worker counters of its interface's rate, of TCP's round trip
and how much of that is queueing, and of the rate and delay that the lab gave the ways to the others.
Times are microseconds after the run's first event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cpdp.profiler import split
from cpdp.profiler.analysis import Profiled, World
from cpdp.profiler.lines import NEVER, PHASES, WHYS
from cpdp.profiler.network import Counters, Network

MAIN, STILL, QUEUE, WAIT, TRANSFER = range(1, 6)
TRACKS = {MAIN: "computation", STILL: "exposed", QUEUE: "queue", WAIT: "wait for a peer", TRANSFER: "transfer"}
LANES = 8
"""Operations overlap; each kind of slice has this many tracks, used in turn."""


def trace(found: Profiled) -> dict[str, Any]:
    """The trace's tree."""
    begins = [int(log.steps.begin[0]) for world in found.worlds for log in world.logs if len(log.steps)]
    origin = min(begins, default=0)
    events: list[dict[str, Any]] = []
    number = 0
    for world in found.worlds:
        for i in range(len(world.logs)):
            number += 1
            events += rank_events(world, i, number, origin)
    for name, counters in found.network.counters.items():
        number += 1
        events += _named(number, f"{name}: network", {})
        events += counter_events(counters, number, origin)
        events += path_events(found.network, name, number, origin)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(pid: int, name: str, threads: dict[int, str]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for tid, thread in threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def slice_(pid: int, tid: int, name: str, begin: int, end: int, **args: Any) -> dict[str, Any]:
    """A complete event; `begin` and `end` in ns after the origin."""
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "args": args,
    }


def rank_events(world: World, i: int, pid: int, origin: int) -> Iterator[dict[str, Any]]:
    """Everything of one rank."""
    log, seen = world.logs[i], world.exposures[i]
    threads = {track: name for track, name in TRACKS.items() if track < QUEUE}
    threads |= {
        track * 100 + lane: f"{TRACKS[track]} {lane}" for track in (QUEUE, WAIT, TRANSFER) for lane in range(LANES)
    }
    yield from _named(pid, f"{world.cell}: rank {log.rank} on {log.place}", threads)
    for step, phase, begin, end in log.spans.tolist():
        if end > begin:
            number = int(log.steps.n[step]) if step < len(log.steps) else None
            yield slice_(pid, MAIN, PHASES[phase], begin - origin, end - origin, step=number)
    for why, begin, end in zip(seen.why.tolist(), seen.begin.tolist(), seen.end.tolist(), strict=True):
        yield slice_(pid, STILL, f"exposed ({WHYS[why]})", begin - origin, end - origin)
    yield from _operations(world, i, pid, origin)


def _operations(world: World, i: int, pid: int, origin: int) -> Iterator[dict[str, Any]]:
    log, matched = world.logs[i], world.matched[i]
    ops, begun = log.ops, split.started(log)
    for row in np.flatnonzero(ops.finished != NEVER).tolist():
        head = log.heads[int(ops.head[row])]
        issued, finished = int(ops.issued[row]), int(ops.finished[row])
        start = min(int(begun[row]), finished)
        ready = min(max(int(matched.ready[row]), start), finished)
        args = {"bytes": head["bytes"], "seq": int(ops.seq[row]), "group": str(log.groups[head["g"]]["name"])}
        lane = row % LANES
        for track, low, high in ((QUEUE, issued, start), (WAIT, start, ready), (TRANSFER, ready, finished)):
            if high > low:
                late = {"for_rank": int(matched.last_rank[row])} if track == WAIT else {}
                yield slice_(pid, track * 100 + lane, head["kind"], low - origin, high - origin, **args, **late)


def counter_events(counters: Counters, pid: int, origin: int) -> Iterator[dict[str, Any]]:
    """Rates of the interface and TCP's round trip, as counters."""
    times = counters.times
    lengths = np.maximum(np.diff(times), 1) / 1e9
    for name, values in (("received", counters.received), ("sent", counters.sent)):
        rates = np.diff(values) * 8e-6 / lengths
        for t, rate in zip(times[1:].tolist(), rates.tolist(), strict=True):
            yield {"ph": "C", "pid": pid, "tid": 0, "name": f"{name} Mbit/s", "ts": (t - origin) / 1e3,
                   "args": {"Mbit/s": round(rate, 3)}}  # fmt: skip
    least = np.minimum.accumulate(counters.min_rtt_us)
    queued = np.clip(counters.rtt_us - least, 0, None) / 1e3
    series_of = {
        "TCP round trip ms": counters.rtt_us / 1e3,
        "queue ms (round trip above its least)": np.where(np.isfinite(queued), queued, 0.0),
        "TCP retransmits": counters.retransmits,
    }
    for name, series in series_of.items():
        for t, value in zip(counters.tcp_times.tolist(), series.tolist(), strict=True):
            yield {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": (t - origin) / 1e3, "args": {"value": value}}


def path_events(network: Network, launch: str, pid: int, origin: int) -> Iterator[dict[str, Any]]:
    """Rate and round trip that the lab gave the ways from one worker, as counters: at its start and at every change."""
    about = network.launches.get(launch, {})
    states = [(origin, about.get("paths") or {})]
    states += [(t, paths.get(str(about.get("worker") or launch), {})) for t, paths in network.changes]
    for t, ways in states:
        for other, way in sorted(ways.items()):
            for name, key, unit in (("link rate Mbit/s", "bytes_per_s", 8e-6), ("link round trip ms", "rtt_ns", 1e-6)):
                if way.get(key) is not None:
                    yield {"ph": "C", "pid": pid, "tid": 0, "name": f"{name} to {other}", "ts": (t - origin) / 1e3,
                           "args": {"value": round(way[key] * unit, 3)}}  # fmt: skip
