"""`netlab set LAB LINK key=value ...` -> an entry of the lab's timeline, checked against what is in force. Pure.

The words are read as if they stood in a profile's `schedule: [{at: now, link: LINK, set: {...}}]`, with the same units,
rules and messages. A change by hand holds until another entry speaks for the same key: an entry of the schedule that
begins later, or another change by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from netlab.attached import Attached, no_files
from netlab.document import Node, Place, Scalar, Table, parse_document
from netlab.errors import DocumentError, UserError
from netlab.fields import Problems, did_you_mean, read_fields
from netlab.link_fields import LIVE_HINTS, LIVE_KEYS
from netlab.network import Profile
from netlab.schedule import Change, Clash, Started, changes
from netlab.schedule_fields import read_change
from netlab.timeline import WAYS, Entry, Hold, Target
from netlab.units import Duration, quote

BY_HAND = "set"  # the label of an entry made here


def set_now(
    profile: Profile, link: str, words: Sequence[str], started: Sequence[Started], now: Duration
) -> tuple[Entry, tuple[Change, ...]]:
    """The entry that the words ask for, and what changes at once when it is started at `now`.

    `started` are the entries that are already set off (see `netlab.schedule.changes`); the caller appends (entry, now)
    to them. No change: everything is as asked for already. Raises UserError, and then nothing must be done.
    """
    entry = parse_set(profile, link, words)
    first = []
    try:
        for change in changes(profile, [*started, (entry, now)], now):
            if change.at != now:
                break
            first.append(change)
    except Clash as clash:
        if clash.at <= now:
            raise UserError(f"set {link}: {clash}") from None
    return entry, tuple(change for change in first if change.values)


def parse_set(profile: Profile, link: str, words: Sequence[str]) -> Entry:
    """The entry that "rate=10mbit", "backward.loss=1%" or "loss={probability: 1%, burst: 4}" ask for.

    Raises UserError for an unknown link, DocumentError with all faults of the words.
    """
    known_link(profile, link)
    problems = Problems()
    place = Place(f"set {link}", 0)
    table = _table(words, place, problems)
    problems.raise_as(DocumentError)
    fields = read_fields(table, problems, (*LIVE_KEYS, "rtt", *WAYS), hints=LIVE_HINTS)
    assert fields is not None, "a mapping"
    found = read_change(fields, Attached(no_files))
    problems.raise_as(DocumentError)
    targets = tuple(Target(link, way, Hold(found[way])) for way in WAYS if found[way])
    return Entry(Duration(0), targets, label=BY_HAND)


def known_link(profile: Profile, name: str) -> None:
    """Raises UserError, naming those that there are, where nothing of that name can be changed or measured."""
    known = [link.name for link in profile.shaped]
    if name not in known:
        names = ", ".join(known) or "none"
        raise UserError(f"{quote(name)} is not a link of {profile.name} (links: {names}){did_you_mean(name, known)}")


def _table(words: Sequence[str], place: Place, problems: Problems) -> Table:
    """The words as a mapping, "backward.loss" as a mapping below backward."""
    entries: dict[str, Node] = {}
    below: dict[str, dict[str, Node]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            problems.add(place, f"{quote(word)} is not KEY=VALUE, like rate=10mbit or backward.loss=1%")
            continue
        way, dot, inner = key.partition(".")
        part, name = (below.setdefault(way, {}), inner) if dot and way in WAYS else (entries, key)
        if name in part or key in below or (part is not entries and way in entries):
            problems.add(place, f"{quote(key)} is given twice")
            continue
        value = _value(
            text, place.child(way, 0).child(inner, 0) if part is not entries else place.child(key, 0), problems
        )
        part |= {name: value} if value else {}
    entries |= {way: Table(place.child(way, 0), part) for way, part in below.items()}
    return Table(place, entries)


def _value(text: str, place: Place, problems: Problems) -> Node | None:
    """A text, or a mapping or list in YAML's flow style."""
    if not text.startswith(("{", "[")):
        return Scalar(place, text)
    try:
        return _moved(parse_document(text, place.path), place)
    except DocumentError as error:
        problems.add(place, str(error).removeprefix(f"{place.path}:1: "))
        return None


def _moved(node: Node, place: Place) -> Node:
    """The same tree, as if it stood at `place`."""
    if isinstance(node, Table):
        return Table(place, {key: _moved(value, place.child(key, 0)) for key, value in node.entries.items()})
    if isinstance(node, Scalar):
        return Scalar(place, node.text)
    return type(node)(place, tuple(_moved(item, place.item(number, 0)) for number, item in enumerate(node.items)))
