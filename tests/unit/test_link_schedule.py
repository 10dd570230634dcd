"""Change over time: what a schedule says happens exactly then, in order, and what cannot be is refused beforehand."""

import itertools
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.describe import describe_entry, entry_json
from netlab.errors import ProfileError
from netlab.impairment import Chance, GilbertElliott, Jitter, Queue
from netlab.plan import make
from netlab.profile import parse_profile
from netlab.schedule import SILENT_MOMENTS, Clash, changes, disturbed, foreseen, on_step
from netlab.settings import resolve, settings_of
from netlab.timeline import Entry, Hold, OnStep, Ramp, Series, Sine, Target
from netlab.topology import build
from netlab.units import Delay, Duration, Fraction, Rate

MS = 1_000_000
S = 1_000 * MS
SITES = "sites: {a: {workers: 1}, b: {workers: 1}, c: {workers: 1}}\n"
LINKS = """links:
  - {between: [a, b], rtt: 20ms, rate: 100mbit}
  - {between: [b, c], rtt: 40ms}
"""


def profile_of(*entries, links=LINKS, read=None):
    text = SITES + links + "schedule:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries)
    return parse_profile(text, "f.yaml", *([read] if read else []))


def faults(*entries, links=LINKS):
    with pytest.raises(ProfileError) as caught:
        profile_of(*entries, links=links)
    return list(caught.value.problems)


def told(profile, count=1000, **arguments):
    """(seconds, link, way, values) of the first changes."""
    return [
        (change.at.ns / S, change.link, change.way, dict(change.values))
        for change in itertools.islice(changes(profile, **arguments), count)
    ]


def forward(profile, key, count=1000):
    """(seconds, value) of the changes of one key on a-b forward."""
    return [
        (at, values[key])
        for at, link, way, values in told(profile, count)
        if (link, way) == ("a-b", "forward") and key in values
    ]


# --- when things happen -------------------------------------------------------------------------------------


def test_a_profile_without_a_schedule_never_changes():
    assert told(parse_profile(SITES + LINKS + "schedule: []\n", "f.yaml")) == []
    assert told(parse_profile(SITES + LINKS, "f.yaml")) == []


def test_a_step_holds_from_its_moment_on():
    profile = profile_of("at: 10s, link: a-b, set: {rate: 10mbit}")
    assert told(profile) == [
        (10, "a-b", "forward", {"rate": "10mbit"}),
        (10, "a-b", "backward", {"rate": "10mbit"}),
    ]


def test_a_change_carries_the_whole_state():
    (change, _) = changes(profile_of("at: 10s, link: a-b, set: {rate: 10mbit, loss: {probability: 1%, burst: 4}}"))
    assert change.impairment.delay == Delay(10 * MS)
    assert change.impairment.rate == Rate(10**7)
    assert change.impairment.queue == Queue(bytes=25_000)  # one bandwidth-delay product of the new rate
    assert change.impairment.loss == GilbertElliott(Fraction(2_525_253), Fraction(250_000_000))
    assert change.causes == ("schedule[0]",)


def test_a_step_for_a_while_gives_back_what_was():
    profile = profile_of("at: 10s, for: 5s, link: a-b, direction: forward, set: {rate: 10mbit, delay: 1ms}")
    assert told(profile) == [
        (10, "a-b", "forward", {"rate": "10mbit", "delay": "1ms"}),
        (15, "a-b", "forward", {"rate": "100mbit", "delay": "10ms"}),
    ]


def test_every_and_times_count_from_the_start_of_each_round():
    profile = profile_of("at: 10s, for: 5s, every: 20s, times: 3, link: a-b, set: {rate: 10mbit}")
    assert [at for at, _ in forward(profile, "rate")] == [10, 15, 30, 35, 50, 55]


def test_without_times_it_goes_on_for_ever_and_costs_nothing_until_asked():
    profile = profile_of("at: 0s, for: 1s, every: 2s, link: a-b, direction: forward, set: {rate: 10mbit}")
    assert [at for at, _ in forward(profile, "rate", 2001)][-1] == 2000


def test_directions_can_differ_within_one_entry():
    profile = profile_of("at: 1s, link: a-b, set: {delay: 15ms, backward: {delay: 17ms, loss: 1%}}")
    assert told(profile) == [
        (1, "a-b", "forward", {"delay": "15ms"}),
        (1, "a-b", "backward", {"delay": "17ms", "loss": "1%"}),
    ]


def test_a_round_trip_is_split_and_its_odd_nanosecond_goes_forward():
    profile = profile_of("at: 1s, link: a-b, set: {rtt: 3ns}")
    assert [values for *_, values in told(profile)] == [{"delay": "2ns"}, {"delay": "1ns"}]


