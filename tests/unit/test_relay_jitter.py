"""Jitter in the relay's model: the asked distribution, whatever the traffic, and never a packet overtaken."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netlab.jitter import Jitter, jitter_of
from netlab.links.relay_model import Effects
from netlab.units import Delay, Fraction
from tests.unit.relay_link import Link

MS = 1_000_000
PACKETS = 20_000
KS_LIMIT = 0.02

WIDE = Jitter(Delay(15 * MS), "uniform")
NORMAL = Jitter(Delay(5 * MS), "normal")
PARETO = Jitter(Delay(2 * MS), "pareto")
MIXED = Jitter(Delay(2 * MS), "paretonormal")
_measured = random.Random(1)
MEASURED = jitter_of([int(_measured.gammavariate(2, 2 * MS)) for _ in range(3000)])
NAMED = {"uniform": WIDE, "normal": NORMAL, "pareto": PARETO, "paretonormal": MIXED, "measured": MEASURED}


def deviations(jitter: Jitter, sent: list[int], delay_ns: int = 50 * MS, seed: int = 1) -> list[int]:
    """What each packet's travel differs from the delay by, for packets sent at these times."""
    link = Link(Effects(jitter=jitter, seed=seed), delay_ns=delay_ns)
    for at in sent:
        link.offer(at)
    return [packet.release_ns - packet.arrival_ns - delay_ns for packet in link.packets]


def regular(rate: float, count: int = PACKETS) -> list[int]:
    """So many packets a second."""
    return [int(number * 1e9 / rate) for number in range(count)]


def poisson(rate: float, count: int = PACKETS, seed: int = 3) -> list[int]:
    """At random, so many a second on average."""
    source, now, times = random.Random(seed), 0.0, []
    for _ in range(count):
        now += source.expovariate(rate)
        times.append(int(now * 1e9))
    return times


def bursts(size: int, pause_ns: int, count: int = PACKETS) -> list[int]:
    """So many packets 10 us apart, then a pause."""
    return [number // size * pause_ns + number % size * 10_000 for number in range(count)]


def distance(values: list[int], table: tuple[int, ...]) -> float:
    """Kolmogorov-Smirnov: the largest difference of the two shares of values up to x, for any x."""
    ordered = sorted(values)
    points = sorted(set(ordered) | set(table))
    shares = ((bisect_right(ordered, x) / len(ordered), bisect_right(table, x) / len(table)) for x in points)
    return max(abs(a - b) for a, b in shares)


def in_order(sent: list[int], deviation: list[int]) -> bool:
    releases = [at + x for at, x in zip(sent, deviation, strict=True)]
    return all(a <= b for a, b in pairwise(releases))


TRAFFIC = {
    "1000 a second": regular(1000),
    "1000 a second, at random": poisson(1000),
    "100 a second": regular(100),
    "5 a second": regular(5),
    "4000 a second, at random": poisson(4000, 80_000),
    "bursts": bursts(10, 10 * MS, 100_000),
}


@pytest.mark.parametrize("sent", TRAFFIC.values(), ids=TRAFFIC)
@pytest.mark.parametrize("jitter", NAMED.values(), ids=NAMED)
def test_jitter_has_the_asked_distribution_and_mean_and_keeps_the_order(jitter: Jitter, sent: list[int]) -> None:
    found = deviations(jitter, sent)
    assert in_order(sent, found)
    assert distance(found, jitter.table()) < KS_LIMIT
    assert abs(sum(found) / len(found)) < 0.01 * 50 * MS


@pytest.mark.parametrize("jitter", NAMED.values(), ids=NAMED)
def test_no_deviation_lies_outside_the_table(jitter: Jitter) -> None:
    found, table = deviations(jitter, poisson(2000)), jitter.table()
    assert table[0] <= min(found)
    assert max(found) <= table[-1]


@given(
    st.lists(st.integers(0, 10 * MS), min_size=2, max_size=200),
    st.sampled_from(sorted(NAMED)),
    st.integers(0, 2**53),
    st.sampled_from(["0%", "40%", "99%"]),
)
def test_no_traffic_makes_jitter_reorder(gaps: list[int], name: str, seed: int, correlation: str) -> None:
    jitter = Jitter(
        NAMED[name].amount, NAMED[name].distribution, Fraction.parse(correlation), samples=NAMED[name].samples
    )
    now, sent = 0, []
    for gap in gaps:
        now += gap
        sent.append(now)
    found, table = deviations(jitter, sent, seed=seed), jitter.table()
    assert in_order(sent, found)
    assert all(table[0] <= x <= table[-1] for x in found)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3 * MS), min_size=2, max_size=60), st.integers(0, 2**53))
