"""What a link does to a packet in one direction: how late, how fast, how much may wait, and what goes wrong. Pure.

A profile is resolved to one Impairment per link and direction. Both carriers (kernel netem and our relay) are
given the same Impairment, and verification derives from it what a real packet must then experience. Random events
are described in `netlab.chances`, jitter in `netlab.jitter`.

The way of a packet, in order (docs/explanation/link-model.md explains why):

1. a link that is down drops it;
2. `duplicate` may add an identical copy right behind it; from here on the two are separate packets;
3. `loss` may drop it, before it takes any of the rate;
4. `corrupt` may flip one of its bits;
5. it enters the queue of the rate limiter, or is dropped for want of room; `codel` may drop or mark it there;
6. the transmitter is busy with it for wire bytes / rate;
7. it travels for delay + jitter, and is released no earlier than the packet before, or with `reorder` at once.

Rates count wire bytes. A packet of n IP bytes occupies an Ethernet link for n + 38 byte times: 14 header,
4 checksum, 8 preamble and 12 gap, and never fewer than 84 (a smallest frame of 64, plus preamble and gap;
IEEE 802.3). So an emulated 1 Gbit/s carries what a real 1 Gbit/s port carries, 941 Mbit/s of TCP payload at
an MTU of 1500, and not 2.5 % more, as an emulator that counts IP bytes does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self

from netlab.chances import Chance as Chance
from netlab.chances import FourState as FourState
from netlab.chances import GilbertElliott as GilbertElliott
from netlab.chances import Loss as Loss
from netlab.chances import Reorder as Reorder
from netlab.errors import UnitError
from netlab.jitter import Jitter as Jitter
from netlab.units import (
    DELAY_UNITS,
    NS_PER_S,
    PPB,
    SIZE_UNITS,
    Delay,
    Rate,
    Size,
    decimal_text,
    parse_number,
    quote,
)

ETHERNET_OVERHEAD = 38
ETHERNET_MIN_FRAME = 84
TCP_IP_HEADERS = 40  # IPv4 and TCP without options
TCP_TIMESTAMPS = 12  # on by default in Linux

OFFLOAD_RATE_BPS = 200_000_000  # from here on senders hand over units of up to 64 KB
OFFLOAD_QUEUE_BYTES = 256 * 1024
MAX_QUEUE_PACKETS = 1_000_000
MAX_QUEUE_BDP = 1000
CODEL_TARGET = Delay(5_000_000)  # defaults of RFC 8289 and of Linux
CODEL_INTERVAL = Delay(100_000_000)


@dataclass(frozen=True)
class Framing:
    """What a packet occupies on the link beside its IP bytes: `overhead` bytes each, and never under `min_frame`."""

    overhead: int = ETHERNET_OVERHEAD
    min_frame: int = ETHERNET_MIN_FRAME

    def wire_bytes(self, ip_bytes: int) -> int:
        """Byte times for which a packet of `ip_bytes` occupies the link."""
        return max(ip_bytes + self.overhead, self.min_frame)


ETHERNET = Framing()
BARE_IP = Framing(0, 0)


@dataclass(frozen=True)
class Queue:
    """The limit of the tail-drop queue in front of the rate limiter, in wire bytes or in packets, never both.

    Packets that have been sent and only wait out the link's delay do not count.
    """

    bytes: int | None = None
    packets: int | None = None

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert (self.bytes is None) != (self.packets is None), "a queue is limited by bytes or by packets"
        assert (self.bytes or self.packets or 0) > 0, "a queue that holds nothing passes nothing"

    def __str__(self) -> str:
        """As a profile would write it."""
        return f"{self.packets}packets" if self.bytes is None else str(Size(self.bytes))


@dataclass(frozen=True)
class QueueRule:
    """A queue as a user asks for it; its limit follows from rate, round trip and MTU, and again when they
    change.

    `amount` counts bytes, packets, nanoseconds, or billionths of a bandwidth-delay product.
    """

    kind: Literal["bytes", "packets", "time", "bdp"]
    amount: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "2MB", "100packets", "20ms" or "1.5bdp". Raises UnitError."""
        match = re.fullmatch(r" *([0-9.eE+-]*[0-9.]) *([^\W\d_]+) *", text)
        number, unit = match.groups() if match else ("", "")
        if unit in SIZE_UNITS:
            return cls("bytes", Size.parse(text).bytes)
        if unit in DELAY_UNITS:
            return cls("time", Delay.parse(text).ns)
        if unit in ("packet", "packets"):
            return cls("packets", _whole(number, 1, MAX_QUEUE_PACKETS, text))
        if unit == "bdp":
            return cls("bdp", _whole(number, PPB, MAX_QUEUE_BDP, text))
        raise UnitError(
            f'{quote(text)} is not a queue: write a size ("2MB"), a number of packets ("100packets"), '
            f'the time it takes to drain ("20ms") or a multiple of the bandwidth-delay product ("1.5bdp")'
        )

    def resolve(self, rate: Rate, rtt: Delay, mtu: int, framing: Framing = ETHERNET) -> Queue:
        """The limit on a link. Raises UnitError where no full frame would fit: nothing would ever pass."""
        if self.kind == "packets":
            return Queue(packets=self.amount)
        size = self.amount
        if self.kind == "time":
            size = _ceil(rate.bps * self.amount, 8 * NS_PER_S)
        elif self.kind == "bdp":
            size = _ceil(rate.bps * rtt.ns * self.amount, 8 * NS_PER_S * PPB)
        frame = framing.wire_bytes(mtu)
        if size < frame:
            raise UnitError(
                f"{quote(str(self))}: a queue of {size} bytes at {rate} has no room for one full frame, "
                f"{frame} bytes at an MTU of {mtu}: ask for more, or leave queue out"
            )
        return Queue(bytes=size)

    def __str__(self) -> str:
        """As a profile would write it; `parse` reads it back."""
        if self.kind == "bytes":
            return str(Size(self.amount))
        if self.kind == "time":
            return str(Delay(self.amount))
        return f"{self.amount}packets" if self.kind == "packets" else decimal_text(self.amount, PPB) + "bdp"


