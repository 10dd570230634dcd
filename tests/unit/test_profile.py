"""Profiles: what is written means one thing, what is wrong is said at once with its place, nothing is ignored."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from netlab.chances import derive_seed
from netlab.errors import ProfileError
from netlab.impairment import Impairment, Queue, QueueRule
from netlab.plan import make
from netlab.profile import Lan, Link, Profile, Site, Tcp, Uplink, load_profile, parse_profile
from netlab.schedule_fields import ENTRY_KEYS
from netlab.shipped import find_document, shipped_documents, shipped_folder
from netlab.topology import build
from netlab.units import Delay, Rate

ROOT = Path(__file__).resolve().parents[2]

SAMPLE = """\
name: grid5000-nancy-sophia
source: where the figures come from, and when
sites:
  nancy:  {workers: 1, lan: {delay: 50us, rate: 10gbit}, uplink: {rate: 10gbit}}
  sophia: {workers: 1, uplink: {rate: 1gbit}}
links:
  - between: [nancy, sophia]
    rtt: 16.6ms
    rate: 10gbit
    backward: {rate: 1gbit}
tcp: {congestion_control: cubic, slow_start_after_idle: true, rmem: [4KiB, 128KiB, 6MiB], wmem: 4MiB}
schedule: []
"""

TWO_SITES = "sites: {a: {workers: 1}, b: {workers: 1}}\n"


def link_of(text: str, extra: str = "") -> Link:
    """The one link of two sites, described by the inside of a flow mapping."""
    return parse_profile(f"{TWO_SITES}links: [{{between: [a, b], {text}}}]\n{extra}", "f.yaml").links[0]


def faults(text: str) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "f.yaml")
    return list(caught.value.problems)


def link_faults(text: str) -> list[str]:
    return faults(f"{TWO_SITES}links: [{{between: [a, b], {text}}}]\n")


def site_faults(text: str) -> list[str]:
    return faults(f"sites:\n  a: {{workers: 1{text}}}\n")


def test_the_sample_of_the_design_is_read_in_full():
    profile = parse_profile(SAMPLE, "dir/sample.yaml")
    assert profile == Profile(
        name="grid5000-nancy-sophia",
        source="where the figures come from, and when",
        sites=(
            Site("nancy", 1, Lan(Delay(50_000), Rate(10**10)), Uplink(Rate(10**10)), line=4),
            Site("sophia", 1, Lan(None, None), Uplink(Rate(10**9)), line=5),
        ),
        links=(
            Link(
                "nancy-sophia",
                "nancy",
                "sophia",
                forward=Impairment(
                    Delay(8_300_000),
                    Rate(10**10),
                    Queue(bytes=20_750_000),
                    queue_derived=True,
                    seed=derive_seed(0, "nancy-sophia", "forward"),
                ),
                backward=Impairment(
                    Delay(8_300_000),
                    Rate(10**9),
                    Queue(bytes=2_075_000),
                    queue_derived=True,
                    seed=derive_seed(0, "nancy-sophia", "backward"),
                ),
                mtu=1500,
                line=7,
            ),
        ),
        tcp=Tcp("cubic", True, (4096, 131_072, 6_291_456), (4096, 16_384, 4_194_304)),
        mtu=1500,
        path="dir/sample.yaml",
        text=SAMPLE,
    )
    assert profile.links[0].rtt == Delay.parse("16.6ms")


def test_the_base_profile_needs_neither_name_nor_source():
    profile = parse_profile(
        f"{TWO_SITES}links: [{{between: [a, b], rtt: 20ms, rate: 100mbit}}]\n", "some dir/my p.yaml"
    )
    assert profile.name == "my-p"
    assert profile.source == ""
    assert profile.tcp == Tcp(None, None, None, None)
    seed = derive_seed(0, "a-b", "forward")
    assert profile.links[0].forward == Impairment(
        Delay.parse("10ms"), Rate.parse("100mbit"), Queue(bytes=250_000), queue_derived=True, seed=seed
    )


@pytest.mark.parametrize(
    ("text", "forward", "backward"),
    [
        ("rtt: 16.6ms", 8_300_000, 8_300_000),
        ("rtt: 3ns", 2, 1),  # the odd nanosecond goes forward
        ("rtt: 1ns", 1, 0),
        ("rtt: 0ms", 0, 0),
        ("delay: 5ms", 5_000_000, 5_000_000),
        ("delay: 0s", 0, 0),
        ("delay: 5ms, backward: {delay: 7ms}", 5_000_000, 7_000_000),
        ("delay: 5ms, forward: {delay: 7ms}", 7_000_000, 5_000_000),
        ("forward: {delay: 1ms}, backward: {delay: 2ms}", 1_000_000, 2_000_000),
        ("delay: 9ms, forward: {delay: 0ms}, backward: {delay: 0ms}", 0, 0),
        ("rtt: 600s", 300_000_000_000, 300_000_000_000),
    ],
)
def test_a_round_trip_is_split_and_a_delay_is_one_way(text, forward, backward):
    link = link_of(text)
    assert (link.forward.delay.ns, link.backward.delay.ns) == (forward, backward)
    assert link.rtt.ns == forward + backward
    assert link.forward.rate is None
    assert link.forward.queue is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rtt: 2ms, delay: 1ms", "f.yaml:2: links[0].rtt: excludes delay: rtt is both ways together, delay is one way"),
        ("rtt: 2ms, forward: {delay: 1ms}", "f.yaml:2: links[0].rtt: excludes forward.delay"),
        ("rtt: 2ms, backward: {delay: 1ms}", "f.yaml:2: links[0].rtt: excludes backward.delay"),
        ("rate: 1gbit", "f.yaml:2: links[0].delay: no delay: write rtt (both ways together) or delay (one way)"),
        ("forward: {delay: 1ms}", "f.yaml:2: links[0].backward: no delay"),
        ("forward: {delay: 1ms}, backward: {rate: 1gbit}", "f.yaml:2: links[0].backward: no delay"),
        ("backward: {delay: 1ms}", "f.yaml:2: links[0].forward: no delay"),
        (
            "rtt: 2ms, forward: {rtt: 1ms}",
            "f.yaml:2: links[0].forward.rtt: unknown key (allowed: delay, rate, queue, jitter",
        ),
        ("rtt: 20", "f.yaml:2: links[0].rtt: '20' has no unit"),
        ("rtt: 1m", "f.yaml:2: links[0].rtt: '1m': unknown unit 'm'"),
        ("rtt: 0", "f.yaml:2: links[0].rtt: '0' has no unit"),
        ("rtt: 601s", "f.yaml:2: links[0].rtt: '601s': a time must be between 0s and 600s"),
        ("rtt: ''", "f.yaml:2: links[0].rtt: nothing found where a value is wanted"),
        ("rtt: [1ms]", "f.yaml:2: links[0].rtt: a list found where a value is wanted"),
        ("rtt: 2ms, rate: 1bit", "f.yaml:2: links[0].rate: '1bit': a rate must be between 1kbit and 1tbit"),
        ("rtt: 2ms, rate: 1e9", "f.yaml:2: links[0].rate: '1e9' has no unit"),
        ("rtt: 2ms, queue: 2MB", "f.yaml:2: links[0].queue: '2MB': a queue needs a rate, and there is none"),
        ("rtt: 2ms, rate: 1gbit, queue: 100", "f.yaml:2: links[0].queue: '100' is not a queue"),
        ("rtt: 2ms, rate: 64kbit, queue: 1bdp", "links[0].queue: '1bdp': a queue of 16 bytes at 64kbit has no room"),
        ("rtt: 2ms, mtu: 100", "f.yaml:2: links[0].mtu: '100' is not allowed: a whole number from 576 to 9216"),
        ("rtt: 2ms, mtu: 1500B", "f.yaml:2: links[0].mtu: '1500B' is not a number"),
        ("rtt: 2ms, name: a>b", "f.yaml:2: links[0].name: 'a>b' is not allowed: letters, digits"),
        ("rtt: 2ms, forward: 5", "f.yaml:2: links[0].forward: '5' found where a mapping is wanted"),
        ("rtt: 2ms, foward: {rate: 1gbit}", 'did you mean "forward"?'),
        ("rtt: 2ms, bandwidth: 1gbit", "links[0].bandwidth: unknown key"),
        ("latency: 2ms", "write delay (one way) or rtt (both ways together)"),
    ],
)
def test_a_faulty_link_names_file_line_key_and_what_is_allowed(text, problem):
    assert any(problem in fault for fault in link_faults(text)), link_faults(text)


def test_one_fault_is_one_line_and_not_followed_by_its_consequences():
    assert len(link_faults("rtt: 20")) == 1
    assert len(link_faults("rtt: 2ms, rate: 64kbit, queue: 1bdp")) == 1
    assert len(link_faults("rtt: 2ms, rate: 1e9, queue: 2MB")) == 1
    assert len(link_faults("delay: x, rate: y, queue: z, forward: {rate: q}")) == 4
    assert len(faults("sites: {a: {workers: 0}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 1ms}]")) == 1


def test_a_value_that_both_directions_replace_is_still_checked():
    both = "forward: {rate: 1gbit}, backward: {rate: 1gbit}"
    assert "links[0].rate: 'fast'" in link_faults(f"rtt: 2ms, rate: fast, {both}")[0]


@pytest.mark.parametrize(
    ("text", "forward", "backward"),
    [
        ("queue: 2MB", Queue(bytes=2_000_000), Queue(bytes=2_000_000)),
        ("queue: 100packets", Queue(packets=100), Queue(packets=100)),
        ("queue: 100 packets", Queue(packets=100), Queue(packets=100)),
        ("queue: 10ms, backward: {rate: 10mbit}", Queue(bytes=125_000), Queue(bytes=12_500)),
        ("queue: 2bdp, backward: {rate: 10mbit}", Queue(bytes=500_000), Queue(bytes=50_000)),
        ("backward: {queue: 1.5bdp}", Queue(bytes=250_000), Queue(bytes=375_000)),
        ("queue: 2MB, forward: {queue: 3MB}", Queue(bytes=3_000_000), Queue(bytes=2_000_000)),
    ],
)
def test_a_queue_is_resolved_for_each_direction_at_its_own_rate(text, forward, backward):
    link = link_of(f"rtt: 20ms, rate: 100mbit, {text}")
    assert (link.forward.queue, link.backward.queue) == (forward, backward)


def test_a_queue_remembers_whether_and_how_it_was_asked_for():
    link = link_of("rtt: 20ms, rate: 100mbit, backward: {queue: 1.5bdp}")
    assert (link.forward.queue_derived, link.forward.queue_rule) == (True, None)
    assert (link.backward.queue_derived, link.backward.queue_rule) == (False, QueueRule("bdp", 1_500_000_000))


def test_only_one_direction_may_have_a_rate():
    link = link_of("rtt: 20ms, forward: {rate: 10mbit, queue: 64KiB}")
    assert link.forward.rate == Rate.parse("10mbit")
    assert link.backward.rate is None


def test_a_slow_link_gets_a_queue_of_two_frames_and_a_ping_its_true_time():
    link = link_of("rtt: 20ms, rate: 64kbit")
    assert link.forward.queue == Queue(bytes=3076)
    ways = (link.forward, link.backward)
    assert sum(way.delay.ns + way.serialization(84).ns for way in ways) == 50_500_000
    assert link_of("rtt: 20ms, rate: 8kbit").forward.queue == Queue(bytes=3076)


def test_the_mtu_of_the_profile_is_that_of_its_links_unless_they_say_otherwise():
    assert link_of("rtt: 2ms", "mtu: 9000").mtu == 9000
    assert link_of("rtt: 2ms, mtu: 1400", "mtu: 9000").mtu == 1400
    slow = link_of("rtt: 0ms, rate: 1mbit", "mtu: 9000")
    assert slow.forward.queue == Queue(bytes=2 * 9038)


LATER = "jitter loss duplicate reorder corrupt framing seed state trace schedule"


@pytest.mark.parametrize("key", LATER.split())
def test_what_a_lan_cannot_do_yet_is_refused_in_these_words_and_never_ignored(key):
    (fault,) = site_faults(f", lan: {{{key}: 1%}}")
    assert f"sites.a.lan.{key}: '1%': {key} is not supported yet by this version" in fault


def test_a_link_has_no_schedule_of_its_own():
    (fault,) = link_faults("rtt: 2ms, schedule: []")
    assert "links[0].schedule: a list: schedule is not supported yet by this version" in fault


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "f.yaml:1: sites: is missing"),
        ("sites: {}", "f.yaml:1: sites: there must be at least one site"),
        ("sites: [a, b]", "f.yaml:1: sites: a list found where a mapping is wanted"),
        ("sites: {a: }", "f.yaml:1: sites.a: nothing found where a mapping is wanted (keys: workers, lan, uplink"),
        ("sites: {a: {}}", "f.yaml:1: sites.a.workers: is missing"),
        ("sites: {a: {workers: 0}}", "sites.a.workers: '0' is not allowed: a whole number from 1 to 1000"),
        ("sites: {a: {workers: 1.5}}", "sites.a.workers: '1.5' is not allowed: a whole number from 1 to 1000"),
        ("sites: {a: {workers: two}}", "sites.a.workers: 'two' is not a number"),
        ("sites: {A: {workers: 1}}", "sites.A: 'A' is not a site name: lower-case letters, digits and '-'"),
        ("sites: {a_b: {workers: 1}}", "sites.a_b: 'a_b' is not a site name"),
        ("sites: {-a: {workers: 1}}", "sites.-a: '-a' is not a site name"),
        ("sites: {a.b: {workers: 1}}", "sites.'a.b': 'a.b' is not a site name"),
        ("sites: {'': {workers: 1}}", "sites.'': '' is not a site name"),
        ("sites: {é: {workers: 1}}", "'é' is not a site name"),
        ("sites: {a: {workers: 1, worker: 2}}", "sites.a.worker: unknown key (allowed: workers, lan, uplink"),
        ("sites: {a: {workers: 1, lan: {rtt: 1ms}}}", "sites.a.lan.rtt: unknown key (allowed: delay, rate); here only"),
        ("sites: {a: {workers: 1, uplink: {}}}", "sites.a.uplink.rate: is missing"),
        (
            "sites: {a: {workers: 1, uplink: 1gbit}}",
            "sites.a.uplink: '1gbit' found where a mapping is wanted (keys: rate)",
        ),
        (
            "sites: {a: {workers: 1, uplink: {rate: 1gbit, queue: 1MB}}}",
            "sites.a.uplink.queue: '1MB': queue is not supp",
        ),
        ("sites: {a: {workers: 2}, a-1: {workers: 1}}", "sites.a-1: 'a-1' is also the name of a worker of a"),
        ("sites: {a: {workers: 1}, b: {workers: 1}}", "f.yaml:1: links: no path of links leads from a to b"),
        ("sites: {a: {workers: 1}}\nsitse: {}", "f.yaml:2: sitse: unknown key"),
        ("sites: {a: {workers: 1}}\nname: a b", "f.yaml:2: name: 'a b' is not allowed: letters, digits"),
        ("sites: {a: {workers: 1}}\nname: ../x", "f.yaml:2: name: '../x' is not allowed"),
        ("sites: {a: {workers: 1}}\nlinks: {}", "f.yaml:2: links: a mapping found where a list is wanted"),
        ("sites: {a: {workers: 1}}\nlinks: [x]", "f.yaml:2: links[0]: 'x' found where a mapping is wanted"),
        ("sites: {a: {workers: 1}}\nmtu: 64KiB", "f.yaml:2: mtu: '64KiB' is not a number"),
        (
            "sites: {a: {workers: 1}}\nmtu: 65536",
            "f.yaml:2: mtu: '65536' is not allowed: a whole number from 576 to 9216",
        ),
        ("[]", "f.yaml:1: a list found where a mapping is wanted (keys: name, source, sites"),
        ("", "f.yaml:1: the file is empty"),
        ("sites: {a: {workers: 1}, a: {workers: 2}}", "f.yaml:1: sites.a: written twice, first in line 1"),
    ],
)
def test_a_faulty_profile_names_file_line_key_and_what_is_allowed(text, problem):
    assert any(problem in fault for fault in faults(text)), faults(text)


@pytest.mark.parametrize(
    ("between", "problem"),
    [
        ("[a]", "a list of 1 found where two sites are wanted"),
        ("[a, b, a]", "a list of 3 found where two sites are wanted"),
        ("a-b", "'a-b' found where two sites are wanted, like [nancy, sophia]"),
        ("[a, a]", "'a' twice: a link joins two sites"),
        ("[a, paris]", "links[0].between[1]: 'paris' is not a site (sites: a, b)"),
        ("[a, [b]]", "links[0].between[1]: a list found where a value is wanted"),
    ],
)
def test_a_link_joins_two_different_known_sites(between, problem):
    assert problem in faults(f"{TWO_SITES}links: [{{between: {between}, rtt: 1ms}}]")[0]


def test_a_link_without_ends_is_refused():
    assert faults(f"{TWO_SITES}links: [{{rtt: 1ms}}]") == ["f.yaml:2: links[0].between: is missing"]


def test_two_links_of_one_pair_or_one_name_are_refused():
    twice = f"{TWO_SITES}links:\n- {{between: [a, b], rtt: 1ms}}\n- {{between: [b, a], rtt: 2ms}}\n"
    assert faults(twice) == ["f.yaml:4: links[1].between: a second link of b and a, first in line 3"]
    sites = "sites: {a: {workers: 1}, b-c: {workers: 1}, a-b: {workers: 1}, c: {workers: 1}}\n"
    links = (
        "links:\n- {between: [a, b-c], rtt: 1ms}\n- {between: [a-b, c], rtt: 1ms%s}\n- {between: [a, c], rtt: 1ms}\n"
    )
    assert "f.yaml:4: links[1].name: 'a-b-c' is taken by the link in line 3" in faults(sites + links % "")
    assert len(parse_profile(sites + links % ", name: other", "f.yaml").links) == 3


def test_every_site_must_be_reachable_over_any_number_of_links():
    sites = "sites: {a: {workers: 1}, b: {workers: 1}, c: {workers: 1}, d: {workers: 1}}\n"
    chain = "links: [{between: [c, d], rtt: 1ms}, {between: [b, c], rtt: 1ms}, {between: [a, b], rtt: 1ms}]"
    assert len(parse_profile(sites + chain, "f.yaml").links) == 3
    split = "links: [{between: [c, d], rtt: 1ms}, {between: [a, b], rtt: 1ms}]"
    assert faults(sites + split) == ["f.yaml:2: links: no path of links leads from a to c, d"]


def test_names_of_sites_that_begin_alike_are_no_trouble():
    north, south = "datacenter-paris-north", "datacenter-paris-south"
    profile = parse_profile(
        f"sites: {{{north}: {{workers: 12}}, {south}: {{workers: 12}}}}\n"
        f"links: [{{between: [{north}, {south}], rtt: 1ms}}]",
        "f.yaml",
    )
    assert [site.name for site in profile.sites] == [north, south]
    assert profile.links[0].name == f"{north}-{south}"


@pytest.mark.parametrize(
    ("length", "workers", "fits"),
    [(61, 1, True), (62, 1, False), (61, 10, True), (61, 11, False), (60, 100, True), (60, 101, False), (70, 1, False)],
)
def test_a_site_name_leaves_room_for_the_number_of_its_last_worker(length, workers, fits):
    text = f"sites: {{{'s' * length}: {{workers: {workers}}}}}"
    if fits:
        assert parse_profile(text, "f.yaml").sites[0].workers == workers
        return
    (fault,) = faults(text)
    assert f"has at most 63, so this site's at most {62 - len(str(workers - 1))}" in fault


def test_all_faults_of_a_file_are_reported_at_once_in_its_order():
    text = """\