def test_several_links_change_in_the_order_of_the_profile():
    profile = profile_of("at: 1s, links: [b-c, a-b], direction: forward, set: {delay: 1ms}")
    assert [link for _, link, _, _ in told(profile)] == ["a-b", "b-c"]


def test_what_started_last_is_heard_and_what_was_returns_after_it():
    profile = profile_of(
        "at: 0s, for: 10s, link: a-b, set: {rate: 80mbit}",
        "at: 2s, for: 3s, link: a-b, set: {rate: 60mbit}",
        "at: 3s, for: 10s, link: a-b, set: {rate: 40mbit}",
    )
    assert forward(profile, "rate") == [(0, "80mbit"), (2, "60mbit"), (3, "40mbit"), (13, "100mbit")]


def test_of_two_that_start_together_the_later_in_the_file_is_heard():
    profile = profile_of(
        "at: 1s, link: a-b, set: {rate: 80mbit}",
        "at: 1s, for: 1s, link: a-b, set: {rate: 60mbit}",
    )
    assert forward(profile, "rate") == [(1, "60mbit"), (2, "80mbit")]


def test_entries_for_different_keys_add_up():
    profile = profile_of(
        "at: 1s, for: 4s, link: a-b, direction: forward, set: {rate: 80mbit}",
        "at: 2s, for: 1s, link: a-b, direction: forward, set: {delay: 1ms}",
    )
    states = [change.impairment for change in changes(profile)]
    assert [(state.rate.bps, state.delay.ms) for state in states] == [
        (80_000_000, 10),
        (80_000_000, 1),
        (80_000_000, 10),
        (100_000_000, 10),
    ]


def test_an_end_and_a_start_at_one_moment_are_one_change():
    profile = profile_of(
        "at: 1s, for: 1s, link: a-b, direction: forward, set: {rate: 80mbit}",
        "at: 2s, for: 1s, link: a-b, direction: forward, set: {rate: 60mbit}",
    )
    assert forward(profile, "rate") == [(1, "80mbit"), (2, "60mbit"), (3, "100mbit")]
    causes = [change.causes for change in changes(profile)]
    assert causes == [("schedule[0]",), ("schedule[0]", "schedule[1]"), ("schedule[1]",)]


def test_a_change_to_what_already_holds_is_none():
    assert told(profile_of("at: 1s, link: a-b, set: {rate: 100mbit}")) == []


# --- ramps and waves ----------------------------------------------------------------------------------------


def test_a_ramp_is_a_staircase_of_its_steps_that_arrives_exactly():
    profile = profile_of("at: 1s, link: a-b, ramp: {rate: 50mbit}, over: 1s, step: 250ms")
    assert forward(profile, "rate") == [(1.25, "87.5mbit"), (1.5, "75mbit"), (1.75, "62.5mbit"), (2, "50mbit")]


def test_a_last_step_may_be_shorter():
    profile = profile_of("at: 0s, link: a-b, ramp: {delay: 20ms}, over: 1s, step: 400ms")
    assert forward(profile, "delay") == [(0.4, "14ms"), (0.8, "18ms"), (1, "20ms")]


def test_a_ramp_starts_from_what_is_in_force_and_gives_it_back():
    profile = profile_of(
        "at: 0s, link: a-b, set: {rate: 20mbit}",
        "at: 1s, for: 3s, link: a-b, ramp: {rate: 40mbit}, over: 2s, step: 1s",
    )
    assert forward(profile, "rate") == [(0, "20mbit"), (2, "30mbit"), (3, "40mbit"), (4, "20mbit")]


def test_a_ramp_of_loss_and_jitter_begins_at_none_and_keeps_the_distribution():
    links = "links: [{between: [a, b], rtt: 40ms, jitter: {amount: 1ms, distribution: normal}}, \
{between: [b, c], rtt: 1ms}]\n"
    profile = profile_of("at: 0s, link: a-b, ramp: {loss: 2%, jitter: 3ms}, over: 1s, step: 500ms", links=links)
    states = [change.impairment for change in changes(profile) if change.way == "forward"]
    assert [state.loss for state in states] == [Chance(Fraction(10**7)), Chance(Fraction(2 * 10**7))]
    assert [state.jitter for state in states] == [Jitter(Delay(2 * MS), "normal"), Jitter(Delay(3 * MS), "normal")]


