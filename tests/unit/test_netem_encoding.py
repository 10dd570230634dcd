"""The bytes that we send to sch_netem against bytes packed by hand from include/uapi/linux/pkt_sched.h."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.errors import PlanError
from netlab.impairment import Impairment, Queue
from netlab.links import netem
from netlab.links import netem_codec as codec
from netlab.links import netem_model as model
from netlab.links.netem_probe import explain
from netlab.units import Delay, Rate

NEWQDISC, ROOT = 36, 0xFFFFFFFF


def attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def by_hand(qopt: tuple[int, ...], attributes: list[tuple[int, bytes]]) -> bytes:
    return struct.pack("=6I", *qopt) + b"".join(attribute(*one) for one in attributes)


def sent(settings: codec.Settings) -> bytes:
    """TCA_OPTIONS as it goes to the kernel, without its attribute header."""
    message = codec.NetemMessage()
    message["attrs"] = [("TCA_KIND", "netem"), ("TCA_OPTIONS", codec.encode(settings))]
    message.encode()
    body = bytes(message.data)[16 + 20 :]  # struct nlmsghdr, struct tcmsg
    assert body[:12] == attribute(1, b"netem\0")
    length, kind = struct.unpack_from("=HH", body, 12)
    assert (kind, 12 + length) == (2, len(body))
    return body[16:]


def decoded(options: bytes) -> codec.Options:
    """As if the kernel had reported `options`."""
    tcm = struct.pack("=BxHiIII", 0, 0, 7, netem.HANDLE, ROOT, 1)
    body = tcm + attribute(1, b"netem\0") + attribute(2, options)
    message = codec.NetemMessage(bytearray(struct.pack("=IHHII", 16 + len(body), NEWQDISC, 0, 1, 0) + body))
    message.decode()
    return message.get_attr("TCA_OPTIONS")


def parts(options: bytes) -> tuple[tuple[int, ...], dict[int, bytes]]:
    """struct tc_netem_qopt, and the attributes by number."""
    found, offset = {}, 24
    while offset < len(options):
        length, kind = struct.unpack_from("=HH", options, offset)
        found[kind & 0x3FFF] = options[offset + 4 : offset + length]
        offset += length + (-length % 4)
    return struct.unpack_from("=6I", options), found


PLAIN = Impairment(delay=Delay(8_300_000), rate=Rate(1_000_000_000), queue=Queue(bytes=2_075_000))


def test_a_wan_link_becomes_exactly_these_bytes():
    """8.3 ms are 129687.5 ticks of 64 ns; 8.3 ms x 1 Gbit/s / 1538 B = 674.6 frames under way, 1349.2 frames queue."""
    u64, i64 = struct.Struct("=Q"), struct.Struct("=q")
    assert sent(model.settings_for(PLAIN, mtu=1500)) == by_hand(
        (129_687, 675 + 1 + 1349, 0, 0, 0, 0),
        [
            (1, struct.pack("=3I", 0, 0, 0)),
            (3, struct.pack("=2I", 0, 0)),
            (4, struct.pack("=2I", 0, 0)),
            (6, struct.pack("=IiIi", 125_000_000, 24, 0, 0)),
            (8, u64.pack(125_000_000)),
            (10, i64.pack(8_300_000)),
            (11, i64.pack(0)),
            (7, struct.pack("=I", 0)),
            (12, struct.pack("=qqiiqq", 0, 0, 2**31 - 1, 2**31 - 1, 0, 0)),
        ],
    )


def test_every_attribute_that_is_plain_zero_is_still_sent():
    """The kernel keeps what a change leaves out."""
    assert set(parts(sent(codec.Settings(latency_ns=0, limit=1)))[1]) == {1, 3, 4, 6, 7, 8, 10, 11, 12}


def test_a_full_state_puts_every_field_into_its_place():
    settings = codec.Settings(
        latency_ns=100_000_001,
        limit=7,
        jitter_ns=2_000_000,
        table=(-8192, 0, 8191),
        delay_correlation=11,
        loss=12,
        loss_correlation=13,
        duplicate=14,
        duplicate_correlation=15,
        gap=5,
        reorder=16,
        reorder_correlation=17,
        corrupt=18,
        corrupt_correlation=19,
        rate=12_500_000_000,  # 100 Gbit/s: over 32 bits
        overhead=-14,
        cell_size=48,
        cell_overhead=5,
        ecn=True,
        slot=codec.Slot(800_000, 1_000_000, 64, 9000),
        seed=2**63 + 1,
    )
    qopt, found = parts(sent(settings))
    assert qopt == (1_562_500, 7, 12, 5, 14, 31_250)
    assert found == {
        1: struct.pack("=3I", 11, 13, 15),
        2: struct.pack("=3h", -8192, 0, 8191),
        3: struct.pack("=2I", 16, 17),
        4: struct.pack("=2I", 18, 19),
        6: struct.pack("=IiIi", 2**32 - 1, -14, 48, 5),
        7: struct.pack("=I", 1),
        8: struct.pack("=Q", 12_500_000_000),
        10: struct.pack("=q", 100_000_001),
        11: struct.pack("=q", 2_000_000),
        12: struct.pack("=qqiiqq", 800_000, 1_000_000, 64, 9000, 0, 0),
        14: struct.pack("=Q", 2**63 + 1),
    }


@pytest.mark.parametrize(
    ("model", "nested"),
    [
        (codec.FourState(p13=1, p31=2, p32=3, p14=4, p23=5), attribute(1, struct.pack("=5I", 1, 2, 3, 4, 5))),
        (codec.GilbertElliott(p=1, r=2, h=3, k1=4), attribute(2, struct.pack("=4I", 1, 2, 3, 4))),
    ],
)
def test_a_burst_loss_model_is_nested_under_its_number(model, nested):
    qopt, found = parts(sent(codec.Settings(latency_ns=0, limit=1, loss=model)))
    assert qopt[2] == 0
    assert found[5] == nested


def test_jitter_without_a_table_of_its_own_sends_a_flat_one_with_mean_zero():
    table = codec.uniform_table()
    assert (len(table), min(table), max(table), sum(table)) == (4096, -8190, 8190, 0)
    _, found = parts(sent(codec.Settings(latency_ns=0, limit=1, jitter_ns=1, table=table)))
    assert found[2] == struct.pack("=4096h", *table)


@pytest.mark.parametrize(
    ("ppb", "expected"),
    [(0, 0), (1_000_000_000, 2**32 - 1), (10_000_000, 42_949_673), (1, 4), (500_000_000, 2**31)],
)
def test_a_probability_is_rounded_to_the_nearest_fraction_of_32_bits(ppb, expected):
    assert codec.probability(ppb) == expected


def test_a_delay_beyond_32_bits_of_ticks_saturates_there_and_stays_exact_in_64_bits():
    """2**32 - 1 ticks of 64 ns are 274.9 s."""
    qopt, found = parts(sent(codec.Settings(latency_ns=600 * 10**9, limit=1)))
    assert qopt[0] == 2**32 - 1
    assert found[10] == struct.pack("=q", 600 * 10**9)


U32 = st.integers(0, 2**32 - 1)
SETTINGS = st.builds(
    codec.Settings,
    latency_ns=st.integers(0, 600 * 10**9),
    limit=st.integers(1, 2**32 - 1),
    jitter_ns=st.integers(0, 2**31 - 1),
    table=st.just(codec.uniform_table(16)),
    delay_correlation=U32,
    loss=U32
    | st.builds(codec.GilbertElliott, U32, U32, U32, U32)
    | st.builds(codec.FourState, U32, U32, U32, U32, U32),
    loss_correlation=U32,
    duplicate=U32,
    duplicate_correlation=U32,
    gap=U32,
    reorder=U32,
    reorder_correlation=U32,
    corrupt=U32,
    corrupt_correlation=U32,
    rate=st.integers(0, 125 * 10**9),
    overhead=st.integers(-100, 1000),
    cell_size=st.integers(0, 1000),
    cell_overhead=st.integers(-100, 100),
    ecn=st.booleans(),
    slot=st.none() | st.builds(codec.Slot, st.integers(1, 10**9), st.integers(1, 10**9)),
    seed=st.none() | st.integers(0, 2**64 - 1),
)


def as_the_kernel_reports(settings: codec.Settings) -> bytes:
    """What netem_dump makes of it: no table, and neither RATE64, ECN nor SLOT where they say nothing."""
    options = sent(settings)
    qopt, found = parts(options)
    found.pop(2, None)
    if settings.rate < 2**32:
        del found[8]
    if not settings.ecn:
        del found[7]
    if settings.slot is None:
        del found[12]
    return struct.pack("=6I", *qopt) + b"".join(attribute(*one) for one in sorted(found.items()))


@given(SETTINGS)
def test_what_a_faithful_kernel_reports_has_no_differences(settings):
    report = codec.read_report(decoded(as_the_kernel_reports(settings)))
    assert codec.differences(settings, report) == ()


@given(SETTINGS, st.data())
def test_a_report_that_differs_in_any_one_field_is_noticed_and_named(settings, data):
    report = codec.expected_report(settings)
    name = data.draw(st.sampled_from(sorted(report)))
    (line,) = codec.differences(settings, report | {name: report[name] + 1})
    assert line == f"{name}: asked {report[name]}, the kernel has {report[name] + 1}"


def test_a_kernel_that_skips_an_attribute_it_does_not_know_is_noticed():
    settings = codec.Settings(latency_ns=1, limit=1, seed=9)
    report = codec.expected_report(settings)
    del report["seed"]
    assert codec.differences(settings, report) == ("seed: asked 9, the kernel has nothing",)


def test_state_that_an_earlier_setting_left_behind_is_noticed():
    settings = codec.Settings(latency_ns=1, limit=1)
    report = codec.expected_report(settings) | {"NETEM_LOSS_GE.p": 5}
    assert codec.differences(settings, report) == ("NETEM_LOSS_GE.p: not asked for, the kernel has 5",)


@pytest.mark.parametrize(
    ("queue", "packets"),
    [(Queue(bytes=256 * 1024), 170), (Queue(packets=50), 50), (Queue(bytes=3076), 2)],
)
def test_the_limit_holds_what_is_under_way_what_is_sent_and_the_queue(queue, packets):
    """20 ms x 100 Mbit/s / (1538 B x 8) = 162.55: 163 packets under way and one being sent."""
    impairment = Impairment(delay=Delay(20_000_000), rate=Rate(100_000_000), queue=queue)
    assert model.settings_for(impairment, mtu=1500).limit == 163 + 1 + packets


def test_a_link_without_a_rate_is_never_the_one_that_drops():
    """At 2 million packets/s, 10 ms hold 20000; as many again absorb a burst."""
    settings = model.settings_for(Impairment(delay=Delay(10_000_000)), mtu=1500)
    assert (settings.rate, settings.overhead, settings.limit) == (0, 0, 20_000 + 1 + 20_000)


@pytest.mark.parametrize(("header", "overhead"), [(14, 24), (0, 38)])
def test_framing_is_counted_beside_what_the_device_counts_itself(header, overhead):
    assert model.settings_for(PLAIN, mtu=1500, header=header).overhead == overhead


def shaped(bps: int, delay_ns: int = 1_000_000) -> Impairment:
    return Impairment(delay=Delay(delay_ns), rate=Rate(bps), queue=Queue(packets=100))


@pytest.mark.parametrize(
    ("bps", "bytes_per_s"), [(64_000, 8_000), (1_000, 125), (33_333_333, 4_166_667), (10**12, 125_000_000_000)]
)
def test_a_rate_is_kept_to_the_nearest_byte_per_second(bps, bytes_per_s):
    assert model.settings_for(shaped(bps), mtu=1500).rate == bytes_per_s


def test_a_rate_that_whole_bytes_would_distort_is_refused_with_the_carrier_that_can():
    """1001 bit/s would become 1000 or 1008: 1000 is 999 ppm off."""
    reason = model.supported(shaped(1_001))
    assert reason is not None
    assert "would become 1kbit" in reason
    assert "relay" in reason
    with pytest.raises(PlanError, match="would become"):
        model.settings_for(shaped(1_001), mtu=1500)


def test_more_packets_than_netem_can_hold_are_refused():
    reason = model.supported(shaped(10**12, 600 * 10**9))
    assert reason is not None
    assert "holds at most 4294967295" in reason


def test_what_a_profile_can_ask_for_is_supported():
    assert model.supported(PLAIN) is None
    assert model.supported(Impairment(delay=Delay(600 * 10**9))) is None
    assert model.supported(shaped(1_000)) is None


def test_the_probe_says_what_is_missing_and_how_to_get_it(tmp_path):
    assert explain("qdisc", 0, "6.1", tmp_path) == (True, "this kernel has sch_netem")
    assert "user.max_user_namespaces" in explain("namespace", 1, "6.1", tmp_path)[1]
    assert "linux-modules-extra" in explain("qdisc", 2, "6.1", tmp_path)[1]
    assert "Operation not permitted" in explain("qdisc", 1, "6.1", tmp_path)[1]
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/config-6.1").write_text("# CONFIG_NET_SCH_NETEM is not set\n")
    assert "without CONFIG_NET_SCH_NETEM" in explain("qdisc", 2, "6.1", tmp_path)[1]
    module = tmp_path / "lib/modules/6.1/kernel/net/sched"
    module.mkdir(parents=True)
    (module / "sch_netem.ko.xz").touch()
    assert "modprobe sch_netem" in explain("qdisc", 2, "6.1", tmp_path)[1]


def test_the_probe_finds_out_without_leaving_anything():
    available, why = netem.probe()
    assert isinstance(available, bool)
    assert "sch_netem" in why or "namespace" in why
