"""Plays a lab's changes over time: its schedule, what training steps set off, and what a user changes by hand.

Between `netlab.schedule`, which says what changes when and reads no clock, and the executor, which applies one state
to one direction. The keeper asks `wait_s` how long it may sleep and then calls `play`. `begin` starts the profile's
schedule, with the job for which it is meant: while the lab is verified the links are as the profile's base says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from netlab.errors import NetlabError
from netlab.impairment import Impairment
from netlab.live import set_now
from netlab.schedule import Change, Clash, Started, changes, on_step
from netlab.timeline import OnStep
from netlab.topology import Topology, carried
from netlab.units import Duration

Apply = Callable[[str, Impairment], int]
"""Gives a direction (by its name in the plan) a new state; returns the CLOCK_MONOTONIC ns from which it holds."""

Note = Callable[[Change, str, int, int], None]
"""Records a change: the change, its direction, when it was due and when it held (CLOCK_MONOTONIC ns)."""

Check = Callable[[str, Impairment], None]
"""Raises UserError when a direction cannot be given this state."""


def anything(_direction: str, _impairment: Impairment) -> None:
    """The Check of a carrier that can do all that a profile can say."""


@dataclass
class Player:
    """The changes of one lab. ``clock`` is CLOCK_MONOTONIC in ns.

    ``faults`` say what was asked for and did not come to pass: the network is not the one asked for from then on.
    """

    topology: Topology
    apply: Apply
    note: Note
    clock: Callable[[], int]
    check: Check = anything
    faults: list[str] = field(default_factory=list)
    _origin_ns: int = 0
    _playing: bool = False
    _started: list[Started] = field(default_factory=list)
    _stream: Iterator[Change] = field(default_factory=lambda: iter(()))
    _next: Change | Clash | None = None
    _stopped: bool = False

    def __post_init__(self) -> None:
        """Nothing has begun."""
        self._origin_ns = self.clock()

    def begin(self) -> int:
        """Start the profile's schedule at this moment, unless it has begun; returns its start."""
        if not self._playing:
            self._origin_ns = self.clock()
            self._playing = True
            self._restart(Duration(0))
            self.play()
        return self._origin_ns

    def reached(self, rank: int, step: int) -> bool:
        """A training step begins; True when an entry waited for it."""
        self.begin()
        waiting = [entry for entry in on_step(self.topology.profile) if entry.at == OnStep(step, rank)]
        now = self._now()
        self._play_until(now)
        self._started += [(entry, now) for entry in waiting]
        if waiting:
            self._restart(now)
            self.play()
        return bool(waiting)

    def set(self, link: str, words: Sequence[str]) -> list[str]:
        """Change a link by hand, at once; returns the directions that got a new state. Begins the schedule.

        Raises UserError, and then nothing has changed.
        """
        if not self._playing:
            self.begin()
        now = self._now()
        self._play_until(now)
        entry, first = set_now(self.topology.profile, link, words, self._started, now)
        for change in first:
            self.check(*self._carried(change))
        self._started.append((entry, now))
        touched = [self._apply(change) for change in first]
        self._restart(Duration(now.ns + 1))
        return touched

    def wait_s(self) -> float | None:
        """Seconds until the next change is due, or None."""
        if self._next is None:
            return None
        return max(0.0, (self._origin_ns + self._next.at.ns - self.clock()) / 1e9)

    def play(self) -> None:
        """Apply every change that is due."""
        while self._next is not None and self._next.at <= self._now():
            self._play_until(self._now())

    def _play_until(self, now: Duration) -> None:
        """Apply what is due by `now`, and nothing later: a restart from there on must miss nothing."""
        while self._next is not None and self._next.at <= now:
            due = self._next
            self._look_ahead()
            if isinstance(due, Clash):
                self._stop(due)
            elif due.values:
                self._carry_out(due)

    def _look_ahead(self) -> None:
        """A clash that comes is kept for its moment: until then the schedule can be followed."""
        try:
            self._next = next(self._stream, None)
        except Clash as clash:
            self._next = clash

    def _stop(self, clash: Clash) -> None:
        self._stopped = True
        self._next, self._stream = None, iter(())
        self.faults.append(f"the schedule stopped at {clash.at}: {clash}")

    def _carry_out(self, change: Change) -> None:
        """Apply a change of the schedule. One that is refused is a fault; the rest of the schedule is followed."""
        try:
            self._apply(change)
        except (NetlabError, OSError):
            return  # it is among the faults

    def _now(self) -> Duration:
        return Duration(self.clock() - self._origin_ns)

    def _restart(self, since: Duration) -> None:
        if not self._stopped:
            self._stream = changes(self.topology.profile, self._started, since)
            self._look_ahead()

    def _carried(self, change: Change) -> tuple[str, Impairment]:
        return carried(self.topology, change.link, change.way, change.impairment)

    def _apply(self, change: Change) -> str:
        direction, impairment = self._carried(change)
        try:
            held = self.apply(direction, impairment)
        except (NetlabError, OSError) as error:
            values = ", ".join(f"{key} {value}" for key, value in change.values.items())
            self.faults.append(f"{direction}: the change to {values}, due at {change.at}, was refused: {error}")
            raise
        self.note(change, direction, self._origin_ns + change.at.ns, held)
        return direction
