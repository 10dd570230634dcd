"""Profile -> what changes on its links, and when: an ordered stream of full states. Pure.

Between a profile's schedule and whoever applies it (the lab's keeper): `changes` yields, in the order of time, each
moment at which a direction of a link gets another state, with that whole state. It is lazy, because a schedule may
be endless, and reads no clock: the player waits until `at` and applies. What a user changes by hand, and what a
training step sets off, are entries too, which the player adds as `started`.

`check` plays a schedule in advance, so that what cannot be is refused with the profile and not in the middle of a run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from netlab.errors import UnitError, UserError
from netlab.impairment import Impairment
from netlab.network import Link, Profile
from netlab.settings import Conflict, Settings, figure, resolve, setting_text, settings_of
from netlab.timeline import WAYS, Entry, Hold, OnStep, Ramp, Series, Shape, Sine, Way
from netlab.units import NS_PER_S, Duration, Rate

START = Duration(0)
CHECKED_MOMENTS = 5_000
CHECKED_NS = 24 * 3600 * NS_PER_S
SILENT_MOMENTS = 1_000  # at most so many without a visible change before `changes` repeats a state, to get on

_JUDGED = ("jitter", "loss", "duplicate", "reorder", "corrupt")

Started = tuple[Entry, Duration]
"""An entry and the moment, counted from the start of the schedule, at which it was set off."""


@dataclass(frozen=True)
class Change:
    """A direction of a link gets another state.

    at: counted from the start of the schedule. values: the settings that differ from before, as text, for people and
    records. impairment: the whole new state of the link (an uplink folded into it is not: see `netlab.topology`).
    causes: the entries that begin, move or end here, as they are labelled ("schedule[0]").
    """

    at: Duration
    link: str
    way: Way
    values: Mapping[str, str]
    impairment: Impairment
    causes: tuple[str, ...]


class Clash(UserError):
    """Entries that together ask for what cannot be. `entry` is the one that brought it about, `at` the moment at which
    they would."""

    def __init__(self, entry: Entry, at_ns: int, message: str) -> None:
        """Keep the entry for the caller, who knows where it is written."""
        self.entry = entry
        self.at = Duration(at_ns)
        super().__init__(message)


def changes(profile: Profile, started: Sequence[Started] = (), since: Duration = START) -> Iterator[Change]:
    """All changes from `since` on, in the order of time; those of one moment in the order of the links.

    `started`: the entries that were set off by a training step (`on_step`) or by hand, in the order in which they were.
    The same arguments give the same changes. A change without `values` repeats the state in force: an endless schedule
    that changes nothing visible says so from time to time. Raises Clash where one comes, after all changes before it.
    """
    silent = 0
    for change in _moments(profile, started, since):
        silent = 0 if change.values else silent + 1
        if change.values or silent % SILENT_MOMENTS == 0:
            yield change


def _moments(profile: Profile, started: Sequence[Started], since: Duration) -> Iterator[Change]:
    """Every moment at which a shape moves, begins or ends, also where nothing visible follows."""
    own = [(entry, entry.at) for entry in profile.schedule if isinstance(entry.at, Duration)]
    directions = [(link, way) for link in profile.shaped for way in WAYS]
    tracks = [_track(link, way, [*own, *started]) for link, way in directions]
    streams = [_numbered(number, track.play(since.ns)) for number, track in enumerate(tracks) if track.starts]
    for _, change in heapq.merge(*streams, key=lambda item: item[0]):
        if isinstance(change, Clash):
            raise change
        yield change


def _numbered(number: int, stream: Iterator[Change]) -> Iterator[tuple[tuple[int, int], Change | Clash]]:
    """With its place in time; a clash has one, too, because merging looks ahead."""
    try:
        for change in stream:
            yield (change.at.ns, number), change
    except Clash as clash:
        yield (clash.at.ns, number), clash


def on_step(profile: Profile) -> tuple[Entry, ...]:
    """The entries that wait for a step of a training job; their `at` says which."""
    return tuple(entry for entry in profile.schedule if isinstance(entry.at, OnStep))


def disturbed(profile: Profile, slow: Rate) -> frozenset[str]:
    """Names of the links that some entry makes slower than `slow`, or where it makes something judge single packets.

    For plans: senders on such a link must not hand over units of many packets, from the start.
    """
    targets = [target for entry in profile.schedule for target in entry.targets]
    return frozenset(target.link for target in targets if _needs_single_packets(target.shape, slow))


def _needs_single_packets(shape: Shape, slow: Rate) -> bool:
    if isinstance(shape, Hold):
        states: list[Settings] = [shape.values]
    elif isinstance(shape, Series):
        states = [values for _, values in shape.points]
    else:
        figures = shape.targets if isinstance(shape, Ramp) else shape.amplitudes
        lowest = figures.get("rate", slow.bps)
        if isinstance(shape, Sine) and "rate" in figures:
            lowest = (figure(shape.means, "rate") or 0) - lowest
        return lowest < slow.bps or any(figures.get(key) for key in _JUDGED)
    return any(_judged(values) or values.get("rate", slow) < slow for values in states)


def _judged(values: Settings) -> bool:
    queue = values.get("queue")
    return any(values.get(key) is not None for key in _JUDGED) or (queue is not None and queue.codel is not None)


def check(profile: Profile) -> tuple[Clash, ...]:
    """Clashes that a schedule leads to: by itself, and with each entry that waits for a step, as if set off at once.

    Plays the first 24 hours, up to 5000 moments in all. What comes later, or of a combination of steps, `changes`
    still refuses.
    """
    found = []
    for play in _plays(profile):
        try:
            for _ in play:
                pass
        except Clash as clash:
            found.append(clash)
    return tuple(found)


def foreseen(profile: Profile) -> tuple[tuple[str, Way, Impairment], ...]:
    """The different states to which the schedule of a checked profile leads, as far as `check` plays it.

    For whoever has to know beforehand whether a carrier can do them all.
    """
    states = [(change.link, change.way, change.impairment) for play in _plays(profile) for change in play]
    return tuple(dict.fromkeys(states))


def _plays(profile: Profile) -> Iterator[Iterator[Change]]:
    """The beginning of the schedule, by itself and with each entry that waits for a step."""
    plays: list[tuple[Started, ...]] = [(), *(((entry, START),) for entry in on_step(profile))]
    moments = max(CHECKED_MOMENTS // len(plays), 50)
    for started in plays:
        play = islice(_moments(profile, started, START), moments)
        yield takewhile(lambda change: change.at.ns <= CHECKED_NS, play)


@dataclass(frozen=True)
class _Active:
    """An entry's shape at work in this direction. `before`: the settings it found."""

    start_ns: int
    number: int
    end_ns: int | None
    entry: Entry
    shape: Shape
    before: Settings

    def settings(self, at_ns: int) -> Settings:
        return self.shape.settings(at_ns - self.start_ns, self.before)

    def next_ns(self, at_ns: int) -> int | None:
        """The next moment after `at_ns` at which its settings change or it ends."""
        tick = self.shape.next_ns(at_ns - self.start_ns)
        times = [tick + self.start_ns] if tick is not None else []
        return min([*times, *([self.end_ns] if self.end_ns is not None else [])], default=None)


