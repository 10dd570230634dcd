"""Real packets through real sch_netem, as netlab.links.netem sets it, held against arithmetic.

In a slow kernel (user-mode Linux) everything takes longer, so whatever a test allows for is measured in that same
kernel during the same run: the bare veth's round trip and how late its timers fire. The tests' own bounds stay.
"""

import json
import statistics
import time

import pytest

from netlab.errors import InvalidEmulation, NetlabError
from netlab.impairment import Impairment
from netlab.links import netem
from netlab.links import netem_codec as codec
from tests.netem import chain as net
from tests.netem.chain import MTU, apply, wan
from tests.netem.reference import Link, median_error_ms, spacing_ns

pytestmark = pytest.mark.netem

FRAME = 1538  # wire bytes of 1500 IP bytes

EVERYTHING = codec.Settings(
    latency_ns=50_000_000,
    limit=5,
    jitter_ns=10_000_000,
    table=(8192,) * 16,  # every packet late by the full jitter
    delay_correlation=codec.probability(100_000_000),
    loss=codec.GilbertElliott(p=1000, r=2000, h=3000, k1=4000),
    loss_correlation=codec.probability(200_000_000),
    duplicate=codec.probability(10_000_000),
    duplicate_correlation=codec.probability(300_000_000),
    gap=5,
    reorder=codec.probability(250_000_000),
    reorder_correlation=codec.probability(500_000_000),
    corrupt=codec.probability(1_000_000),
    corrupt_correlation=codec.probability(20_000_000),
    rate=12_500_000_000,
    overhead=-14,
    cell_size=48,
    cell_overhead=5,
    ecn=True,
    slot=codec.Slot(1_000_000, 2_000_000, 10, 20_000),
)


def both(chain: net.Chain, impairment: Impairment) -> None:
    apply(chain, 0, "down", impairment)
    apply(chain, 1, "up", impairment)


def timer_lateness_ms(delay_ms: float) -> float:
    """Median by which this kernel, on this machine and now, wakes a sleeper too late."""
    late = []
    for _ in range(40):
        began = time.monotonic()
        time.sleep(delay_ms / 1000)
        late.append((time.monotonic() - began) * 1000 - delay_ms)
    return statistics.median(late)


def test_the_probe_finds_sch_netem_here():
    assert netem.probe() == (True, "this kernel has sch_netem")


def test_two_times_8_3_ms_give_a_round_trip_of_16_6_ms(pair):
    bare = statistics.median(net.ping(pair, 100))
    lateness = timer_lateness_ms(8.3)
    both(pair, wan(8.3))
    rtts = net.ping(pair, 200)
    assert len(rtts) == 200
    assert min(rtts) >= 16.6
    assert statistics.median(rtts) <= 16.6 + bare + 2 * lateness + 0.1, f"bare {bare}, lateness {lateness}"


def test_a_full_ping_also_takes_its_time_on_a_slow_link(pair):
    """1500 IP bytes at 1 Mbit/s: 1538 x 8 us = 12.304 ms each way, beside 2 ms of delay: 28.608 ms."""
    bare = statistics.median(net.ping(pair, 50, size=MTU - 28))
    lateness = timer_lateness_ms(14.3)
    both(pair, wan(2, 1_000_000))
    rtts = net.ping(pair, 30, interval_s=0.03, size=MTU - 28)
    assert min(rtts) >= 28.608
    assert statistics.median(rtts) <= 28.608 + bare + 2 * lateness + 0.1, f"bare {bare}, lateness {lateness}"


@pytest.mark.parametrize("ends", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("bps", "ip_bytes"), [(10_000_000, 1500), (2_000_000, 300)])
def test_a_busy_link_delivers_its_rate_in_wire_bytes_in_each_direction(pair, ends, bps, ip_bytes):
    """Sent all at once into a queue that holds it all. On the wire, 38 bytes more than the IP packet count."""
    both(pair, wan(5, bps, packets=5000))
    flood = net.flood(pair, ends, 600, ip_bytes)
    assert flood.numbers == list(range(600))
    assert spacing_ns(flood.arrivals) == pytest.approx((ip_bytes + 38) * 8e9 / bps, rel=0.003)


