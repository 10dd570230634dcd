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
    least = [least_crossing(worlds[cell], launch) for cell in mine]
    entered, left = (sum(one[way] for one in least) for way in (0, 1))
    if not reasons:
        reasons = _crossed(entered, left, moved, launch)
    return Verdict(tuple(reasons), tuple(notes), max(entered, left))


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


def least_crossing(logs: Sequence[RankLog], launch: str) -> tuple[int, int]:
    """Bytes that at least must have entered, and left, a worker for the operations of groups that span workers.

    Whatever the algorithm: after an all-reduce every worker knows a sum that others had a part in, after an all-gather
    what the ranks elsewhere held, after a reduce-scatter the sums of its own ranks' parts. Operations that could be
    answered from within the worker count nothing. Ranks of one worker may share what arrives, so a group's bytes are
    counted once, as its heaviest local rank has them; sends and receives count for each rank.
    """
    place = {log.rank: str(log.start.get("launch")) for log in logs}
    collective: dict[str, tuple[int, int]] = {}
    direct = [0, 0]
    for log in logs:
        if place[log.rank] != launch:
            continue
        sums: dict[str, list[int]] = {}
        for number, head in enumerate(log.heads):
            group = log.groups[head["g"]]
            done = int(((log.ops.head == number) & (log.ops.finished >= 0)).sum())
            if head["kind"] in ("send", "recv"):
                if _peer_place(head, group, place) != launch:
                    direct[head["kind"] == "send"] += done * int(head["bytes"])
                continue
            moved = sums.setdefault(str(group["name"]), [0, 0])
            for way, amount in enumerate(_least(head, group["ranks"], place, launch)):
                moved[way] += done * amount
        for name, (entered, left) in sums.items():
            before = collective.get(name, (0, 0))
            collective[name] = (max(before[0], entered), max(before[1], left))
    return sum(one for one, _ in collective.values()) + direct[0], sum(one for _, one in collective.values()) + direct[
        1
    ]


def _peer_place(head: Mapping[str, Any], group: Mapping[str, Any], place: Mapping[int, str]) -> str:
    """Where the other end of a send or receive is; a peer is counted within its group."""
    peer, ranks = int(head.get("peer", -1)), group["ranks"]
    return place.get(ranks[peer], "elsewhere") if 0 <= peer < len(ranks) else "elsewhere"


def _least(head: Mapping[str, Any], ranks: Sequence[int], place: Mapping[int, str], launch: str) -> tuple[int, int]:
    """(entering, leaving) of one collective. `bytes` of an all-gather are those of its result, else of its input."""
    here = sum(place.get(rank, "elsewhere") == launch for rank in ranks)
    size, world = int(head["bytes"]), max(len(ranks), 1)
    if here in (0, len(ranks)):
        return 0, 0
    if head["kind"] == "all_reduce":
        return size, size
    if head["kind"] == "all_gather":
        return size * (world - here) // world, size * here // world
    if head["kind"] == "reduce_scatter":
        return size * here // world, size * (world - here) // world
    return 0, 0


def _crossed(entered: int, left: int, moved: Mapping[str, tuple[int, int]], launch: str) -> list[str]:
    """The interface's counters against the operations' bytes."""
    received = sum(counts[0] for name, counts in moved.items() if name != LOOPBACK)
    sent = sum(counts[1] for name, counts in moved.items() if name != LOOPBACK)
    reasons = []
    for verb, count, least in (("left", sent, left), ("reached", received, entered)):
        if count < TOLERANCE * least:
            reasons.append(
                f"only {count / 1e6:.1f} MB {verb} {launch} through its interface, but its collectives need at least"
                f" {least / 1e6:.1f} MB: they went another way, over loopback"
                f" ({sum(moved.get(LOOPBACK, (0, 0))) / 1e6:.1f} MB through lo), shared memory or P2P"
            )
    return reasons
