"""The link model once more, written for plainness: exact fractions, packet by packet. The C core must agree."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

WORK = 8 * 10**9  # nanosecond-bits per second of one byte


@dataclass
class ReferenceLink:
    """A transmitter with a tail-drop queue, then propagation. All times in ns, kept exactly."""

    delay_ns: int
    rate_bps: int
    queue_bytes: int = 0
    queue_packets: int = 0
    free: Fraction = Fraction(0)
    last_release: int = 0
    unfinished: list[tuple[Fraction, int, int]] = field(default_factory=list)  # (last bit, wire bytes, segments)

    def offer(self, arrival: int, wire: int, segments: int = 1) -> int | None:
        """The release time of a packet, or None when the queue has no room for it."""
        if self.rate_bps:
            self.unfinished = [entry for entry in self.unfinished if entry[0] > arrival]
            if not self._has_room(arrival, wire, segments):
                return None
            self.free = max(self.free, Fraction(arrival)) + Fraction(wire * WORK, self.rate_bps)
            self.unfinished.append((self.free, wire, segments))
            sent = math.ceil(self.free)
        else:
            sent = arrival
        self.last_release = max(sent + self.delay_ns, self.last_release)
        return self.last_release

    def _has_room(self, arrival: int, wire: int, segments: int) -> bool:
        if not self.unfinished:
            return True
        unsent = math.ceil((self.free - arrival) * self.rate_bps / WORK)
        if self.queue_bytes and unsent + wire > self.queue_bytes:
            return False
        last_bit, wire_in_service, segments_in_service = self.unfinished[0]
        rest = math.ceil((last_bit - arrival) * self.rate_bps / WORK)
        rest = min(rest, wire_in_service)
        waiting = sum(entry[2] for entry in self.unfinished[1:])
        waiting += math.ceil(Fraction(rest * segments_in_service, wire_in_service))
        return not self.queue_packets or waiting + segments <= self.queue_packets