def test_tcp_at_10_mbit_gets_1448_of_every_1538_bytes(pair):
    both(pair, wan(5, 10_000_000, packets=50))
    goodput = net.tcp_goodput(pair, skip_s=1.0, seconds=2.0)
    assert goodput == pytest.approx(10e6 * 1448 / 1538, rel=0.02)


def test_a_burst_loses_what_the_queue_cannot_hold(pair):
    """One packet is sent at once, 20 wait; netem's limit, rounded up by the delay's share, may let one more in."""
    both(pair, wan(10, 1_000_000, packets=20))
    node = pair.nodes[0]
    before = netem.counters(node.netlink, node.index["down"]).drops
    flood = net.flood(pair, (0, 1), 100, 1500)
    predicted = Link(1_000_000, 10_000_000, 20).predict(flood.sent, 1500)
    assert len(predicted) >= 21
    assert len(flood.arrivals) - len(predicted) in (0, 1)
    assert flood.numbers[:21] == list(range(21))
    assert spacing_ns(flood.arrivals) == pytest.approx(FRAME * 8 * 1000, rel=0.003)
    drops = netem.counters(node.netlink, node.index["down"]).drops - before
    assert drops == 100 - len(flood.arrivals)


def test_packets_under_way_take_no_room_in_the_queue(pair):
    """100 ms at 10 Mbit/s keep 81.3 packets under way, and netem's limit allows for 82. So behind a queue of 10, the
    delay is what a queue of 10 or 11 packets gives (12.3 ms and 13.5 ms of waiting), and not some 200 ms of it.
    """
    both(pair, wan(100, 10_000_000, packets=10))
    flood = net.flood(pair, (0, 1), 600, 1500, gap_s=FRAME * 8 / 10e6 / 2)
    predicted = Link(10_000_000, 100_000_000, 10).predict(flood.sent, 1500)
    assert len(predicted) == pytest.approx(len(flood.arrivals), abs=4)
    settled = statistics.median(one.delay_ms for one in flood.arrivals[100:])
    expected = statistics.median((predicted[number] - flood.sent[number]) / 1e6 for number in list(predicted)[100:])
    assert expected - 0.1 <= settled <= expected + 1.3 + timer_lateness_ms(10) + 0.3
    assert median_error_ms(flood.arrivals, predicted, 100) <= 1.3 + timer_lateness_ms(10) + 0.3


def test_counters_come_in_the_terms_of_the_relay(pair):
    """Of 100 packets of 1500 IP bytes in one burst, about 22 fit: counted on the wire, 1538 bytes each."""
    impairment = wan(10, 1_000_000, packets=20)
    both(pair, impairment)
    node = pair.nodes[0]
    before = netem.statistics(node.netlink, node.index["down"], "a>b", impairment)
    arrivals = net.flood(pair, (0, 1), 100, 1500).arrivals
    interval = netem.statistics(node.netlink, node.index["down"], "a>b", impairment) - before
    assert (interval.packets_in, interval.packets_out, interval.drops_queue) == (
        100,
        len(arrivals),
        100 - len(arrivals),
    )
    assert (interval.bytes_out, interval.wire_bytes_out) == (len(arrivals) * 1500, len(arrivals) * FRAME)
    assert (interval.queue_packets, interval.drops_other, interval.lateness_quantile(0.5)) == (0, 0, None)


def test_the_kernel_tells_tc_what_we_told_the_kernel(pair):
    """8 ms are 125000 ticks exactly (tc shows ticks) and keep 650.2 packets of 1538 bytes under way: 651 + 1 + 1000."""
    both(pair, wan(8, 1_000_000_000))
    (shown,) = json.loads(pair.run(0, ["tc", "-j", "qdisc", "show", "dev", "down"]))
    assert (shown["kind"], shown["root"], shown["handle"]) == ("netem", True, "1:")
    options = shown["options"]
    assert options["limit"] == 1652
    assert options["delay"] == {"delay": 0.008, "jitter": 0, "correlation": 0}
    assert options["rate"] == {"rate": 125_000_000, "packetoverhead": 24, "cellsize": 0, "celloverhead": 0}
    assert not {"loss-random", "loss-state", "loss-gemodel", "duplicate", "reorder", "corrupt", "slots"} & set(options)


