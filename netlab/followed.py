"""Were the changes over time made, and in time? What a lab noted about them -> reasons why a run is not valid. Pure.

Beside `netlab.health`, which judges how packets were carried: a link that keeps an old state is carried perfectly well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CHANGE_LIMIT_NS = 20_000_000
CHANGE_QUANTILE = 0.99
"""A change of a link over time must hold so soon after it was due, in 99 of 100 cases."""


def unfollowed(events: Sequence[Mapping[str, Any]], since_ns: int) -> tuple[str, ...]:
    """Why the network since then (CLOCK_MONOTONIC) was not the one asked for; empty: it was.

    A change that was refused, or a schedule that stopped, counts whenever it was: the network has differed ever since.
    """
    faults = tuple(str(event["reason"]) for event in events if event["kind"] == "fault")
    changes = [event for event in events if event["kind"] == "change" and event["due_ns"] >= since_ns]
    return (*faults, *_late([event["held_ns"] - event["due_ns"] for event in changes]))


def _late(lateness_ns: Sequence[int]) -> list[str]:
    late = [value for value in lateness_ns if value > CHANGE_LIMIT_NS]
    if len(late) <= (1 - CHANGE_QUANTILE) * len(lateness_ns):
        return []
    worst, limit = max(late) / 1e6, CHANGE_LIMIT_NS // 1_000_000
    return [
        f"{len(late)} of {len(lateness_ns)} changes of the links held more than {limit} ms after they were due,"
        f" the worst {worst:.0f} ms"
    ]
