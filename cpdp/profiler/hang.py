"""What a run that hung was waiting for: each rank's operations without an end, and who has not issued them. Pure.

The last line of a rank that was killed in a step tells of the operations that were open then (`now`); a rank that ended
by an exception, such as gloo's time-out, has them in its last step. Operations of one group and number match across
ranks, so an operation that a member never issued is what the others wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpdp.profiler.columns import RankLog
from cpdp.profiler.lines import NEVER
from cpdp.profiler.split import MEASURED_BY_WAIT

MOST = 8


@dataclass(frozen=True)
class Waiting:
    """One operation without an end. `missing`: members of its group that had not issued it when last heard of."""

    rank: int
    kind: str
    group: str
    seq: int
    size: int
    seconds: float
    missing: tuple[int, ...]


def waiting(logs: Sequence[RankLog]) -> list[Waiting]:
    """Operations without an end of ranks that did not end well, the oldest of each rank first."""
    issued = {log.rank: _issued(log) for log in logs}
    found = []
    for log in logs:
        if log.end is not None and log.end["ok"]:
            continue
        heard = _heard(log)
        for head, seq, since in sorted(_open(log), key=lambda one: one[2])[:MOST]:
            about, group = log.heads[head], log.groups[log.heads[head]["g"]]
            name, members = str(group["name"]), group["ranks"]
            absent = [rank for rank in members if rank in issued and issued[rank].get(name, 0) <= seq]
            missing = () if about["kind"] in MEASURED_BY_WAIT else tuple(absent)
            size, seconds = int(about["bytes"]), max(heard - since, 0) / 1e9
            found.append(Waiting(log.rank, about["kind"], name, seq, size, seconds, missing))
    return found


def _heard(log: RankLog) -> int:
    """When the rank was last heard of."""
    times = [int(line["t"]) for line in (log.now, log.end) if line is not None]
    times += log.spans[-1:, 3].tolist()
    return max(times, default=0)


def _open(log: RankLog) -> Iterator[tuple[int, int, int]]:
    """(head, number, issued) of operations whose end was not seen."""
    seen = set()
    for row in np.flatnonzero(log.ops.finished == NEVER).tolist():
        seen.add((int(log.ops.head[row]), int(log.ops.seq[row])))
        yield int(log.ops.head[row]), int(log.ops.seq[row]), int(log.ops.issued[row])
    for head, seq, since in (log.now or {}).get("open", ()):
        if (head, seq) not in seen:
            yield head, seq, since


def _issued(log: RankLog) -> dict[str, int]:
    """How many collectives the rank had issued in each group, by the group's name."""
    found: dict[str, int] = {}
    for number, head in enumerate(log.heads):
        if head["kind"] not in MEASURED_BY_WAIT:
            name = str(log.groups[head["g"]]["name"])
            mine = log.ops.seq[log.ops.head == number]
            found[name] = max(found.get(name, 0), int(mine.max(initial=-1)) + 1)
    for head, seq, _ in (log.now or {}).get("open", ()):
        name = str(log.groups[log.heads[head]["g"]]["name"])
        found[name] = max(found.get(name, 0), seq + 1)
    return found


def sentence(one: Mapping[str, Any]) -> str:
    """One waiting, in words, as `cpdp show` prints it."""
    text = (
        f"rank {one['rank']} waited {one['seconds']:.1f} s for {one['kind']} number {one['seq']} of group"
        f" {one['group']} ({one['size']} bytes), without an end"
    )
    missing = one["missing"]
    if not missing:
        return text
    return f"{text}: rank{'s' * (len(missing) != 1)} {', '.join(map(str, missing))} had not issued it"