def test_what_tc_told_the_kernel_is_what_we_read(pair):
    node = pair.nodes[0]
    words = (
        "limit 777 delay 40ms 3ms 25% loss gemodel 1% 10% 70% 0.1% duplicate 2% 5% reorder 30% 50% gap 4 corrupt 0.1%"
        " rate 40gbit -14 48 5 ecn slot 800us 1ms packets 32 bytes 9000"
    )
    pair.run(0, ["tc", "qdisc", "add", "dev", "down", "root", "handle", "1:", "netem", *words.split()])
    report = netem.read(node.netlink, node.index["down"])
    assert (report["limit"], report["gap"], report["ecn"], report["rate"]) == (777, 4, 1, 5_000_000_000)
    assert report["latency_ns"] == pytest.approx(40_000_000, abs=1)
    assert report["jitter_ns"] == pytest.approx(3_000_000, abs=1)
    fractions = {
        "delay_correlation": 0.25,
        "NETEM_LOSS_GE.p": 0.01,
        "NETEM_LOSS_GE.r": 0.10,
        "NETEM_LOSS_GE.h": 0.30,  # tc asks for 1 - h
        "NETEM_LOSS_GE.k1": 0.001,
        "duplicate": 0.02,
        "duplicate_correlation": 0.05,
        "reorder": 0.30,
        "reorder_correlation": 0.50,
        "corrupt": 0.001,
    }
    for name, fraction in fractions.items():
        assert report[name] == pytest.approx(fraction * (2**32 - 1), rel=1e-5), name
    assert (report["packet_overhead"], report["cell_size"], report["cell_overhead"]) == (-14, 48, 5)
    assert report["slot.min_delay"] == pytest.approx(800_000, abs=1)
    assert (report["slot.max_packets"], report["slot.max_bytes"]) == (32, 9000)


def test_every_attribute_reaches_the_kernel(pair):
    node = pair.nodes[0]
    netem.set_qdisc(node.netlink, node.index["down"], EVERYTHING)
    assert codec.differences(EVERYTHING, netem.read(node.netlink, node.index["down"])) == ()


def test_a_change_leaves_nothing_of_what_was_set_before(pair):
    node = pair.nodes[0]
    netem.set_qdisc(node.netlink, node.index["down"], EVERYTHING)
    plain = apply(pair, 0, "down", wan(3))
    assert plain.report == codec.expected_report(plain.settings) | _seed(plain.report)
    assert (plain.report["rate"], plain.report["jitter_ns"], plain.report["reorder"]) == (0, 0, 0)
    delays = [one.delay_ms for one in net.flood(pair, (0, 1), 100, 200, gap_s=0.002).arrivals]
    assert len(delays) == 100
    assert min(delays) >= 3
    assert statistics.median(delays) <= 3 + timer_lateness_ms(3) + 0.5


def _seed(report: dict[str, int]) -> dict[str, int]:
    """A kernel from 6.6 on reports the seed that it chose itself."""
    return {"seed": report["seed"]} if "seed" in report else {}


def test_a_jitter_table_does_not_outlive_a_change(pair):
    """First every packet is 10 ms late; then 10 +- 10 ms uniformly, of which 200 packets must show both sides."""
    node = pair.nodes[0]
    index = node.index["down"]
    late = codec.Settings(latency_ns=10_000_000, limit=1000, jitter_ns=10_000_000, table=(8191,) * 16)
    netem.set_qdisc(node.netlink, index, late)
    delays = [one.delay_ms for one in net.flood(pair, (0, 1), 50, 100, gap_s=0.002).arrivals]
    assert min(delays) >= 19.9
    flat = codec.Settings(latency_ns=10_000_000, limit=1000, jitter_ns=10_000_000, table=codec.uniform_table())
    netem.set_qdisc(node.netlink, index, flat)
    delays = [one.delay_ms for one in net.flood(pair, (0, 1), 200, 100, gap_s=0.002).arrivals]
    assert min(delays) < 5  # (3/4)**200 is 1e-25
    assert 8 <= statistics.mean(delays) <= 12 + timer_lateness_ms(10)  # 5 standard errors of 0.41 ms


