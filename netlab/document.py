"""YAML text -> a tree of nodes that know where they stand, and typed reading of it that collects every fault.

Used for profiles here and for experiments in cpdp. YAML serves only for its punctuation: a scalar stays the text that
was written, and the reader, who knows what is wanted, gives it a meaning. So "no" can be a site, 1e9 and 1.0e+9 are
the same, and 1:30 is never 90. Duplicate keys, anchors, aliases, tags and several documents in one file are
refused: each makes a file mean something else than it shows. No I/O here.

Reading does not stop at the first fault: `Fields` notes each in a `Problems`, gives None in place of the value, and
the caller ends with `problems.raise_as(SomeError)`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

import yaml

from netlab.errors import DocumentError, UnitError
from netlab.units import parse_number, quote

MAX_CHARACTERS = 256 * 1024  # far more than any real profile; bounds the time that a hostile file can take
MAX_DEPTH = 20
MAX_PROBLEMS = 50


@dataclass(frozen=True)
class Place:
    """Where something is written: for messages only."""

    path: str
    line: int
    key: str = ""

    def child(self, name: str, line: int | None = None) -> Place:
        """The place of a key below this one."""
        label = name if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) else quote(name)
        return Place(self.path, line or self.line, f"{self.key}.{label}" if self.key else label)

    def item(self, index: int, line: int) -> Place:
        """The place of a list's entry."""
        return Place(self.path, line, f"{self.key}[{index}]")

    def problem(self, message: str) -> str:
        """One line: FILE:LINE: key: message."""
        return f"{self.path}:{self.line}: " + (f"{self.key}: " if self.key else "") + message


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


# --- text -> tree ----------------------------------------------------------------------------------------------


def parse_document(text: str, path: str) -> Node:
    """The tree of the one YAML document in `text`; `path` is used in messages. Raises DocumentError."""
    if len(text) > MAX_CHARACTERS:
        raise DocumentError(Place(path, 1).problem(f"longer than {MAX_CHARACTERS} characters"))
    composer = _Composer(text.removeprefix("\ufeff"), path)
    try:
        return composer.document()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(
            Place(path, line).problem(f"character {error.character!r} is not allowed in YAML")
        ) from None
    except yaml.MarkedYAMLError as error:
        raise DocumentError(_syntax_problem(error, path)) from None
    except (ValueError, OverflowError):
        # PyYAML lets these out for escapes beyond Unicode and for absurd version numbers
        raise DocumentError(
            composer.here().problem("not valid YAML: a number in it is out of range")
        ) from None


def _syntax_problem(error: yaml.MarkedYAMLError, path: str) -> str:
    mark = error.problem_mark or error.context_mark
    what = error.problem or error.context or "unreadable"
    if "'\\t'" in what:
        what = "a tab cannot indent or separate in YAML, use spaces"
    return Place(path, mark.line + 1 if mark else 1).problem(f"not valid YAML: {what}")