@given(
    start=st.integers(0, 10**9),
    target=st.integers(0, 10**9),
    over=st.integers(1, 10**10),
    step=st.integers(1, 10**10),
    elapsed=st.integers(0, 2 * 10**10),
)
def test_a_ramp_never_leaves_the_line_by_more_than_half_a_unit(start, target, over, step, elapsed):
    ramp = Ramp({"delay": target}, over, step)
    value = ramp.settings(elapsed, {"delay": Delay(start)})["delay"].ns
    at = over if elapsed >= over else elapsed - elapsed % step
    assert abs((value - start) * over - (target - start) * at) * 2 <= over
    following = ramp.next_ns(elapsed)
    assert (following is None) == (elapsed >= over)
    assert following is None or elapsed < following <= min(elapsed + step, over)


def test_a_sine_moves_around_the_link_s_own_value():
    profile = profile_of("at: 10s, for: 8s, link: a-b, sine: {delay: 5ms}, period: 8s, step: 1s")
    root = round(5 * MS / math.sqrt(2))
    expected = [10 * MS + root, 15 * MS, 10 * MS + root, 10 * MS, 10 * MS - root, 5 * MS, 10 * MS - root, 10 * MS]
    assert forward(profile, "delay") == [(11 + i, str(Delay(ns))) for i, ns in enumerate(expected)]


@given(
    amplitude=st.integers(0, 10 * MS),
    period=st.integers(4, 10**12),
    step=st.integers(1, 10**9),
    elapsed=st.integers(0, 10**15),
)
def test_a_sine_is_the_sine_at_the_last_step_within_a_nanosecond(amplitude, period, step, elapsed):
    sine = Sine({"delay": amplitude}, {"delay": Delay(10 * MS)}, period, step)
    value = sine.settings(elapsed, {})["delay"].ns
    phase = (elapsed - elapsed % step) % period / period
    assert abs(value - 10 * MS - amplitude * math.sin(2 * math.pi * phase)) < 1
    assert elapsed < sine.next_ns(elapsed) <= elapsed + step


def test_a_year_of_a_sine_does_not_drift():
    sine = Sine({"delay": MS}, {"delay": Delay(10 * MS)}, 7 * S, S)
    year = 365 * 24 * 3600 * S
    assert sine.settings(year - year % (7 * S) + 3 * S, {}) == sine.settings(3 * S, {})


# --- up and down --------------------------------------------------------------------------------------------


def test_a_flap_begins_down_and_ends_up():
    profile = profile_of("at: 10s, for: 10s, link: a-b, flap: {down: 1s, up: 3s}")
    assert forward(profile, "state") == [(10, "down"), (11, "up"), (14, "down"), (15, "up"), (18, "down"), (19, "up")]
    state = next(changes(profile)).impairment
    assert state.up is False
    assert state.rate == Rate(10**8)


def test_a_flap_that_ends_while_down_comes_up_again():
    profile = profile_of("at: 0s, for: 3500ms, link: a-b, flap: {down: 1s, up: 2s}")
    assert forward(profile, "state") == [(0, "down"), (1, "up"), (3, "down"), (3.5, "up")]


def test_a_partition_takes_down_what_leads_from_group_to_group():
    links = LINKS + "  - {between: [a, c], rtt: 1ms}\n"
    profile = profile_of("at: 1s, for: 2s, partition: [[a, b], [c]]", links=links)
    assert told(profile) == [
        (at, link, way, {"state": state})
        for at, state in ((1, "down"), (3, "up"))
        for link in ("b-c", "a-c")
        for way in ("forward", "backward")
    ]


def test_sites_that_a_partition_does_not_name_are_one_more_group():
    profile = profile_of("at: 1s, partition: [[b]]")
    assert {link for _, link, _, _ in told(profile)} == {"a-b", "b-c"}
    alone = profile_of("at: 1s, partition: [[a]]")
    assert {link for _, link, _, _ in told(alone)} == {"a-b"}


# --- traces -------------------------------------------------------------------------------------------------

TRACE = "time_s,rate_mbit,delay_ms\n0,50,10\n1,20,12\n3,80,\n"


def traced(text, **files):
    links = f"links: [{{between: [a, b], rtt: 20ms, {text}}}, {{between: [b, c], rtt: 1ms}}]\n"
    return parse_profile(SITES + links, "f.yaml", files.__getitem__)


def test_a_trace_of_a_link_is_played_from_the_start_and_again():
    profile = traced("trace: {csv: x}", x=TRACE)
    assert forward(profile, "rate", 20)[:6] == [(0, "50mbit"), (1, "20mbit"), (3, "80mbit"), (5, "50mbit"),
                                                (6, "20mbit"), (8, "80mbit")]  # fmt: skip
    assert forward(profile, "delay", 20)[:3] == [(1, "12ms"), (5, "10ms"), (6, "12ms")]


