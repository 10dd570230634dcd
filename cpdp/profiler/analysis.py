"""A profiled run's folder -> tables and the numbers that are shown: read once, shown often.

Per world of ranks (a cell): one row per rank and step, means per rank and over ranks, who was waited for, what the
network could have carried. The first step is left out of means when there are others: in it DDP agrees on its buckets
and connections warm up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from cpdp import jsonfile
from cpdp.profiler import hang, proof, split
from cpdp.profiler import network as net
from cpdp.profiler.columns import RankLog
from cpdp.profiler.lines import NEVER, PHASES
from cpdp.profiler.network import Network
from cpdp.profiler.split import PARTS, Changing, Exposure, Matched, Split
from cpdp.rundir import RunDir

GLOO_WINDOW_BYTES = 2 << 20
"""What gloo keeps in flight per operation and connection: two segments of 1 MiB."""


@dataclass(frozen=True)
class World:
    """One world of ranks, taken apart. Lists are in the order of `logs`."""

    cell: str
    logs: tuple[RankLog, ...]
    exposures: tuple[Exposure, ...]
    matched: tuple[Matched, ...]
    splits: tuple[Split, ...]
    paths: tuple[Mapping[str, Changing], ...]
    source: str | None
    """Where delay and rate are known from; None when they are not."""
    network: Network

    @property
    def uncertainty_ms(self) -> float | None:
        """By how much times of two ranks may be wrong against each other; None when nobody knows.

        Ranks that read one clock have no offset. Any other's error is against rank 0's clock, and two errors add up.
        """
        first = self.logs[0].start.get("boot")
        apart = [log for log in self.logs if log.start.get("boot") != first or first is None]
        errors = sorted((log.uncertainty_ns for log in apart if log.uncertainty_ns is not None), reverse=True)
        if len(errors) < len(apart) or (apart and self.logs[0].rank != 0):
            return None
        return sum(errors[:2]) / 1e6

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per rank and step."""
        origin = min((int(log.steps.begin[0]) for log in self.logs if len(log.steps)), default=0)
        frames = [self._rank_steps(i, origin) for i in range(len(self.logs))]
        return pd.concat(frames, ignore_index=True)

    def _rank_steps(self, i: int, origin: int) -> pd.DataFrame:
        log, seen, parts = self.logs[i], self.exposures[i], self.splits[i].parts
        total = log.steps.end - log.steps.begin
        computation = seen.phases.sum(axis=1)
        columns: dict[str, Any] = {
            "cell": self.cell, "rank": log.rank, "place": log.place, "n": log.steps.n,
            "warmup": (log.steps.n == 1) & (len(log.steps) > 2),
            "start_s": (log.steps.begin - origin) / 1e9, "step_ms": total / 1e6, "computation_ms": computation / 1e6,
            "exposed_ms": seen.exposed / 1e6, "hidden_ms": seen.hidden / 1e6,
            "rest_ms": (total - computation - seen.exposed) / 1e6,
        }  # fmt: skip
        columns |= {f"{name}_ms": seen.phases[:, p] / 1e6 for p, name in enumerate(PHASES)}
        columns |= {f"exposed_{name}_ms": parts[name] / 1e6 for name in PARTS}
        columns |= {"payload_bytes": self._payload(log), "overhead_us": log.steps.overhead / 1e3}
        return pd.DataFrame(columns | self._counters(log))

    def _payload(self, log: RankLog) -> Any:
        sizes = np.array(log.column("bytes", 0), dtype=np.float64)
        where = np.searchsorted(log.steps.begin, log.ops.issued, side="right") - 1
        inside: Any = (where >= 0) & (log.ops.issued < log.steps.end[np.clip(where, 0, None)]) if len(log.steps) else []
        return np.bincount(where[inside], weights=sizes[log.ops.head[inside]], minlength=len(log.steps))

    def _counters(self, log: RankLog) -> dict[str, Any]:
        """Interface bytes, retransmits and round trips of the rank's worker, joined to its steps."""
        found = self.network.counters.get(str(log.start.get("launch")))
        names = ("wire_received", "wire_sent", "retransmits", "rtt_ms")
        if found is None:
            return dict.fromkeys(names, np.nan)
        begin, end = log.steps.begin, log.steps.end
        changes = [
            net.at(times, values, end) - net.at(times, values, begin)
            for times, values in (
                (found.times, found.received), (found.times, found.sent), (found.tcp_times, found.retransmits)
            )
        ]  # fmt: skip
        middle = (begin + end) // 2
        return dict(zip(names, (*changes, net.at(found.tcp_times, found.rtt_us, middle) / 1e3), strict=True))

    @cached_property
    def ops(self) -> pd.DataFrame:
        """One row per rank and operation, times in ns of the clock; missing where a moment was not seen."""
        return pd.concat([self._rank_ops(i) for i in range(len(self.logs))], ignore_index=True)

    def _rank_ops(self, i: int) -> pd.DataFrame:
        log, matched, ops = self.logs[i], self.matched[i], self.logs[i].ops
        groups = np.array([str(log.groups[head["g"]]["name"]) for head in log.heads], dtype=object)
        columns: dict[str, Any] = {
            "cell": self.cell, "rank": log.rank, "group": groups[ops.head] if len(groups) else [], "seq": ops.seq,
            "kind": np.array(log.column("kind"), dtype=object)[ops.head] if len(groups) else [],
            "bytes": np.array(log.column("bytes", 0), dtype=np.int64)[ops.head] if len(groups) else [],
        }  # fmt: skip
        moments = {"issued_ns": ops.issued, "started_ns": split.started(log), "finished_ns": ops.finished,
                   "wait_from_ns": ops.wait_from, "wait_to_ns": ops.wait_to}  # fmt: skip
        for name, values in moments.items():
            columns[name] = pd.array(np.where(values == NEVER, 0, values), dtype="Int64")
            columns[name][values == NEVER] = pd.NA
        columns["all_issued_ns"] = pd.array(matched.ready, dtype="Int64")
        columns["all_issued_ns"][~matched.known] = pd.NA
        columns["last_rank"] = np.where(matched.known, matched.last_rank, -1)
        columns["started_from"] = "estimate"
        return pd.DataFrame(columns)