def test_a_change_made_by_somebody_else_is_noticed(pair):
    node = pair.nodes[0]
    applied = apply(pair, 0, "down", wan(8.3, 1_000_000_000))
    pair.run(0, ["tc", "qdisc", "change", "dev", "down", "root", "handle", "1:", "netem", "delay", "9ms"])
    problems = codec.differences(applied.settings, netem.read(node.netlink, node.index["down"]))
    assert "latency_ns: asked 8300000, the kernel has 9000000" in problems
    assert "limit: asked 1676, the kernel has 1000" in problems
    pair.run(0, ["tc", "qdisc", "del", "dev", "down", "root"])
    with pytest.raises(InvalidEmulation, match="down has no netem qdisc"):
        netem.read(node.netlink, node.index["down"], "down")


def test_apply_refuses_a_kernel_that_took_something_else(pair, monkeypatch):
    def careless(settings: codec.Settings) -> dict:
        options = honest(settings)
        options["attrs"] = [one for one in options["attrs"] if one[0] != "TCA_NETEM_RATE64"]
        return options

    honest = codec.encode
    monkeypatch.setattr(codec, "encode", careless)
    with pytest.raises(InvalidEmulation, match="rate: asked 5000000000, the kernel has 4294967295"):
        apply(pair, 0, "down", wan(1, 40_000_000_000))


def test_a_qdisc_of_another_kind_in_the_way_is_named(pair):
    words = "rate 1mbit burst 2000 limit 30000"
    pair.run(0, ["tc", "qdisc", "add", "dev", "down", "root", "handle", "1:", "tbf", *words.split()])
    with pytest.raises(NetlabError, match="netem qdisc on down"):
        apply(pair, 0, "down", wan(1))


def test_a_change_in_place_loses_and_reorders_nothing_under_way(pair):
    """Rate and delay change every 50 packets while 20 to 40 ms of packets are held."""
    steps = [wan(20, 50_000_000), wan(40, 20_000_000), wan(30, 80_000_000), wan(20, 50_000_000)]

    def before(number: int) -> None:
        if number % 50 == 0:
            apply(pair, 0, "down", steps[number // 50])

    flood = net.flood(pair, (0, 1), 200, 1000, gap_s=0.001, before=before)
    assert flood.numbers == list(range(200))


def largest_unit(chain: net.Chain, number: int) -> float:
    """Mean bytes per packet held by a node's netem towards the end, at the fullest, while TCP crosses it."""
    node = chain.nodes[number]
    seen = [(0, 1)]

    def watch() -> None:
        held = netem.counters(node.netlink, node.index["down"])
        if held.held_packets:
            seen.append((held.held_bytes, held.held_packets))

    net.tcp_goodput(chain, skip_s=0.2, seconds=0.4, watch=watch)
    held_bytes, held_packets = max(seen)
    return held_bytes / held_packets


def test_what_a_router_forwards_is_cut_before_netem_sees_it():
    """Without the cut, TCP crosses a router's qdisc in units of up to 64 KB, each of them one packet to netem."""
    with net.chain(3) as made:
        apply(made, 1, "down", wan(2, 200_000_000, packets=1000))
        assert largest_unit(made, 1) > 3000
        netem.send_single_packets(made.nodes[0].netlink, made.nodes[0].index["down"])
        assert 1400 <= largest_unit(made, 1) <= 1514


def test_a_sender_behind_its_own_netem_hands_over_single_packets(pair):
    apply(pair, 0, "down", wan(2, 200_000_000, packets=1000))
    assert 1400 <= largest_unit(pair, 0) <= 1514
