"""The relay's model of a link, called through cffi: no network, no clock but the one that the test moves."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netlab.links.relay_stats import bucket_quantile
from tests.unit.relay_link import NEVER, Link, ffi, lib
from tests.unit.relay_reference import ReferenceLink

GBIT = 10**9
MTU_WIRE = 1538  # 1500 IP bytes + 38 of Ethernet framing


def measure(length: int, header: int = 0, gso_size: int = 0, **params: int) -> tuple[int, int, int]:
    """(segments, wire bytes, IP bytes)."""
    packet = ffi.new("struct nl_packet *", {"length": length, "header": header, "gso_size": gso_size})
    lib.nl_packet_measure(ffi.new("struct nl_params *", {"overhead": 38, "min_frame": 84, **params}), packet)
    return packet.segments, packet.wire_bytes, packet.ip_bytes


# ---- what a packet occupies ----


def test_a_full_packet_occupies_its_ip_bytes_and_ethernet_framing():
    assert measure(1500) == (1, 1538, 1500)


def test_a_tiny_packet_occupies_a_smallest_frame():
    assert measure(40) == (1, 84, 40)
    assert measure(46) == (1, 84, 46)
    assert measure(47) == (1, 85, 47)


def test_an_ethernet_frame_is_counted_without_its_header_twice():
    assert measure(1514, link_header=14) == (1, 1538, 1500)


def test_an_offloaded_unit_counts_every_segment_it_will_become():
    # 44 full segments of 1448 and one of 100, each behind 52 bytes of IP and TCP header
    payload = 44 * 1448 + 100
    segments, wire, ip = measure(52 + payload, header=52, gso_size=1448)
    assert segments == 45
    assert wire == 44 * (1500 + 38) + (52 + 100 + 38)
    assert ip == payload + 45 * 52


def test_an_offloaded_unit_on_ethernet_repeats_only_the_ip_header_in_ip_bytes():
    segments, wire, ip = measure(14 + 52 + 2 * 1448, header=66, gso_size=1448, link_header=14)
    assert (segments, wire, ip) == (2, 2 * 1538, 2 * 1500)


def test_small_segments_of_a_unit_are_padded_each():
    assert measure(40 + 30, header=40, gso_size=10) == (3, 3 * 88, 150)
    assert measure(28 + 30, header=28, gso_size=10) == (3, 3 * 84, 114)


# ---- when a packet is released ----


def test_a_packet_on_an_idle_link_takes_serialization_plus_delay():
    link = Link(delay_ns=8_300_000, rate_bps=GBIT)
    assert link.offer(1_000)
    release = 1_000 + MTU_WIRE * 8 + 8_300_000
    assert link.next() == release
    assert link.take(release - 1) is None
    assert link.take(release) == (0, release)
    assert link.next() == NEVER


def test_without_a_rate_only_the_delay_counts():
    link = Link(delay_ns=500)
    link.offer(10)
    link.offer(11)
    assert link.take_all() == [(0, 510), (1, 511)]


def test_a_packet_that_takes_a_fraction_of_a_nanosecond_is_not_released_early():
    link = Link(rate_bps=1_000_000_000_000)  # 1538 bytes take 12.304 ns
    link.offer(0)
    assert link.take_all() == [(0, 13)]


@pytest.mark.parametrize("rate", [8_000, 7_000_003, 999_999_999, 10 * GBIT, 1_000_000_000_000])
def test_back_to_back_packets_do_not_drift(rate: int):
    link = Link(delay_ns=1_000_000, rate_bps=rate)
    for _ in range(10_000):
        link.offer(0)
    last = link.take_all()[-1]
    assert last == (9_999, math.ceil(Fraction(10_000 * MTU_WIRE * 8 * 10**9, rate)) + 1_000_000)


def test_the_slowest_rate_serializes_the_largest_unit_without_wrapping():
    link = Link(rate_bps=1_000)
    link.offer(0, length=65_535, header=28, gso_size=1)  # 65,507 frames of 84 bytes
    wire = 65_507 * 84
    assert link.take_all() == [(0, wire * 8 * 10**6)]  # 12 hours


def test_the_clock_may_be_large():
    start = 2**62
    link = Link(delay_ns=10, rate_bps=GBIT)
    link.offer(start)
    assert link.take_all() == [(0, start + MTU_WIRE * 8 + 10)]


# ---- the queue ----


def test_a_full_queue_drops_the_tail():
    link = Link(rate_bps=GBIT, queue_bytes=3 * MTU_WIRE)
    assert [link.offer(0) for _ in range(5)] == [True, True, True, False, False]
    assert [number for number, _ in link.take_all()] == [0, 1, 2]


def test_a_queue_limited_in_packets_counts_segments():
    link = Link(rate_bps=GBIT, queue_packets=10)
    assert link.offer(0, length=52 + 8 * 1448, header=52, gso_size=1448)
    assert not link.offer(0, length=52 + 3 * 1448, header=52, gso_size=1448)
    assert link.offer(0, length=52 + 2 * 1448, header=52, gso_size=1448)


def test_an_empty_queue_takes_a_packet_larger_than_its_limit():
    link = Link(rate_bps=8_000, queue_bytes=100)
    assert link.offer(0)
    assert not link.offer(1)
    sent = MTU_WIRE * 10**6  # one byte takes a millisecond at 8 kbit/s
    assert not link.offer(sent - 1)
    assert link.offer(sent)


def test_packets_in_flight_are_not_queued():
    link = Link(delay_ns=10**9, rate_bps=GBIT, queue_packets=1)
    serialization = MTU_WIRE * 8
    assert all(link.offer(i * serialization) for i in range(100))
    assert link.backlog(100 * serialization) == (0, 0)
    assert len(link.take_all()) == 100


def test_the_backlog_shrinks_as_the_packet_in_service_is_sent():
    link = Link(rate_bps=8 * 10**9, queue_bytes=1 << 20)  # one byte a nanosecond
    link.offer(0)
    link.offer(0)
    assert link.backlog(0) == (2 * MTU_WIRE, 2)
    assert link.backlog(538) == (2 * MTU_WIRE - 538, 2)
    assert link.take(MTU_WIRE + 38) is not None
    assert link.backlog(MTU_WIRE + 38) == (1500, 1)
    assert link.backlog(2 * MTU_WIRE) == (0, 0)


sizes = st.integers(20, 1500)
rates = st.one_of(st.integers(1_000, 10**6), st.integers(10**6, 10**10), st.integers(10**10, 10**12))


@st.composite
def traffic(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """Parameters, and (arrival, IP bytes) in order; gaps of the size of a packet's serialization."""
    rate = draw(rates)
    serialization = MTU_WIRE * 8 * 10**9 // rate
    params = {
        "delay_ns": draw(st.integers(0, 10**9)),
        "rate_bps": rate,
        "queue_bytes": draw(st.one_of(st.just(0), st.integers(1, 20_000))),
        "queue_packets": draw(st.one_of(st.just(0), st.integers(1, 12))),
    }
    gaps = draw(st.lists(st.tuples(st.integers(0, 2 * serialization), sizes), min_size=1, max_size=60))
    arrivals, now = [], draw(st.integers(0, 10**18))
    for gap, size in gaps:
        now += gap
        arrivals.append((now, size))
    return params, arrivals


