"""The relay against a bare veth pair and against the delay and rate it is asked for, between two bare namespaces.

Rounds of both carriers alternate, so that whatever else the machine does falls on both; the median round counts.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.result import Result
from netlab.links.relay_build import CORE, SOURCES
from tests.lab.bare_pair import BarePair, Shape

ROUNDS = 9
SECONDS = 1.0
MS = 1_000_000
GBIT = 1_000_000_000
WAN = Shape(delay_ns=8_300_000)
CAPPED = Shape(delay_ns=8_300_000, rate_bps=GBIT, queue_bytes=16_600_000 * GBIT // 8_000_000_000)
CUBIC = ("-C", "cubic")


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
        rates = [float(subprocess.check_output([str(binary)]).split()[0]) for _ in range(3)]
    result.add("pure core", max(rates) / 1e6, "M packets/s", "84 wire bytes, rate and delay, best of 3", low=1.2)


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
    with BarePair(single) as pair:
        pair.iperf("-u", "-b", "0", "-l", "36", seconds=2)
        forward = pair.relay.stats()[0]
    how = "iperf3 UDP flood of 64 IP bytes; sender and receiver on the same cores"
    result.add("relay small packets", forward.packets_out / 2, "packets/s", how, low=250_000)
    per_core = forward.packets_out / (forward.cpu_ns / 1e9)
    result.add("relay small packets per core", per_core, "packets/s", "by the thread's processor time", low=250_000)


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
