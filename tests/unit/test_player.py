"""Playing a schedule: what is due is applied once, in order, and nothing is missed when something else begins."""

import pytest

from netlab.errors import NetlabError, UserError
from netlab.player import Player
from netlab.profile import parse_profile
from netlab.topology import build

S = 1_000_000_000
TEXT = """\
sites: {a: {workers: 1, uplink: {rate: 50mbit}}, b: {workers: 1}}
links: [{between: [a, b], rtt: 20ms, rate: 100mbit}]
schedule:
  - {at: 1s, for: 2s, link: a-b, direction: forward, set: {delay: 15ms}}
  - {at: {step: 40, rank: 1}, link: a-b, direction: backward, set: {state: down}, for: 1s}
"""


class Stage:
    """A lab that only remembers: (seconds, direction, delay in ms, rate, up) of everything applied."""

    def __init__(self, text=TEXT):
        self.now_ns = 100 * S
        self.applied = []
        self.noted = []
        self.player = Player(build(parse_profile(text, "p.yaml")), self._apply, self._note, lambda: self.now_ns)

    def _apply(self, direction, impairment):
        at = (self.now_ns - 100 * S) / S
        self.applied.append((at, direction, impairment.delay.ms, str(impairment.rate), impairment.up))
        return self.now_ns

    def _note(self, change, direction, due_ns, held_ns):
        self.noted.append((dict(change.values), (held_ns - due_ns) / S))

    def at(self, seconds):
        self.now_ns = 100 * S + round(seconds * S)
        return self.player


FORWARD, BACKWARD = "a-b:a.router>b.router", "a-b:b.router>a.router"


def test_nothing_happens_before_the_schedule_begins():
    stage = Stage()
    stage.at(5).play()
    assert stage.applied == []
    assert stage.player.wait_s() is None


def test_a_change_is_applied_when_it_is_due_with_the_uplink_folded_in():
    stage = Stage()
    stage.player.begin()
    assert stage.player.wait_s() == pytest.approx(1.0)
    stage.at(0.999).play()
    assert stage.applied == []
    stage.at(1.001).play()
    assert stage.applied == [(1.001, FORWARD, 15, "50mbit", True)]
    assert stage.noted == [({"delay": "15ms"}, pytest.approx(0.001))]
    assert stage.player.wait_s() == pytest.approx(1.999)


def test_a_step_sets_off_what_waits_for_it_and_nothing_else():
    stage = Stage()
    stage.player.begin()
    assert not stage.at(0.1).reached(rank=0, step=40)
    assert not stage.at(0.2).reached(rank=1, step=39)
    assert stage.at(0.5).reached(rank=1, step=40)
    stage.at(1.6).play()
    assert [(at, direction, up) for at, direction, _, _, up in stage.applied] == [
        (0.5, BACKWARD, False),
        (1.6, FORWARD, True),
        (1.6, BACKWARD, True),
    ]


def test_what_was_due_when_a_change_by_hand_comes_is_not_missed():
    stage = Stage()
    stage.player.begin()
    assert stage.at(1.5).set("a-b", ["backward.rate=10mbit"]) == [BACKWARD]
    assert [row[1:] for row in stage.applied] == [(FORWARD, 15, "50mbit", True), (BACKWARD, 10, "10mbit", True)]


def test_what_was_due_when_a_step_comes_is_not_missed():
    stage = Stage()
    stage.player.begin()
    stage.at(1.5).reached(rank=1, step=40)
    assert [row[1] for row in stage.applied] == [FORWARD, BACKWARD]


def test_a_refused_change_leaves_everything_as_it_was():
    stage = Stage()
    stage.player.begin()
    with pytest.raises(UserError, match="set a-b: a-b forward: jitter"):
        stage.at(0.5).set("a-b", ["jitter=1s"])
    assert stage.applied == []
    stage.at(1).play()
    assert [row[1] for row in stage.applied] == [FORWARD]


IMPOSSIBLE = """\
sites: {a: {workers: 1}, b: {workers: 1}}
links: [{between: [a, b], delay: 20ms, rate: 100mbit}]
schedule:
  - {at: 1s, link: a-b, direction: backward, set: {rate: 50mbit}}
  - {at: 2s, link: a-b, direction: forward, set: {jitter: 5ms}}
  - {at: 3s, link: a-b, direction: backward, set: {rate: 20mbit}}
"""


def test_a_change_by_hand_may_make_a_later_entry_impossible_which_then_stops_the_schedule_and_is_a_fault():
    stage = Stage(IMPOSSIBLE)
    stage.player.begin()
    stage.at(0.5).set("a-b", ["forward.delay=2ms"])
    stage.at(1.5).play()
    assert [direction for _, direction, *_ in stage.applied] == [FORWARD, BACKWARD]
    assert stage.player.faults == []
    stage.at(4).play()
    assert len(stage.applied) == 2
    (fault,) = stage.player.faults
    assert fault.startswith("the schedule stopped at 2s: a-b forward: jitter: ")
    assert stage.player.wait_s() is None


def test_a_change_that_would_be_impossible_at_once_is_refused_and_changes_nothing():
    stage = Stage(IMPOSSIBLE)
    stage.player.begin()
    stage.at(2.5).play()
    before = list(stage.applied)
    with pytest.raises(UserError, match="jitter"):
        stage.player.set("a-b", ["forward.delay=2ms"])
    assert (stage.applied, stage.player.faults) == (before, [])
    stage.at(3.5).play()
    assert stage.applied[-1][3] == "20mbit"


def test_a_change_that_the_carrier_refuses_is_a_fault_and_the_schedule_goes_on():
    stage = Stage(IMPOSSIBLE)
    honest = stage.player.apply

    def broken(direction, impairment):
        if impairment.jitter:
            raise NetlabError("the relay does not answer")
        return honest(direction, impairment)

    stage.player.apply = broken
    stage.player.begin()
    stage.at(3.5).play()
    assert [rate for _, _, _, rate, _ in stage.applied] == ["50mbit", "20mbit"]
    (fault,) = stage.player.faults
    assert fault == f"{FORWARD}: the change to jitter 5ms uniform, due at 2s, was refused: the relay does not answer"


def test_what_a_carrier_cannot_do_is_refused_before_anything_changes():
    stage = Stage(IMPOSSIBLE)

    def no_loss(direction, impairment):
        if impairment.loss:
            raise UserError("not here")

    stage.player.check = no_loss
    stage.player.begin()
    with pytest.raises(UserError, match="not here"):
        stage.player.set("a-b", ["loss=1%"])
    assert stage.applied == []
    stage.at(1).set("a-b", ["delay=21ms"])
    assert [delay for _, _, delay, _, _ in stage.applied] == [20, 21, 21]