def test_a_trace_that_does_not_loop_stays_at_its_last_row():
    profile = traced("trace: {csv: x, loop: false}", x=TRACE)
    assert forward(profile, "rate") == [(0, "50mbit"), (1, "20mbit"), (3, "80mbit")]


def test_a_traced_link_has_the_largest_rate_and_its_queue_before_and_keeps_the_queue():
    profile = traced("trace: {csv: x}", x=TRACE)
    base = profile.links[0].forward
    assert base.rate == Rate(80_000_000)
    assert base.queue == Queue(bytes=200_000)  # 80 Mbit/s x 20 ms
    assert all(change.impairment.queue == Queue(bytes=200_000) for change in itertools.islice(changes(profile), 20))


def test_a_queue_that_is_asked_for_follows_the_rate_of_a_trace():
    profile = traced("queue: 20ms, trace: {csv: x}", x=TRACE)
    sizes = [c.impairment.queue.bytes for c in itertools.islice(changes(profile), 6) if c.way == "forward"]
    assert sizes == [125_000, 50_000, 200_000]


def test_directions_can_have_traces_of_their_own():
    profile = traced("rate: 1gbit, backward: {trace: {mahimahi: m}}", m="1\n2\n200\n")
    assert [(at, way, values) for at, _, way, values in told(profile, 3)] == [
        (0, "backward", {"rate": "246.08kbit"}),  # 2 packets of 1538 bytes in 100 ms
        (0.1, "backward", {"rate": "123.04kbit"}),
        (0.2, "backward", {"rate": "246.08kbit"}),
    ]


def test_a_trace_counts_the_framing_of_its_link():
    profile = traced("framing: ip, trace: {mahimahi: m, step: 50ms}", m="50\n")
    assert profile.links[0].forward.rate == Rate(240_000)  # 1500 bytes in 50 ms


def test_a_schedule_may_play_a_trace_for_a_while():
    profile = profile_of("at: 10s, for: 2s, link: a-b, trace: {csv: x}", read={"x": TRACE}.__getitem__)
    assert forward(profile, "rate") == [(10, "50mbit"), (11, "20mbit"), (12, "100mbit")]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 100), st.integers(0, 2000))
def test_a_series_changes_exactly_at_its_points(gaps, rest, elapsed):
    times = [0, *itertools.accumulate(gaps)]
    series = Series(tuple((at, {"n": index}) for index, at in enumerate(times)), times[-1] + rest)
    position = elapsed % (times[-1] + rest)
    assert series.settings(elapsed, {})["n"] == max(index for index, at in enumerate(times) if at <= position)
    following = series.next_ns(elapsed)
    assert following > elapsed
    values = {series.settings(moment, {})["n"] for moment in range(elapsed, following)}
    assert len(values) == 1
    assert series.settings(following, {}) != series.settings(elapsed, {})


# --- steps of a training job --------------------------------------------------------------------------------


def test_an_entry_that_waits_for_a_step_does_nothing_until_it_is_set_off():
    profile = profile_of("at: {step: 40, rank: 1}, link: a-b, direction: forward, for: 5s, set: {state: down}")
    (entry,) = on_step(profile)
    assert entry.at == OnStep(40, 1)
    assert str(entry.at) == "step 40 of rank 1"
    assert told(profile) == []
    assert told(profile, started=[(entry, Duration(7 * S))]) == [
        (7, "a-b", "forward", {"state": "down"}),
        (12, "a-b", "forward", {"state": "up"}),
    ]


def test_a_player_that_starts_again_later_gets_the_same_rest():
    profile = profile_of(
        "at: 0s, link: a-b, sine: {delay: 5ms}, period: 2s, step: 100ms",
        "at: 1s, for: 2s, every: 3s, link: a-b, ramp: {rate: 50mbit}, over: 1s",
        "at: 2s, link: b-c, flap: {down: 100ms, up: 300ms}",
    )
    whole = list(itertools.islice(changes(profile), 400))
    for since_ns in (1, 1_234_567_890, 2 * S, 3 * S, 5_900 * MS):
        rest = [change for change in whole if change.at.ns >= since_ns]
        again = list(itertools.islice(changes(profile, since=Duration(since_ns)), len(rest)))
        assert again == rest


@given(st.integers(0, 40 * 1000), st.sampled_from([1, 3, 8, None]))
def test_rounds_that_are_over_are_passed_over_without_a_trace(since_ms, times):
    rounds = f", times: {times}" if times else ""
    profile = profile_of(
        f"at: 1s, for: 2s, every: 3s, link: a-b, direction: forward, set: {{rate: 50mbit}}{rounds}",
        "at: 7s, for: 5s, every: 5s, link: a-b, direction: forward, set: {delay: 2ms}",
        "at: 2s, link: a-b, direction: forward, flap: {down: 1s, up: 1500ms}",
    )
    whole = [change for change in itertools.islice(changes(profile), 100) if change.at.ns < 45 * S]
    rest = [change for change in whole if change.at.ns >= since_ms * MS]
    again = list(itertools.islice(changes(profile, since=Duration(since_ms * MS)), len(rest)))
    assert again == rest


