"""Loss, duplication, damage, overtaking and CoDel in the relay's model, held to the closed forms of netlab.chances.

Seeds are fixed, so a result is the same in every run; bounds are those of a 99 % interval for an honest model, with
the variance that its clustering gives.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction as Rational
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.chances import Chance, FourState, GilbertElliott, Loss, Reorder
from netlab.impairment import Codel
from netlab.links.relay_model import Effects, chain_of
from netlab.units import Delay, Fraction
from tests.unit.relay_link import NO_BIT, Link, lib
from tests.unit.relay_reference import ReferenceCodel

PACKETS = 50_000
Z99 = 2.576


def percent(text: str) -> Fraction:
    return Fraction.parse(text)


MODELS: dict[str, Loss] = {
    "independent 1%": Chance(percent("1%")),
    "independent 30%": Chance(percent("30%")),
    "correlated 5% / 40%": Chance(percent("5%"), percent("40%")),
    "gilbert": GilbertElliott(percent("1%"), percent("25%")),
    "gilbert-elliott": GilbertElliott(percent("2%"), percent("20%"), percent("70%"), percent("0.5%")),
    "mean 2% in bursts of 4": GilbertElliott.from_burst(percent("2%"), Rational(4)),
    "four states": FourState(percent("2%"), percent("30%"), percent("20%"), percent("50%"), percent("1%")),
}


def losses(effects: Effects, count: int = PACKETS) -> list[bool]:
    link = Link(effects)
    return [link.verdict(number) == lib.NL_DROP_LOSS for number in range(count)]


def autocorrelation(loss: Loss, lag: int) -> float:
    """Of the loss sequence of a chain in its long run."""
    chain = chain_of(loss)
    moves = [[float(p) for p in row] for row in chain.moves]
    events = [float(event) for event in chain.events]
    states = range(len(moves))
    share = [1 / len(moves)] * len(moves)
    for _ in range(5000):
        share = [sum(share[i] * moves[i][j] for i in states) for j in states]
    rate = sum(share[i] * events[i] for i in states)
    weight = [share[i] * events[i] for i in states]
    for _ in range(lag):
        weight = [sum(weight[i] * moves[i][j] for i in states) for j in states]
    both = sum(weight[i] * events[i] for i in states)
    return (both - rate**2) / (rate - rate**2)


@pytest.mark.parametrize("loss", MODELS.values(), ids=MODELS)
def test_the_share_of_lost_packets_lies_in_the_99_percent_interval(loss: Loss) -> None:
    rate = float(loss.rate)
    inflation = 1 + 2 * sum(autocorrelation(loss, lag) for lag in range(1, 60))
    allowed = Z99 * math.sqrt(rate * (1 - rate) * inflation / PACKETS)
    lost = sum(losses(Effects(loss=loss, seed=11))) / PACKETS
    assert rate - allowed <= lost <= rate + allowed


@pytest.mark.parametrize("loss", MODELS.values(), ids=MODELS)
def test_the_mean_burst_is_that_of_the_model_within_5_percent(loss: Loss) -> None:
    runs = [len(list(run)) for lost, run in groupby(losses(Effects(loss=loss, seed=5), 400_000)) if lost]
    assert sum(runs) / len(runs) == pytest.approx(float(loss.burst or 0), rel=0.05)


def test_neighbouring_losses_have_the_correlation_that_was_asked_for() -> None:
    lost = losses(Effects(loss=Chance(percent("20%"), percent("60%")), seed=3), 200_000)
    mean = sum(lost) / len(lost)
    pairs = sum(a and b for a, b in pairwise(lost)) / (len(lost) - 1)
    assert (pairs - mean**2) / (mean - mean**2) == pytest.approx(0.6, abs=0.01)


def test_certain_loss_loses_everything() -> None:
    assert all(losses(Effects(loss=Chance(percent("100%")), seed=1), 1000))


# ---- seeds ----


def test_the_same_seed_loses_the_same_packets_and_another_seed_others() -> None:
    loss = Chance(percent("10%"))
    first = losses(Effects(loss=loss, seed=7), 2000)
    assert losses(Effects(loss=loss, seed=7), 2000) == first
    other = losses(Effects(loss=loss, seed=8), 2000)
    agreeing = sum(a and b for a, b in zip(first, other, strict=True))
    assert 5 <= agreeing <= 45, "20 expected of 2000 for independent sequences"


def test_other_effects_and_changes_lose_no_other_packets() -> None:
    plain = Effects(loss=Chance(percent("10%")), seed=7)
    rich = Effects(
        loss=plain.loss, corrupt=Chance(percent("20%")), duplicate=Chance(percent("20%")), seed=7, full_frame=1538
    )
    link = Link(plain, delay_ns=1000, rate_bps=10**9)
    seen = []
    for number in range(2000):
        if number == 500:
            link.change(number, rich)
        if number == 1000:
            link.change(number, delay_ns=5, rate_bps=10**6)
        seen.append(link.verdict(number) == lib.NL_DROP_LOSS)
    assert seen == losses(plain, 2000)


def test_a_raised_loss_adds_losses_to_those_there_were() -> None:
    low = losses(Effects(loss=Chance(percent("2%")), seed=7), 5000)
    high = losses(Effects(loss=Chance(percent("20%")), seed=7), 5000)
    assert all(b for a, b in zip(low, high, strict=True) if a)


def test_loss_that_is_switched_on_later_counts_from_the_start() -> None:
    whole = losses(Effects(loss=Chance(percent("30%")), seed=9), 1000)
    link = Link(Effects(seed=9))
    for number in range(400):
        link.offer(number)
    link.change(400, Effects(loss=Chance(percent("30%")), seed=9))
    assert [link.verdict(number) == lib.NL_DROP_LOSS for number in range(400, 1000)] == whole[400:]


# ---- duplication, damage, overtaking, down ----


def test_the_share_of_doubled_packets_lies_in_the_interval() -> None:
    link = Link(Effects(duplicate=Chance(percent("3%")), seed=2))
    doubled = sum(link.copies() == 2 for _ in range(PACKETS)) / PACKETS
    assert abs(doubled - 0.03) <= Z99 * math.sqrt(0.03 * 0.97 / PACKETS)


def test_a_link_that_is_down_takes_no_packet_but_delivers_what_it_holds() -> None:
    link = Link(delay_ns=1000)
    link.offer(0)
    link.change(10, Effects(up=False))
    assert link.copies() == 0
    link.change(20, Effects())
    assert link.copies() == 1
    assert link.take_all() == [(0, 1000)]


def test_damage_flips_any_bit_of_the_ip_packet_equally_often() -> None:
    link = Link(Effects(corrupt=Chance(percent("100%")), seed=4), link_header=14)
    for number in range(16_000):
        link.offer(number, length=24)  # 10 bytes of IP packet behind the Ethernet header: 80 bits, 200 times each
    hits = Counter(packet.corrupt_bit for packet in link.packets)
    assert set(hits) == set(range(80))
    chi_square = sum((count - 200) ** 2 / 200 for count in hits.values())
    assert 50 <= chi_square <= 115, "79 degrees of freedom: 99 % lie between 50 and 113"


def test_the_share_of_damaged_packets_lies_in_the_interval() -> None:
    link = Link(Effects(corrupt=Chance(percent("2%")), seed=6))
    for number in range(PACKETS):
        link.offer(number)
    damaged = sum(packet.corrupt_bit != NO_BIT for packet in link.packets) / PACKETS
    assert abs(damaged - 0.02) <= Z99 * math.sqrt(0.02 * 0.98 / PACKETS)


def test_every_fifth_packet_overtakes_with_gap_5() -> None:
    link = Link(Effects(reorder=Reorder(Chance(percent("100%")), 5)), delay_ns=10_000)
    for number in range(20):
        link.offer(100 * number)
    early = [number for number, release in link.take_all() if release == 100 * number]
    assert early == [4, 9, 14, 19]


def test_a_packet_that_overtakes_is_still_sent_in_its_turn() -> None:
    link = Link(Effects(reorder=Reorder(Chance(percent("100%")), 2)), delay_ns=100_000, rate_bps=8 * 10**9)
    for _ in range(4):
        link.offer(0)  # 1538 ns each
    assert link.take_all() == [(1, 2 * 1538), (3, 4 * 1538), (0, 101_538), (2, 103 * 1000 + 3 * 1538 - 3000)]


@pytest.mark.parametrize(("share", "correlation", "gap"), [("10%", "0%", 1), ("30%", "50%", 1), ("25%", "0%", 4)])
def test_the_share_of_overtakers_is_that_of_the_model(share: str, correlation: str, gap: int) -> None:
    reorder = Reorder(Chance(percent(share), percent(correlation)), gap)
    link = Link(Effects(reorder=reorder, seed=8), delay_ns=10**6)
    for number in range(PACKETS):
        link.offer(number)
    taken = sum(packet.overtakes for packet in link.packets) / PACKETS
    assert taken == pytest.approx(float(reorder.rate), rel=0.05)


# ---- CoDel ----

INTERVAL, TARGET = 100_000_000, 5_000_000


@given(
    st.lists(st.tuples(st.integers(0, 4_000_000), st.integers(20, 1500), st.booleans()), max_size=400),
    st.booleans(),
    st.sampled_from([1_000_000, 3_000_000, 10_000_000]),
)
def test_codel_drops_and_marks_what_the_rfc_says(traffic, ecn: bool, rate: int) -> None:
    codel = Codel(Delay(TARGET // 5), Delay(INTERVAL // 20), ecn)
    link = Link(Effects(codel=codel), rate_bps=rate)
    reference = ReferenceCodel(rate, codel.target.ns, codel.interval.ns, ecn, 1538)
    now = 0
    for gap, size, capable in traffic:
        now += gap
        link.offer(now, size, ecn=capable)
        reference.offer(now, max(size + 38, 84), capable)
    sent = [(number, release, bool(link.packets[number].marked)) for number, release in link.take_all()]
    assert sent == reference.sent()
    assert link.take_dropped() == reference.dropped


def test_codel_brings_a_standing_queue_down_to_its_target() -> None:
    # 10 Mbit/s, offered 10.5 for 40 s: a tail-drop queue of 1 MB stands at 800 ms
    def last_waits(effects: Effects) -> list[int]:
        link = Link(effects, rate_bps=10_000_000, queue_bytes=1_000_000)
        for number in range(34_000):
            link.offer(number * 1_171_809)
        taken = link.take_all()
        arrival = [packet.arrival_ns for packet in link.packets]
        return [release - arrival[number] for number, release in taken if arrival[number] > 30 * 10**9]

    tail_drop = sorted(last_waits(Effects()))
    managed = sorted(last_waits(Effects(codel=Codel())))
    assert tail_drop[len(tail_drop) // 2] > 750_000_000
    assert managed[len(managed) // 2] < 4 * TARGET


def test_codel_leaves_a_queue_alone_that_drains_within_an_interval() -> None:
    link = Link(Effects(codel=Codel()), rate_bps=10_000_000)
    for _ in range(80):
        link.offer(0)  # 80 packets take 98 ms
    assert len(link.take_all()) == 80
    assert link.take_dropped() == []
