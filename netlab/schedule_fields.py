"""The `schedule` of a profile, and traces -> entries of a timeline. Pure.

Part of `netlab.profile`. Reads what each entry says; whether what it makes of a link can be is found out by playing it
(`netlab.schedule.check`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netlab.attached import Attached
from netlab.document import Items, Node, Table, describe
from netlab.errors import UnitError
from netlab.fields import Fields, Problems, did_you_mean, read_fields, read_text, read_unit
from netlab.impairment import Framing
from netlab.link_fields import LIVE_HINTS, LIVE_KEYS, read_settings
from netlab.network import Link
from netlab.settings import SCALAR_KEYS, Settings, amount_text, figure, settings_of, with_figure
from netlab.timeline import WAYS, Entry, Hold, OnStep, Ramp, Series, Shape, Sine, Target, Way
from netlab.traces import MAHIMAHI_PACKET, csv_series, mahimahi_series
from netlab.units import Delay, Duration, Fraction, Rate, quote

DEFAULT_STEP = Duration(100_000_000)
SHORTEST_STEP_NS = 1_000_000
STEPS_PER_PERIOD = 4  # of a sine, at least
MAX_TIMES = 1_000_000
MAX_STEP_NUMBER = 10**9
MAX_RANK = 10**6

CHANGES = ("set", "ramp", "sine", "flap", "trace", "partition")
ENTRY_KEYS = ("at", "link", "links", "direction", *CHANGES, "over", "period", "step", "for", "every", "times")
_ENTRY_HINTS = {
    "after": "write at",
    "duration": "write for",
    "repeat": "write every",
    "down": "write set: {state: down}",
}
_ENTRY_HINTS |= {key: f"write set: {{{key}: ...}}" for key in LIVE_KEYS}
_FIGURES: Mapping[str, type[Delay] | type[Rate] | type[Fraction]] = {
    "delay": Delay,
    "rate": Rate,
    "jitter": Delay,
    "loss": Fraction,
    "duplicate": Fraction,
    "reorder": Fraction,
    "corrupt": Fraction,
}


# --- traces -------------------------------------------------------------------------------------------------


def read_trace(node: Node, problems: Problems, attached: Attached, framing: Framing) -> Series | None:
    """{csv: FILE} or {mahimahi: FILE, step: 100ms}, both with loop: true or false."""
    fields = read_fields(node, problems, ("csv", "mahimahi", "loop", "step"))
    if fields is None:
        return None
    loop, step = fields.boolean("loop"), _length(fields, "step", DEFAULT_STEP)
    kinds = [key for key in ("csv", "mahimahi") if fields.has(key)]
    if len(kinds) != 1:
        problems.add(node.place, "one file is wanted: csv: FILE or mahimahi: FILE")
        return None
    if kinds == ["csv"] and fields.has("step"):
        fields.fault("step", "belongs to mahimahi: a csv says its own times")
        return None
    source = fields.node(kinds[0])
    file = attached.text(source, problems) if source else None
    if file is None or step is None or (loop is None and fields.has("loop")):
        return None
    name, text, packet = *file, framing.wire_bytes(MAHIMAHI_PACKET)
    try:
        if kinds == ["csv"]:
            return csv_series(text, name, loop is not False)
        return mahimahi_series(text, name, step.ns, packet, loop is not False)
    except UnitError as error:
        fields.fault(kinds[0], str(error))
        return None


def _length(fields: Fields, key: str, default: Duration) -> Duration | None:
    """A time of at least a millisecond; None when it is faulty."""
    if not fields.has(key):
        return default
    length = fields.unit(key, Duration)
    if length is not None and length.ns < SHORTEST_STEP_NS:
        fields.fault(key, f"{quote(str(length))} is too short: at least {Duration(SHORTEST_STEP_NS)}")
        return None
    return length


# --- entries ------------------------------------------------------------------------------------------------


def read_schedule(top: Fields, links: Sequence[Link], sites: Sequence[str], attached: Attached) -> tuple[Entry, ...]:
    """The entries of `schedule`, in the order of the file. Those with a fault are missing."""
    entries = []
    for node in top.items("schedule") or ():
        fields = read_fields(node, top.problems, ENTRY_KEYS, hints=_ENTRY_HINTS)
        entry = _Reader(fields, links, sites, attached).entry() if fields else None
        entries += [entry] if entry else []
    return tuple(entries)


@dataclass(frozen=True)
class _Reader:
    """Reads one entry."""

    fields: Fields
    links: Sequence[Link]
    sites: Sequence[str]
    attached: Attached

    def entry(self) -> Entry | None:
        found_before = len(self.fields.problems.found)
        at = self._at()
        lasts, every = (self._optional(key) for key in ("for", "every"))
        times = self.fields.integer("times", 1, MAX_TIMES)
        self._check_repetition(lasts, every)
        targets = self._targets(lasts)
        if at is None or len(self.fields.problems.found) > found_before:
            return None
        place = self.fields.place
        return Entry(at, tuple(targets), lasts, every, times, place.key, place.line)

    def _at(self) -> Duration | OnStep | None:
        node = self.fields.node("at", required=True)
        if not isinstance(node, Table):
            return None if node is None else read_unit(node, self.fields.problems, Duration)
        fields = read_fields(node, self.fields.problems, ("step", "rank"))
        assert fields is not None, "a mapping"
        step = fields.integer("step", 0, MAX_STEP_NUMBER, required=True)
        rank = fields.integer("rank", 0, MAX_RANK) if fields.has("rank") else 0
        return None if step is None or rank is None else OnStep(step, rank)

    def _optional(self, key: str) -> Duration | None:
        return _length(self.fields, key, Duration(0)) if self.fields.has(key) else None

    def _check_repetition(self, lasts: Duration | None, every: Duration | None) -> None:
        if self.fields.has("times") and not self.fields.has("every"):
            self.fields.fault("times", "needs every: how long after its start it happens again")
        if every is None:
            return
        if not self.fields.has("for"):
            self.fields.fault("every", "needs for: how long it lasts each time")
        elif lasts is not None and lasts > every:
            self.fields.fault("for", f"{quote(str(lasts))} is longer than every, {every}: it would overlap itself")

    def _targets(self, lasts: Duration | None) -> list[Target]:
        changes = [key for key in CHANGES if self.fields.has(key)]
        if len(changes) != 1:
            found = " and ".join(changes) or "none"
            self.fields.problems.add(self.fields.place, f"one change is wanted, found {found}: {', '.join(CHANGES)}")
            return []
        (kind,) = changes
        self._check_companions(kind)
        if kind == "partition":
            return self._partition()
        links, ways = self._links(), self._ways()
        if kind == "set":
            return self._set(links, ways)
        make = {"ramp": self._ramp, "sine": self._sine, "flap": self._flap, "trace": self._trace}[kind]
        pairs = [(link, way, make(link, way, lasts)) for link in links for way in ways]
        return [Target(link.name, way, shape) for link, way, shape in pairs if shape is not None]

    def _check_companions(self, kind: str) -> None:
        """Keys that mean something only beside another one."""
        wanted = {"over": ("ramp",), "period": ("sine",), "step": ("ramp", "sine")}
        for key, kinds in wanted.items():
            if self.fields.has(key) and kind not in kinds:
                self.fields.fault(key, f"belongs to {' and '.join(kinds)}, not to {kind}")
        for key in ("link", "links", "direction"):
            if self.fields.has(key) and kind == "partition":
                self.fields.fault(key, "the groups of a partition say which links go down, in both directions")

    def _links(self) -> list[Link]:
        if self.fields.has("link") == self.fields.has("links"):
            self.fields.fault("link", "name one link, or several: links: [a-b, b-c]")
            return []
        nodes = [self.fields.node("link")] if self.fields.has("link") else self.fields.items("links") or ()
        names = [read_text(node, self.fields.problems) for node in nodes if node is not None]
        if self.fields.has("links") and not names:
            self.fields.fault("links", "names no link")
        known = {link.name: link for link in self.links}
        for name in names:
            if name is not None and name not in known:
                hint = did_you_mean(name, known)
                key = "link" if self.fields.has("link") else "links"
                self.fields.fault(key, f"{quote(name)} is not a link (links: {', '.join(known)}){hint}")
        return [known[name] for name in dict.fromkeys(names) if name in known]

    def _ways(self) -> tuple[Way, ...]:
        name = self.fields.string("direction", pattern="forward|backward|both", allowed="forward, backward or both")
        return tuple(way for way in WAYS if name in (None, "both", way))

    def _set(self, links: Sequence[Link], ways: Sequence[Way]) -> list[Target]:
        fields = self.fields.fields("set", (*LIVE_KEYS, "rtt", *WAYS), hints=LIVE_HINTS)
        if fields is None:
            return []
        if self.fields.has("direction") and any(fields.has(key) for key in ("rtt", *WAYS)):
            self.fields.fault("direction", "excludes rtt, forward and backward in set: they name directions themselves")
        found = read_change(fields, self.attached)
        pairs = [(link, way) for link in links for way in ways if found[way]]
        return [Target(link.name, way, Hold(found[way])) for link, way in pairs]

    def _figures(self, key: str) -> dict[str, int]:
        """The figures of a ramp or sine, key by key."""
        fields = self.fields.fields(key, SCALAR_KEYS, hints={"rtt": "write delay, one way"})
        if fields is None:
            return {}
        quantities = {name: fields.unit(name, _FIGURES[name]) for name in SCALAR_KEYS if fields.has(name)}
        if not quantities:
            fields.problems.add(fields.place, f"nothing to change: {', '.join(SCALAR_KEYS)}")
        return {name: _amount(quantity) for name, quantity in quantities.items() if quantity is not None}

    def _ramp(self, link: Link, way: Way, lasts: Duration | None) -> Shape | None:
        targets, over = self._figures("ramp"), self._needed("over")
        step = _length(self.fields, "step", DEFAULT_STEP)
        if over is None or step is None:
            return None
        if lasts is not None and lasts < over:
            self.fields.fault("for", f"{quote(str(lasts))} is shorter than over, {over}: the ramp would not arrive")
        if step > over:
            self.fields.fault("step" if self.fields.has("step") else "over", f"a step of {step} is longer than {over}")
        return Ramp(targets, over.ns, step.ns)

    def _sine(self, link: Link, way: Way, lasts: Duration | None) -> Shape | None:
        amplitudes, period = self._figures("sine"), self._needed("period")
        step = _length(self.fields, "step", DEFAULT_STEP)
        if period is None or step is None:
            return None
        if step.ns * STEPS_PER_PERIOD > period.ns:
            key = "step" if self.fields.has("step") else "period"
            self.fields.fault(key, f"{period} has fewer than {STEPS_PER_PERIOD} steps of {step}: too coarse for a wave")
        means = settings_of(link.impairment(way))
        for key, amplitude in amplitudes.items():
            self._check_wave(link, means, key, amplitude)
        return Sine(amplitudes, means, period.ns, step.ns)

    def _check_wave(self, link: Link, means: Settings, key: str, amplitude: int) -> None:
        mean = figure(means, key)
        if mean is None:
            what = "has no rate" if key == "rate" else f"has a {key} of more than one figure"
            self.fields.fault("sine", f"{key}: {link.name} {what} for a wave to move around")
            return
        for extreme in (mean - amplitude, mean + amplitude):
            try:
                with_figure(means, key, extreme)
            except UnitError:
                reached = f"{amount_text(key, mean - amplitude)} to {amount_text(key, mean + amplitude)}"
                self.fields.fault("sine", f"{key}: around {link.name}'s own {amount_text(key, mean)} it would go from "
                                  f"{reached}, beyond what is allowed")  # fmt: skip
                return

    def _needed(self, key: str) -> Duration | None:
        if not self.fields.has(key):
            self.fields.fault(key, "is missing")
            return None
        return _length(self.fields, key, DEFAULT_STEP)

    def _flap(self, link: Link, way: Way, lasts: Duration | None) -> Shape | None:
        fields = self.fields.fields("flap", ("down", "up"))
        lengths = [fields.unit(key, Duration, required=True) for key in ("down", "up")] if fields else []
        good = [length.ns for length in lengths if length is not None]
        if fields is None or len(good) < 2:
            return None
        for key, length in zip(("down", "up"), good, strict=True):
            if length < SHORTEST_STEP_NS:
                fields.fault(key, f"{quote(str(Duration(length)))} is too short: at least {Duration(SHORTEST_STEP_NS)}")
        down, up = good
        return Series(((0, {"state": False}), (down, {"state": True})), down + up)

    def _trace(self, link: Link, way: Way, lasts: Duration | None) -> Shape | None:
        node = self.fields.node("trace")
        assert node is not None, "asked for before"
        return read_trace(node, self.fields.problems, self.attached, link.impairment(way).framing)

    def _partition(self) -> list[Target]:
        groups = self._groups()
        if groups is None:
            return []
        between = (link for link in self.links if link.a in self.sites)  # the others lead from a worker to its site
        cut = [link for link in between if groups.get(link.a) != groups.get(link.b)]
        if not cut:
            self.fields.fault("partition", "no link leads from one of the groups to another: nothing would change")
        return [Target(link.name, way, Hold({"state": False})) for link in cut for way in WAYS]

    def _groups(self) -> dict[str, int] | None:
        """The number of each named site's group; sites that are not named form one more."""
        problems, groups = self.fields.problems, dict[str, int]()
        items = self.fields.items("partition")
        for number, group in enumerate(items or ()):
            if not isinstance(group, Items):
                problems.add(group.place, f"{describe(group)} found where a list of sites is wanted: [[a, b], [c]]")
                return None
            for node in group.items:
                name = read_text(node, problems)
                if name is not None and name not in self.sites:
                    hint = did_you_mean(name, self.sites)
                    problems.add(node.place, f"{quote(name)} is not a site (sites: {', '.join(self.sites)}){hint}")
                elif name is not None and groups.setdefault(name, number) != number:
                    problems.add(node.place, f"{quote(name)} is in two groups")
        return groups if items is not None else None


def read_change(fields: Fields, attached: Attached) -> dict[Way, dict[str, Any]]:
    """What `set: {...}` or `netlab set` asks of each direction: its own keys, then those below forward or backward."""
    common = read_settings(fields, attached)
    found: dict[Way, dict[str, Any]] = {}
    for number, way in enumerate(WAYS):
        own = fields.fields(way, LIVE_KEYS, hints=LIVE_HINTS)
        found[way] = {**common, **read_settings(own, attached)}
        rtt = fields.unit("rtt", Delay)
        if rtt is not None:
            if "delay" in found[way]:
                fields.fault("rtt", "excludes delay: rtt is both ways together, delay is one way")
            found[way]["delay"] = Delay((rtt.ns + 1 - number) // 2)
    if not any(found.values()) and not fields.problems.found:
        fields.problems.add(fields.place, f"nothing to change: {', '.join(LIVE_KEYS)} or rtt")
    return found


def _amount(quantity: Delay | Rate | Fraction) -> int:
    if isinstance(quantity, Delay):
        return quantity.ns
    return quantity.bps if isinstance(quantity, Rate) else quantity.ppb
