"""The emulated link against what it was asked for: delay, rate, jitter, loss, a schedule; real packets between workers.

Every figure is taken at the receiving worker, so whatever the machine adds on the way (two virtual cables, a bridge
and a router at each end) counts as the emulator's error. What a real link would show, too, is no error: the load beside
which delays are taken is spread evenly, because a burst has to queue.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from benchmarks.fidelity import bursts, ks_distance, loss_interval, mean_error_99, steps_of_rate
from benchmarks.result import Result
from benchmarks.streams import Arrivals, Streams, streams
from netlab import Lab, parse_profile

FRAME, MTU, SEGMENT = 1538, 1500, 1448  # wire, IP and TCP payload bytes of a full packet
PROBE_WIRE = 102  # of a probe of 64 IP bytes
PACKETS = {"delay": 10_000, "load": 5_000, "jitter": 20_000, "loss": 50_000}
A, B = "a-0", "b-0"

_measured = random.Random(1)
SAMPLES = ", ".join(f"{40 + _measured.gammavariate(2, 2):.3f}ms" for _ in range(1000))
JITTER = {
    "uniform": "{amount: 15ms}",
    "normal": "{amount: 5ms, distribution: normal}",
    "pareto": "{amount: 2ms, distribution: pareto}",
    "paretonormal": "{amount: 2ms, distribution: paretonormal}",
    "table": f"{{distribution: table, samples: [{SAMPLES}]}}",
}
LOSS = {
    "independent": "10%",
    "correlated": "{probability: 10%, correlation: 50%}",
    "rate and burst": "{probability: 20%, burst: 4}",
    "gilbert-elliott": "{model: gilbert-elliott, to_bad: 8%, to_good: 25%, loss_in_bad: 90%, loss_in_good: 1%}",
    "four-state": "{model: four-state, p13: 8%, p31: 30%, p32: 10%, p23: 60%, p14: 2%}",
}
# rate of the profile, its queue, datagrams that are sent at once, seconds of UDP, of TCP's start-up and of TCP
RATES = {
    "1mbit": ("50packets", 1, 6, 4, 10),
    "10mbit": ("1bdp", 1, 3, 2, 6),
    "100mbit": ("1bdp", 4, 3, 2, 5),
    "1gbit": ("1bdp", 16, 3, 2, 5),
}
STEPS = ("10mbit", "40mbit", "20mbit", "50mbit", "5mbit")
STEP_COUNT = 60


def run() -> Result:
    """Measure."""
    result = Result()
    for part in (delays, rates, extremes, jitter, losses, schedule):
        part(result)
    return result


@contextmanager
def link(keys: str, workers: int = 1, rest: str = ""):
    """Two sites and one link with these keys, and streams between their workers."""
    text = (
        f"name: link\nsites: {{a: {{workers: {workers}}}, b: {{workers: {workers}}}}}\n"
        f"links: [{{between: [a, b], {keys}}}]\ntcp: {{congestion_control: cubic}}\n{rest}"
    )
    with Lab.start(parse_profile(text, "link.yaml")) as lab, streams(lab) as made:
        yield made


def _figure_of_errors(result: Result, arrived: Arrivals, name: str, how: str, bounds: Mapping[float, float]) -> None:
    asked_ms = 8.3 + PROBE_WIRE * 8 / 1e6
    errors = np.sort(arrived.delay_ms - asked_ms)
    for quantile, high in bounds.items():
        found = float(errors[int(quantile * len(errors))])
        label = "median" if quantile == 0.5 else f"p{100 * quantile:g}"
        result.add(f"{name} {label}", found, "ms", how, low=-0.001, high=high)


def delays(result: Result) -> None:
    """One-way delay: achieved less asked, idle and beside a load."""
    with link("rtt: 16.6ms, rate: 1gbit", workers=2) as made:
        arrived = made.stream(A, B, PACKETS["delay"], 1000)
        how = f"{len(arrived.number)} datagrams of 64 bytes, 1000/s; kernel's receive stamp - time of sending - 8.3 ms"
        _figure_of_errors(result, arrived, "delay error idle", how, {0.5: 0.1, 0.99: 0.4})
        with made.load("a-1", "b-1", 7, 0.8e9 * MTU / FRAME, batch=8):
            time.sleep(0.5)
            before = made.lab.statistics()[0]
            arrived = made.stream(A, B, PACKETS["load"], 1000)
            passed = made.lab.statistics()[0] - before
    load = passed.wire_bytes_out * 8 / passed.updated_ns
    result.add("load beside it", load, "of 1 Gbit/s", "UDP of 1500 bytes, evenly, by the relay's counters", low=0.7)
    how = f"{len(arrived.number)} datagrams at 1000/s beside the load; waiting for its packets counts as error"
    _figure_of_errors(result, arrived, "delay error at 80 % load", how, {0.5: 0.1, 0.99: 1.0})


def _udp_rate(arrived: Arrivals) -> float:
    """Wire bits per second of full packets, without the first tenth and the last fiftieth of what arrived."""
    count = len(arrived.received_ns)
    first, last = count // 10, count - count // 50 - 1
    seconds = (arrived.received_ns[last] - arrived.received_ns[first]) / 1e9
    return float((last - first) * FRAME * 8 / seconds)


def rates(result: Result) -> None:
    """What gets through of a UDP overload, and of TCP, as a share of what the rate lets through."""
    for rate, (queue, batch, udp_s, skip_s, tcp_s) in RATES.items():
        with link(f"rtt: 20ms, rate: {rate}, queue: {queue}") as made:
            asked = _bps(made)
            share = _udp_rate(made.flood(A, B, udp_s, 1.3 * asked * MTU / FRAME, batch=batch)) / asked
            goodput = made.tcp(A, B, skip_s, tcp_s) / (asked * SEGMENT / FRAME)
        result.add(f"UDP at {rate}", share, "of asked", f"overload by 30 %, {udp_s} s, wire bytes", low=0.99, high=1.01)
        how = f"one cubic flow, {tcp_s} s, of rate x 1448 / 1538; queue {queue}"
        result.add(f"TCP at {rate}", goodput, "of ideal", how, low=0.99, high=1.01)


def _bps(made: Streams) -> int:
    rate = next(iter(made.lab.impairments().values())).rate
    assert rate is not None
    return rate.bps


def extremes(result: Result) -> None:
    """The slowest rate, exactly; the fastest, as far as this machine goes: no number may have wrapped."""
    with link("rtt: 20ms, rate: 100kbit, queue: 20packets") as made:
        share = _udp_rate(made.flood(A, B, 10, 1.3e5)) / _bps(made)
    result.add("UDP at 100kbit", share, "of asked", "overload by 30 %, 10 s, wire bytes", low=0.99, high=1.01)
    with link("rtt: 2ms, rate: 10gbit") as made:
        goodput = made.tcp(A, B, 1, 3) / 1e9
    how = "one cubic flow, 3 s; 10e9 modulo 2^32 would be 1.4, and the processors are the limit here"
    result.add("TCP at 10gbit", goodput, "Gbit/s", how, low=2.0, high=10 * SEGMENT / FRAME * 1.01)


def jitter(result: Result) -> None:
    """Each distribution: its distance, its mean, its order. Two directions at a time."""
    for pair in (("uniform", "normal"), ("pareto", "paretonormal"), ("table",)):
        ways = ", ".join(
            f"{way}: {{jitter: {JITTER[name]}}}" for way, name in zip(("forward", "backward"), pair, strict=False)
        )
        with link(f"delay: 50ms, {ways}") as made:
            ends = ((A, B), (B, A))[: len(pair)]
            running = [made.pool.submit(made.stream, *each, PACKETS["jitter"], 1000) for each in ends]
            states = list(made.lab.impairments().values())
            for name, state, arrived in zip(pair, states, running, strict=False):
                _jitter_figures(result, name, state.jitter.table(), arrived.result())


def _jitter_figures(result: Result, name: str, table: Sequence[int], arrived: Arrivals) -> None:
    deviations = arrived.received_ns - arrived.sent_ns - 50_000_000
    how = f"{len(deviations)} datagrams, 1000/s, jitter {name} around 50 ms"
    result.add(f"{name}: KS distance", ks_distance(deviations, table), "", how, high=0.02)
    result.add(f"{name}: mean delay", float(arrived.delay_ms.mean()), "ms", how, low=49.5, high=50.5)
    result.add(f"{name}: overtaken", arrived.overtaken, "packets", how, high=0)


def losses(result: Result) -> None:
    """Each model: the share lost and the mean burst."""
    count = PACKETS["loss"]
    for name, keys in LOSS.items():
        with link(f"delay: 5ms, loss: {keys}") as made:
            loss = next(iter(made.lab.impairments().values())).loss
            arrived = made.stream(A, B, count, 20_000)
            other = sum(stats.drops_other for stats in made.lab.statistics())
        runs = bursts(arrived.lost)
        low, high = loss_interval(loss, count)
        how = f"{count} datagrams, 99 % interval of the model; lost otherwise: {other}"
        result.add(f"{name}: lost", float(arrived.lost.mean()), "", how, low=low, high=high)
        ratio = float(runs.mean()) / float(loss.burst)
        how = f"{len(runs)} bursts, asked {float(loss.burst):.3f}; chance alone: {mean_error_99(runs):.1%} in 99 of 100"
        result.add(f"{name}: mean burst", ratio, "of asked", how, low=0.95, high=1.05)


def schedule(result: Result) -> None:
    """A step of the rate every second: when it shows in what arrives, and at which rate."""
    entries = ", ".join(
        f"{{at: {number}s, link: a-b, direction: forward, set: {{rate: {STEPS[number % len(STEPS)]}}}}}"
        for number in range(1, STEP_COUNT + 1)
    )
    with link(f"rtt: 20ms, rate: {STEPS[0]}", rest=f"schedule: [{entries}]\n") as made:
        with made.hearing(B) as (port, heard):
            offset_ns = time.time_ns() - time.monotonic_ns()
            start_ns = made.lab.begin_schedule()
            assert start_ns is not None
            made.run(A, "flood", made.address(B), port, STEP_COUNT + 1, MTU, 75_000_000, 1, 0)
            arrived = heard(0)
        changes = [event for event in made.lab.events() if event["kind"] == "change"]
    rates_bps = [float(step.removesuffix("mbit")) * 1e6 for step in STEPS]
    first_ns = start_ns + offset_ns + 10_000_000  # the delay: a change of the rate travels, too
    found = steps_of_rate(arrived.received_ns - first_ns, STEP_COUNT, FRAME * 8)
    late = np.array([abs(step.at_s - number) * 1e3 for number, step in enumerate(found, start=1)])
    ratio = np.array([step.rate_bps / rates_bps[number % len(STEPS)] for number, step in enumerate(found, start=1)])
    how = f"{STEP_COUNT} steps between 5 and 50 Mbit/s, one a second; where the lines through the arrivals meet"
    result.add("step seen after", float(np.median(late)), "ms", how, high=20)
    result.add("step seen after, worst", float(late.max()), "ms", how, high=20)
    result.add("rate between steps, lowest", float(ratio.min()), "of asked", how, low=0.99)
    result.add("rate between steps, highest", float(ratio.max()), "of asked", how, high=1.01)
    held = max(event["held_ns"] - event["due_ns"] for event in changes) / 1e6
    result.add("step held after, worst", held, "ms", f"{len(changes)} changes, by the lab's events", low=0, high=20)
