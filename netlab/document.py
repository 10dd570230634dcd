"""YAML text -> a tree of nodes that know where they stand in the file. Pure.

First step for every document a user writes: profiles here, experiments in cpdp. `netlab.fields` then reads
typed values from the tree. YAML serves only for its punctuation: a scalar stays the text that was written,
and the reader, who knows what is wanted, gives it a meaning. So "no" can be a site, 1e9 and 1.0e+9 are the
same number, and 1:30 is never 90. Duplicate keys, anchors, aliases, tags and several documents in one file
are refused: each makes a file mean something else than it shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from netlab.errors import DocumentError
from netlab.units import quote

MAX_CHARACTERS = 256 * 1024  # far more than any real document; bounds the time that a hostile one can take
MAX_DEPTH = 20


@dataclass(frozen=True)
class Place:
    """Where something is written: file, line (from 1) and the path of keys that leads to it. For messages.

    Line 0: not in a file, but for example on a command line; `path` then names that.
    """

    path: str
    line: int
    key: str = ""

    def child(self, name: str, line: int) -> Place:
        """The place of a key below this one."""
        label = name if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) else quote(name)
        return Place(self.path, line, f"{self.key}.{label}" if self.key else label)

    def item(self, index: int, line: int) -> Place:
        """The place of a list's entry."""
        return Place(self.path, line, f"{self.key}[{index}]")

    def problem(self, message: str) -> str:
        """One line: FILE:LINE: key: message."""
        where = f"{self.path}:{self.line}: " if self.line else f"{self.path}: "
        return where + (f"{self.key}: " if self.key else "") + message


@dataclass(frozen=True)
class Scalar:
    """A single value, as the text that was written (quotes removed)."""

    place: Place
    text: str


@dataclass(frozen=True)
class Items:
    """A list."""

    place: Place
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Table:
    """A mapping, in the order of the file; its keys are unique."""

    place: Place
    entries: Mapping[str, Node]


Node = Scalar | Items | Table


def describe(node: Node) -> str:
    """What was found, for a message that wanted something else."""
    if isinstance(node, Scalar):
        return quote(node.text) if node.text else "nothing"
    return "a list" if isinstance(node, Items) else "a mapping"


def parse_document(text: str, path: str) -> Node:
    """The tree of the one YAML document in `text`; `path` is used in messages. Raises DocumentError."""
    if len(text) > MAX_CHARACTERS:
        raise DocumentError(Place(path, 1).problem(f"longer than {MAX_CHARACTERS} characters"))
    composer = _Composer(text.removeprefix("\ufeff"), path)
    try:
        return composer.document()
    except yaml.reader.ReaderError as error:
        place = Place(path, text.count("\n", 0, error.position) + 1)
        character = chr(error.character) if isinstance(error.character, int) else error.character
        raise DocumentError(place.problem(f"character {character!r} is not allowed in YAML")) from None
    except yaml.MarkedYAMLError as error:
        raise DocumentError(_syntax_problem(error, path)) from None
    except (ValueError, OverflowError):
        # PyYAML lets these out for escapes beyond Unicode and for absurd version numbers
        raise DocumentError(composer.here().problem("not valid YAML: a number is out of range")) from None


def _syntax_problem(error: yaml.MarkedYAMLError, path: str) -> str:
    mark = error.problem_mark or error.context_mark
    what = " ".join(part for part in (error.context, error.problem) if part) or "unreadable"
    if error.problem and "'\\t'" in error.problem:
        what = "a tab cannot indent or separate here, use spaces"
    return Place(path, mark.line + 1 if mark else 1).problem(f"not valid YAML: {what}")


class _Composer:
    """Builds the tree from PyYAML's events, taken one by one so that depth is bounded."""

    def __init__(self, text: str, path: str) -> None:
        self._path = path
        self._events = yaml.parse(text, Loader=yaml.SafeLoader)
        self._line = 1

    def here(self) -> Place:
        """Where the last event was."""
        return Place(self._path, self._line)

    def document(self) -> Node:
        self._next()  # the stream starts
        if isinstance(self._next(), yaml.StreamEndEvent):
            raise DocumentError(self.here().problem("the file is empty"))
        event = self._next()
        node = self._node(event, self.here(), 0)
        self._next()  # the document ends
        if not isinstance(self._next(), yaml.StreamEndEvent):
            raise DocumentError(self.here().problem("a second document starts: one file holds one"))
        return node

    def _next(self) -> yaml.Event:
        event: yaml.Event = next(self._events)
        if event.start_mark is not None:
            self._line = event.start_mark.line + 1
        return event

    def _node(self, event: yaml.Event, place: Place, depth: int) -> Node:
        _refuse_indirection(event, place)
        if depth > MAX_DEPTH:
            raise DocumentError(place.problem(f"nested deeper than {MAX_DEPTH} levels"))
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(place, _plain_text(event, place))
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(place, depth)
        return self._table(place, depth)

    def _items(self, place: Place, depth: int) -> Items:
        items: list[Node] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, place.item(len(items), self._line), depth + 1))
        return Items(place, tuple(items))

    def _table(self, place: Place, depth: int) -> Table:
        entries: dict[str, Node] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event, Place(place.path, self._line, place.key))
            child = place.child(key, self._line)
            if key in entries:
                first = entries[key].place.line
                raise DocumentError(child.problem(f"written twice, first in line {first}"))
            entries[key] = self._node(self._next(), child, depth + 1)
        return Table(place, entries)

    def _key(self, event: yaml.Event, place: Place) -> str:
        _refuse_indirection(event, place)
        if not isinstance(event, yaml.ScalarEvent):
            raise DocumentError(place.problem("a list or mapping used as a key: a key is a single word"))
        return _plain_text(event, place)


def _refuse_indirection(event: yaml.Event, place: Place) -> None:
    if getattr(event, "anchor", None) is not None:
        message = "anchors (&) and aliases (*) are not accepted: write the value out"
        raise DocumentError(place.problem(message))
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise DocumentError(place.problem(f"the tag {quote(str(tag))} is not accepted: leave it out"))


def _plain_text(event: yaml.ScalarEvent, place: Place) -> str:
    """The scalar's text, without what escapes in double quotes can smuggle past YAML's own check."""
    text = str(event.value)
    for character in text:
        control = character < " " and character not in "\n\t"
        if control or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff":
            raise DocumentError(place.problem(f"character {character!r} is not allowed"))
    return text