nmae: x
sites:
  a: {workers: 0}
  B: {workers: 1, uplink: {rate: fast}}
links:
  - between: [a, b]
    rtt: 5
    rate: 1e9
  - between: [a, B]
    rtt: 5ms
    loss: 1
tcp: {congestion_control: Cubic!, slow_start_after_idle: maybe, rmem: 6}
"""
    assert [re.match(r"f\.yaml:(\d+): ([^ ]+):", fault).groups() for fault in faults(text)] == [
        ("1", "nmae"),
        ("3", "sites.a.workers"),
        ("4", "sites.B"),
        ("4", "sites.B.uplink.rate"),
        ("6", "links[0].between[1]"),
        ("7", "links[0].rtt"),
        ("8", "links[0].rate"),
        ("11", "links[1].loss"),
        ("12", "tcp.congestion_control"),
        ("12", "tcp.slow_start_after_idle"),
        ("12", "tcp.rmem"),
    ]


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("6MiB", (4096, 131_072, 6_291_456)),
        ("6 MiB", (4096, 131_072, 6_291_456)),
        ("64KiB", (4096, 65_536, 65_536)),
        ("4096B", (4096, 4096, 4096)),
        ("[4KiB, 128KiB, 6MiB]", (4096, 131_072, 6_291_456)),
        ("4KiB 128KiB 6MiB", (4096, 131_072, 6_291_456)),
        ("[6MiB]", (4096, 131_072, 6_291_456)),
        ("[4KiB, 4KiB, 2147483647B]", (4096, 4096, 2**31 - 1)),
    ],
)
def test_tcp_buffers_are_three_sizes_or_the_largest(text, figures):
    assert parse_profile(f"sites: {{a: {{workers: 1}}}}\ntcp: {{rmem: {text}}}", "f.yaml").tcp.rmem == figures


@pytest.mark.parametrize(
    "text",
    [
        "1B",
        "4095B",
        "2GiB",
        "6291456",
        "4096 131072 6291456",
        "[4KiB, 6MiB]",
        "[6MiB, 128KiB, 4KiB]",
        "[]",
        "''",
        "{a: 1}",
    ],
)
def test_tcp_buffers_that_do_not_rise_or_have_no_unit_are_refused(text):
    for fault in faults(f"sites: {{a: {{workers: 1}}}}\ntcp: {{wmem: {text}}}"):
        assert fault.startswith("f.yaml:2: tcp.wmem: ")


# --- files and shipped profiles -----------------------------------------------------------------------------


def test_a_missing_file_and_an_unknown_name_say_what_there_is(tmp_path):
    with pytest.raises(
        ProfileError, match=r"'grid5000-nancy-sofia' is neither a file nor a shipped name \(shipped networks: "
    ) as caught:
        load_profile("grid5000-nancy-sofia")
    assert 'did you mean "grid5000-nancy-sophia"?' in str(caught.value)
    assert "lan" in str(caught.value)
    with pytest.raises(ProfileError, match="cannot be read: No such file or directory"):
        load_profile(tmp_path / "none.yaml")
    with pytest.raises(ProfileError, match='did you mean "lan"'):
        load_profile("profiles/lan.yaml")
    with pytest.raises(ProfileError, match="cannot be read: Is a directory"):
        load_profile(f"{tmp_path}/")


@pytest.mark.parametrize(
    "name", ["", "a" * 5000, "nul\x00byte", "nul\x00.yaml", "new\nline", "x" * 5000 + ".yaml", "\udcff"]
)
def test_a_hostile_name_is_one_readable_line(name):
    with pytest.raises(ProfileError) as caught:
        load_profile(name)
    assert str(caught.value).isprintable()


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_bytes(b"name: x\nsource: caf\xe9\n")
    with pytest.raises(ProfileError, match=re.escape(f"{path}:2: byte 0xe9 is not UTF-8 text")):
        load_profile(path)
    path.write_bytes(b"x" * (1 << 21))
    with pytest.raises(ProfileError, match="longer than 262144 characters"):
        load_profile(path)


def test_a_file_is_found_by_path_and_by_a_bare_name_that_is_not_shipped(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("sites: {a: {workers: 1}}")
    (tmp_path / "noext").write_text("sites: {b: {workers: 1}}")
    monkeypatch.chdir(tmp_path)
    assert load_profile("mine.yaml").path == "mine.yaml"
    assert load_profile("noext").sites[0].name == "b"
    assert load_profile("lan").sites[0].name == "local"


SHIPPED = list(shipped_documents("networks"))


def test_the_shipped_profiles_are_those_of_the_reference():
    assert SHIPPED == [
        "adacomm-fast",
        "adacomm-slow",
        "aws-ten-regions",
        "flapping-link",
        "gcp-four-regions",
        "grid5000-nancy-sophia",
        "home-to-datacenter",
        "ibm-cloud-pairs",
        "lan",
        "lossy-link",
        "lte-like",
        "onprem-to-cloud",
        "opendiloco-continents",
        "starlink-like",
        "two-campuses",
        "volunteer-at-home",
    ]
    assert shipped_folder() == ROOT / "profiles"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_has_its_own_name_its_source_with_a_year_and_says_one_way_or_round_trip(name):
    profile = load_profile(name)
    assert profile.name == name
    assert re.search(r"\b20\d\d\b", profile.source)
    assert re.search(r"both ways|round trip|one way", profile.source)
    assert profile.tcp.congestion_control == "cubic"
    assert profile.tcp.rmem == (4096, 131_072, 6_291_456)


@pytest.mark.parametrize(("name", "sites"), [("aws-ten-regions", 10), ("gcp-four-regions", 4), ("onprem-to-cloud", 3)])
def test_a_matrix_of_regions_links_every_pair_once(name, sites):
    profile = load_profile(name)
    assert len(profile.sites) == sites
    assert len({frozenset((link.a, link.b)) for link in profile.links}) == sites * (sites - 1) // 2


@pytest.mark.parametrize(
    ("name", "link", "rtt", "rate"),
    [
        ("grid5000-nancy-sophia", "nancy-sophia", "16.6ms", "10gbit"),
        ("gcp-four-regions", "belgium-sydney", "272ms", "70mbit"),
        ("gcp-four-regions", "iowa-belgium", "103.1ms", "210mbit"),
        ("aws-ten-regions", "oregon-virginia", "67ms", "790mbit"),
        ("aws-ten-regions", "frankfurt-ireland", "24ms", "1.08gbit"),
        ("aws-ten-regions", "sydney-frankfurt", "265ms", "328mbit"),
        ("onprem-to-cloud", "munich-belgium", "16.7ms", "500mbit"),
        ("home-to-datacenter", "home-datacenter", "25ms", "20mbit"),
        ("ibm-cloud-pairs", "frankfurt-sydney", "250ms", "1gbit"),
        ("ibm-cloud-pairs", "tokyo-osaka", "9ms", "1gbit"),
        ("opendiloco-continents", "canada-usa", "22ms", "935mbit"),
    ],
)
def test_a_shipped_link_has_its_published_round_trip_and_rate(name, link, rtt, rate):
    (found,) = [candidate for candidate in load_profile(name).links if candidate.name == link]
    assert found.rtt == Delay.parse(rtt)
    assert found.forward.rate == Rate.parse(rate)


def test_the_wan_of_the_paper_is_narrowed_by_the_uplink_of_sophia():
    profile = load_profile("grid5000-nancy-sophia")
    assert [(site.name, site.workers, str(site.uplink.rate)) for site in profile.sites] == [
        ("nancy", 1, "10gbit"),
        ("sophia", 1, "1gbit"),
    ]


def test_the_committed_traces_are_those_of_the_stated_formulas(tmp_path):
    traces = ROOT / "profiles" / "traces"
    subprocess.run([sys.executable, str(traces / "generate.py"), str(tmp_path)], check=True)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in traces.iterdir() if path.suffix in (".csv", ".mahimahi"))
    for name in made:
        assert (traces / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_profile_finds_its_traces_beside_it_and_keeps_them():
    profile = load_profile("starlink-like")
    assert [name for name, _ in profile.files] == ["../traces/starlink-up.csv", "../traces/starlink-down.csv"]
    up, down = (entry.targets[0].shape for entry in profile.schedule)
    assert up.loop_ns == down.loop_ns == 120 * 10**9
    delays = [values["delay"].ms for _, values in down.points]
    assert all(12 <= delay <= 26 for delay in delays)
    jumps = [number for number in range(1, 240) if abs(delays[number] - delays[number - 1]) > 0.5]
    assert jumps
    assert all(number % 30 == 0 for number in jumps)  # another satellite every 15 s, a row every 500 ms


def test_the_uplink_of_the_lte_trace_carries_every_packet_that_the_trace_delivers():
    profile = load_profile("lte-like")
    (name, text) = profile.files[0]
    packets = sum(line[:1].isdigit() for line in text.splitlines())
    series = profile.schedule[0].targets[0].shape
    carried = sum(values["rate"].bps for _, values in series.points) // 10 // 8 // 1538  # steps of 100 ms
    assert name == "../traces/lte-up.mahimahi"
    assert packets - 1 <= carried <= packets


def test_a_missing_trace_names_the_key_and_the_file(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(f"{TWO_SITES}links: [{{between: [a, b], rtt: 2ms, trace: {{csv: none.csv}}}}]\n")
    with pytest.raises(ProfileError, match=r":2: links\[0\].trace.csv: '.*none.csv' cannot be read: No such file"):
        load_profile(path)


def test_experiments_are_found_in_the_same_way():
    for name in shipped_documents("experiments"):
        path, text = find_document("experiments", name)
        assert path.endswith(f"{name}.yaml")
        assert text


# --- the reference page -------------------------------------------------------------------------------------

REFERENCE = (ROOT / "docs" / "reference" / "profile.md").read_text(encoding="utf-8")


def test_every_example_of_the_reference_is_a_valid_profile():
    examples = re.findall(r"```yaml\n(.*?)```", REFERENCE, re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        assert parse_profile(example, f"example-{number}.yaml")


def test_the_schedule_of_the_reference_can_be_played():
    example = re.search(r"```yaml\n(name: example.*?)schedule:", REFERENCE, re.DOTALL).group(1)
    (block,) = re.findall(r"\n\n(    schedule:\n(?:      - .*\n)+)", REFERENCE)
    series = re.search(r"\n\n(    time_s,rate_mbit,delay_ms\n(?:    .*\n)+)", REFERENCE).group(1)
    text = example + textwrap.dedent(block)
    profile = parse_profile(text, "example.yaml", {"measured.csv": textwrap.dedent(series)}.__getitem__)
    assert len(profile.schedule) == block.count("- {")


def test_every_key_and_every_shipped_profile_is_in_the_reference():
    (text,) = faults("{x: 1, sites: {a: {workers: 1}}}")
    keys = re.search(r"allowed: ([a-z_, ]+)", text).group(1).split(", ")
    keys += re.search(r"allowed: ([a-z_, ]+)", link_faults("rtt: 1ms, x: 1")[0]).group(1).split(", ")
    keys += re.search(r"allowed: ([a-z_, ]+)", site_faults(", x: 1")[0]).group(1).split(", ")
    keys += ["congestion_control", "slow_start_after_idle", "rmem", "wmem", *ENTRY_KEYS]
    effects = ["jitter: {x: 1}", "loss: {x: 1}", "reorder: {x: 1}", "rate: 1gbit, queue: {x: 1}", "trace: {x: 1}"]
    effects += ["loss: {model: gilbert-elliott, x: 1}", "loss: {model: four-state, x: 1}", "framing: {x: 1}"]
    for effect in effects:
        found = " ".join(link_faults(f"rtt: 1ms, {effect}"))
        keys += re.search(r"allowed: ([a-z_0-9, ]+)", found).group(1).split(", ")
    for key in keys:
        assert re.search(rf"`[^`\n]*\b{key}\b[^`\n]*`", REFERENCE), key
    for name in SHIPPED:
        assert f"`{name}`" in REFERENCE, name


# --- hostile input ------------------------------------------------------------------------------------------

KEYS = [
    "name",
    "source",
    "sites",
    "links",
    "tcp",
    "mtu",
    "schedule",
    "workers",
    "lan",
    "uplink",
    "between",
    "rtt",
    "delay",
    "rate",
    "queue",
    "forward",
    "backward",
    "congestion_control",
    "slow_start_after_idle",
    "rmem",
    "wmem",
    "loss",
    "jitter",
    "reorder",
    "trace",
    "seed",
    "state",
    "framing",
    "probability",
    "burst",
    "csv",
    "access",
    "0",
    "at",
    "link",
    "set",
    "ramp",
    "a",
    "b",
    "a-0",
    "x",
]
VALUES = [
    "1",
    "0",
    "-1",
    "1ms",
    "20ms",
    "1gbit",
    "64kbit",
    "2MB",
    "1bdp",
    "100packets",
    "1%",
    "down",
    "a-b",
    "1e9",
    "nan",
    "",
    "true",
    "a",
    "b",
    "～",
]
SCALARS = st.sampled_from(VALUES) | st.text(max_size=6)
TREES = st.recursive(
    SCALARS,
    lambda tree: (
        st.lists(tree, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), tree, max_size=5)
    ),
    max_leaves=25,
)


def optional(**keys):
    return st.fixed_dictionaries({}, optional=keys)


EFFECTS = dict.fromkeys(("jitter", "loss", "duplicate", "reorder", "corrupt", "framing", "state", "trace"), TREES)
WAYS = optional(delay=SCALARS, rate=SCALARS, queue=SCALARS | TREES, x=TREES, seed=TREES, **EFFECTS)
LINKS = optional(
    between=st.just(["a", "b"]) | TREES, rtt=SCALARS, delay=SCALARS, rate=SCALARS, queue=SCALARS, mtu=SCALARS,
    forward=WAYS | TREES, backward=WAYS | TREES, name=SCALARS, seed=TREES, **EFFECTS,
)  # fmt: skip
ACCESS = st.dictionaries(st.sampled_from(["0", "1", "00", "-1", "x"]), WAYS | LINKS | TREES, max_size=2)
SITES = optional(workers=st.just("1") | TREES, lan=WAYS | TREES, uplink=WAYS | TREES, access=ACCESS | TREES)
PROFILES = optional(
    sites=st.dictionaries(st.sampled_from(["a", "b", "a-0", "A"]), SITES, max_size=3) | TREES,
    links=st.lists(LINKS, max_size=3) | TREES,
    tcp=TREES,
    mtu=SCALARS,
    schedule=st.lists(
        optional(at=SCALARS, link=st.sampled_from(["a-b", "a-0.access"]), set=WAYS, ramp=WAYS, over=SCALARS), max_size=2
    )
    | TREES,
    seed=TREES,
    name=TREES,
    source=TREES,
)


@given(PROFILES | TREES)
def test_any_tree_is_a_profile_that_can_be_planned_or_a_list_of_readable_lines(tree):
    text = yaml.safe_dump(tree, allow_unicode=True)
    try:
        profile = parse_profile(text, "f.yaml")
    except ProfileError as error:
        problems = error.problems
    else:
        make(build(profile), "relay", "docker")
        return
    assert problems
    for problem in problems:
        assert re.match(r"f\.yaml:\d+: |\.\.\. and \d+ more$", problem)
        assert problem.isprintable()


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_refused_in_readable_lines(text):
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "f.yaml")
    assert all(problem.startswith("f.yaml:") and problem.isprintable() for problem in caught.value.problems)
