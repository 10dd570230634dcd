"""Loss, duplication, damage, overtaking, jitter and marking on real packets between two bare network namespaces.

Draws are numbered by packet, so the very packets that a test loses are known before it sends them.
"""

from __future__ import annotations

import socket
import time

import pytest

from netlab.chances import Chance, GilbertElliott, Reorder
from netlab.impairment import Codel
from netlab.jitter import Jitter
from netlab.links.relay import Effects
from netlab.units import Delay, Fraction
from tests.lab.bare_pair import ADDRESSES, BarePair, Shape
from tests.unit.relay_link import NO_BIT, Link, lib

pytestmark = pytest.mark.lab

MS = 1_000_000
WIRE = 1538
PORT = 5010
IP_RECVTOS = 13


def percent(text: str) -> Fraction:
    return Fraction.parse(text)


def cross(pair: BarePair, count: int, size: int = 100, gap_s: float = 0.0001, tos: int = 0) -> list[tuple[int, int]]:
    """Send numbered datagrams from a to b; (number, TOS) of each that arrives, in order."""
    with pair.socket("b", socket.SOCK_DGRAM) as sink, pair.socket("a", socket.SOCK_DGRAM) as source:
        sink.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        sink.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        sink.bind((ADDRESSES["b"], PORT))
        sink.settimeout(1.0)
        source.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        for number in range(count):
            source.sendto(number.to_bytes(size, "big"), (ADDRESSES["b"], PORT))
            time.sleep(gap_s)
        arrived = []
        while True:
            try:
                data, control, _, _ = sink.recvmsg(65536, 64)
            except TimeoutError:
                return arrived
            arrived.append((int.from_bytes(data, "big"), control[0][2][0]))


def numbers(arrived: list[tuple[int, int]]) -> list[int]:
    return [number for number, _ in arrived]


def model(effects: Effects, count: int) -> list[int]:
    """Verdicts of the model alone."""
    link = Link(effects, delay_ns=MS)
    return [link.verdict(number, length=128) for number in range(count)]


def test_the_packets_that_the_seed_names_are_lost() -> None:
    effects = Effects(loss=GilbertElliott(percent("5%"), percent("30%")), seed=77)
    kept = [number for number, verdict in enumerate(model(effects, 2000)) if verdict == lib.NL_ACCEPT]
    with BarePair(Shape(delay_ns=MS, effects=effects)) as pair:
        assert numbers(cross(pair, 2000)) == kept
        forward = pair.relay.stats()[0]
        assert (forward.drops_loss, forward.drops_other) == (2000 - len(kept), 0)


def test_a_change_of_delay_does_not_begin_the_losses_again() -> None:
    effects = Effects(loss=Chance(percent("20%")), seed=5)
    kept = [number for number, verdict in enumerate(model(effects, 1000)) if verdict == lib.NL_ACCEPT]
    with BarePair(Shape(delay_ns=MS, effects=effects)) as pair:
        first = numbers(cross(pair, 500))
        pair.relay.change("a>b", delay_ns=2 * MS)
        second = [500 + number for number in numbers(cross(pair, 500))]
        assert first + second == kept


def test_doubled_packets_arrive_twice_in_a_row() -> None:
    effects = Effects(duplicate=Chance(percent("10%")), seed=3)
    link = Link(effects)
    expected = [number for number in range(1000) for _ in range(link.copies())]
    with BarePair(Shape(delay_ns=MS, effects=effects)) as pair:
        assert numbers(cross(pair, 1000)) == expected
        forward = pair.relay.stats()[0]
        assert (forward.packets_in, forward.packets_out, forward.copies) == (1000, len(expected), len(expected) - 1000)


def test_damaged_packets_are_found_by_their_checksums_and_only_those() -> None:
    effects = Effects(corrupt=Chance(percent("10%")), seed=9)
    link = Link(effects)
    for number in range(1000):
        link.offer(number, length=128)
    whole = [packet.cookie for packet in link.packets if packet.corrupt_bit == NO_BIT]
    with BarePair(Shape(delay_ns=MS, effects=effects)) as pair:
        assert numbers(cross(pair, 1000)) == whole
        assert pair.relay.stats()[0].corrupted == 1000 - len(whole)