@dataclass(frozen=True)
class Profiled:
    """A whole profiled run."""

    run: RunDir
    resolved: Mapping[str, Any]
    machine: Mapping[str, Any]
    worlds: tuple[World, ...]
    network: Network
    problems: tuple[str, ...]
    achieved: Mapping[str, Any] | None = field(default=None)
    """network.json, when the lab left one."""

    @property
    def reasons(self) -> list[str]:
        """Why the run must not be counted."""
        said = [reason for launch in self.network.launches.values() for reason in launch.get("invalid", ())]
        if not any(len(log.steps) for world in self.worlds for log in world.logs):
            said.append("no whole training step was seen")
        statuses = {name: launch.get("status") for name, launch in self.network.launches.items()}
        said += [f"{name}: the command ended with status {code}" for name, code in statuses.items() if code]
        said += [f"{name}: interrupted before its end" for name, code in statuses.items() if code is None]
        return said


def open_run(run: RunDir) -> Profiled:
    """Read and take apart a run, whole or as far as it got."""
    found, problems = proof.read_worlds(run)
    network = net.read(run)
    worlds = tuple(take_apart(cell, logs, network) for cell, logs in found.items())
    achieved = jsonfile.read(run.network) if run.network.exists() else None
    machine = jsonfile.read(run.machine) if run.machine.exists() else {}
    return Profiled(run, jsonfile.read(run.resolved), machine, worlds, network, tuple(problems), achieved)


def take_apart(cell: str, logs: Sequence[RankLog], network: Network) -> World:
    """Expose, match and split one world."""
    network = net.shifted(network, {str(log.start.get("launch")): log.offset_ns for log in logs})
    exposures = tuple(split.exposure(log) for log in logs)
    matched = tuple(split.match(logs))
    ways = [net.paths_for(log, logs, network) for log in logs]
    splits = tuple(
        split.split(log, seen, match, paths, _others(log, match, network))
        for log, seen, match, (paths, _) in zip(logs, exposures, matched, ways, strict=True)
    )
    source = next((source for _, source in ways if source), None)
    return World(cell, tuple(logs), exposures, matched, splits, tuple(paths for paths, _ in ways), source, network)