def test_jitter_of_any_measured_values_keeps_the_order(samples: list[int], seed: int) -> None:
    jitter, sent = jitter_of([*samples, max(samples) + 1000]), poisson(1000, 500, seed % 1000)
    found, table = deviations(jitter, sent, seed=seed), jitter.table()
    assert in_order(sent, found)
    assert all(table[0] <= x <= table[-1] for x in found)


def test_two_separate_values_are_both_taken_under_dense_traffic() -> None:
    jitter = jitter_of([0] * 500 + [4 * MS] * 500)  # 2 ms below and above the mean, nothing between
    sent = regular(2000, 400_000)
    found = deviations(jitter, sent)
    assert in_order(sent, found)
    low, high = (sum(x < -1.9 * MS for x in found), sum(x > 1.9 * MS for x in found))
    assert low / len(found) == pytest.approx(0.49, abs=0.05)
    assert high / len(found) == pytest.approx(0.49, abs=0.05)


def test_packets_far_apart_have_independent_deviations() -> None:
    found = deviations(WIDE, regular(5))
    mean = sum(found) / len(found)
    variance = sum((x - mean) ** 2 for x in found) / len(found)
    covariance = sum((a - mean) * (b - mean) for a, b in pairwise(found)) / len(found)
    assert abs(covariance / variance) < 2.576 / math.sqrt(PACKETS)


@pytest.mark.parametrize("reorder", [False, True])
def test_packets_far_apart_have_the_asked_correlation(reorder: bool) -> None:
    jitter = Jitter(Delay(5 * MS), "normal", Fraction.parse("60%"), reorder)
    found = deviations(jitter, regular(5))
    mean = sum(found) / len(found)
    variance = sum((x - mean) ** 2 for x in found) / len(found)
    covariance = sum((a - mean) * (b - mean) for a, b in pairwise(found)) / len(found)
    assert covariance / variance == pytest.approx(0.6, abs=0.03)
    assert distance(found, jitter.table()) < 1.5 * KS_LIMIT, "as if from a quarter as many independent values"


def test_with_reorder_every_deviation_is_drawn_by_itself_and_packets_overtake() -> None:
    jitter = Jitter(Delay(15 * MS), "uniform", reorder=True)
    sent = regular(1000)
    link = Link(Effects(jitter=jitter, seed=2), delay_ns=50 * MS)
    for at in sent:
        link.offer(at)
    taken = link.take_all()
    releases = [release for _, release in taken]
    assert releases == sorted(releases), "taken in the order of release"
    assert sorted(number for number, _ in taken) == list(range(PACKETS))
    overtaken = sum(a > b for a, b in pairwise(number for number, _ in taken))
    assert overtaken > PACKETS / 4
    found = [packet.release_ns - packet.arrival_ns - 50 * MS for packet in link.packets]
    assert distance(found, jitter.table()) < KS_LIMIT


def test_jitter_comes_on_top_of_the_rate() -> None:
    link = Link(Effects(jitter=WIDE, seed=5), delay_ns=20 * MS, rate_bps=12_304_000)  # 1 ms a packet
    for number in range(5000):
        link.offer(number * MS)
    assert [number for number, _ in link.take_all()] == list(range(5000))
    found = [packet.release_ns - packet.arrival_ns - 21 * MS for packet in link.packets]
    assert distance(found, WIDE.table()) < 2 * KS_LIMIT
    assert abs(sum(found) / len(found)) < 0.5 * MS


def test_the_same_seed_gives_the_same_jitter() -> None:
    sent = poisson(1000, 500)
    assert deviations(NORMAL, sent, seed=4) == deviations(NORMAL, sent, seed=4)
    assert deviations(NORMAL, sent, seed=4) != deviations(NORMAL, sent, seed=5)


def test_a_change_of_anything_else_does_not_disturb_jitter() -> None:
    sent = poisson(1000, 400)
    link = Link(Effects(jitter=NORMAL, seed=4), delay_ns=50 * MS)
    for number, at in enumerate(sent):
        if number == 200:
            link.change(at, delay_ns=60 * MS)
        link.offer(at)
    found = [packet.release_ns - packet.arrival_ns for packet in link.packets]
    plain = deviations(NORMAL, sent, seed=4)
    assert found == [x + (50 if number < 200 else 60) * MS for number, x in enumerate(plain)]


def test_next_is_never_later_than_the_release() -> None:
    jitter = Jitter(Delay(3 * MS), "uniform", reorder=True)
    link, now, taken = Link(Effects(jitter=jitter, seed=3), delay_ns=5 * MS, rate_bps=2 * 10**8), 0, 0
    for number in range(2000):
        now = number * 100_000
        while link.next() <= now:
            due = link.next()
            while one := link.take(due):
                assert one[1] == due
                taken += 1
        link.offer(now)
    assert taken > 1900