def test_a_packet_that_the_far_kernel_refuses_for_its_damage_is_no_fault_of_the_relay() -> None:
    """One damaged packet of 36 bytes in 72 is neither IPv4 nor IPv6 any more, so that its device will not take it."""
    with BarePair(Shape(delay_ns=MS, effects=Effects(corrupt=Chance(percent("100%")), seed=4))) as pair:
        assert numbers(cross(pair, 1000, size=8)) == []
        forward = pair.relay.stats()[0]
        assert (forward.corrupted, forward.packets_out, forward.drops_other) == (1000, 1000, 0)


def test_every_fourth_packet_overtakes_those_that_wait_out_the_delay() -> None:
    effects = Effects(reorder=Reorder(Chance(percent("100%")), 4))
    with BarePair(Shape(delay_ns=50 * MS, effects=effects)) as pair:
        arrived = numbers(cross(pair, 40, gap_s=0.001))
        early, late = arrived[:8], [number for number in arrived if number % 4 != 3]
        assert sorted(arrived) == list(range(40))
        assert late == sorted(late)
        assert early == [3, 7, 11, 15, 19, 23, 27, 31]
        assert pair.relay.stats()[0].overtakers == 10


def test_jitter_spreads_real_packets_and_keeps_their_order() -> None:
    jitter = Jitter(Delay(6 * MS), "uniform")
    with BarePair(Shape(delay_ns=10 * MS, effects=Effects(jitter=jitter, seed=1))) as pair:
        times = sorted(pair.one_way_ms(2000, 0.001))
        assert 4.0 <= times[0] <= 4.5
        assert 9.5 <= sum(times) / len(times) <= 10.8
        assert 12.5 <= times[1500] <= 13.8, "the upper quartile of 10 +- 6 ms is 13"
        assert times[1960] >= 15.5, "98 % lie below 15.76"
        assert numbers(cross(pair, 1000, gap_s=0.0005)) == list(range(1000))


@pytest.mark.parametrize("ecn", [True, False])
def test_codel_marks_packets_that_allow_it_and_drops_others(ecn: bool) -> None:
    codel = Codel(Delay(2 * MS), Delay(20 * MS), ecn)
    shape = Shape(rate_bps=4_000_000, queue_bytes=1 << 20, offload=False, effects=Effects(codel=codel, full_frame=WIRE))
    with BarePair(shape) as pair:
        arrived = cross(pair, 600, size=1472, gap_s=0.0024, tos=2)
        forward = pair.relay.stats()[0]
    marked = sum(tos & 3 == 3 for _, tos in arrived)
    assert marked == forward.marked
    assert (forward.marked > 5) == ecn
    assert (forward.drops_codel > 5) == (not ecn)
    assert len(arrived) == 600 - forward.drops_codel
    assert forward.drops_queue == forward.drops_other == 0


def test_a_link_goes_down_and_up_and_delivers_what_it_held() -> None:
    with BarePair(Shape(delay_ns=20 * MS)) as pair:
        pair.ping_ms(2)
        pair.relay.change("a>b", effects=Effects(up=False))
        assert numbers(cross(pair, 20)) == []
        assert pair.relay.stats()[0].drops_down == 20
        pair.relay.change("a>b", effects=Effects())
        assert 40.0 <= min(pair.ping_ms(3)) <= 40.4


def test_units_become_packets_for_as_long_as_single_packets_matter() -> None:
    with BarePair(Shape(delay_ns=MS)) as pair:

        def packets_per_unit() -> float:
            before = pair.relay.stats()[0]
            pair.goodput_bps("-C", "reno", seconds=1)
            change = pair.relay.stats()[0] - before
            return change.packets_in / change.units_in

        assert packets_per_unit() > 4
        pair.relay.change("a>b", effects=Effects(loss=Chance(percent("0.01%"))))
        assert packets_per_unit() == 1
        pair.relay.change("a>b", effects=Effects())
        assert packets_per_unit() > 4
        pair.relay.change("a>b", rate_bps=100_000_000, queue_bytes=1 << 20)
        assert packets_per_unit() == 1
