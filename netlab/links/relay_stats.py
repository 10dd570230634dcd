"""What the relay counted about one direction of a link, as plain data. Pure.

Counters only grow, so the difference of two snapshots describes the interval between them: `later - earlier`.
"""

from dataclasses import dataclass, fields

LatenessBuckets = tuple[tuple[int, int], ...]
"""(largest value in the bucket in ns, count) for every bucket that is not empty, ascending. Buckets are at
most 12.5 % wide.
"""


@dataclass(frozen=True)
class DirectionStats:
    """Counters of one direction. Packets are counted as the link would carry them: an offloaded unit of 64 KB
    is 45.

    Bytes are IP bytes, unless the name says wire. Lateness is the time of the actual write minus the release
    time that the model computed; it is never negative.
    """

    name: str
    packets_in: int
    packets_out: int
    units_in: int  # reads from the device, writes to the device
    units_out: int
    bytes_in: int
    bytes_out: int
    wire_bytes_out: int
    drops_queue: int  # by the modelled queue: part of the emulation
    drops_codel: int  # by its management
    drops_loss: int  # by the modelled loss
    drops_down: int  # because the modelled link was down
    copies: int  # made by modelled duplication: in packets_out, not in packets_in
    corrupted: int
    marked: int  # with "congestion experienced"
    overtakers: int
    drops_device: int  # everything from here on is not: a run with such drops is not valid
    drops_memory: int
    drops_malformed: int
    drops_write_busy: int
    drops_write_down: int
    drops_write_bad: int
    drops_write_other: int
    queue_bytes: int  # wire bytes waiting, now
    queue_packets: int
    queue_bytes_peak: int  # since the start, also in a difference
    held_bytes_peak: int
    busy_ns: int  # time in which the rate limiter was sending; the rest of the interval was unused capacity
    wakeups: int
    spin_ns: int
    cpu_ns: int  # processor time of the direction's thread
    saturated_ns: int  # time in which the thread took nearly all of a processor: the emulation may not have kept up
    updated_ns: int  # CLOCK_MONOTONIC; in a difference: the length of the interval
    lateness_max_ns: int  # since the start, also in a difference
    lateness_sum_ns: int
    lateness: LatenessBuckets
    lateness_wake: LatenessBuckets  # of them, the first packet after each sleep: what waking up alone costs

    @property
    def drops_other(self) -> int:
        """Packets lost for any reason that the model does not ask for."""
        return sum(self.drops_by_fault.values())

    @property
    def drops_by_fault(self) -> dict[str, int]:
        """The same by cause, under the words for people."""
        return {
            "the device's queue was full": self.drops_device,
            "no memory": self.drops_memory,
            "malformed": self.drops_malformed,
            "the receiving device was full": self.drops_write_busy,
            "the receiving device was down": self.drops_write_down,
            "the kernel refused the packet": self.drops_write_bad,
            "another error of the receiving device": self.drops_write_other,
        }

    def lateness_quantile(self, q: float) -> int | None:
        """Upper bound of the bucket that holds the q-quantile (0 < q <= 1) of the lateness, in ns; None: no
        packet.
        """
        return bucket_quantile(self.lateness, q)

    def __sub__(self, earlier: "DirectionStats") -> "DirectionStats":
        """Describe the interval between two snapshots of the same direction."""
        if earlier.name != self.name:
            raise ValueError(f"cannot subtract {earlier.name} from {self.name}")
        names = [field.name for field in fields(self)]
        values = {name: _difference(name, getattr(self, name), getattr(earlier, name)) for name in names}
        return DirectionStats(**values)


_NOT_COUNTERS = {
    "name",
    "queue_bytes",
    "queue_packets",
    "queue_bytes_peak",
    "held_bytes_peak",
    "lateness_max_ns",
}
_HISTOGRAMS = {"lateness", "lateness_wake"}


def _difference(name: str, later, earlier):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    if name in _NOT_COUNTERS:
        return later
    if name in _HISTOGRAMS:
        before = dict(earlier)
        counts = ((upper, count - before.get(upper, 0)) for upper, count in later)
        return tuple((upper, count) for upper, count in counts if count)
    return later - earlier


def bucket_quantile(buckets: LatenessBuckets, q: float) -> int | None:
    """Upper bound of the bucket that holds the q-quantile; None when there is nothing in any bucket."""
    if not 0 < q <= 1:
        raise ValueError(f"quantile {q}: 0 < q <= 1 is allowed")
    total = sum(count for _, count in buckets)
    seen = 0
    for upper, count in buckets:
        seen += count
        if seen >= q * total:
            return upper
    return None