def test_a_player_can_start_again_after_a_month_of_short_rounds():
    profile = profile_of("at: 0s, for: 1ms, every: 2ms, link: a-b, direction: forward, set: {rate: 50mbit}")
    month = Duration(30 * 24 * 3600 * S)
    change = next(changes(profile, since=month))
    assert (change.at, change.values) == (month, {"rate": "50mbit"})


def test_started_entries_come_after_those_of_the_file_that_start_with_them():
    profile = profile_of("at: 5s, link: a-b, direction: forward, set: {rate: 50mbit}")
    entry = Entry(Duration(0), (Target("a-b", "forward", Hold({"rate": Rate(10**7)})),), label="set")
    started = [(entry, Duration(5 * S))]
    assert told(profile, started=started) == [(5, "a-b", "forward", {"rate": "10mbit"})]


# --- endless without anything to see ------------------------------------------------------------------------


def test_an_endless_schedule_that_changes_nothing_still_gets_on():
    profile = profile_of(
        "at: 0s, link: a-b, direction: forward, sine: {delay: 5ms}, period: 1s",
        "at: 1s, link: a-b, direction: forward, set: {delay: 10ms}",
    )
    later = [change for change in itertools.islice(changes(profile), 30) if change.at.ns > S]
    assert later
    assert all(change.values == {} for change in later)
    assert later[0].impairment == profile.links[0].forward
    assert later[1].at.ns - later[0].at.ns == SILENT_MOMENTS * 100 * MS


# --- what is refused ----------------------------------------------------------------------------------------