class _Composer:
    """Builds the tree from PyYAML's events, which it takes one by one so that depth is bounded as they come."""

    def __init__(self, text: str, path: str) -> None:
        self._path = path
        self._loader = yaml.SafeLoader(text)

    def here(self) -> Place:
        return Place(self._path, self._loader.line + 1)

    def document(self) -> Node:
        self._loader.get_event()  # stream start
        if isinstance(self._loader.peek_event(), yaml.StreamEndEvent):
            raise DocumentError(Place(self._path, 1).problem("the file is empty"))
        self._loader.get_event()  # document start
        node = self._node(self._loader.get_event(), Place(self._path, 1), 0)
        self._loader.get_event()  # document end
        event = self._loader.get_event()
        if not isinstance(event, yaml.StreamEndEvent):
            raise DocumentError(self._place_of(event).problem("a second document: one file holds one"))
        return node

    def _place_of(self, event: yaml.Event) -> Place:
        return Place(self._path, event.start_mark.line + 1)

    def _node(self, event: yaml.Event, place: Place, depth: int) -> Node:
        self._refuse_indirection(event, place)
        if depth > MAX_DEPTH:
            raise DocumentError(place.problem(f"nested deeper than {MAX_DEPTH} levels"))
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(place, self._checked(event.value, place))
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(place, depth)
        return self._table(place, depth)

    def _refuse_indirection(self, event: yaml.Event, place: Place) -> None:
        if getattr(event, "anchor", None) is not None:
            raise DocumentError(
                place.problem("anchors (&) and aliases (*) are not accepted: write the value out")
            )
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise DocumentError(place.problem(f"a tag ({quote(tag)}) is not accepted"))

    def _checked(self, text: str, place: Place) -> str:
        # escapes in double quotes can make what the reader would have refused; it would only break a terminal later
        for character in text:
            if (
                (character < " " and character not in "\n\t")
                or "\ud800" <= character <= "\udfff"
                or character == "\x7f"
            ):
                raise DocumentError(place.problem(f"character {character!r} is not allowed"))
        return text

    def _items(self, place: Place, depth: int) -> Items:
        items: list[Node] = []
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._node(event, place.item(len(items), event.start_mark.line + 1), depth + 1))
        return Items(place, tuple(items))

    def _table(self, place: Place, depth: int) -> Table:
        entries: dict[str, Node] = {}
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            here = Place(place.path, event.start_mark.line + 1, place.key)
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse_indirection(event, here)
                raise DocumentError(here.problem("a key must be a single word"))
            self._refuse_indirection(event, here)
            key = self._checked(event.value, here)
            child = here.child(key)
            if key in entries:
                raise DocumentError(child.problem(f"written twice, first in line {entries[key].place.line}"))
            entries[key] = self._node(self._loader.get_event(), child, depth + 1)
        return Table(place, entries)


# --- tree -> values --------------------------------------------------------------------------------------------


@dataclass
class Problems:
    """The faults found so far, in the order of the file once printed."""

    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, place: Place, message: str) -> None:
        """Note one fault."""
        self.found.append((place.line, place.problem(message)))

    def raise_as(self, error: type[DocumentError]) -> None:
        """Raise `error` with all of them; nothing happens when there are none."""
        lines = [text for _, text in sorted(self.found, key=lambda problem: problem[0])]
        if len(lines) > MAX_PROBLEMS:
            lines = [*lines[:MAX_PROBLEMS], f"... and {len(lines) - MAX_PROBLEMS} more"]
        if lines:
            raise error(lines)


class Parses(Protocol):
    """A unit: Delay, Rate, Size, Fraction, or anything else whose `parse` raises UnitError."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a text."""
        ...


UnitT = TypeVar("UnitT", bound=Parses)


def read_text(node: Node, problems: Problems) -> str | None:
    """The text of a scalar that is not empty."""
    if isinstance(node, Scalar) and node.text.strip():
        return node.text
    problems.add(node.place, f"{describe(node)} found where a value is wanted")
    return None


def read_unit(node: Node, problems: Problems, unit: type[UnitT]) -> UnitT | None:
    """A quantity, as its type reads it."""
    if not isinstance(node, Scalar):
        problems.add(node.place, f"{describe(node)} found where a value is wanted")
        return None
    try:
        return unit.parse(node.text)
    except UnitError as error:
        problems.add(node.place, str(error))
        return None


def read_fields(
    node: Node,
    problems: Problems,
    keys: Iterable[str],
    later: Iterable[str] = (),
    hints: Mapping[str, str] | None = None,
) -> Fields | None:
    """A mapping with known keys; see `Fields`. Anything else is a fault."""
    if not isinstance(node, Table):
        wanted = ", ".join(keys)
        problems.add(node.place, f"{describe(node)} found where a mapping is wanted (keys: {wanted})")
        return None
    return Fields(node, problems, tuple(keys), tuple(later), hints or {})


