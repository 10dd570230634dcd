"""Measures what the network achieved, with real packets, and holds it against what was asked for, two-sided.

Per WAN link, and per access of a single worker: the round trip of ICMP echoes, and per direction the rate that a UDP
overload gets through. A link that the route between two workers uses alone is measured between those workers, so that
everything they will meet is included; any other link is measured between the routers at its ends, an access between
worker and router. What is expected follows from the profile by arithmetic: delays of all joints on the path, the time
every joint needs to send the probe packet, and the slowest rate.

A quantity outside its bounds is measured a second time, alone and for longer, and the second figure counts: a
machine that was busy for a moment is no reason to stop, a network that misses its figures twice is.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from netlab import verify_effects as effects
from netlab.errors import NetlabError
from netlab.impairment import Impairment
from netlab.live import known_link
from netlab.topology import Joint, Topology

if TYPE_CHECKING:
    from netlab.lab import Lab

Level = Literal["rtt", "quick", "full"]

PING_BYTES = 84
"""IP bytes of an echo: 56 of payload as ping sends, 8 of ICMP, 20 of IP."""

RTT_SLACK_MS = 0.5
RTT_SLACK = 0.02
"""A measured median may differ from the expected round trip by 0.5 ms or 2 %, whichever is more."""

RATE_SLACK = 0.03
"""A measured rate may differ from the asked one by 3 %."""

FLOOD_OVERLOAD = 1.25
WINDOWS = 15
_MIN_WINDOW_PACKETS = 60
_PORT = 9
_PINGS = {"rtt": 20, "quick": 20, "full": 100}
_FLOOD_SECONDS = {"quick": 0.5, "full": 2.0}
_MIN_FLOOD_PACKETS = 12
_TRAIN_SECONDS = {"rtt": 0.0, "quick": 1.5, "full": 20.0}
_MOST_LOSS = 0.5
_PATIENCE_S = 20.0


class ProbeError(NetlabError):
    """A probe could not run; this is not the same as a network that misses its figures."""


@dataclass(frozen=True)
class Row:
    """One quantity of one link: what was asked, what was achieved, and what is accepted (``low`` to ``high``)."""

    link: str
    direction: str
    quantity: str
    unit: str
    asked: float
    achieved: float | None
    low: float
    high: float
    ok: bool


@dataclass(frozen=True)
class Verification:
    """The verdict over all links."""

    carrier: str
    level: Level
    links: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Every row is inside its bounds."""
        return all(row.ok for row in self.links)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows outside their bounds."""
        return tuple(row for row in self.links if not row.ok)

    def to_json(self) -> dict[str, Any]:
        """In the shape of ``netlab verify --json``."""
        return {
            "ok": self.ok,
            "carrier": self.carrier,
            "level": self.level,
            "links": [asdict(row) for row in self.links],
        }

    def describe(self) -> str:
        """The failures, a line each, with what was measured."""
        return "\n".join(
            f"{row.link} {row.direction}: {row.quantity} asked {row.asked:g} {row.unit}, achieved"
            f" {'nothing' if row.achieved is None else f'{row.achieved:g} {row.unit}'},"
            f" accepted {row.low:g} to {row.high:g} {row.unit}"
            for row in self.failures
        )


@dataclass(frozen=True)
class Way:
    """One direction in which a link is measured: where from, to which address on which node, and what lies between."""

    link: str
    direction: str
    source: str
    target: str
    address: str
    crossed: tuple[Impairment, ...]
    mtu: int

    def delay_ns(self, ip_bytes: int) -> int:
        """How long a lone packet takes: every delay, and every rate's time to send it."""
        return sum(step.delay.ns + step.serialization(ip_bytes).ns for step in self.crossed)

    def bottleneck(self) -> Impairment | None:
        """The joint with the slowest rate, or None when nothing limits the way."""
        limited = [step for step in self.crossed if step.rate is not None]
        return min(limited, key=lambda step: step.rate.bps if step.rate else 0) if limited else None