def expected(params: dict[str, int], arrivals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    reference = ReferenceLink(**params)
    releases = [reference.offer(at, max(size + 38, 84)) for at, size in arrivals]
    return [(number, release) for number, release in enumerate(releases) if release is not None]


@given(traffic())
def test_the_core_agrees_with_exact_fractions(case):
    params, arrivals = case
    link = Link(**params)
    for at, size in arrivals:
        link.offer(at, size)
    assert link.take_all() == expected(params, arrivals)


@given(traffic(), st.data())
def test_looking_at_the_link_at_any_time_changes_nothing(case, data):
    """The relay may learn of a packet late: after it has already taken others at a later time."""
    params, arrivals = case
    if len({size for _, size in arrivals}) > 1:
        params = {**params, "queue_packets": 0}  # known only by size once they are sent
    link, taken, clock = Link(**params), [], 0
    for at, size in arrivals:
        link.offer(at, size)
        clock = max(clock, at) + data.draw(st.integers(0, 10**7))
        taken += link.take_all(clock)
    assert taken + link.take_all() == expected(params, arrivals)


@given(traffic())
def test_next_names_the_release_of_the_next_packet(case):
    params, arrivals = case
    link = Link(**params)
    for at, size in arrivals:
        link.offer(at, size)
    while (due := link.next()) != NEVER:
        assert link.take(due - 1) is None
        taken = link.take(due)
        assert taken is not None
        assert taken[1] == due


# ---- changes while packets are under way ----


def test_a_new_rate_acts_on_what_still_waits():
    link = Link(rate_bps=8_000_000)  # one byte a microsecond
    for _ in range(3):
        link.offer(0)
    link.change(1_000_000, rate_bps=80_000_000)  # 1000 bytes of the first are out: 538 + 2 x 1538 remain
    assert link.take_all() == [(0, 1_053_800), (1, 1_207_600), (2, 1_361_400)]


def test_a_slower_rate_stretches_only_what_is_not_yet_sent():
    link = Link(rate_bps=80_000_000)
    link.offer(0)
    link.change(100_000, rate_bps=8_000_000)  # 1000 bytes out, 538 left at one microsecond each
    assert link.take_all() == [(0, 638_000)]


def test_what_is_in_flight_keeps_its_release_time():
    link = Link(delay_ns=1_000, rate_bps=8 * GBIT)
    link.offer(0)
    link.change(2_000, delay_ns=5_000_000)
    assert link.take_all() == [(0, MTU_WIRE + 1_000)]


def test_a_shorter_delay_lets_no_packet_overtake():
    link = Link(delay_ns=10_000_000)
    link.offer(0)
    link.change(1_000, delay_ns=1_000)
    link.offer(2_000)
    assert link.take_all() == [(0, 10_000_000), (1, 10_000_000)]


def test_lifting_the_rate_releases_what_waits_in_order():
    link = Link(delay_ns=1_000, rate_bps=8_000)
    for _ in range(3):
        link.offer(0)
    link.change(500, rate_bps=0)
    link.offer(600)
    assert link.take_all() == [(0, 1_500), (1, 1_500), (2, 1_500), (3, 1_600)]
    assert link.backlog(500) == (0, 0)


def test_a_smaller_queue_keeps_what_it_has():
    link = Link(rate_bps=GBIT, queue_packets=10)
    assert all(link.offer(0) for _ in range(10))
    link.change(0, queue_packets=2)
    assert not link.offer(0)
    assert len(link.take_all()) == 10


changes = st.fixed_dictionaries(
    {"delay_ns": st.integers(0, 10**8), "rate_bps": st.one_of(st.just(0), rates)},
    optional={"queue_bytes": st.integers(0, 10**5)},
)
steps = st.lists(
    st.tuples(st.sampled_from(["offer", "take", "change"]), st.integers(0, 10**8), sizes, changes), max_size=60
)


@settings(max_examples=300)
@given(traffic(), steps)
def test_changes_neither_lose_nor_reorder_nor_hurry_packets(case, plan):
    params, _ = case
    link, now = Link(**params), 0
    accepted, taken, arrival, delays = [], [], {}, [params["delay_ns"]]
    for what, gap, size, change in plan:
        now += gap
        if what == "offer":
            arrival[len(link.packets)] = now
            if link.offer(now, size):
                accepted.append(len(link.packets) - 1)
        elif what == "take":
            taken += link.take_all(now)
            assert all(release <= now for _, release in taken)
        else:
            link.change(now, **change)
            delays.append(change["delay_ns"])
    taken += link.take_all()
    releases = [release for _, release in taken]
    assert [cookie for cookie, _ in taken] == accepted
    assert releases == sorted(releases)
    assert all(release >= arrival[cookie] + min(delays) for cookie, release in taken)
    assert link.next() == NEVER


@given(traffic(), rates, st.integers(0, 10**6))
def test_work_is_conserved_across_a_change_of_rate(case, new_rate, pause):
    """Bits sent before the change at the old rate plus bits after it at the new rate are the bits offered."""
    params, arrivals = case
    params = {**params, "queue_bytes": 0, "queue_packets": 0, "delay_ns": 0}
    start = arrivals[0][0]
    link = Link(**params)
    for _, size in arrivals:
        link.offer(start, size)
    done_before = link.take_all(start + pause)
    link.change(start + pause, rate_bps=new_rate)
    after = link.take_all()
    total = sum(max(size + 38, 84) for _, size in arrivals) * 8 * 10**9
    if after:
        left = total - pause * params["rate_bps"]
        assert after[-1][1] == start + pause + math.ceil(Fraction(left, new_rate))
    else:
        assert len(done_before) == len(arrivals)
        assert total <= pause * params["rate_bps"]


# ---- the histogram ----


@given(st.integers(0, 2**41))
def test_a_bucket_is_at_most_an_eighth_wide_and_holds_its_value(ns: int):
    upper = lib.nl_bucket_upper_ns(lib.nl_bucket_of(ns))
    assert ns <= upper <= ns + ns // 8


def test_buckets_are_contiguous_and_the_last_takes_the_rest():
    uppers = [lib.nl_bucket_upper_ns(bucket) for bucket in range(lib.NL_BUCKETS)]
    assert uppers == sorted(set(uppers))
    for bucket, upper in enumerate(uppers[:-1]):
        assert lib.nl_bucket_of(upper) == bucket
        assert lib.nl_bucket_of(upper + 1) == bucket + 1
    assert lib.nl_bucket_of(2**63) == lib.NL_BUCKETS - 1


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.floats(0.001, 1))
def test_a_quantile_is_that_of_the_samples_to_an_eighth(samples: list[int], q: float):
    counts: dict[int, int] = {}
    for ns in samples:
        upper = lib.nl_bucket_upper_ns(lib.nl_bucket_of(ns))
        counts[upper] = counts.get(upper, 0) + 1
    exact = sorted(samples)[max(math.ceil(q * len(samples)) - 1, 0)]
    found = bucket_quantile(tuple(sorted(counts.items())), q)
    assert found is not None
    assert exact <= found <= exact + exact // 8
