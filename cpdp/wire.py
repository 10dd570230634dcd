"""Did the bytes cross the emulated WAN, and how many per step? Pure arithmetic on counters and events.

The runner samples the WAN's counters while a cell runs (IP bytes that left each direction, with the time of
the sample on the clock that the workers use too). `runner` asks `crossing` whether a cell's bytes really went
that way; `tables` asks `bytes_between` for the bytes of the measured steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cpdp.events import EventLog, Operation

TIME = "t"
"""Key of a sample's time; every other key is the name of a WAN direction, "from>to"."""

TOLERANCE = 0.98
"""Share of the least possible bytes that must be seen: counters are read a moment before the last packet."""

SITE = "site."
"""What the purpose of a collective begins with that stays within a site."""

Sample = Mapping[str, Any]


def least_crossing(ops: Iterable[Operation]) -> int:
    """Bytes that one rank's collectives must at least send into and out of every site.

    Whatever the algorithm, each site needs the sum over all others of every element of an all-reduce, so at
    least the whole tensor enters it and its own share of the sum leaves it. Kinds for which no such bound
    holds in both directions (a broadcast has one sender) count as nothing.
    """
    kinds = ("all_reduce", "all_gather")
    return sum(op.bytes for op in ops if op.kind in kinds and not op.purpose.startswith(SITE))


def expected_crossing(logs: Sequence[EventLog]) -> int:
    """`least_crossing` of a whole cell: of the rank that saw least, so a killed rank asks for no more."""
    per_rank = [least_crossing(op for step in log.steps for op in step.ops) for log in logs]
    return min(per_rank, default=0)


def window(logs: Sequence[EventLog]) -> tuple[int, int] | None:
    """From the first step of any rank to the end of the last; None when no step was taken.

    A rank ends after its last step: by then what an overlapped strategy had left on its way has arrived, and its bytes
    were counted in the step that sent it.
    """
    starts = [log.steps[0].start_ns for log in logs if log.steps]
    ends = [max(log.steps[-1].end_ns, log.end.t_ns if log.end else 0) for log in logs if log.steps]
    return (min(starts), max(ends)) if starts else None


def delta(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Bytes per direction between two readings of the counters."""
    return {name: after[name] - before.get(name, 0) for name in after}


def crossing(expected: int, moved: Mapping[str, float], sites: Sequence[str]) -> list[str]:
    """Why the cell's bytes cannot all have crossed the WAN; empty when they did (or a single site has no
    WAN).

    `moved` has the bytes of each direction "from>to"; every one of `sites` must have sent and received at
    least `expected` bytes over the WAN.
    """
    if len(sites) < 2:
        return []
    reasons = []
    for site in sites:
        sent = sum(count for name, count in moved.items() if name.split(">")[0] == site)
        received = sum(count for name, count in moved.items() if name.split(">")[-1] == site)
        for verb, count in (("left", sent), ("reached", received)):
            if count < TOLERANCE * expected:
                reasons.append(
                    f"only {count / 1e6:.1f} MB {verb} {site} over the WAN,"
                    f" but the collectives need at least {expected / 1e6:.1f} MB there"
                )
    return reasons


def bytes_between(samples: Sequence[Sample], start_ns: int, end_ns: int) -> dict[str, float] | None:
    """Bytes of each direction between two moments, counters interpolated between the samples around each.

    None when the samples do not cover the interval.
    """
    if not samples or start_ns < samples[0][TIME] or end_ns > samples[-1][TIME]:
        return None
    names = [name for name in samples[0] if name != TIME]
    return {name: _at(samples, name, end_ns) - _at(samples, name, start_ns) for name in names}


def bytes_around(samples: Sequence[Sample], start_ns: int, end_ns: int) -> dict[str, float] | None:
    """Bytes of each direction from the last sample before an interval to the first one after it: never too
    few.

    None when the samples do not cover the interval.
    """
    left = bisect_right(samples, start_ns, key=lambda sample: sample[TIME]) - 1
    right = bisect_left(samples, end_ns, key=lambda sample: sample[TIME])
    if left < 0 or right == len(samples):
        return None
    return {name: samples[right][name] - samples[left][name] for name in samples[0] if name != TIME}


def _at(samples: Sequence[Sample], name: str, t_ns: int) -> float:
    """A counter at a moment within the samples."""
    right = bisect_left(samples, t_ns, key=lambda sample: sample[TIME])
    after = samples[right]
    if right == 0 or after[TIME] == t_ns:
        return float(after[name])
    before = samples[right - 1]
    share = (t_ns - before[TIME]) / (after[TIME] - before[TIME])
    return float(before[name] + share * (after[name] - before[name]))


def busiest(per_direction: Mapping[str, float] | None) -> float | None:
    """Bytes of the direction that carried most: what the link's rate is held against; None when unknown."""
    return max(per_direction.values(), default=0.0) if per_direction is not None else None
