"""Did the emulation keep up? What links and machine say about themselves over an interval -> valid, or why not. Pure.

What a carrier did to packets decides, and what the machine went through explains. The relay knows how late every
packet left, so busy, stolen or throttled processors are a reason only where packets *were* late; otherwise they are a
warning. netem does not know it, so there stolen time decides by itself. docs/explanation/health.md has the limits and
why they are where they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from netlab.links.relay_stats import DirectionStats
from netlab.monitor import Look as Mark
from netlab.monitor import Sample, Way, spare
from netlab.operations import Carrier
from netlab.processors import Load, load

__all__ = ["DirectionHealth", "Health", "Mark", "judge"]

LATENESS_QUANTILE = 0.99
LATENESS_LIMIT_NS = 1_000_000
"""A run in which one packet in a hundred left the relay more than this after its time is not the network asked for."""

STALL_PACKETS = 100
"""A sample with fewer packets says nothing about a stall: ten late ones may be one late wake-up."""

BUSY_LIMIT = 0.95
STOLEN_LIMIT = 0.02
"""From here on a warning: nothing has gone wrong, but little would be needed."""

STOLEN_LIMIT_NETEM = 0.10
"""netem's timers stand still while the processor is another's: then at least one packet in ten may have been late."""


_UNKNOWN = Load()


@dataclass(frozen=True)
class DirectionHealth:
    """One direction over the interval; lateness is how long after its computed release a packet really left.

    ``unused_share`` is the part of its capacity that nobody used (None: it has no limit). ``queue_peak_s``: when, in
    seconds from the start of the interval, the queue was at its longest.
    """

    name: str
    packets: int
    lateness_p50_us: float | None
    lateness_p99_us: float | None
    lateness_max_us: float
    drops_queue: int
    drops_codel: int
    drops_loss: int
    drops_down: int
    drops_other: int
    drops_other_causes: dict[str, int]
    queue_peak_bytes: int
    queue_peak_s: float | None
    unused_share: float | None
    carrier_cpu_s: float
    carrier_saturated_s: float


@dataclass(frozen=True)
class Health:
    """``valid`` unless ``reasons`` says why not. ``warnings``: what came near, and did no harm that can be seen."""

    seconds: float
    directions: tuple[DirectionHealth, ...]
    reasons: tuple[str, ...]
    machine: Load = _UNKNOWN
    warnings: tuple[str, ...] = ()
    started: float = 0.0  # time.time()
    samples: tuple[Sample, ...] = ()

    @property
    def valid(self) -> bool:
        """Nothing speaks against the run."""
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """As JSON values; ``timeline`` has a list per quantity, with one entry per sample."""
        return {
            "valid": self.valid,
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "started": self.started,
            "seconds": self.seconds,
            "machine": asdict(self.machine),
            "directions": [asdict(direction) for direction in self.directions],
            "timeline": _timeline(self.samples),
        }

    def describe(self) -> str:
        """One line for people, and one for each warning."""
        if not self.valid:
            return "\n".join(["emulation NOT valid: " + "; ".join(self.reasons), *self.warnings])
        drops = sum(d.drops_queue for d in self.directions)
        known = [d.lateness_p99_us for d in self.directions if d.lateness_p99_us is not None]
        late = f"lateness p99 {max(known):.0f} us" if known else "no lateness is known of netem, or nothing was sent"
        return "\n".join([f"emulation kept up: {late}, {drops} packets dropped by full queues", *self.warnings])


def judge(
    earlier: Mark,
    later: Mark,
    samples: Sequence[Sample] = (),
    *,
    relay_alive: bool = True,
    carrier: Carrier = "relay",
    faults: Sequence[str] = (),
) -> Health:
    """Hold the interval between two marks, and the samples within it, against the limits. ``faults`` is what else
    already speaks against it: see `netlab.followed`.
    """
    before = {stats.name: stats for stats in earlier.statistics}
    machine = load(earlier.processors, later.processors)
    why = _circumstances(machine, (later.at_ns - earlier.at_ns) / 1e9)
    reasons = [*([] if relay_alive else ["the relay has ended"]), *faults]
    directions = []
    for stats in later.statistics:
        change = stats - before[stats.name]
        ways = [(sample, sample.ways[stats.name]) for sample in samples if stats.name in sample.ways]
        directions.append(_direction(change, earlier, later, ways))
        found = [*_faults(directions[-1]), *_stalls(stats.name, ways, earlier)]
        reasons += [f"{fault}{f' ({why})' if why and carrier == 'relay' else ''}" for fault in found]
    if carrier == "netem" and machine.stolen >= STOLEN_LIMIT_NETEM:
        reasons.append(
            f"CPUs: {machine.stolen:.0%} of their time was stolen by other virtual machines, below"
            f" {STOLEN_LIMIT_NETEM:.0%} is allowed with netem, which cannot say how late it was"
        )
    warnings = () if reasons or not why else (f"close to its limits: {why}",)
    seconds = (later.at_ns - earlier.at_ns) / 1e9
    return Health(seconds, tuple(directions), tuple(reasons), machine, warnings, earlier.time, tuple(samples))


def _circumstances(machine: Load, seconds: float) -> str:
    """What the machine went through that may be to blame, in words; empty when nothing."""
    found = []
    if machine.busy >= BUSY_LIMIT:
        found.append(f"the CPUs were {machine.busy:.0%} busy")
    elif machine.busiest_busy >= BUSY_LIMIT:
        found.append(f"CPU {machine.busiest} was {machine.busiest_busy:.0%} busy")
    if machine.stolen >= STOLEN_LIMIT:
        found.append(f"{machine.stolen:.0%} of the CPUs' time was stolen by other virtual machines")
    if machine.throttled_s > 0:
        found.append(f"a CPU quota held this group back for {machine.throttled_s:.2f} s of {seconds:.1f} s")
    return ", ".join(found)


def _direction(
    change: DirectionStats, earlier: Mark, later: Mark, ways: Sequence[tuple[Sample, Way]]
) -> DirectionHealth:
    quantiles = [change.lateness_quantile(q) if change.lateness else None for q in (0.5, LATENESS_QUANTILE)]
    median, tail = (None if value is None else value / 1000 for value in quantiles)
    at, peak = _peak(change, earlier, ways)
    unasked = sum(way.drops_other for _, way in ways) - change.drops_other if ways else 0
    causes = {name: count for name, count in change.drops_by_fault.items() if count}
    if unasked > 0:
        causes["carrier"] = unasked
    return DirectionHealth(
        name=change.name,
        packets=change.packets_out,
        lateness_p50_us=median,
        lateness_p99_us=tail,
        lateness_max_us=max((way.lateness_max_ns for _, way in ways), default=change.lateness_max_ns) / 1000,
        drops_queue=change.drops_queue - max(unasked, 0),
        drops_codel=change.drops_codel,
        drops_loss=change.drops_loss,
        drops_down=change.drops_down,
        drops_other=change.drops_other + max(unasked, 0),
        drops_other_causes=causes,
        queue_peak_bytes=peak,
        queue_peak_s=at,
        unused_share=spare(change, earlier, later),
        carrier_cpu_s=change.cpu_ns / 1e9,
        carrier_saturated_s=change.saturated_ns / 1e9,
    )


def _peak(change: DirectionStats, earlier: Mark, ways: Sequence[tuple[Sample, Way]]) -> tuple[float | None, int]:
    """When (seconds from the start, to a sample) the queue was at its longest, and how long it was."""
    if not ways:
        return None, change.queue_bytes_peak
    sample, way = max(ways, key=lambda pair: pair[1].queue_peak_bytes)
    if not way.queue_peak_bytes:
        return None, 0
    return round((sample.from_ns - earlier.at_ns) / 1e9, 3), way.queue_peak_bytes


def _faults(direction: DirectionHealth) -> list[str]:
    faults = []
    if direction.lateness_p99_us is not None and direction.lateness_p99_us * 1000 > LATENESS_LIMIT_NS:
        faults.append(
            f"{direction.name}: 1 % of packets left more than {direction.lateness_p99_us:.0f} us late,"
            f" at most {LATENESS_LIMIT_NS / 1000:.0f} us is allowed"
        )
    if direction.drops_other:
        causes = ", ".join(f"{name} {count}" for name, count in direction.drops_other_causes.items())
        faults.append(
            f"{direction.name}: {direction.drops_other} packets were lost by the emulation itself ({causes}),"
            " which nobody asked for"
        )
    return faults


def _stalls(name: str, ways: Sequence[tuple[Sample, Way]], earlier: Mark) -> Iterator[str]:
    """Moments in which most packets were late, though there were too few of them to show in the whole run."""
    late = [
        (sample, way.lateness_p50_ns)
        for sample, way in ways
        if way.packets >= STALL_PACKETS and (way.lateness_p50_ns or 0) > LATENESS_LIMIT_NS
    ]
    if late:
        sample, worst = max(late, key=lambda pair: pair[1] or 0)
        clock = time.strftime("%H:%M:%S", time.localtime(earlier.time + (sample.from_ns - earlier.at_ns) / 1e9))
        yield (
            f"{name}: for {sum(each.seconds for each, _ in late):.1f} s most packets were late, at {clock} half of"
            f" them by more than {(worst or 0) / 1000:.0f} us, at most {LATENESS_LIMIT_NS / 1000:.0f} us is allowed"
        )


def _timeline(samples: Sequence[Sample]) -> dict[str, Any]:
    """A list per quantity. ``at_ns`` is where each sample begins (CLOCK_MONOTONIC), ``seconds`` how long it is."""
    ways = {name: [sample.ways[name] for sample in samples] for name in (samples[0].ways if samples else ())}
    machine: dict[str, Callable[[Load], float]] = {
        "cpu_busy": lambda load: round(load.busy, 3),
        "cpu_stolen": lambda load: round(load.stolen, 3),
        "throttled_s": lambda load: load.throttled_s,
    }
    return {
        "at_ns": [sample.from_ns for sample in samples],
        "seconds": [round(sample.seconds, 3) for sample in samples],
        **{key: [read(sample.machine) for sample in samples] for key, read in machine.items()},
        "directions": {
            name: {
                "packets": [way.packets for way in each],
                "wire_bytes": [way.wire_bytes for way in each],
                "queue_peak_bytes": [way.queue_peak_bytes for way in each],
                "drops_queue": [way.drops_queue for way in each],
                "drops_asked": [way.drops_codel + way.drops_loss + way.drops_down for way in each],
                "drops_other": [way.drops_other for way in each],
                "lateness_p99_us": [
                    None if way.lateness_p99_ns is None else way.lateness_p99_ns / 1000 for way in each
                ],
                "unused_share": [None if way.spare is None else round(way.spare, 4) for way in each],
            }
            for name, each in ways.items()
        },
    }
