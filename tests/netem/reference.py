"""The model of netlab.impairment once more, in a few lines, and what to hold against it. Pure.

Everything here is robust against a machine that stalls now and then: a stall makes single packets late, but not half of
them, and where a sender stalls, its own time stamps say so.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.netem.traffic import Arrival

OVERHEAD = 38


@dataclass(frozen=True)
class Link:
    """One direction with a queue of whole packets."""

    rate: int
    delay_ns: int
    queue: int

    def busy_ns(self, ip_bytes: int) -> int:
        """How long one packet takes to be sent."""
        return (ip_bytes + OVERHEAD) * 8 * 10**9 // self.rate

    def predict(self, sent: Sequence[int], ip_bytes: int) -> dict[int, int]:
        """Number -> time of arrival, for the packets of equal size that the link lets through."""
        busy = self.busy_ns(ip_bytes)
        starts: list[int] = []
        arrivals: dict[int, int] = {}
        for number, now in enumerate(sent):
            if sum(start > now for start in starts[-self.queue - 1 :]) >= self.queue:
                continue
            starts.append(max(now, starts[-1] + busy if starts else now))
            arrivals[number] = starts[-1] + busy + self.delay_ns
        return arrivals


def median_error_ms(arrivals: Sequence[Arrival], predicted: dict[int, int], skip: int = 0) -> float:
    """Arrival minus prediction, of the packets from number `skip` on that came through and should have."""
    errors = [(one.received - predicted[one.number]) / 1e6 for one in arrivals if one.number in predicted]
    return statistics.median(errors[skip:])


def spacing_ns(arrivals: Sequence[Arrival]) -> float:
    """Time from packet to packet on a busy link: the median over all pairs that lie half the experiment apart."""
    half = len(arrivals) // 2
    pairs = zip(arrivals, arrivals[half:], strict=False)
    return statistics.median((later.received - earlier.received) / half for earlier, later in pairs)