@dataclass(frozen=True)
class Codel:
    """Active management of the queue (RFC 8289), in addition to its limit; without it, only the tail is dropped.

    When every packet that begins to be sent has waited for at least `target`, for `interval` without a break, one is
    dropped, and then more, at times that get closer with the square root of their number. Never while no more than
    one full frame waits. With `ecn`, a packet that declares ECN support is marked (CE) instead of dropped.
    """

    target: Delay = CODEL_TARGET
    interval: Delay = CODEL_INTERVAL
    ecn: bool = False

    def __str__(self) -> str:
        """For people."""
        return f"codel (target {self.target}, interval {self.interval}{', ecn' if self.ecn else ''})"


@dataclass(frozen=True)
class Impairment:
    """One direction of a link, fully resolved. `queue` is None exactly when `rate` is None.

    `queue_derived` says that nobody asked for this queue, so whoever changes the rate or places a narrower
    bottleneck in the path derives it again; else `queue_rule` says how it was asked for.

    None for jitter, loss, duplicate, reorder, corrupt or codel: there is none. `seed` is the source of everything
    random here: each of the five draws from its own stream, so that one does not change another, and a live change
    restarts none of them (draws are numbered by packet, from the start of the direction). Not `up`: every packet that
    arrives is dropped; what is already queued or under way still arrives.

    The builder of a profile guarantees: jitter.reach <= delay; reorder only with a delay; codel only with a rate.
    """

    delay: Delay
    rate: Rate | None = None
    queue: Queue | None = None
    overhead: int = ETHERNET_OVERHEAD
    min_frame: int = ETHERNET_MIN_FRAME
    queue_derived: bool = False
    queue_rule: QueueRule | None = None
    jitter: Jitter | None = None
    loss: Loss | None = None
    duplicate: Chance | None = None
    reorder: Reorder | None = None
    corrupt: Chance | None = None
    codel: Codel | None = None
    seed: int = 0
    up: bool = True

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert (self.rate is None) == (self.queue is None), "a rate has a queue, and only a rate has one"
        assert self.codel is None or self.queue is not None, "CoDel manages a queue"
        assert self.reorder is None or self.delay.ns > 0, "without a delay there is nothing to skip"
        assert self.jitter is None or self.jitter.reach <= self.delay, "a packet cannot arrive before it was sent"

    @property
    def framing(self) -> Framing:
        """Overhead and smallest frame together."""
        return Framing(self.overhead, self.min_frame)

    @property
    def per_packet(self) -> bool:
        """Whether every single packet is judged, so that senders must not hand over units of several packets."""
        return self.random or self.codel is not None

    @property
    def random(self) -> bool:
        """Whether the seed matters."""
        drawn = (self.jitter, self.loss, self.duplicate, self.reorder, self.corrupt)
        return any(part is not None for part in drawn)

    def wire_bytes(self, ip_bytes: int) -> int:
        """Byte times for which a packet of `ip_bytes` occupies the link."""
        return self.framing.wire_bytes(ip_bytes)

    def serialization(self, ip_bytes: int) -> Delay:
        """How long the rate limiter is busy with one packet, rounded up to a nanosecond; 0 without a rate."""
        if self.rate is None:
            return Delay(0)
        return Delay(_ceil(self.wire_bytes(ip_bytes) * 8 * NS_PER_S, self.rate.bps))

    def goodput(self, mtu: int, tcp_timestamps: bool = True) -> Rate | None:
        """TCP payload over IPv4 in full segments, rounded down to a bit/s; None without a rate."""
        if self.rate is None:
            return None
        payload = mtu - TCP_IP_HEADERS - (TCP_TIMESTAMPS if tcp_timestamps else 0)
        return Rate(self.rate.bps * payload // self.wire_bytes(mtu))


def derive_queue(rate: Rate, rtt: Delay, mtu: int, framing: Framing = ETHERNET) -> Queue:
    """The queue of a link that states none: one bandwidth-delay product, rate times the link's round trip.

    It is what one loss-based TCP flow needs to keep the link busy (the rule, restated by Appenzeller et al.,
    SIGCOMM 2004). Never under two full frames, or a slow link would pass nothing (at 64 kbit/s and 20 ms the
    product is 160 bytes); and from 200 Mbit/s never under 256 KiB, because senders then hand over units of up
    to 64 KB, which must not be dropped for their size.
    """
    floor = OFFLOAD_QUEUE_BYTES if rate.bps >= OFFLOAD_RATE_BPS else 0
    product = _ceil(rate.bps * rtt.ns, 8 * NS_PER_S)
    return Queue(bytes=max(product, 2 * framing.wire_bytes(mtu), floor))


def _whole(number: str, scale: int, high: int, text: str) -> int:
    """A number above 0 and up to `high`, in whole units of 1 / scale."""
    allowed = (
        f"a queue has 1 to {MAX_QUEUE_PACKETS} packets (whole ones), or above 0 and up to {MAX_QUEUE_BDP}bdp "
        f"(at most 9 digits after the point)"
    )
    try:
        value = parse_number(number) * scale
    except UnitError as error:
        raise UnitError(f"{quote(text)}: {error}; {allowed}") from None
    if value.denominator != 1 or not 0 < value <= high * scale:
        raise UnitError(f"{quote(text)} is not allowed: {allowed}")
    return int(value)


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