def _others(log: RankLog, matched: Matched, network: Network) -> tuple[Any, Any] | None:
    """Bytes on the interface that are not this rank's collectives', as a curve over time; needs a worker of its own."""
    counters = network.counters.get(str(log.start.get("launch")))
    if counters is None or not len(log.ops):
        return None
    done = np.flatnonzero(log.ops.finished != NEVER)
    kinds, sizes = log.column("kind"), log.column("bytes", 0)
    world = matched.world[done]
    own = np.array([sizes[h] * split.wire_share(kinds[h], int(w)) for h, w in _pairs(log.ops.head[done], world)])
    begin = np.maximum(split.started(log)[done], np.minimum(matched.ready[done], log.ops.finished[done]))
    ours = _ramp(begin, log.ops.finished[done], own * FRAMING, counters.times)
    heavier = np.maximum(counters.received, counters.sent)
    return counters.times, np.maximum.accumulate(np.clip(heavier - heavier[0] - ours - SLOP * ours, 0, None))


FRAMING = 1.035
"""Bytes on the interface over a tensor's: headers of TCP and IP in packets of 1500 bytes."""
SLOP = 0.03
"""Share by which our own bytes may differ (acknowledgements, retransmits) before they count as others'."""


def _pairs(heads: Any, worlds: Any) -> Any:
    return zip(heads.tolist(), worlds.tolist(), strict=True)


def _ramp(begin: Any, end: Any, amount: Any, times: Any) -> Any:
    """Sum over operations of what each had moved by some moments, evenly between its begin and end."""
    length = np.maximum(end - begin, 1)
    slope = amount / length
    order_b, order_e = np.argsort(begin), np.argsort(end)
    sums = [np.concatenate(([0.0], np.cumsum(values))) for values in (
        slope[order_b], (slope * begin)[order_b], slope[order_e], (slope * end)[order_e])]  # fmt: skip
    i = np.searchsorted(begin[order_b], times, side="right")
    j = np.searchsorted(end[order_e], times, side="right")
    return sums[0][i] * times - sums[1][i] - sums[2][j] * times + sums[3][j]