REFUSED = [
    ("link: a-b, set: {rate: 1mbit}", "schedule[0].at: is missing"),
    ("at: 10, link: a-b, set: {rate: 1mbit}", "schedule[0].at: '10' has no unit"),
    ("at: {step: 40, rnk: 0}, link: a-b, set: {rate: 1mbit}", "schedule[0].at.rnk: unknown key (allowed: step, rank)"),
    ("at: {rank: 0}, link: a-b, set: {rate: 1mbit}", "schedule[0].at.step: is missing"),
    ("at: {step: 1.5}, link: a-b, set: {rate: 1mbit}", "schedule[0].at.step: '1.5' is not allowed"),
    ("at: 1s, link: a-b", "schedule[0]: one change is wanted, found none: set, ramp, sine, flap, trace, partition"),
    ("at: 1s, link: a-b, set: {rate: 1mbit}, flap: {down: 1s, up: 1s}", "one change is wanted, found set and flap"),
    ("at: 1s, set: {rate: 1mbit}", "schedule[0].link: name one link, or several: links: [a-b, b-c]"),
    ("at: 1s, link: a-b, links: [a-b], set: {rate: 1mbit}", "schedule[0].link: name one link, or several"),
    ("at: 1s, links: [], set: {rate: 1mbit}", "schedule[0].links: names no link"),
    ("at: 1s, link: ab, set: {rate: 1mbit}", "schedule[0].link: 'ab' is not a link (links: a-b, b-c); did you mean"),
    ("at: 1s, links: [a-b, x], set: {rate: 1mbit}", "schedule[0].links: 'x' is not a link"),
    ("at: 1s, link: a-b, direction: up, set: {rate: 1mbit}", "direction: 'up' is not allowed: forward, backward or"),
    ("at: 1s, link: a-b, direction: forward, set: {rtt: 1ms}", "direction: excludes rtt, forward and backward in set"),
    ("at: 1s, link: a-b, set: {}", "schedule[0].set: nothing to change"),
    ("at: 1s, link: a-b, set: {rtt: 1ms, delay: 1ms}", "set.rtt: excludes delay"),
    ("at: 1s, link: a-b, set: {rate: 1}", "schedule[0].set.rate: '1' has no unit"),
    ("at: 1s, link: a-b, set: {seed: 1}", "set.seed: unknown key"),
    ("at: 1s, link: a-b, set: {framing: ip}", "it cannot change while packets flow: write it with the link"),
    ("at: 1s, link: a-b, set: {bandwidth: 1mbit}", "write rate"),
    ("at: 1s, link: a-b, rate: 1mbit", "schedule[0].rate: unknown key"),
    ("at: 1s, link: a-b, rate: 1mbit", "write set: {rate: ...}"),
    ("at: 1s, link: a-b, set: {delay: 1ms}, every: 1s", "schedule[0].every: needs for: how long it lasts each time"),
    ("at: 1s, link: a-b, set: {delay: 1ms}, every: 1s, for: 2s", "for: '2s' is longer than every, 1s: it would overl"),
    ("at: 1s, link: a-b, set: {delay: 1ms}, times: 2", "schedule[0].times: needs every"),
    ("at: 1s, link: a-b, set: {delay: 1ms}, for: 0ms", "schedule[0].for: '0s' is too short: at least 1ms"),
    ("at: 1s, link: a-b, set: {delay: 1ms}, over: 1s", "schedule[0].over: belongs to ramp, not to set"),
    ("at: 1s, link: a-b, set: {delay: 1ms}, step: 1s", "schedule[0].step: belongs to ramp and sine, not to set"),
    ("at: 1s, link: a-b, ramp: {delay: 1ms}", "schedule[0].over: is missing"),
    ("at: 1s, link: a-b, ramp: {}, over: 1s", "schedule[0].ramp: nothing to change: delay, rate, jitter"),
    ("at: 1s, link: a-b, ramp: {delay: 1ms}, over: 1s, for: 500ms", "for: '500ms' is shorter than over, 1s"),
    ("at: 1s, link: a-b, ramp: {delay: 1ms}, over: 50ms", "over: a step of 100ms is longer than 50ms"),
    ("at: 1s, link: a-b, ramp: {rtt: 1ms}, over: 1s", "write delay, one way"),
    ("at: 1s, link: b-c, ramp: {rate: 1mbit}, over: 1s", "ramp: rate: b-c forward: there is no rate to start from"),
    ("at: 1s, link: a-b, sine: {delay: 5ms}", "schedule[0].period: is missing"),
    ("at: 1s, link: a-b, sine: {delay: 5ms}, period: 300ms", "300ms has fewer than 4 steps of 100ms"),
    (
        "at: 1s, link: a-b, sine: {delay: 11ms}, period: 1s",
        "sine: delay: around a-b's own 10ms it would go from -1ms to",
    ),
    ("at: 1s, link: a-b, sine: {rate: 100mbit}, period: 1s", "rate: around a-b's own 100mbit it would go from 0bit to"),
    ("at: 1s, link: a-b, sine: {loss: 1%}, period: 1s", "loss: around a-b's own 0% it would go from -1% to 1%"),
    ("at: 1s, link: b-c, sine: {rate: 1mbit}, period: 1s", "sine: rate: b-c has no rate for a wave to move around"),
    ("at: 1s, link: a-b, flap: {down: 1s}", "schedule[0].flap.up: is missing"),
    ("at: 1s, link: a-b, flap: {down: 1us, up: 1s}", "flap.down: '1us' is too short: at least 1ms"),
    ("at: 1s, partition: [a]", "partition[0]: 'a' found where a list of sites is wanted: [[a, b], [c]]"),
    ("at: 1s, partition: [[a, x]]", "partition[0][1]: 'x' is not a site (sites: a, b, c)"),
    ("at: 1s, partition: [[a], [a, b]]", "partition[1][0]: 'a' is in two groups"),
    ("at: 1s, partition: [[a, b, c]]", "partition: no link leads from one of the groups to another"),
    ("at: 1s, partition: []", "partition: no link leads from one of the groups to another"),
    ("at: 1s, partition: [[a]], link: a-b", "link: the groups of a partition say which links go down"),
    ("at: 1s, link: a-b, trace: {}", "schedule[0].trace: one file is wanted: csv: FILE or mahimahi: FILE"),
    ("at: 1s, link: a-b, trace: {csv: x, step: 1s}", "trace.step: belongs to mahimahi"),
    ("at: 1s, link: a-b, trace: {csv: x}", "schedule[0].trace.csv: 'x': a file can be named in a profile only"),
    ("at: 1s, link: a-b, trace: x", "schedule[0].trace: 'x' found where a mapping is wanted"),
    ("at: 1s, link: b-c, set: {queue: 1MB}", "schedule[0]: b-c forward: queue: '1MB': a queue needs a rate"),
    ("at: 1s, link: a-b, set: {jitter: 20ms}", "schedule[0]: a-b forward: jitter: '20ms uniform' goes 20ms below"),
    ("at: {step: 1}, link: a-b, set: {jitter: 20ms}", "schedule[0]: a-b forward: jitter: '20ms uniform' goes"),
]


@pytest.mark.parametrize(("entry", "problem"), REFUSED)
def test_an_entry_that_cannot_be_names_its_place(entry, problem):
    found = faults(entry)
    assert any(problem in fault for fault in found), found
    assert all(re.match(r"f\.yaml:6: schedule\[0\]", fault) for fault in found)


