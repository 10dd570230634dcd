"""One direction of a link: wire bytes, serialisation, goodput and queues, from the arithmetic of Ethernet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.errors import UnitError
from netlab.impairment import ETHERNET, Impairment, Queue, QueueRule, derive_queue
from netlab.units import Delay, Rate


def attempt(unit, text):
    """(quantity, "") or (None, refusal); any other exception fails the test."""
    try:
        return unit.parse(text), ""
    except UnitError as error:
        return None, str(error)


def link(rate: str | None, delay: str = "10ms") -> Impairment:
    if rate is None:
        return Impairment(Delay.parse(delay))
    return Impairment(Delay.parse(delay), Rate.parse(rate), Queue(bytes=10_000))


@pytest.mark.parametrize(
    ("ip_bytes", "wire"),
    [
        (1500, 1538),  # 14 + 1500 + 4, 8 before and 12 after
        (84, 122),  # a ping with 56 bytes of payload
        (46, 84),  # the smallest payload that needs no padding
        (40, 84),  # a bare TCP acknowledgement is padded to 64, + 8 + 12
        (1, 84),
        (9000, 9038),
    ],
)
def test_a_packet_occupies_the_wire_as_an_ethernet_frame_does(ip_bytes, wire):
    assert link("1gbit").wire_bytes(ip_bytes) == wire


def test_one_full_frame_takes_192_ms_at_64_kbit():
    assert link("64kbit").serialization(1500) == Delay.parse("192.25ms")  # 1538 * 8 / 64000


def test_an_idle_ping_over_20_ms_at_64_kbit_takes_50_5_ms():
    there = link("64kbit")
    assert 2 * (there.delay.ns + there.serialization(84).ns) == 50_500_000  # 20 + 2 * 15.25


def test_serialization_rounds_up_so_that_no_rate_is_exceeded():
    assert link("1tbit").serialization(1500).ns == 13  # 12.304
    assert link(None).serialization(1500).ns == 0


def test_goodput_is_that_of_a_real_port_of_this_rate():
    assert link("1gbit").goodput(1500) == Rate(941_482_444)  # 1448 / 1538
    assert link("1gbit").goodput(1500, tcp_timestamps=False) == Rate(949_284_785)  # 1460 / 1538
    assert link("1gbit").goodput(9000) == Rate(990_042_044)  # 8948 / 9038
    assert link(None).goodput(1500) is None


def test_tcp_over_64_kbit_carries_60_3_kbit():
    goodput = link("64kbit").goodput(1500)
    assert goodput is not None
    assert 60_200 < goodput.bps < 60_300


@pytest.mark.parametrize(
    ("rate", "rtt", "queue"),
    [
        ("1gbit", "16.6ms", 2_075_000),  # 1e9 * 0.0166 / 8
        ("10gbit", "16.6ms", 20_750_000),
        ("100mbit", "20ms", 250_000),
        ("64kbit", "20ms", 3076),  # the product is 160 bytes: two frames of 1538
        ("8kbit", "0ms", 3076),
        ("1gbit", "0ms", 262_144),  # 256 KiB, for units of 64 KB
        ("1gbit", "1ms", 262_144),  # the product is 125 kB
        ("200mbit", "1ms", 262_144),
        ("199999999bit", "1ms", 25_000),  # just below where senders begin to hand over large units
        ("1tbit", "600s", 75 * 10**12),
    ],
)
def test_the_derived_queue_is_one_product_but_always_passes_two_frames(rate, rtt, queue):
    assert derive_queue(Rate.parse(rate), Delay.parse(rtt), 1500) == Queue(bytes=queue)


@given(st.integers(1000, 10**12), st.integers(0, 600 * 10**9), st.integers(576, 9216))
def test_no_derived_queue_is_below_its_floors_or_a_byte_above_the_product(bps, rtt_ns, mtu):
    queue = derive_queue(Rate(bps), Delay(rtt_ns), mtu)
    assert queue.bytes is not None
    assert queue.bytes >= 2 * ETHERNET.wire_bytes(mtu)
    floor = max(2 * ETHERNET.wire_bytes(mtu), 262_144 if bps >= 200_000_000 else 0)
    product_bits_ns = bps * rtt_ns
    assert queue.bytes == floor or 0 <= queue.bytes * 8 * 10**9 - product_bits_ns < 8 * 10**9


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        ("2MB", Queue(bytes=2_000_000)),
        ("64KiB", Queue(bytes=65_536)),
        ("1538B", Queue(bytes=1538)),
        ("100packets", Queue(packets=100)),
        ("100 packets", Queue(packets=100)),
        ("1packet", Queue(packets=1)),
        ("1e2packets", Queue(packets=100)),
        ("20ms", Queue(bytes=250_000)),  # 100 mbit/s * 0.02 s / 8
        ("1bdp", Queue(bytes=250_000)),  # the round trip is 20 ms, too
        ("1.5bdp", Queue(bytes=375_000)),
        ("0.5 bdp", Queue(bytes=125_000)),
        ("123.04us", Queue(bytes=1538)),
    ],
)
def test_a_queue_by_bytes_packets_time_or_product_becomes_its_limit(text, queue):
    assert QueueRule.parse(text).resolve(Rate.parse("100mbit"), Delay.parse("20ms"), 1500) == queue


@pytest.mark.parametrize("text", ["1537B", "0B", "122us", "0.001bdp", "0s"])
def test_a_queue_without_room_for_one_full_frame_is_refused(text):
    with pytest.raises(UnitError, match=r"no room for one full frame, 1538 bytes at an MTU of 1500"):
        QueueRule.parse(text).resolve(Rate.parse("100mbit"), Delay.parse("20ms"), 1500)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "100",
        "0packets",
        "1.5packets",
        "1000001packets",
        "-1packets",
        "0bdp",
        "-1bdp",
        "1001bdp",
        "0.0000000001bdp",
        "bdp",
        "packets",
        "1m",
        "2Mb",
        "nanbdp",
        "1_0packets",
        "1e400bdp",
        "1e99bdp",
        "１packets",
        "601s",
        "1.1.1bdp",
        "e5bdp",
    ],
)
def test_what_is_no_queue_is_refused(text):
    with pytest.raises(UnitError) as caught:
        QueueRule.parse(text)
    assert repr(text) in str(caught.value)


@given(st.text(alphabet="0123456789.eE+-_ packetsbdmunskMKGiB\x00１", max_size=30))
def test_any_text_is_a_queue_that_prints_as_itself_or_a_readable_refusal(text):
    rule, refusal = attempt(QueueRule, text)
    assert refusal.isprintable()
    assert rule is None or QueueRule.parse(str(rule)) == rule


@given(st.integers(1, 1000 * 10**9))
def test_a_printed_multiple_of_the_product_reads_back_as_itself(billionths):
    assert QueueRule.parse(str(QueueRule("bdp", billionths))) == QueueRule("bdp", billionths)


def test_a_rate_without_a_queue_or_a_queue_without_a_rate_cannot_be_built():
    with pytest.raises(AssertionError):
        Impairment(Delay(0), Rate(1000), None)
    with pytest.raises(AssertionError):
        Impairment(Delay(0), None, Queue(bytes=2000))
    with pytest.raises(AssertionError):
        Queue(bytes=1, packets=1)
    with pytest.raises(AssertionError):
        Queue()


def test_a_queue_prints_as_a_profile_would_write_it():
    assert str(Queue(bytes=2_000_000)) == "2MB"
    assert str(Queue(packets=100)) == "100packets"
