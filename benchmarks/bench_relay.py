"""The relay against a bare veth pair and against the delay and rate it is asked for, between two bare namespaces.

Rounds of both carriers alternate, so that whatever else the machine does falls on both; the median round counts.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.result import Result
from netlab.chances import Chance, Reorder
from netlab.impairment import Codel
from netlab.jitter import Jitter
from netlab.links.relay import Effects
from netlab.links.relay_build import CORE, SOURCES
from netlab.units import Delay, Fraction
from tests.lab.bare_pair import BarePair, Shape

ROUNDS = 9
SECONDS = 1.0
MS = 1_000_000
GBIT = 1_000_000_000
WAN = Shape(delay_ns=8_300_000)
CAPPED = Shape(delay_ns=8_300_000, rate_bps=GBIT, queue_bytes=16_600_000 * GBIT // 8_000_000_000)
CUBIC = ("-C", "cubic")
ONE_PERCENT = Chance(Fraction.parse("1%"), Fraction.parse("50%"))
EFFECTS = Effects(
    jitter=Jitter(Delay(10 * MS)),
    loss=ONE_PERCENT,
    duplicate=ONE_PERCENT,
    corrupt=ONE_PERCENT,
    reorder=Reorder(ONE_PERCENT),
    codel=Codel(),
    seed=1,
)


def run() -> Result:
    """Measure."""
    result = Result()
    _core(result)
    _bulk(result)
    _packets(result)
    _round_trips(result)
    _one_way(result)
    _capped(result)
    return result


def _core(result: Result) -> None:
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "core"
        sources = [str(CORE / name) for name in SOURCES]
        program = str(Path(__file__).with_name("relay_core.c"))
        subprocess.run(["gcc", "-O2", "-pthread", f"-I{CORE}", "-o", str(binary), program, *sources, "-lm"], check=True)
        rounds = [[float(rate) / 1e6 for rate in subprocess.check_output([str(binary)]).split()] for _ in range(3)]
    plain, full = (max(rates) for rates in zip(*rounds, strict=True))
    result.add("pure core", plain, "M packets/s", "84 wire bytes, rate and delay, best of 3", low=1.2)
    how = "also jitter in order, loss, duplicates, corruption, overtaking (each 1 %, correlated) and CoDel"
    result.add("pure core, every effect", full, "M packets/s", how, low=1.2)


def _bulk(result: Result) -> None:
    """One TCP flow with nothing to hold it back: the relay beside a veth pair."""
    figures: dict[str, list[tuple[float, float]]] = {"veth": [], "relay": []}
    for _ in range(ROUNDS):
        for carrier, found in figures.items():
            with BarePair(carrier=carrier) as pair:
                before = _busy_s()
                rate = pair.goodput_bps(*CUBIC, seconds=SECONDS) / GBIT
                found.append((rate, (_busy_s() - before) / SECONDS / rate))
    how = f"iperf3, 1 flow, no delay, no cap, median of {ROUNDS} rounds in turn"
    medians = {carrier: statistics.median(rate for rate, _ in found) for carrier, found in figures.items()}
    for carrier, found in figures.items():
        result.add(f"{carrier} bulk TCP", medians[carrier], "Gbit/s", how)
        cpu = statistics.median(cpu for _, cpu in found)
        result.add(f"{carrier} CPU per Gbit/s", cpu, "cores", "whole machine, sender and receiver included")
    result.add("relay / veth", medians["relay"] / medians["veth"], "", how, low=0.70)


def _packets(result: Result) -> None:
    """Without offload: full-size TCP packets, then 64-byte UDP packets as fast as they come."""
    single = Shape(offload=False)
    with BarePair(single) as pair:
        rate = pair.goodput_bps(*CUBIC, seconds=2) / GBIT
    result.add("relay TCP in MTU packets", rate, "Gbit/s", "iperf3, 1 flow, offload off", low=1.5)
    impaired = Shape(delay_ns=20 * MS, rate_bps=GBIT, queue_bytes=1 << 20, effects=EFFECTS)
    for name, shape in {"small packets": single, "small packets, every effect": impaired}.items():
        _small_packets(result, name, shape)


def _small_packets(result: Result, name: str, shape: Shape) -> None:
    """As many as it takes of an overload; then a little over 250,000/s, of which none may be lost by the relay."""
    with BarePair(shape) as pair:
        pair.iperf("-u", "-b", "0", "-l", "36", seconds=2)
        most = pair.relay.stats()[0]
    how = "iperf3 UDP flood of 64 IP bytes; sender and receiver on the same cores"
    result.add(f"relay {name}", most.packets_out / 2, "packets/s", how, low=250_000)
    per_core = most.packets_out / (most.cpu_ns / 1e9)
    result.add(f"relay {name} per core", per_core, "packets/s", "by the thread's processor time", low=250_000)
    with BarePair(shape) as pair:
        pair.iperf("-u", "-b", "80M", "-l", "36", seconds=2)
        steady = pair.relay.stats()[0]
    how = f"iperf3, {steady.packets_in / 2:.0f}/s of 64 IP bytes for 2 s"
    result.add(f"lost by the relay, {name}", steady.drops_other, "packets", how, high=0)


def _round_trips(result: Result) -> None:
    with BarePair(WAN) as pair:
        times = sorted(pair.ping_ms(200))
    how = "200 ICMP echoes, 10 ms apart, idle"
    result.add("RTT median", statistics.median(times), "ms", how, low=16.6, high=16.75)
    result.add("RTT p99", times[197], "ms", how, low=16.6, high=17.2)


def _one_way(result: Result) -> None:
    """Error of the one-way delay: seen from outside when idle, by the relay's own lateness under load."""
    with BarePair(WAN) as pair:
        errors = sorted(ms - 8.3 for ms in pair.one_way_ms(3000, interval_s=0.001))
    how = "3000 UDP packets, 1000/s, kernel receive stamp - send time - 8.3 ms"
    result.add("one-way error median", statistics.median(errors), "ms", how, low=0, high=0.1)
    result.add("one-way error p99", errors[2969], "ms", how, low=0, high=0.4)
    with BarePair(CAPPED) as pair:
        pair.iperf("-u", "-b", "800M", "-l", "1460", seconds=2)
        forward = pair.relay.stats()[0]
    late = (forward.lateness_quantile(0.99) or 0) / MS
    result.add(
        "lateness p99 at 80 % load", late, "ms", "relay's own histogram, 800 Mbit/s of UDP over 1 Gbit/s", high=1.0
    )


def _capped(result: Result) -> None:
    with BarePair(CAPPED) as pair:
        rate = pair.goodput_bps("-O", "1", *CUBIC, seconds=3) / GBIT
        forward = pair.relay.stats()[0]
    how = "iperf3, 1 flow, 16.6 ms RTT, first second left out"
    result.add("TCP goodput at 1 Gbit/s", rate, "Gbit/s", f"{how}; 0.9415 is the most", low=0.92, high=0.96)
    late = (forward.lateness_quantile(0.99) or 0) / MS
    result.add("lateness p99 at 1 Gbit/s", late, "ms", "relay's own histogram, link full", high=1.0)
    result.add("thread's processor share", forward.cpu_ns / 4e9, "cores", "relay thread that carries the data")


def _busy_s() -> float:
    """Processor seconds of the whole machine since boot that were not idle."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = [int(field) for field in fields]
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) / 100