def test_what_only_a_combination_of_entries_makes_impossible_is_refused_at_its_moment():
    found = faults(
        "at: 1s, link: a-b, set: {jitter: 5ms}",
        "at: 1min, for: 1s, every: 10min, link: a-b, set: {delay: 1ms}",
    )
    assert found == [
        "f.yaml:7: schedule[1]: a-b forward: jitter: '5ms uniform' goes 5ms below the delay, which is 1ms: a packet "
        "cannot arrive before it was sent, and cutting off would change the mean; at most 1ms, or more delay"
    ]


def test_what_never_comes_together_is_allowed():
    assert profile_of("at: 1s, link: a-b, set: {jitter: 5ms}, for: 1s", "at: 2s, link: a-b, set: {delay: 1ms}")


def test_a_ramp_through_a_burst_model_is_refused():
    links = "links: [{between: [a, b], rtt: 2ms, loss: {probability: 1%, burst: 3}}, {between: [b, c], rtt: 1ms}]\n"
    (fault,) = faults("at: 1s, link: a-b, ramp: {loss: 2%}, over: 1s", links=links)
    assert "ramp: loss: a-b forward: gilbert-elliott (" in fault
    assert "has no one figure to start from" in fault


def test_a_schedule_that_only_a_step_makes_impossible_is_refused_where_it_runs():
    profile = profile_of("at: {step: 1}, link: a-b, set: {jitter: 5ms}", "at: {step: 2}, link: a-b, set: {delay: 1ms}")
    first, second = on_step(profile)
    with pytest.raises(Clash, match="a-b forward: jitter: '5ms uniform' goes 5ms below the delay"):
        list(changes(profile, [(first, Duration(0)), (second, Duration(S))]))


# --- units of many packets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("at: 1s, link: a-b, set: {delay: 1ms}", False),
        ("at: 1s, link: a-b, set: {rate: 1gbit}", False),
        ("at: 1s, link: a-b, set: {loss: 0%}", False),
        ("at: 1s, link: a-b, set: {state: down}", False),
        ("at: 1s, link: a-b, set: {rate: 50mbit}", True),
        ("at: 1s, link: a-b, set: {backward: {loss: 1%}}", True),
        ("at: 1s, link: a-b, set: {queue: {discipline: codel}}", True),
        ("at: 1s, link: a-b, ramp: {rate: 50mbit}, over: 1s", True),
        ("at: 1s, link: a-b, ramp: {rate: 1gbit}, over: 1s", False),
        ("at: 1s, link: a-b, ramp: {loss: 1%}, over: 1s", True),
        ("at: 1s, link: a-b, sine: {rate: 1mbit}, period: 1s", False),
        ("at: 1s, link: a-b, sine: {rate: 30mbit}, period: 1s", True),
        ("at: {step: 1}, link: a-b, set: {corrupt: 1%}", True),
    ],
)
def test_a_link_that_will_be_slow_or_judge_packets_is_known_beforehand(entry, expected):
    assert disturbed(profile_of(entry), Rate.parse("80mbit")) == (frozenset({"a-b"}) if expected else frozenset())


def test_the_entries_read_as_they_were_meant():
    profile = profile_of(
        "at: 1s, for: 2s, every: 5s, times: 3, link: a-b, direction: forward, "
        "set: {rate: 1mbit, loss: 0%, state: down}",
        "at: {step: 4, rank: 1}, link: b-c, direction: backward, ramp: {delay: 9ms, loss: 1.5%}, over: 2s",
        "at: 0s, link: a-b, direction: forward, sine: {rate: 5mbit}, period: 10s, step: 1s",
        "at: 9s, link: a-b, direction: backward, flap: {down: 1s, up: 2s}",
    )
    assert [describe_entry(entry) for entry in profile.schedule] == [
        "at 1s, for 2s, every 5s, 3 times: a-b forward: rate 1mbit, loss none, state down",
        "when step 4 of rank 1 begins: b-c backward: ramp to delay 9ms, loss 1.5% over 2s in steps of 100ms",
        "at 0s: a-b forward: sine of rate 5mbit, period 10s in steps of 1s",
        "at 9s: a-b backward: series of state in 2 steps, again every 3s",
    ]
    first, second = (entry_json(entry) for entry in profile.schedule[:2])
    assert (first["at_ns"], first["for_ns"], first["every_ns"], first["times"]) == (S, 2 * S, 5 * S, 3)
    assert (second["at_ns"], second["at_step"]) == (None, {"step": 4, "rank": 1})
    assert json.loads(json.dumps([first, second])) == [first, second]