def _track(link: Link, way: Way, entries: Sequence[Started]) -> _Track:
    starts = [
        (at.ns, number, entry, target.shape)
        for number, (entry, at) in enumerate(entries)
        for target in entry.targets
        if (target.link, target.way) == (link.name, way)
    ]
    return _Track(link, way, starts)


_Waiting = tuple[int, int, int, Entry, Shape]
"""A round of an entry that will begin: when, the entry's number, the round's number, the entry, its shape."""


class _Track:
    """The timeline of one direction."""

    def __init__(self, link: Link, way: Way, starts: list[tuple[int, int, Entry, Shape]]) -> None:
        self.starts = starts
        self._link, self._way = link, way
        self._base = settings_of(link.impairment(way))
        self._has_ramps = any(isinstance(shape, Ramp) for *_, shape in starts)
        self._active: list[_Active] = []
        self._state: Impairment | None = None

    def play(self, since_ns: int) -> Iterator[Change]:
        """The changes from `since_ns` on. Before that moment only beginnings and ends are followed."""
        waiting = [self._first_round(*start, since_ns) for start in self.starts]
        heapq.heapify(waiting)
        at_ns: int | None = None
        while (at_ns := self._next(waiting, at_ns, since_ns)) is not None:
            before = self._settings(at_ns - 1) if at_ns else self._base
            causes = self._advance(waiting, at_ns)
            after = self._settings(at_ns)
            values = {key: setting_text(key, after.get(key)) for key in after if after.get(key) != before.get(key)}
            if values:
                self._state = None
            if at_ns >= since_ns:
                self._state = self._state or self._resolve(after, causes, at_ns)
                labels = tuple(entry.label for entry in causes)
                yield Change(Duration(at_ns), self._link.name, self._way, values, self._state, labels)

    def _first_round(self, start_ns: int, number: int, entry: Entry, shape: Shape, since_ns: int) -> _Waiting:
        """The first round of an entry that can still matter at `since_ns`: those that ended before have left nothing,
        unless a ramp began with what they made.
        """
        rounds = 0
        if entry.every is not None and entry.lasts is not None and not self._has_ramps:
            rounds = max(0, (since_ns - start_ns - entry.lasts.ns) // entry.every.ns)
            rounds = min(rounds, (entry.times or rounds + 1) - 1)
        return start_ns + rounds * (entry.every.ns if entry.every else 0), number, rounds, entry, shape

    def _next(self, waiting: list[_Waiting], after_ns: int | None, since_ns: int) -> int | None:
        """The next moment at which anything may change; movements before `since_ns` are passed over."""
        times = [waiting[0][0]] if waiting else []
        for active in self._active:
            assert after_ns is not None, "nothing is active before the first start"
            from_ns = max(after_ns, since_ns - 1)
            ends = [active.end_ns] if active.end_ns is not None and active.end_ns > after_ns else []
            moves = active.next_ns(from_ns)
            times += [*ends, *([moves] if moves is not None and moves > after_ns else [])]
        return min(times, default=None)

    def _advance(self, waiting: list[_Waiting], at_ns: int) -> list[Entry]:
        """End and begin what is due at this moment. Returns the entries that have to do with it."""
        causes = {active.number: active.entry for active in self._active if active.next_ns(at_ns - 1) == at_ns}
        self._active = [active for active in self._active if active.end_ns is None or active.end_ns > at_ns]
        while waiting and waiting[0][0] == at_ns:
            _, number, count, entry, shape = heapq.heappop(waiting)
            self._begin(at_ns, number, entry, shape)
            causes[number] = entry
            if entry.every is not None and (entry.times is None or count + 1 < entry.times):
                heapq.heappush(waiting, (at_ns + entry.every.ns, number, count + 1, entry, shape))
        return [causes[number] for number in sorted(causes)]

    def _begin(self, at_ns: int, number: int, entry: Entry, shape: Shape) -> None:
        before = self._settings(at_ns)
        for key in shape.targets if isinstance(shape, Ramp) else ():
            if figure(before, key) is None:
                what = (
                    "there is no rate" if key == "rate" else f"{setting_text(key, before.get(key))} has no one figure"
                )
                raise Clash(entry, at_ns, f"ramp: {key}: {self._link.name} {self._way}: {what} to start from")
        end_ns = None if entry.lasts is None else at_ns + entry.lasts.ns
        self._active.append(_Active(at_ns, number, end_ns, entry, shape, before))

    def _settings(self, at_ns: int) -> dict[str, Any]:
        """The settings in force: the profile's, then those of each entry in the order in which they started."""
        merged = dict(self._base)
        for active in self._active:
            try:
                merged.update(active.settings(at_ns))
            except UnitError as error:
                raise Clash(active.entry, at_ns, f"{self._link.name} {self._way}: {error}") from None
        return merged

    def _resolve(self, settings: Settings, causes: Sequence[Entry], at_ns: int) -> Impairment:
        try:
            return resolve(settings, self._link.rtt, self._link.mtu)
        except Conflict as conflict:
            where = f"{self._link.name} {self._way}: {conflict.key}"
            raise Clash(causes[-1], at_ns, f"{where}: {conflict}") from None
