"""Did the emulation keep up? What the relay says about itself over an interval -> valid, or not and why. Pure."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from netlab.links.relay_stats import DirectionStats

LATENESS_QUANTILE = 0.99
LATENESS_LIMIT_NS = 1_000_000
"""A run in which one packet in a hundred left the relay more than this after its time is not the network asked for."""


@dataclass(frozen=True)
class Mark:
    """The counters at one moment."""

    at_s: float
    load: float
    statistics: tuple[DirectionStats, ...]

    @classmethod
    def now(cls, statistics: tuple[DirectionStats, ...]) -> Mark:
        """Stamp ``statistics`` with the clock."""
        return cls(time.monotonic(), os.getloadavg()[0], statistics)


@dataclass(frozen=True)
class DirectionHealth:
    """One direction over the interval; lateness is how long after its computed release a packet really left."""

    name: str
    packets: int
    lateness_p50_us: float | None
    lateness_p99_us: float | None
    lateness_max_us: float
    drops_queue: int
    drops_other: int
    queue_peak_bytes: int


@dataclass(frozen=True)
class Health:
    """``valid`` unless ``reasons`` says why not."""

    seconds: float
    directions: tuple[DirectionHealth, ...]
    reasons: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """Nothing speaks against the run."""
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "valid": self.valid,
            "reasons": list(self.reasons),
            "seconds": self.seconds,
            "directions": [vars(direction) for direction in self.directions],
        }

    def describe(self) -> str:
        """One line for people."""
        if not self.valid:
            return "emulation NOT valid: " + "; ".join(self.reasons)
        worst = max((d.lateness_p99_us or 0.0 for d in self.directions), default=0.0)
        drops = sum(d.drops_queue for d in self.directions)
        return f"emulation kept up: lateness p99 {worst:.0f} us, {drops} packets dropped by full queues"


def judge(earlier: Mark, later: Mark, *, relay_alive: bool) -> Health:
    """Hold the interval between two marks against the limits."""
    before = {stats.name: stats for stats in earlier.statistics}
    reasons = [] if relay_alive else ["the relay has ended"]
    directions = []
    for stats in later.statistics:
        change = stats - before[stats.name]
        directions.append(_direction(change))
        reasons += _faults(directions[-1])
    return Health(later.at_s - earlier.at_s, tuple(directions), tuple(reasons))


def _direction(change: DirectionStats) -> DirectionHealth:
    quantiles = [change.lateness_quantile(q) if change.packets_out else None for q in (0.5, LATENESS_QUANTILE)]
    median, tail = (None if value is None else value / 1000 for value in quantiles)
    return DirectionHealth(
        name=change.name,
        packets=change.packets_out,
        lateness_p50_us=median,
        lateness_p99_us=tail,
        lateness_max_us=change.lateness_max_ns / 1000,
        drops_queue=change.drops_queue,
        drops_other=change.drops_other,
        queue_peak_bytes=change.queue_bytes_peak,
    )


def _faults(direction: DirectionHealth) -> list[str]:
    faults = []
    if direction.lateness_p99_us is not None and direction.lateness_p99_us * 1000 > LATENESS_LIMIT_NS:
        faults.append(
            f"{direction.name}: 1 % of packets left more than {direction.lateness_p99_us:.0f} us late,"
            f" at most {LATENESS_LIMIT_NS / 1000:.0f} us is allowed"
        )
    if direction.drops_other:
        faults.append(
            f"{direction.name}: {direction.drops_other} packets were lost by the relay itself, not by the queue"
        )
    return faults
