"""Watches a lab while something runs in it: a look a second at every direction and at the machine, with its time.

Lives in the keeper, which calls `tick` when `wait_s` is over. What it keeps is bounded: when there are MAX_SAMPLES,
neighbours are merged and looks are half as frequent, so a run of minutes has seconds, and one of days has minutes.
Turning two looks into a sample, and two samples into one, is pure. `netlab.health` judges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from netlab.links.relay_stats import DirectionStats
from netlab.processors import Load, Processors, load

INTERVAL_S = 1.0
MAX_SAMPLES = 600

Peaks = Mapping[str, tuple[int, int]]
"""Of each direction since it was last asked: the most wire bytes that waited, and the largest lateness in ns."""


@dataclass(frozen=True)
class Look:
    """Every counter at one moment. ``rates``: bit/s of each direction as it is now, None for no limit; ``lossless``:
    directions in which nothing that is asked for drops a packet.
    """

    at_ns: int  # CLOCK_MONOTONIC
    time: float
    statistics: tuple[DirectionStats, ...]
    processors: Processors
    rates: Mapping[str, int | None]
    lossless: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Way:
    """One direction in one sample. Drops by cause; ``drops_other`` were not asked for."""

    packets: int
    wire_bytes: int
    queue_peak_bytes: int
    drops_queue: int
    drops_codel: int
    drops_loss: int
    drops_down: int
    drops_other: int
    lateness_p50_ns: int | None
    lateness_p99_ns: int | None
    lateness_max_ns: int
    spare: float | None  # the share of its capacity that was not used; None: it has no limit, or got another

    def __or__(self, later: Way) -> Way:
        """Both, one after the other. Quantiles become the worse of the two, which is never too small."""
        spares = [spare for spare in (self.spare, later.spare) if spare is not None]
        return Way(
            self.packets + later.packets,
            self.wire_bytes + later.wire_bytes,
            max(self.queue_peak_bytes, later.queue_peak_bytes),
            self.drops_queue + later.drops_queue,
            self.drops_codel + later.drops_codel,
            self.drops_loss + later.drops_loss,
            self.drops_down + later.drops_down,
            self.drops_other + later.drops_other,
            _worse(self.lateness_p50_ns, later.lateness_p50_ns),
            _worse(self.lateness_p99_ns, later.lateness_p99_ns),
            max(self.lateness_max_ns, later.lateness_max_ns),
            sum(spares) / len(spares) if spares else None,
        )


@dataclass(frozen=True)
class Sample:
    """What happened from ``from_ns`` to ``to_ns`` (CLOCK_MONOTONIC)."""

    from_ns: int
    to_ns: int
    machine: Load
    ways: Mapping[str, Way]

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.to_ns - self.from_ns) / 1e9

    def __or__(self, later: Sample) -> Sample:
        """Both, one after the other."""
        ways = {name: way | later.ways[name] for name, way in self.ways.items()}
        return Sample(self.from_ns, later.to_ns, _mean(self, later), ways)


def sample(earlier: Look, later: Look, peaks: Peaks) -> Sample:
    """What happened between two looks."""
    before = {stats.name: stats for stats in earlier.statistics}
    ways = {
        stats.name: _way(stats - before[stats.name], earlier, later, peaks.get(stats.name, (0, 0)))
        for stats in later.statistics
    }
    return Sample(earlier.at_ns, later.at_ns, load(earlier.processors, later.processors), ways)


def spare(change: DirectionStats, earlier: Look, later: Look) -> float | None:
    """The share of a direction's capacity that nobody used between two looks; None where there is no limit, or where
    the carrier does not say how long it was busy and the rate was another at the start.
    """
    rate, passed = later.rates.get(change.name), later.at_ns - earlier.at_ns
    if rate is None or passed <= 0:
        return None
    if change.busy_ns:
        return max(0.0, 1 - change.busy_ns / passed)
    if earlier.rates.get(change.name) != rate:
        return None
    return max(0.0, 1 - change.wire_bytes_out * 8e9 / rate / passed)


def _way(change: DirectionStats, earlier: Look, later: Look, peaks: tuple[int, int]) -> Way:
    unasked = change.drops_queue if _never_drops(change.name, earlier, later) else 0
    p50, p99 = (change.lateness_quantile(q) if change.lateness else None for q in (0.5, 0.99))
    return Way(
        packets=change.packets_out,
        wire_bytes=change.wire_bytes_out,
        queue_peak_bytes=max(peaks[0], change.queue_bytes),
        drops_queue=change.drops_queue - unasked,
        drops_codel=change.drops_codel,
        drops_loss=change.drops_loss,
        drops_down=change.drops_down,
        drops_other=change.drops_other + unasked,
        lateness_p50_ns=p50,
        lateness_p99_ns=p99,
        lateness_max_ns=peaks[1],
        spare=spare(change, earlier, later),
    )


def _never_drops(name: str, earlier: Look, later: Look) -> bool:
    return name in earlier.lossless and name in later.lossless


def _mean(first: Sample, second: Sample) -> Load:
    a, b = first.machine, second.machine
    share = first.seconds / max(first.seconds + second.seconds, 1e-9)
    busiest = a if a.busiest_busy >= b.busiest_busy else b
    return Load(
        busy=a.busy * share + b.busy * (1 - share),
        stolen=a.stolen * share + b.stolen * (1 - share),
        busiest=busiest.busiest,
        busiest_busy=busiest.busiest_busy,
        throttled_s=a.throttled_s + b.throttled_s,
    )


def _worse(a: int | None, b: int | None) -> int | None:
    known = [value for value in (a, b) if value is not None]
    return max(known, default=None)


@dataclass
class Monitor:
    """Looks at a lab every INTERVAL_S from `begin` on. ``look`` reads the counters, ``peaks`` takes the peaks."""

    look: Callable[[], Look]
    peaks: Callable[[], Peaks]
    clock: Callable[[], int] = time.monotonic_ns
    interval_s: float = INTERVAL_S
    samples: list[Sample] = field(default_factory=list)
    _last: Look | None = None

    def begin(self) -> Look:
        """Start watching, unless it is done already: the next sample starts here. Returns what is seen now."""
        if self._last is None:
            self.peaks()
            self._last = self.look()
            return self._last
        return self._take()

    def wait_s(self) -> float | None:
        """Seconds until the next look, or None: nobody asked for any."""
        if self._last is None:
            return None
        return max(0.0, self._last.at_ns / 1e9 + self.interval_s - self.clock() / 1e9)

    def tick(self) -> None:
        """Look, if it is time."""
        if self.wait_s() == 0.0:
            self._take()

    def since(self, from_ns: int) -> tuple[Look, tuple[Sample, ...]]:
        """What is seen now, and every sample that begins at or after ``from_ns``."""
        now = self._take()
        return now, tuple(each for each in self.samples if each.from_ns >= from_ns)

    def _take(self) -> Look:
        now = self.look()
        assert self._last is not None, "begun"
        self.samples.append(sample(self._last, now, self.peaks()))
        self._last = now
        if len(self.samples) > MAX_SAMPLES:
            self._thin()
        return now

    def _thin(self) -> None:
        pairs = zip(self.samples[::2], self.samples[1::2], strict=False)
        rest = self.samples[-1:] if len(self.samples) % 2 else []
        self.samples = [*(first | second for first, second in pairs), *rest]
        self.interval_s *= 2