def measure(lab: Lab, level: Level, only: Sequence[str] = ()) -> Verification:
    """Probe every link and every access of the lab, or ``only`` those named.

    Raises UserError for a name that there is not, ProbeError when a probe itself fails.
    """
    pairs = [_ways(lab, name) for name in _named(lab, only)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        rows = list(pool.map(lambda pair: _rtt_row(lab, pair, level), pairs))
    for number, (row, pair) in enumerate(zip(rows, pairs, strict=True)):
        if not row.ok:
            rows[number] = _rtt_row(lab, pair, "full")
    if level != "rtt":
        # One after the other: floods beside each other would share the machine, and a shared uplink too.
        for way in (way for pair in pairs for way in pair):
            row_or_none = _rate_row(lab, way, level)
            if row_or_none is not None and not row_or_none.ok:
                row_or_none = _rate_row(lab, way, "full")
            rows += [row_or_none] if row_or_none is not None else []
            found = _effect_rows(lab, way, level)
            rows += found if all(row.ok for row in found) else _effect_rows(lab, way, level)
    order = {joint.name: number for number, joint in enumerate(lab.topology.joints)}
    rows.sort(key=lambda row: order[row.link])
    return Verification(lab.carrier, level, tuple(rows))


def _named(lab: Lab, only: Sequence[str]) -> list[str]:
    for name in only:
        known_link(lab.profile, name)
    known = [joint.name for joint in lab.topology.joints if joint.kind in ("wan", "line")]
    return [name for name in known if not only or name in only]


def _ways(lab: Lab, name: str) -> tuple[Way, Way]:
    """Both directions of the link called ``name``."""
    topology = lab.topology
    joint = next(joint for joint in topology.joints if joint.name == name)
    if joint.kind == "line":
        return _line_ways(topology, joint)
    site = {node.name: node.site for node in topology.nodes}
    at_home = {link.a for link in topology.profile.access}
    first = {worker.site: worker for worker in reversed(topology.workers) if worker.name not in at_home}
    near, far = first.get(site[joint.a.node]), first.get(site[joint.b.node])
    if near is not None and far is not None:
        there, back = topology.path(near.name, far.name), topology.path(far.name, near.name)
        if all([j.name for j, _ in path if j.kind == "wan"] == [name] for path in (there, back)):
            return (
                Way(
                    name,
                    f"{near.name}>{far.name}",
                    near.name,
                    far.name,
                    far.address,
                    _steps(there),
                    joint.mtu,
                ),
                Way(
                    name,
                    f"{far.name}>{near.name}",
                    far.name,
                    near.name,
                    near.address,
                    _steps(back),
                    joint.mtu,
                ),
            )
    assert joint.a.address is not None
    assert joint.b.address is not None
    a, b = joint.a, joint.b
    return (
        Way(name, f"{a.node}>{b.node}", a.node, b.node, joint.b.address, (joint.forward,), joint.mtu),
        Way(name, f"{b.node}>{a.node}", b.node, a.node, joint.a.address, (joint.backward,), joint.mtu),
    )


def _line_ways(topology: Topology, joint: Joint) -> tuple[Way, Way]:
    """Both directions of a worker's own access."""
    name, router = joint.name, joint.b
    (worker,) = (each for each in topology.workers if joint.name == f"{each.name}.access")
    assert router.address is not None
    up = Way(
        name, f"{worker.name}>{router.node}", worker.name, router.node, router.address, (joint.forward,), joint.mtu
    )
    down = Way(
        name, f"{router.node}>{worker.name}", router.node, worker.name, worker.address, (joint.backward,), joint.mtu
    )
    return up, down


def _steps(path: Sequence[tuple[object, Impairment]]) -> tuple[Impairment, ...]:
    return tuple(impairment for _, impairment in path)


def _probe(lab: Lab, node: str, *arguments: object, timeout: float) -> dict[str, Any]:
    argv = [sys.executable, "-m", "netlab.probe", *(str(argument) for argument in arguments)]
    done = lab.exec(node, argv, env=_probe_environment(), timeout=timeout, outside=True)
    if done.returncode:
        raise ProbeError(f"{node}: {' '.join(argv[2:])}: {done.stderr.decode(errors='replace').strip()}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _probe_environment() -> dict[str, str]:
    from netlab.spawn import import_path

    return {"PYTHONPATH": import_path(), "PYTHONSAFEPATH": "1"}


def _rtt_row(lab: Lab, pair: tuple[Way, Way], level: Level) -> Row:
    there, back = pair
    expected_ns = there.delay_ns(PING_BYTES) + back.delay_ns(PING_BYTES)
    busy_s = max(step.serialization(PING_BYTES).ns for way in pair for step in way.crossed) / 1e9
    interval, count = max(0.01, 1.5 * busy_s), _PINGS[level]
    if interval > 0.1:
        count = max(5, int(3.0 / interval))
    wait = expected_ns / 1e9 + count * busy_s + 1.0
    found = _probe(
        lab,
        there.source,
        "rtt",
        there.address,
        count,
        interval,
        PING_BYTES - 28,
        wait,
        timeout=count * interval + wait + 20,
    )
    answered = [value / 1e6 for value in found["rtt_ns"] if value is not None]
    achieved = round(statistics.median(answered), 4) if answered else None
    steps = (*there.crossed, *back.crossed)
    # The median of a few echoes on a link with jitter: by chance anywhere between these quantiles of the model (99 %).
    half = 1.29 / math.sqrt(count)
    below, middle, above = (effects.jitter_quantile_ns(steps, min(max(0.5 + h, 0), 1)) / 1e6 for h in (-half, 0, half))
    expected = expected_ns / 1e6 + middle
    slack = max(RTT_SLACK_MS, RTT_SLACK * expected)
    low = round(max(0.0, expected + below - middle - slack), 4)
    high = round(expected + above - middle + slack, 4)
    complete = len(answered) == count or (answered and effects.loss_share(steps) > 0)
    ok = achieved is not None and low <= achieved <= high and bool(complete)
    return Row(there.link, "round trip", "rtt", "ms", round(expected, 4), achieved, low, high, ok)


def _rate_row(lab: Lab, way: Way, level: Level) -> Row | None:
    limiter = way.bottleneck()
    if limiter is None or limiter.rate is None:
        return None
    asked = limiter.rate.bps
    ip_bytes = _flood_size(asked, way.mtu)
    packet_s = limiter.serialization(ip_bytes).ns / 1e9
    seconds = max(_FLOOD_SECONDS[level], _MIN_FLOOD_PACKETS * packet_s)
    lost = effects.loss_share(way.crossed)
    if lost > _MOST_LOSS:
        return None  # a flood of which most is lost by chance measures the chance, which has a row of its own
    offered = int(asked * FLOOD_OVERLOAD / (1 - lost) * ip_bytes / limiter.wire_bytes(ip_bytes))
    samples = _flood(lab, way, ip_bytes, offered, seconds)
    achieved = _slope(samples, limiter.wire_bytes(ip_bytes) * 8)
    if achieved is not None and limiter.corrupt is not None:
        achieved /= 1 - float(limiter.corrupt.rate)  # crossed the link, but failed its checksum
    low, high = asked * (1 - RATE_SLACK), asked * (1 + RATE_SLACK)
    figures = [None if value is None else round(value / 1e6, 6) for value in (asked, achieved, low, high)]
    ok = achieved is not None and low <= achieved <= high
    assert figures[0] is not None
    assert figures[2] is not None
    assert figures[3] is not None
    return Row(way.link, way.direction, "rate", "Mbit/s", figures[0], figures[1], figures[2], figures[3], ok)


def _effect_rows(lab: Lab, way: Way, level: Level) -> list[Row]:
    """Loss, duplicates and delay quantiles of a direction on which chance is at work."""
    if not effects.judges_packets(way.crossed):
        return []
    packet_s = sum(step.serialization(effects.TRAIN_BYTES).ns for step in way.crossed) / 1e9
    interval = max(0.001, 2 * packet_s)
    count = max(30, int(_TRAIN_SECONDS[level] / interval))
    travel = (way.delay_ns(effects.TRAIN_BYTES) + effects.jitter_quantile_ns(way.crossed, 1.0)) / 1e9
    limit = _PATIENCE_S + count * interval + travel + 30
    quiet = travel + max(1.0, 20 * interval)  # 20 packets lost in a row, or a machine that stands still for a second
    with ThreadPoolExecutor(max_workers=1) as pool:
        heard = pool.submit(_probe, lab, way.target, "hear", _PORT, _PATIENCE_S, quiet, timeout=limit)
        _wait_until_heard(lab, way.target)
        _probe(lab, way.source, "train", way.address, _PORT, count, interval, effects.TRAIN_BYTES, timeout=limit)
        arrived = heard.result()["arrived"]
    distinct = len({number for number, _ in arrived})
    rows = [_row(way, effects.loss_bounds(way.crossed, count), 100 * (1 - distinct / count))]
    if any(step.duplicate for step in way.crossed):
        twice = 100 * (len(arrived) - distinct) / max(distinct, 1)
        rows.append(_row(way, effects.duplicate_bounds(way.crossed, count), twice))
    if any(step.jitter for step in way.crossed) and arrived:
        delays = sorted(delay / 1e6 for _, delay in arrived)
        for q in effects.QUANTILES:
            expected = effects.delay_bounds(way.crossed, q, len(delays), RTT_SLACK_MS)
            rows.append(_row(way, expected, delays[min(len(delays) - 1, int(q * len(delays)))]))
    return rows


def _wait_until_heard(lab: Lab, node: str) -> None:
    """Until the probe on ``node`` has its port: what is sent before it is there would be taken for lost."""
    for _ in range(200):
        ports = lab.exec(node, ["cat", "/proc/net/udp"], outside=True, timeout=30).stdout.decode()
        if f":{_PORT:04X} " in ports:
            return
        time.sleep(0.01)
    raise ProbeError(f"{node}: the probe did not take port {_PORT}")


def _row(way: Way, expected: effects.Expected, achieved: float) -> Row:
    ok = expected.low <= achieved <= expected.high
    asked, found, low, high = (round(value, 4) for value in (expected.asked, achieved, expected.low, expected.high))
    return Row(way.link, way.direction, expected.quantity, expected.unit, asked, found, low, high, ok)


def _flood_size(rate_bps: int, mtu: int) -> int:
    """IP bytes of a probe datagram: as large as the MTU, but on slow links so small that a dozen pass in seconds."""
    return max(128, min(mtu, rate_bps // 8 // 20))


def _flood(lab: Lab, way: Way, ip_bytes: int, offered_bps: int, seconds: float) -> list[tuple[float, int]]:
    """Overload ``way`` for ``seconds``; returns (time, datagrams arrived) samples."""
    travel = way.delay_ns(ip_bytes) / 1e9
    listen = seconds + travel + 0.6
    pause = max(0.002, seconds / 200)
    with ThreadPoolExecutor(max_workers=1) as pool:
        heard = pool.submit(_probe, lab, way.target, "sink", _PORT, listen, pause, timeout=listen + 30)
        offer = ("flood", way.address, _PORT, ip_bytes, offered_bps, seconds, _burst(way, ip_bytes))
        _probe(lab, way.source, *offer, timeout=seconds + 30)
        return [(moment, count) for moment, count in heard.result()["samples"]]


def _burst(way: Way, ip_bytes: int) -> int:
    """Datagrams that the smallest queue on the way takes twice over: a larger burst would find it full, and leave the
    link idle until the next one.
    """
    room = [60]
    for step in way.crossed:
        if step.queue is not None:
            held = step.queue.packets or (step.queue.bytes or 0) // step.wire_bytes(ip_bytes)
            room.append(max(1, held // 2))
    return min(room)


def _slope(samples: Sequence[tuple[float, int]], bits: int) -> float | None:
    """Bits per second while the link was busy: the median over up to WINDOWS stretches of the growth.

    The first and last of what arrived is left out, where the flood's start and end show. The median passes over the
    stretches in which a busy machine kept the sender from sending.
    """
    final = samples[-1][1] if samples else 0
    inner = [(moment, count) for moment, count in samples if 0.15 * final <= count <= 0.95 * final]
    # Only moments at which the counter had just moved: a sample taken between two arrivals would lengthen a stretch.
    moved = [now for before, now in pairwise(inner) if now[1] > before[1]]
    if len(moved) < 2:
        return None
    grown = moved[-1][1] - moved[0][1]
    windows = max(1, min(WINDOWS, grown // _MIN_WINDOW_PACKETS, len(moved) - 1))
    edges = [moved[round(number * (len(moved) - 1) / windows)] for number in range(windows + 1)]
    slopes = [(late[1] - early[1]) * bits / (late[0] - early[0]) for early, late in pairwise(edges)]
    return statistics.median(slopes)
