"""What a link of a profile may say about its packets: short forms, long forms, and what cannot be together."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.chances import derive_seed
from netlab.describe import describe_impairment, impairment_json
from netlab.errors import ProfileError
from netlab.impairment import Chance, Codel, FourState, GilbertElliott, Impairment, Jitter, Queue, QueueRule, Reorder
from netlab.network import Link
from netlab.profile import parse_profile
from netlab.settings import resolve, settings_of
from netlab.units import Delay, Fraction, Rate

TWO_SITES = "sites: {a: {workers: 1}, b: {workers: 1}}\n"
MS = 1_000_000


def share(text):
    return Fraction.parse(text)


def link_of(text: str, extra: str = "", read=None) -> Link:
    document = f"{TWO_SITES}links: [{{between: [a, b], {text}}}]\n{extra}"
    return parse_profile(document, "f.yaml", *([read] if read else [])).links[0]


def link_faults(text: str, extra: str = "") -> list[str]:
    with pytest.raises(ProfileError) as caught:
        link_of(text, extra)
    return list(caught.value.problems)


EFFECTS = [
    ("jitter: 2ms", "jitter", Jitter(Delay(2 * MS))),
    ("jitter: 0ms", "jitter", None),
    ("jitter: {amount: 0ms, distribution: normal}", "jitter", None),
    ("jitter: {amount: 2ms, distribution: normal}", "jitter", Jitter(Delay(2 * MS), "normal")),
    (
        "jitter: {amount: 2ms, distribution: pareto, correlation: 25%, reorder: true}",
        "jitter",
        Jitter(Delay(2 * MS), "pareto", share("25%"), reorder=True),
    ),
    (
        "jitter: {samples: [9ms, 11ms]}",
        "jitter",
        Jitter(Delay(MS), "table", samples=(-MS, MS)),
    ),
    (
        "jitter: {samples: [9ms, 11ms], amount: 3ms, distribution: table}",
        "jitter",
        Jitter(Delay(3 * MS), "table", samples=(-3 * MS, 3 * MS)),
    ),
    ("loss: 1%", "loss", Chance(share("1%"))),
    ("loss: 0.01", "loss", Chance(share("1%"))),
    ("loss: 0%", "loss", None),
    ("loss: {probability: 0%, burst: 4}", "loss", None),
    ("loss: 100%", "loss", Chance(share("100%"))),
    ("loss: {probability: 1%}", "loss", Chance(share("1%"))),
    ("loss: {model: independent, probability: 1%, correlation: 25%}", "loss", Chance(share("1%"), share("25%"))),
    ("loss: {probability: 1%, burst: 4}", "loss", GilbertElliott(Fraction(2_525_253), share("25%"))),
    ("loss: {probability: 1%, burst: 2.5e0}", "loss", GilbertElliott(Fraction(4_040_404), share("40%"))),
    ("loss: {model: gilbert-elliott, to_bad: 1%, to_good: 20%}", "loss", GilbertElliott(share("1%"), share("20%"))),
    (
        "loss: {model: gilbert-elliott, to_bad: 1%, to_good: 20%, loss_in_bad: 70%, loss_in_good: 0.1%}",
        "loss",
        GilbertElliott(share("1%"), share("20%"), share("70%"), share("0.1%")),
    ),
    ("loss: {model: four-state, p13: 1%}", "loss", FourState(share("1%"), share("99%"))),
    (
        "loss: {model: four-state, p13: 1%, p31: 30%, p32: 40%, p23: 50%, p14: 2%}",
        "loss",
        FourState(share("1%"), share("30%"), share("40%"), share("50%"), share("2%")),
    ),
    ("duplicate: 1%", "duplicate", Chance(share("1%"))),
    ("duplicate: {probability: 1%, correlation: 50%}", "duplicate", Chance(share("1%"), share("50%"))),
    ("corrupt: 0.1%", "corrupt", Chance(share("0.1%"))),
    ("reorder: 5%", "reorder", Reorder(Chance(share("5%")))),
    ("reorder: {probability: 5%, gap: 5}", "reorder", Reorder(Chance(share("5%")), 5)),
    ("reorder: {probability: 0%, gap: 5}", "reorder", None),
    ("queue: 2MB", "queue", Queue(bytes=2_000_000)),
    ("queue: {limit: 2MB}", "queue", Queue(bytes=2_000_000)),
    ("queue: {discipline: droptail, ecn: false}", "queue", Queue(bytes=250_000)),
    ("queue: {discipline: codel}", "codel", Codel()),
    ("queue: {discipline: codel}", "queue", Queue(bytes=250_000)),
    (
        "queue: {limit: 100packets, discipline: codel, target: 2ms, interval: 40ms, ecn: true}",
        "codel",
        Codel(Delay(2 * MS), Delay(40 * MS), ecn=True),
    ),
    ("framing: ethernet", "overhead", 38),
    ("framing: ip", "overhead", 0),
    ("framing: ip", "min_frame", 0),
    ("framing: {overhead: 58B, min_frame: 84B}", "overhead", 58),
    ("seed: 7", "seed", 7),
    ("seed: 9007199254740991", "seed", 2**53 - 1),
    ("state: down", "up", False),
    ("state: up", "up", True),
]


@pytest.mark.parametrize(("text", "field", "value"), EFFECTS, ids=[text for text, _, _ in EFFECTS])
def test_an_effect_is_read_for_both_directions(text, field, value):
    link = link_of(f"rtt: 20ms, rate: 100mbit, {text}")
    assert getattr(link.forward, field) == value
    assert getattr(link.backward, field) == value


def test_a_direction_replaces_the_whole_key_and_nothing_else():
    link = link_of("rtt: 20ms, loss: {probability: 1%, burst: 4}, jitter: 2ms, backward: {loss: 5%, jitter: 0ms}")
    assert link.forward.loss == GilbertElliott(Fraction(2_525_253), share("25%"))
    assert link.forward.jitter == Jitter(Delay(2 * MS))
    assert link.backward.loss == Chance(share("5%"))
    assert link.backward.jitter is None


def test_a_derived_queue_knows_the_framing():
    # at 1 Mbit/s and 20 ms the product is 2500 B: under two frames of 1538 B, but not of 1000 B
    assert link_of("rtt: 20ms, rate: 1mbit").forward.queue == Queue(bytes=3076)
    assert link_of("rtt: 20ms, rate: 1mbit, framing: ip").forward.queue == Queue(bytes=3000)
    assert link_of("rtt: 20ms, rate: 1mbit, mtu: 1000, framing: ip").forward.queue == Queue(bytes=2500)


def test_bare_ip_framing_changes_what_a_packet_takes():
    way = link_of("rtt: 20ms, rate: 8mbit, framing: ip").forward
    assert way.wire_bytes(1500) == 1500
    assert way.serialization(1500) == Delay.parse("1.5ms")
    assert way.goodput(1500, tcp_timestamps=False) == Rate(8_000_000 * 1460 // 1500)


def test_seeds_follow_from_the_profile_the_link_and_the_direction():
    link = link_of("rtt: 20ms, loss: 1%")
    assert link.forward.seed == derive_seed(0, "a-b", "forward")
    assert link.backward.seed == derive_seed(0, "a-b", "backward")
    other = link_of("rtt: 20ms, loss: 1%", "seed: 1")
    assert other.forward.seed == derive_seed(1, "a-b", "forward")
    named = link_of("rtt: 20ms, name: alps, seed: 3, backward: {seed: 4}")
    assert (named.forward.seed, named.backward.seed) == (3, 4)


CONFLICTS = [
    ("rtt: 20ms, jitter: 10.1ms", "jitter: '10.1ms uniform' goes 10.1ms below the delay, which is 10ms"),
    ("rtt: 20ms, jitter: 11ms", "at most 10ms, or more delay"),
    ("rtt: 20ms, jitter: {amount: 5ms, distribution: normal}", "goes 18.344589ms below the delay, which is 10ms"),
    ("delay: 0ms, jitter: 1us", "at most 0s, or more delay"),
    ("delay: 10ms, jitter: 5ms, backward: {delay: 1ms}", "links[0].jitter: '5ms uniform' goes 5ms below the delay"),
    ("delay: 10ms, backward: {jitter: 11ms}", "links[0].backward.jitter: '11ms uniform'"),
    ("delay: 0ms, reorder: 5%", "reorder: '5%': a packet overtakes by skipping the delay, and there is none"),
    ("rtt: 20ms, queue: {discipline: codel}", "queue needs a rate, and there is none"),
    ("rtt: 20ms, framing: ip", "framing needs a rate, and there is none"),
    ("rtt: 20ms, rate: 1gbit, queue: {ecn: true}", "queue.ecn: ecn belongs to discipline: codel"),
    ("rtt: 20ms, rate: 1gbit, queue: {discipline: droptail, ecn: true}", "ecn belongs to discipline: codel"),
    ("rtt: 20ms, rate: 1gbit, queue: {target: 5ms}", "queue.target: target belongs to discipline: codel"),
    ("rtt: 20ms, rate: 1gbit, queue: {discipline: codel, target: 200ms}", "above 0 and up to the interval, 100ms"),
    ("rtt: 20ms, rate: 1gbit, queue: {discipline: codel, target: 0ms}", "above 0 and up to the interval"),
    ("rtt: 20ms, rate: 1gbit, queue: {discipline: red}", "queue.discipline: 'red' is not allowed: droptail or codel"),
    ("rtt: 20ms, rate: 1gbit, queue: {limit: 1kB}", "a queue of 1000 bytes at 1gbit has no room for one full frame"),
    ("rtt: 20ms, loss: {probability: 60%, burst: 1}", "loss.burst: bursts of 1 packets lose at most 50%"),
    ("rtt: 20ms, loss: {probability: 1%, burst: 4, correlation: 1%}", "loss.burst: excludes correlation"),
    ("rtt: 20ms, loss: {probability: 1%, burst: 0.5}", "burst: '0.5' is not allowed: a number from 1 to 1e+06"),
    ("rtt: 20ms, loss: {probability: 1%, correlation: 100%}", "a correlation of 100% would let nothing ever change"),
    ("rtt: 20ms, loss: {burst: 4}", "loss.probability: is missing"),
    ("rtt: 20ms, loss: {model: bursty}", "'bursty' is not a model of loss: independent, gilbert-elliott, four-state"),
    ("rtt: 20ms, loss: {model: gilbert-elliott, p: 1%}", "unknown key (allowed: model, to_bad, to_good, loss_in_bad"),
    ("rtt: 20ms, loss: {model: gilbert-elliott, p: 1%}", "write to_bad"),
    ("rtt: 20ms, loss: {model: gilbert-elliott, to_bad: 1%, to_good: 0%}", "to_good: '0%' would never change"),
    (
        "rtt: 20ms, loss: {model: gilbert-elliott, to_bad: 1%, to_good: 1%, loss_in_bad: 0%}",
        "nothing is ever lost in either state",
    ),
    ("rtt: 20ms, loss: {model: four-state, p13: 60%, p14: 50%}", "p13 and p14 are more than 100% together"),
    ("rtt: 20ms, loss: {model: four-state, p13: 60%, p31: 60%, p32: 50%}", "p31 and p32 are more than 100% together"),
    ("rtt: 20ms, loss: {model: four-state, p13: 100%}", "p31: at 0% state 1 is never reached again"),
    ("rtt: 20ms, loss: {model: four-state, p13: 1%, p23: 0%}", "p23: at 0% state 2 is never left"),
    ("rtt: 20ms, loss: {model: four-state, p13: 0%}", "p13: nothing is ever lost: leave loss out"),
    ("rtt: 20ms, loss: 1", "'1' could be one percent or all"),
    ("rtt: 20ms, loss: 101%", "a fraction must be between 0% and 100%"),
    ("rtt: 20ms, loss: [1%]", "loss: a list found where a value is wanted"),
    ("rtt: 20ms, loss: {probability: 1%, model: [x]}", "loss.model: no text is not a model of loss"),
    ("rtt: 20ms, reorder: {probability: 5%, gap: 0}", "reorder.gap: '0' is not allowed: a whole number from 1"),
    ("rtt: 20ms, jitter: {distribution: normal}", "jitter.amount: is missing"),
    ("rtt: 20ms, jitter: {amount: 1ms, distribution: gauss}", "uniform, normal, pareto, paretonormal, table"),
    ("rtt: 20ms, jitter: {amount: 1ms, distribution: table}", "jitter.samples: is missing: a table is made of"),
    ("rtt: 20ms, jitter: {amount: 1ms, distribution: normal, samples: [1ms, 2ms]}", "excludes distribution normal"),
    ("rtt: 20ms, jitter: {samples: [1ms, 1ms]}", "at least two measured delays that differ"),
    ("rtt: 20ms, jitter: {samples: []}", "at least two measured delays that differ"),
    ("rtt: 20ms, jitter: {samples: [1ms, 2]}", "jitter.samples[1]: '2' has no unit"),
    ("rtt: 20ms, jitter: {samples: d.csv}", "'d.csv': a file can be named in a profile only"),
    ("rtt: 20ms, jitter: {amount: 1ms, correlation: 100%}", "correlation: '100%' would let nothing ever change"),
    ("rtt: 20ms, rate: 1mbit, framing: atm", "framing: 'atm' is not allowed: ethernet or ip"),
    ("rtt: 20ms, rate: 1mbit, framing: {overhead: 38B}", "framing.min_frame: is missing"),
    ("rtt: 20ms, rate: 1mbit, framing: {overhead: 38, min_frame: 84B}", "framing.overhead: '38' has no unit"),
    ("rtt: 20ms, rate: 1mbit, framing: {overhead: 2kB, min_frame: 84B}", "'2kB' is not allowed: 0B to 1024B"),
    ("rtt: 20ms, rate: 1mbit, framing: [ip]", "framing: a list found where a mapping is wanted"),
    ("rtt: 20ms, seed: -1", "seed: '-1' is not allowed: a whole number from 0"),
    ("rtt: 20ms, seed: 9007199254740992", "seed: '9007199254740992' is not allowed"),
    ("rtt: 20ms, seed: x", "seed: 'x' is not a number"),
    ("rtt: 20ms, state: off", "state: 'off' is not allowed: up or down"),
    ("rtt: 20ms, state: {}", "state: not allowed here: up or down"),
    ("rtt: 20ms, ecn: true", "write queue: {discipline: codel, ecn: true}"),
    ("rtt: 20ms, distribution: normal", "write jitter: {amount: 2ms, distribution: normal}"),
    ("rtt: 20ms, overhead: 4B", "write framing: {overhead: 38B, min_frame: 84B}"),
    ("rtt: 20ms, down: true", "write state: down"),
]


@pytest.mark.parametrize(("text", "problem"), CONFLICTS)
def test_what_cannot_be_is_refused_with_its_key_and_what_is_allowed(text, problem):
    found = link_faults(text)
    assert any(problem in fault for fault in found), found
    assert all(re.match(r"f\.yaml:2: links\[0\]\.", fault) for fault in found)


@pytest.mark.parametrize("name", ["uniform", "normal", "pareto", "paretonormal"])
@pytest.mark.parametrize("delay", ["10ms", "12.345678ms", "1us", "100ns"])
def test_the_largest_jitter_that_a_refusal_names_is_accepted(name, delay):
    (fault,) = link_faults(f"delay: {delay}, jitter: {{amount: 1s, distribution: {name}}}")
    most = re.search(r"at most ([0-9.a-z]+), or more delay", fault).group(1)
    jitter = link_of(f"delay: {delay}, jitter: {{amount: {most}, distribution: {name}}}").forward.jitter
    assert jitter.reach.ns > 0.9 * Delay.parse(delay).ns


def test_one_fault_of_an_effect_is_one_line():
    for text in (
        "jitter: 5",
        "loss: {probability: x}",
        "queue: {discipline: codel, target: x}",
        "jitter: {samples: [x]}",
    ):
        assert len(link_faults(f"rtt: 20ms, rate: 1gbit, {text}")) == 1


def test_measured_samples_come_from_a_file_with_one_column():
    texts = {"d.csv": "# measured\ndelay_ms\n9\n11.5\n9.5\n10\n"}
    link = link_of("rtt: 40ms, jitter: {samples: d.csv}", read=texts.__getitem__)
    assert link.forward.jitter.samples == (-1_000_000, -500_000, 0, 1_500_000)


def test_the_files_of_a_profile_are_kept_with_it():
    text = f"{TWO_SITES}links: [{{between: [a, b], rtt: 40ms, jitter: {{samples: d.csv}}}}]\n"
    profile = parse_profile(text, "f.yaml", {"d.csv": "delay_ms\n9\n11\n"}.__getitem__)
    assert profile.files == (("d.csv", "delay_ms\n9\n11\n"),)
    again = parse_profile(profile.text, profile.path, dict(profile.files).__getitem__)
    assert again == profile


FULL = (
    "rtt: 40ms, rate: 100mbit, jitter: {amount: 1ms, distribution: normal, correlation: 10%}, loss: 1%, "
    "duplicate: 0.5%, reorder: {probability: 5%, gap: 5}, corrupt: 0.1%, queue: {limit: 1bdp, discipline: codel}, "
    "framing: ip, seed: 11, state: down"
)


@pytest.mark.parametrize("text", [FULL, "rtt: 1ms", "rtt: 1ms, rate: 1gbit", "rtt: 1ms, rate: 1gbit, queue: 9packets"])
def test_settings_give_back_the_impairment_that_they_are_of(text):
    link = link_of(text)
    assert resolve(settings_of(link.forward), link.rtt, link.mtu) == link.forward


def test_a_queue_without_a_rule_keeps_its_limit():
    impairment = Impairment(Delay(MS), Rate(10**9), Queue(packets=7))
    settings = settings_of(impairment)
    assert settings["queue"].rule == QueueRule("packets", 7)
    assert resolve(settings, Delay(2 * MS), 1500).queue == Queue(packets=7)


def test_the_full_state_reads_in_one_line():
    assert describe_impairment(link_of(FULL).forward) == (
        "down, delay 20ms, jitter 1ms normal, correlation 10%, rate 100mbit (+0 B framing per packet), "
        "queue 500000 B, codel (target 5ms, interval 100ms), loss 1%, duplicate 0.5%, reorder 5% (gap 5), "
        "corrupt 0.1%, seed 11"
    )
    assert describe_impairment(link_of("rtt: 40ms").forward) == "delay 20ms"


def test_the_full_state_is_json_with_units_in_its_keys():
    state = impairment_json(link_of(FULL).forward)
    assert json.loads(json.dumps(state)) == {
        "up": False,
        "delay_ns": 20_000_000,
        "jitter": {
            "amount_ns": 1_000_000,
            "distribution": "normal",
            "correlation": 0.1,
            "reorder": False,
            "least_ns": -3_668_917,
            "most_ns": 3_668_917,
        },
        "rate_bps": 100_000_000,
        "queue_bytes": 500_000,
        "queue_packets": None,
        "queue_derived": False,
        "codel": {"target_ns": 5_000_000, "interval_ns": 100_000_000, "ecn": False},
        "overhead_bytes": 0,
        "min_frame_bytes": 0,
        "loss": {"model": "independent", "probability": 0.01, "correlation": 0.0, "mean": 0.01, "burst": 1 / 0.99},
        "duplicate": {"probability": 0.005, "correlation": 0.0},
        "reorder": {"probability": 0.05, "correlation": 0.0, "gap": 5},
        "corrupt": {"probability": 0.001, "correlation": 0.0},
        "seed": 11,
    }


@pytest.mark.parametrize(
    ("text", "model", "mean", "burst"),
    [
        ("{probability: 1%, burst: 4}", "gilbert-elliott", 0.01, 4.0),
        ("{model: four-state, p13: 2%, p31: 20%}", "four-state", 2 / 22, 5.0),
        ("100%", "independent", 1.0, None),
    ],
)
def test_json_tells_what_follows_from_a_model_of_loss(text, model, mean, burst):
    loss = impairment_json(link_of(f"rtt: 1ms, loss: {text}").forward)["loss"]
    assert loss["model"] == model
    assert loss["mean"] == pytest.approx(mean, rel=1e-6)
    assert loss["burst"] == (burst if burst is None else pytest.approx(burst, rel=1e-6))


def test_only_effects_on_single_packets_forbid_units_of_many():
    assert not link_of("rtt: 1ms, rate: 1gbit").forward.per_packet
    for text in ("jitter: 100us", "loss: 1%", "duplicate: 1%", "reorder: 1%", "corrupt: 1%"):
        assert link_of(f"rtt: 1ms, {text}").forward.per_packet
    assert link_of("rtt: 1ms, rate: 1gbit, queue: {discipline: codel}").forward.per_packet


SHARES = st.sampled_from(["0%", "0.0000001%", "1%", "50%", "99.9999999%", "100%", "0.5", "1", "x", "-1%", ""])
TIMES = st.sampled_from(["0ms", "1ns", "1ms", "20ms", "600s", "601s", "5", "x"])
CHANCES = SHARES | st.fixed_dictionaries({}, optional={"probability": SHARES, "correlation": SHARES, "gap": SHARES})
LOSSES = CHANCES | st.fixed_dictionaries(
    {"model": st.sampled_from(["independent", "gilbert-elliott", "four-state", "x"])},
    optional=dict.fromkeys(("probability", "burst", "correlation", "to_bad", "to_good", "loss_in_bad"), SHARES)
    | dict.fromkeys(("loss_in_good", "p13", "p31", "p32", "p23", "p14"), SHARES),
)
JITTERS = TIMES | st.fixed_dictionaries(
    {},
    optional={
        "amount": TIMES,
        "distribution": st.sampled_from(["uniform", "normal", "pareto", "paretonormal", "table", "x"]),
        "correlation": SHARES,
        "reorder": st.sampled_from(["true", "false", "yes"]),
        "samples": st.lists(TIMES, max_size=3) | SHARES,
    },
)
QUEUES = st.fixed_dictionaries(
    {},
    optional={
        "limit": st.sampled_from(["1bdp", "2MB", "1packets", "1ms", "1ns", "0.0001bdp"]),
        "discipline": st.sampled_from(["droptail", "codel", "red"]),
        "target": TIMES,
        "interval": TIMES,
        "ecn": st.sampled_from(["true", "false", "1"]),
    },
)
DIRECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "delay": TIMES,
        "rate": st.sampled_from(["1kbit", "64kbit", "1gbit", "1tbit", "1"]),
        "jitter": JITTERS,
        "loss": LOSSES,
        "duplicate": CHANCES,
        "reorder": CHANCES,
        "corrupt": CHANCES,
        "queue": QUEUES,
        "framing": st.sampled_from(["ip", "ethernet", "x"]),
        "seed": st.sampled_from(["0", "1", "1e15", "1e16", "-1"]),
        "state": st.sampled_from(["up", "down", "x"]),
    },
)


@given(st.builds(lambda base, way: {"delay": "20ms", **base, "backward": way}, DIRECTIONS, DIRECTIONS))
def test_any_combination_of_effects_is_a_valid_link_or_readable_lines(tree):
    document = {"sites": {"a": {"workers": 1}, "b": {"workers": 1}}, "links": [{"between": ["a", "b"], **tree}]}
    try:
        link = parse_profile(json.dumps(document), "f.yaml").links[0]
    except ProfileError as error:
        for problem in error.problems:
            assert re.match(r"f\.yaml:1: links\[0\]\.", problem)
            assert problem.isprintable()
        return
    for impairment in (link.forward, link.backward):
        assert resolve(settings_of(impairment), link.rtt, link.mtu) == impairment
        assert json.loads(json.dumps(impairment_json(impairment), allow_nan=False))
        assert describe_impairment(impairment).isprintable()
        assert impairment.jitter is None or -impairment.jitter.table()[0] <= impairment.delay.ns