def test_a_plan_shows_the_schedule_and_the_seeds():
    profile = profile_of("at: 1s, link: a-b, set: {loss: 1%}", links=LINKS.replace("100mbit", "100mbit, loss: 2%"))
    plan = make(build(profile), "relay")
    assert f"loss 2%, seed {profile.links[0].forward.seed}" in plan.describe()
    assert plan.describe().endswith("schedule[0]: at 1s: a-b forward: loss 1%; a-b backward: loss 1%")
    assert [entry["text"] for entry in plan.to_json()["schedule"]] == [
        "at 1s: a-b forward: loss 1%; a-b backward: loss 1%"
    ]
    assert json.loads(json.dumps(plan.to_json()))["seed"] == 0


def test_all_states_that_a_schedule_leads_to_are_known_beforehand():
    profile = profile_of(
        "at: 1s, for: 1s, every: 2s, link: a-b, direction: forward, set: {rate: 10mbit}",
        "at: {step: 7}, link: b-c, direction: backward, set: {state: down}",
    )
    states = [(link, way, str(state.rate), state.up) for link, way, state in foreseen(profile)]
    assert states == [
        ("a-b", "forward", "10mbit", True),
        ("a-b", "forward", "100mbit", True),
        ("b-c", "backward", "None", False),
    ]
    assert foreseen(parse_profile(SITES + LINKS, "f.yaml")) == ()


# --- hostile input ------------------------------------------------------------------------------------------

TIMES = st.sampled_from(["0s", "1ms", "100ms", "1s", "10s", "30min", "1ns", "x", "-1s"])
VALUES = {
    "delay": st.sampled_from(["0ms", "1ms", "20ms", "x"]),
    "rate": st.sampled_from(["1kbit", "10mbit", "x"]),
    "jitter": st.sampled_from(["0ms", "1ms", "15ms"]),
    "loss": st.sampled_from(["0%", "1%", "100%"]) | st.just({"probability": "1%", "burst": "3"}),
    "reorder": st.sampled_from(["0%", "5%"]),
    "queue": st.sampled_from(["20ms", "2MB", "9packets"]),
    "state": st.sampled_from(["up", "down"]),
}
SETS = st.fixed_dictionaries({}, optional={**VALUES, "backward": st.fixed_dictionaries({}, optional=VALUES)})
ENTRIES = st.fixed_dictionaries(
    {"at": TIMES | st.fixed_dictionaries({"step": st.sampled_from(["0", "7", "x"])})},
    optional={
        "link": st.sampled_from(["a-b", "b-c", "x"]),
        "direction": st.sampled_from(["forward", "backward", "both"]),
        "for": TIMES,
        "every": TIMES,
        "times": st.sampled_from(["1", "3", "0"]),
        "over": TIMES,
        "period": TIMES,
        "step": TIMES,
    },
)
CHANGES = st.one_of(
    st.fixed_dictionaries({"set": SETS}),
    st.fixed_dictionaries({"ramp": SETS}),
    st.fixed_dictionaries({"sine": SETS}),
    st.fixed_dictionaries({"flap": st.fixed_dictionaries({}, optional={"down": TIMES, "up": TIMES})}),
    st.fixed_dictionaries(
        {"partition": st.lists(st.lists(st.sampled_from(["a", "b", "c", "x"]), max_size=2), max_size=2)}
    ),
)
BASES = st.fixed_dictionaries({}, optional={key: values for key, values in VALUES.items() if key != "delay"})


@given(st.lists(st.builds(lambda entry, change: {**entry, **change}, ENTRIES, CHANGES), max_size=4), BASES)
def test_any_schedule_is_played_in_order_or_refused_in_readable_lines(entries, base):
    tree = {
        "sites": {"a": {"workers": 1}, "b": {"workers": 1}, "c": {"workers": 1}},
        "links": [{"between": ["a", "b"], "rtt": "20ms", **base}, {"between": ["b", "c"], "rtt": "0ms"}],
        "schedule": entries,
    }
    try:
        profile = parse_profile(json.dumps(tree), "f.yaml")
    except ProfileError as error:
        problems = error.problems
    else:
        problems = ()
        previous = (-1, -1)
        order = [(link.name, way) for link in profile.links for way in ("forward", "backward")]
        for change in itertools.islice(changes(profile), 200):
            moment = (change.at.ns, order.index((change.link, change.way)))
            assert moment > previous
            previous = moment
            link = next(link for link in profile.links if link.name == change.link)
            assert resolve(settings_of(change.impairment), link.rtt, link.mtu) == change.impairment
    assert all(re.match(r"f\.yaml:\d+: ", problem) and problem.isprintable() for problem in problems)