class Fields:
    """Typed access to the keys of one mapping. Every getter gives None where the value is absent or faulty.

    `keys` are allowed; `later` are keys that this version knows but does not support, refused with these words;
    `hints` says what to write instead of a popular mistake. All other keys are refused with a "did you mean".
    """

    def __init__(
        self,
        table: Table,
        problems: Problems,
        keys: tuple[str, ...],
        later: tuple[str, ...],
        hints: Mapping[str, str],
    ) -> None:
        """Check the keys at once."""
        self.place = table.place
        self.problems = problems
        self._entries = table.entries
        for key, node in table.entries.items():
            if key not in keys:
                problems.add(node.place, _unknown_key(key, node, keys, later, hints))

    def has(self, key: str) -> bool:
        """Whether the key is written, with a good value or not."""
        return key in self._entries

    def node(self, key: str, required: bool = False) -> Node | None:
        """The raw node; its absence is a fault when it is required."""
        if required and key not in self._entries:
            self.fault(key, "is missing")
        return self._entries.get(key)

    def fault(self, key: str, message: str) -> None:
        """Note a fault of this key (or of its absence)."""
        node = self._entries.get(key)
        self.problems.add(node.place if node else self.place.child(key), message)

    def string(self, key: str, required: bool = False, pattern: str = ".*", allowed: str = "") -> str | None:
        """A text that matches `pattern` as a whole; `allowed` says in words what does."""
        node = self.node(key, required)
        text = read_text(node, self.problems) if node else None
        if text is not None and not re.fullmatch(pattern, text, re.DOTALL):
            self.fault(key, f"{quote(text)} is not allowed: {allowed}")
            return None
        return text

    def unit(self, key: str, unit: type[UnitT], required: bool = False) -> UnitT | None:
        """A quantity."""
        node = self.node(key, required)
        return read_unit(node, self.problems, unit) if node else None

    def number(self, key: str, low: float, high: float, required: bool = False) -> float | None:
        """A plain number within [low, high], in any decimal spelling."""
        node = self.node(key, required)
        text = read_text(node, self.problems) if node else None
        if text is None:
            return None
        try:
            value = parse_number(text)
        except UnitError as error:
            self.fault(key, f"{error}; allowed: {low:g} to {high:g}")
            return None
        if not low <= value <= high:
            self.fault(key, f"{quote(text)} is out of range: {low:g} to {high:g}")
            return None
        return float(value)

    def integer(self, key: str, low: int, high: int, required: bool = False) -> int | None:
        """A whole number within [low, high]; 4, 4.0 and 4e0 are the same, 4.5 is a fault, 010 is ambiguous."""
        node = self.node(key, required)
        text = read_text(node, self.problems) if node else None
        if text is None:
            return None
        try:
            value = parse_number(text)
        except UnitError as error:
            self.fault(key, f"{error}; allowed: a whole number from {low} to {high}")
            return None
        if value.denominator != 1 or not low <= value <= high or re.match(r"[+-]?0[0-9]", text.strip(" ")):
            self.fault(key, f"{quote(text)} is not allowed: a whole number from {low} to {high}")
            return None
        return int(value)

    def boolean(self, key: str, required: bool = False) -> bool | None:
        """True or false."""
        node = self.node(key, required)
        text = read_text(node, self.problems) if node else None
        if text is None or text in ("true", "false"):
            return None if text is None else text == "true"
        self.fault(key, f"{quote(text)} is not allowed: true or false")
        return None

    def items(self, key: str, required: bool = False) -> tuple[Node, ...] | None:
        """The entries of a list."""
        node = self.node(key, required)
        if node is None or isinstance(node, Items):
            return None if node is None else node.items
        self.fault(key, f"{describe(node)} found where a list is wanted")
        return None

    def table(self, key: str, required: bool = False) -> Mapping[str, Node] | None:
        """The entries of a mapping whose keys are the user's own."""
        node = self.node(key, required)
        if node is None or isinstance(node, Table):
            return None if node is None else node.entries
        self.fault(key, f"{describe(node)} found where a mapping is wanted")
        return None

    def fields(
        self, key: str, keys: Iterable[str], later: Iterable[str] = (), hints: Mapping[str, str] | None = None
    ) -> Fields | None:
        """A mapping with known keys below this one."""
        node = self.node(key)
        return read_fields(node, self.problems, keys, later, hints) if node else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean "rate"?' or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1) if len(word) <= 64 else []
    return f'; did you mean "{near[0]}"?' if near else ""


def _unknown_key(
    key: str, node: Node, keys: tuple[str, ...], later: tuple[str, ...], hints: Mapping[str, str]
) -> str:
    allowed = ", ".join(keys)
    if key in later:
        return (
            f"{describe(node)}: not supported yet by this version of netlab, so it is refused and not ignored "
            f"(supported here: {allowed})"
        )
    hint = f"; {hints[key]}" if key in hints else did_you_mean(key, keys)
    return f"unknown key (allowed: {allowed}){hint}"
