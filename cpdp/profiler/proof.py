"""Did the collectives of a lab's worker cross its interface? Events and counters in, verdict out.

A rank whose world has a single member, or whose world lives on one worker only, exchanged nothing over the WAN:
torchrun --standalone on every worker is the classic. Where worlds do span workers, each worker's interface must have
carried at least what the collectives of its ranks need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdp.errors import EventError
from cpdp.profiler import columns
from cpdp.profiler.columns import RankLog
from cpdp.rundir import RunDir

TOLERANCE = 0.98
LOOPBACK = "lo"


@dataclass(frozen=True)
class Verdict:
    """Why a launch does not count, and what else should be said."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    least_bytes: int = 0


def environment_paths(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the lab says of the ways from this worker to the others: name -> {rtt_ns, bytes_per_s}."""
    try:
        found = json.loads(environment.get("NETLAB_PATHS", "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_worlds(run: RunDir) -> tuple[dict[str, list[RankLog]], list[str]]:
    """Every world's ranks by cell, in rank order, and what could not be read."""
    worlds: dict[str, list[RankLog]] = {}
    problems: list[str] = []
    cells = run.path / "cells"
    for folder in sorted(cells.iterdir(), key=_cell_order) if cells.is_dir() else ():
        logs = []
        for path in run.cell(folder.name).event_files():
            try:
                logs.append(columns.read(path))
            except (EventError, OSError) as error:
                problems.append(str(error))
        if logs:
            worlds[folder.name] = logs
            problems += [log.problem for log in logs if log.problem]
    return worlds, problems


def _cell_order(path: Path) -> tuple[int, str]:
    return (len(path.name), path.name)


def judge(run: RunDir, launch: str, moved: Mapping[str, tuple[int, int]], environment: Mapping[str, str]) -> Verdict:
    """The verdict on one launch."""
    worlds, problems = read_worlds(run)
    mine = {cell: [log for log in logs if log.start.get("launch") == launch] for cell, logs in worlds.items()}
    mine = {cell: logs for cell, logs in mine.items() if logs}
    notes = list(problems)
    if not mine:
        return Verdict(notes=(*notes, "no training step was seen: no Python process imported torch and took one"))
    if not any(len(log.steps) for logs in mine.values() for log in logs):
        notes.append("the program ended before its first whole step")
    workers = int(environment.get("NETLAB_WORKERS") or environment.get("WORLD_SIZE") or 1)
    if "NETLAB_WORKER" not in environment or workers < 2:
        return Verdict(notes=tuple(notes))
    reasons = _met_itself(worlds, mine, launch, workers, moved)
    least = sum(least_crossing(worlds[cell], launch) for cell in mine)
    if not reasons:
        reasons = _crossed(least, moved, launch)
    return Verdict(tuple(reasons), tuple(notes), least)


def _met_itself(
    worlds: Mapping[str, Sequence[RankLog]],
    mine: Mapping[str, Sequence[RankLog]],
    launch: str,
    workers: int,
    moved: Mapping[str, tuple[int, int]],
) -> list[str]:
    """Worlds that live on this worker alone, although the lab has several."""
    reasons = []
    for cell, logs in mine.items():
        places = {str(log.start.get("launch")) for log in worlds[cell]}
        size = int(logs[0].start["world"])
        if places == {launch} and len(logs) >= size:
            lo = sum(moved.get(LOOPBACK, (0, 0))) / 1e6
            wan = sum(sum(counts) for name, counts in moved.items() if name != LOOPBACK) / 1e6
            met = "a world of one rank" if size == 1 else f"a world of {size} ranks that met each other on loopback"
            reasons.append(
                f"{launch} trained alone, in {met}, while the lab has {workers} workers: no byte of a collective"
                f" crossed the WAN ({lo:.1f} MB went through lo, {wan:.1f} MB through the WAN's interface). torchrun"
                " needs --nnodes, --rdzv-backend c10d and an --rdzv-endpoint all workers reach; plain scripts need"
                " init_method env:// or the lab's MASTER_ADDR"
            )
    return reasons


def least_crossing(logs: Sequence[RankLog], launch: str) -> int:
    """Bytes that must at least enter, and leave, a worker for the all-reduces of groups that span workers."""
    place = {log.rank: str(log.start.get("launch")) for log in logs}
    per_group: dict[str, int] = {}
    for log in logs:
        if place[log.rank] != launch:
            continue
        sums: dict[str, int] = {}
        for number, head in enumerate(log.heads):
            group = log.groups[head["g"]]
            spans = {place.get(rank, "elsewhere") for rank in group["ranks"]} - {launch}
            if head["kind"] == "all_reduce" and spans:
                done = int(((log.ops.head == number) & (log.ops.finished >= 0)).sum())
                sums[str(group["name"])] = sums.get(str(group["name"]), 0) + done * int(head["bytes"])
        for name, total in sums.items():
            per_group[name] = max(per_group.get(name, 0), total)
    return sum(per_group.values())


def _crossed(least: int, moved: Mapping[str, tuple[int, int]], launch: str) -> list[str]:
    """The interface's counters against the collectives' bytes."""
    received = sum(counts[0] for name, counts in moved.items() if name != LOOPBACK)
    sent = sum(counts[1] for name, counts in moved.items() if name != LOOPBACK)
    reasons = []
    for verb, count in (("left", sent), ("reached", received)):
        if count < TOLERANCE * least:
            reasons.append(
                f"only {count / 1e6:.1f} MB {verb} {launch} through its interface, but its collectives need at least"
                f" {least / 1e6:.1f} MB: they went another way"
                f" ({sum(moved.get(LOOPBACK, (0, 0))) / 1e6:.1f} MB through lo)"
            )
    return reasons
