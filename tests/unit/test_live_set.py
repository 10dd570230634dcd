"""netlab set: the words of a profile, the rules of a profile, and nothing done when one of them is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.errors import ProfileError, UserError
from netlab.impairment import Chance, GilbertElliott
from netlab.live import parse_set, set_now
from netlab.profile import parse_profile
from netlab.schedule import changes
from netlab.timeline import Hold, Target
from netlab.units import Delay, Duration, Fraction, Rate

MS = 1_000_000
S = 1_000 * MS
PROFILE = """\
name: p
sites: {a: {workers: 1}, b: {workers: 1}}
links: [{between: [a, b], rtt: 20ms, rate: 100mbit, jitter: 5ms}]
schedule: [{at: 10s, for: 10s, link: a-b, set: {rate: 50mbit}}]
"""


@pytest.fixture(name="profile")
def profile_fixture():
    return parse_profile(PROFILE, "p.yaml")


def at_once(profile, *words, started=(), now=S):
    """{way: values} of what changes when the words are given at `now`."""
    _, first = set_now(profile, "a-b", words, started, Duration(now))
    return {change.way: dict(change.values) for change in first}


def refusal(profile, *words):
    with pytest.raises(UserError) as caught:
        set_now(profile, "a-b", words, (), Duration(S))
    return str(caught.value)


def test_a_key_counts_for_both_directions_unless_it_names_one(profile):
    assert at_once(profile, "rate=10mbit", "backward.loss=1%") == {
        "forward": {"rate": "10mbit"},
        "backward": {"rate": "10mbit", "loss": "1%"},
    }
    assert at_once(profile, "forward.rate=10mbit") == {"forward": {"rate": "10mbit"}}
    assert at_once(profile, "rate=10mbit", "forward.rate=20mbit") == {
        "forward": {"rate": "20mbit"},
        "backward": {"rate": "10mbit"},
    }


def test_a_round_trip_is_split(profile):
    assert at_once(profile, "rtt=30ms") == {"forward": {"delay": "15ms"}, "backward": {"delay": "15ms"}}


def test_long_forms_are_written_as_in_a_profile(profile):
    entry = parse_set(profile, "a-b", ["forward.loss={probability: 1%, burst: 4}"])
    model = GilbertElliott(Fraction(2_525_253), Fraction(250_000_000))
    assert entry.targets == (Target("a-b", "forward", Hold({"loss": model})),)
    entry = parse_set(profile, "a-b", ["backward={loss: 2%, delay: 1ms}"])
    assert entry.targets == (
        Target("a-b", "backward", Hold({"loss": Chance(Fraction(2 * 10**7)), "delay": Delay(MS)})),
    )


def test_the_whole_state_comes_with_a_change(profile):
    _, (change, _) = set_now(profile, "a-b", ["rate=10mbit"], (), Duration(S))
    assert change.impairment.rate == Rate(10**7)
    assert change.impairment.jitter == profile.links[0].forward.jitter
    assert change.impairment.seed == profile.links[0].forward.seed
    assert change.causes == ("set",)


def test_what_is_as_asked_for_already_changes_nothing(profile):
    assert at_once(profile, "rate=100mbit") == {}


def test_a_change_by_hand_holds_until_the_schedule_speaks_again(profile):
    entry, _ = set_now(profile, "a-b", ["rate=10mbit"], (), Duration(S))
    rates = [
        (change.at.ns / S, change.values["rate"])
        for change in changes(profile, [(entry, Duration(S))])
        if change.way == "forward"
    ]
    assert rates == [(1, "10mbit"), (10, "50mbit"), (20, "10mbit")]


def test_a_change_during_an_entry_of_the_schedule_is_heard_and_stays(profile):
    assert at_once(profile, "rate=10mbit", now=15 * S)["forward"] == {"rate": "10mbit"}
    entry, _ = set_now(profile, "a-b", ["rate=10mbit"], (), Duration(15 * S))
    later = list(changes(profile, [(entry, Duration(15 * S))], Duration(15 * S + 1)))
    assert [change.values for change in later] == []


def test_changes_by_hand_build_on_each_other(profile):
    first, _ = set_now(profile, "a-b", ["delay=50ms"], (), Duration(S))
    started = [(first, Duration(S))]
    assert at_once(profile, "jitter=30ms", started=started, now=2 * S)["forward"] == {"jitter": "30ms uniform"}
    assert "goes 30ms below the delay, which is 10ms" in refusal(profile, "jitter=30ms")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["rate=10"], "set a-b: rate: '10' has no unit: write a rate like"),
        (["delay=1m"], "set a-b: delay: '1m': unknown unit 'm'"),
        (["lss=1%"], "set a-b: lss: unknown key (allowed: delay, rate, queue, jitter, loss"),
        (["lss=1%"], 'did you mean "loss"?'),
        (["bandwidth=1mbit"], "write rate"),
        (["seed=1"], "it cannot change while packets flow: write it with the link"),
        (["framing=ip"], "it cannot change while packets flow"),
        (["backward.mtu=9000"], "it cannot change while packets flow"),
        (["rate"], "'rate' is not KEY=VALUE, like rate=10mbit or backward.loss=1%"),
        (["=1"], "'=1' is not KEY=VALUE"),
        (["rate="], "set a-b: rate: nothing found where a value is wanted"),
        ([], "set a-b: nothing to change: delay, rate, queue"),
        (["rate=1mbit", "rate=2mbit"], "'rate' is given twice"),
        (["forward.rate=1mbit", "forward.rate=2mbit"], "'forward.rate' is given twice"),
        (["forward={rate: 1mbit}", "forward.rate=2mbit"], "'forward.rate' is given twice"),
        (["forward.rate=2mbit", "forward={rate: 1mbit}"], "'forward' is given twice"),
        (["rtt=1ms", "delay=1ms"], "rtt: excludes delay: rtt is both ways together, delay is one way"),
        (["rtt=1ms", "forward.delay=1ms"], "rtt: excludes delay"),
        (["loss={probability: 1%"], "set a-b: loss: not valid YAML"),
        (["loss={probability: 1}"], "set a-b: loss.probability: '1' could be one percent or all"),
        (["loss={probability: 1%, probability: 2%}"], "loss: probability: written twice"),
        (["loss=[1%]"], "set a-b: loss: a list found where a value is wanted"),
        (["jitter={samples: x.csv}"], "jitter.samples: 'x.csv': a file can be named in a profile only"),
        (["jitter=20ms"], "set a-b: a-b forward: jitter: '20ms uniform' goes 20ms below the delay, which is 10ms"),
        (["delay=1ms"], "set a-b: a-b forward: jitter: '5ms uniform' goes 5ms below the delay, which is 1ms"),
        (["queue=10us"], "set a-b: a-b forward: queue: '10us': a queue of 125 bytes at 100mbit has no room"),
        (["state=off"], "set a-b: state: 'off' is not allowed: up or down"),
    ],
)
def test_a_refusal_has_the_words_of_the_profile(profile, words, problem):
    assert problem in refusal(profile, *words)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate", "10"),
        ("delay", "1m"),
        ("jitter", "-1ms"),
        ("loss", "101%"),
        ("queue", "5"),
        ("reorder", "x"),
        ("state", "no"),
        ("corrupt", "1"),
        ("loss", "{probability: 60%, burst: 1}"),
        ("jitter", "{amount: 1ms, distribution: gauss}"),
    ],
)
def test_a_fault_reads_the_same_here_and_in_a_profile(profile, key, value):
    text = f"sites: {{a: {{workers: 1}}, b: {{workers: 1}}}}\nlinks: [{{between: [a, b], delay: 9ms, {key}: {value}}}]"
    with pytest.raises(ProfileError) as caught:
        parse_profile(text.replace("delay: 9ms, delay", "delay"), "p.yaml")
    here = refusal(profile, f"{key}={value}").removeprefix("set a-b: ")
    assert caught.value.problems == (f"p.yaml:2: links[0].{here}",)


def test_all_faults_of_the_words_are_told_at_once(profile):
    assert refusal(profile, "rate=x", "lss=1%", "backward.delay=5").count("\n") == 2


def test_an_unknown_link_is_answered_with_those_that_there_are(profile):
    with pytest.raises(UserError, match=r"'ab' is not a link of p \(links: a-b\); did you mean \"a-b\"\?"):
        parse_set(profile, "ab", ["rate=1mbit"])


WORDS = st.one_of(
    st.text(max_size=12),
    st.builds(
        lambda way, key, value: f"{way}{key}={value}",
        st.sampled_from(["", "forward.", "backward.", "x.", "forward.forward."]),
        st.sampled_from(["rate", "delay", "rtt", "loss", "jitter", "queue", "state", "forward", "x", ""]),
        st.sampled_from(["1mbit", "1ms", "1%", "down", "{", "{a: b}", "[1, 2]", "{probability: 1%}", "[[[", "&a x", ""])
        | st.text(max_size=5),
    ),
)


@given(st.lists(WORDS, max_size=4))
def test_any_words_are_a_change_or_readable_lines(words):
    profile = parse_profile(PROFILE, "p.yaml")
    try:
        set_now(profile, "a-b", words, (), Duration(S))
    except UserError as error:
        refused = str(error)
    else:
        refused = ""
    assert all(line.isprintable() and line.startswith("set a-b: ") for line in refused.splitlines())