def measured(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps that means are taken over."""
    return steps[~steps["warmup"].astype(bool)]


def to_json(found: Profiled) -> dict[str, Any]:
    """What `cpdp show --json` prints of a profiled run; the keys of a compared run's cells, and more."""
    cells = [_cell_json(found, world) for world in found.worlds]
    achieved = found.achieved
    verification = (achieved or {}).get("verification") or {}
    value = {
        "run": str(found.run.path), "name": found.resolved["experiment"]["name"], "kind": "profile",
        "valid": bool(cells) and not found.reasons, "complete": all(
            launch.get("status") is not None for launch in found.network.launches.values()),
        "reasons": found.reasons, "problems": list(found.problems),
        "network": None if achieved is None else {key: verification.get(key) for key in ("ok", "carrier", "links")},
        "cells": cells, "strategies": [], "trainings": [], "differences": [], "cautions": [],
    }  # fmt: skip
    plain: dict[str, Any] = jsonfile.plain(value)
    return plain


def _cell_json(found: Profiled, world: World) -> dict[str, Any]:
    steps = measured(world.steps)
    means = _means(steps)
    ended = [log.end for log in world.logs]
    state = "interrupted" if None in ended else "done" if all(end and end["ok"] for end in ended) else "failed"
    sent = steps.groupby("place")[["wire_received", "wire_sent"]].mean() if len(steps) else None
    return {
        "id": world.cell, "phase": "profile", "label": "profile", "strategy": "profile", "period": 1, "repeat": 1,
        "valid": not found.reasons and state == "done", "state": state, "reasons": found.reasons,
        "steps": int(steps["n"].nunique()), "ranks": len(world.logs), "world": int(world.logs[0].start["world"]),
        **means,
        "wire_bytes_per_step": None if sent is None else _known(float(sent.max().max())),
        "clock_uncertainty_ms": world.uncertainty_ms,
        "started_from": "estimate: gloo's queue, first in first out on its threads",
        "floors_from": world.source,
        "per_rank": [
            {"rank": log.rank, "place": log.place, **_means(steps[steps["rank"] == log.rank]),
             "waited_for_ms": _waited(world, i, len(steps[steps["rank"] == log.rank]))}
            for i, log in enumerate(world.logs)
        ],
        "late": late(world), "ceiling": ceiling(world),
        "waiting": [asdict(one) for one in hang.waiting(world.logs)],
    }  # fmt: skip


def _means(steps: pd.DataFrame) -> dict[str, Any]:
    """Means per step; exposed, hidden and payload of a run without communication are 0, of one without steps null."""
    names = ["step_ms", "computation_ms", "exposed_ms", "hidden_ms", "rest_ms", *(f"{name}_ms" for name in PHASES)]
    mean = steps[[*names, *(f"exposed_{part}_ms" for part in PARTS), "payload_bytes", "overhead_us", "retransmits",
                  "rtt_ms"]].astype(float).mean() if len(steps) else None  # fmt: skip

    def value(name: str) -> float | None:
        return None if mean is None else _known(float(mean[name]))

    step, spent = value("step_ms"), value("overhead_us")
    return {
        **{name: value(name) for name in names},
        "exposed_by_cause": {part: value(f"exposed_{part}_ms") for part in PARTS},
        "payload_bytes_per_step": value("payload_bytes"),
        "overhead_us": spent,
        "overhead_share": spent / 1e3 / step if step and spent is not None else None,
        "retransmits_per_step": value("retransmits"),
        "tcp_rtt_ms": value("rtt_ms"),
    }


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _waited(world: World, i: int, steps: int) -> dict[str, float]:
    """Milliseconds per step that a rank waited for each other."""
    return {str(rank): ns / 1e6 / max(steps, 1) for rank, ns in world.splits[i].waited_for.items() if ns}


def late(world: World) -> dict[str, Any] | None:
    """Which rank the others waited for most, and on which operation longest; None when nobody waited for anybody."""
    totals: dict[int, float] = {}
    for one in world.splits:
        for rank, ns in one.waited_for.items():
            totals[rank] = totals.get(rank, 0.0) + ns
    if not totals or max(totals.values()) <= 0:
        return None
    rank = max(totals, key=lambda key: totals[key])
    worst = max(((one.worst, log) for one, log in zip(world.splits, world.logs, strict=True) if one.worst),
                key=lambda pair: pair[0][2])  # fmt: skip
    (row, culprit, ns), log = worst
    head = log.heads[int(log.ops.head[row])]
    return {
        "rank": rank, "share": totals[rank] / sum(totals.values()), "uncertainty_ms": world.uncertainty_ms,
        "longest": {"rank": culprit, "waiting_rank": log.rank, "ms": ns / 1e6, "kind": head["kind"],
                    "bytes": head["bytes"], "seq": int(log.ops.seq[row]),
                    "group": str(log.groups[head["g"]]["name"])},
    }  # fmt: skip


def ceiling(world: World) -> dict[str, Any] | None:
    """Achieved throughput beside the link's rate and beside what gloo's window allows, in Mbit/s."""
    best: dict[str, Any] | None = None
    for i, log in enumerate(world.logs):
        done = log.ops.finished != NEVER
        kinds, sizes = log.column("kind"), log.column("bytes", 0)
        heads = log.ops.head[done]
        if not len(heads) or not world.paths[i]:
            continue
        moved = sum(
            sizes[h] * split.wire_share(kinds[h], int(w)) for h, w in _pairs(heads, world.matched[i].world[done])
        )
        begin = np.maximum(log.ops.issued[done], np.minimum(world.matched[i].ready[done], log.ops.finished[done]))
        _, _, low, high = split.merge(heads, heads, begin, log.ops.finished[done])
        busy = float((high - low).sum()) / 1e9
        way = next(iter(world.paths[i].values())).paths[-1]
        threads = next((group.get("threads") for group in log.groups.values() if group.get("threads")), None)
        window = GLOO_WINDOW_BYTES * (threads or 1) / (way.rtt_ns / 1e9) if way.rtt_ns else None
        found = {"rank": log.rank, "achieved_mbit": moved * 8e-6 / busy if busy else None,
                 "link_mbit": None if way.bytes_per_s is None else way.bytes_per_s * 8e-6,
                 "gloo_window_mbit": None if window is None else window * 8e-6, "threads": threads}  # fmt: skip
        if best is None or (found["achieved_mbit"] or 0) < (best["achieved_mbit"] or 0):
            best = found
    return best


def store(found: Profiled) -> None:
    """Write tables/steps and tables/ops as Parquet, steps as CSV too."""
    if not found.worlds:
        return
    folder = found.run.tables
    folder.mkdir(exist_ok=True)
    steps = pd.concat([world.steps for world in found.worlds], ignore_index=True)
    steps.to_parquet(folder / "steps.parquet", index=False)
    steps.to_csv(folder / "steps.csv", index=False)
    pd.concat([world.ops for world in found.worlds], ignore_index=True).to_parquet(folder / "ops.parquet", index=False)
