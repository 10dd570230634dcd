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


class ReferenceCodel:
    """RFC 8289's pseudo-code (section 5.5 and 5.6), around a transmitter of a given rate."""

    def __init__(self, rate_bps: int, target: int, interval: int, ecn: bool, full_frame: int) -> None:
        self.rate, self.target, self.interval, self.ecn, self.full_frame = rate_bps, target, interval, ecn, full_frame
        self.free = Fraction(0)
        self.queue: list[tuple[int, int, int, bool]] = []  # number, arrival, wire bytes, may be marked
        self.out: list[tuple[int, int, bool]] = []
        self.dropped: list[int] = []
        self.first_above = self.drop_next = self.count = self.last_count = 0
        self.dropping = False
        self.offered = 0

    def offer(self, now: int, wire: int, capable: bool) -> None:
        """A packet comes; what could be sent before it, is."""
        self._serve(now)
        self.queue.append((self.offered, now, wire, capable))
        self.offered += 1
        self._serve(now)

    def sent(self) -> list[tuple[int, int, bool]]:
        """(number, time of its last bit, marked) of every packet, in order."""
        self._serve(2**64)
        return self.out

    def _serve(self, now: int) -> None:
        while self.queue and math.ceil(self.free) <= now:
            start = max(math.ceil(self.free), self.queue[0][1])
            found = self._dequeue(start)
            if found:
                (number, arrival, wire, _), marked = found
                self.free = max(self.free, Fraction(arrival)) + Fraction(wire * WORK, self.rate)
                self.out.append((number, math.ceil(self.free), marked))

    def _do_dequeue(self, now: int) -> tuple[tuple[int, int, int, bool] | None, bool]:
        if not self.queue:
            self.first_above = 0
            return None, False
        packet = self.queue.pop(0)
        waiting = sum(entry[2] for entry in self.queue)
        if now - packet[1] < self.target or waiting <= self.full_frame:
            self.first_above = 0
        elif self.first_above == 0:
            self.first_above = now + self.interval
        elif now >= self.first_above:
            return packet, True
        return packet, False

    def _control_law(self, at: int) -> int:
        root = math.isqrt(self.count << 32)
        return at + (self.interval << 16) // root

    def _dequeue(self, now: int) -> tuple[tuple[int, int, int, bool], bool] | None:
        packet, ok = self._do_dequeue(now)
        if self.dropping:
            if not ok:
                self.dropping = False
            while packet is not None and self.dropping and now >= self.drop_next:
                self.count += 1
                if self.ecn and packet[3]:
                    self.drop_next = self._control_law(self.drop_next)
                    return packet, True
                self.dropped.append(packet[0])
                packet, ok = self._do_dequeue(now)
                if ok:
                    self.drop_next = self._control_law(self.drop_next)
                else:
                    self.dropping = False
        elif ok and packet is not None:
            marked = self.ecn and packet[3]
            if not marked:
                self.dropped.append(packet[0])
            self.dropping = True
            delta = self.count - self.last_count
            self.count = delta if delta > 1 and now - self.drop_next < 16 * self.interval else 1
            self.drop_next = self._control_law(now)
            self.last_count = self.count
            if marked:
                return packet, True
            packet, _ = self._do_dequeue(now)
        return (packet, False) if packet is not None else None
