"""Typed values from a document's tree, noting every fault instead of stopping at the first. Pure.

Between `netlab.document` (what is written) and the builders of profiles and experiments (what it means). A
getter gives None where its value is absent or faulty; a fault is noted in a `Problems`, and the builder
ends with `problems.raise_as(SomeError)`. After that line every required value is there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction as Rational
from typing import Protocol, Self, TypeVar

from netlab.document import Items, Node, Place, Scalar, Table, describe
from netlab.errors import DocumentError, UnitError
from netlab.units import parse_number, quote

MAX_PROBLEMS = 50


@dataclass
class Problems:
    """The faults found so far."""

    found: dict[tuple[int, str], None] = field(default_factory=dict)  # (line, text): an ordered set

    def add(self, place: Place, message: str) -> None:
        """Note one fault; the same one twice counts once."""
        self.found[place.line, place.problem(message)] = None

    def raise_as(self, error: type[DocumentError]) -> None:
        """Raise `error` with all faults in the order of the file; nothing happens when there are none."""
        lines = [text for _, text in sorted(self.found, key=lambda problem: problem[0])]
        if len(lines) > MAX_PROBLEMS:
            lines = [*lines[:MAX_PROBLEMS], f"... and {len(lines) - MAX_PROBLEMS} more"]
        if lines:
            raise error(lines)


class Parses(Protocol):
    """A quantity: Delay, Rate, Size, Fraction, or anything else whose `parse` raises UnitError."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a text."""
        ...


UnitT = TypeVar("UnitT", bound=Parses)


def read_text(node: Node, problems: Problems) -> str | None:
    """The text of a scalar; an empty one is a fault."""
    if isinstance(node, Scalar) and node.text.strip():
        return node.text
    problems.add(node.place, f"{describe(node)} found where a value is wanted")
    return None


def read_unit(node: Node, problems: Problems, unit: type[UnitT]) -> UnitT | None:
    """A quantity, as its type reads it."""
    text = read_text(node, problems)
    try:
        return None if text is None else unit.parse(text)
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
    """A mapping with known keys, see `Fields`; anything else is a fault."""
    allowed = tuple(keys)
    if not isinstance(node, Table):
        problems.add(node.place, f"{describe(node)} found where a mapping is wanted (keys: {', '.join(allowed)})")
        return None
    for key, value in node.entries.items():
        if key not in allowed:
            problems.add(value.place, _unknown_key(key, value, allowed, tuple(later), hints or {}))
    return Fields(node, problems)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Either '; did you mean "rate"?' or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1) if len(word) <= 64 else []
    return f'; did you mean "{near[0]}"?' if near else ""


def _unknown_key(key: str, node: Node, keys: tuple[str, ...], later: tuple[str, ...], hints: Mapping[str, str]) -> str:
    allowed = ", ".join(keys)
    if key in later:
        return f"{describe(node)}: {key} is not supported yet by this version (supported here: {allowed})"
    hint = f"; {hints[key]}" if key in hints else did_you_mean(key, keys)
    return f"unknown key (allowed: {allowed}){hint}"


class Fields:
    """Typed access to one mapping, made by `read_fields`, which has checked its keys.

    There, `keys` are allowed; `later` are keys that are known but not supported by this version, refused with
    these words rather than ignored; `hints` says what to write instead of a popular mistake. Any other key is
    refused with a "did you mean".
    """

    def __init__(self, table: Table, problems: Problems) -> None:
        """See `read_fields`."""
        self.place = table.place
        self.problems = problems
        self._entries = table.entries

    def has(self, key: str) -> bool:
        """Whether the key is written, with a good value or not."""
        return key in self._entries

    def node(self, key: str, required: bool = False) -> Node | None:
        """The raw node; its absence is a fault when it is required."""
        if required and key not in self._entries:
            self.fault(key, "is missing")
        return self._entries.get(key)

    def fault(self, key: str, message: str) -> None:
        """Note a fault of this key, or of its absence."""
        node = self._entries.get(key)
        self.problems.add(node.place if node else self.place.child(key, self.place.line), message)

    def string(self, key: str, required: bool = False, pattern: str = ".*", allowed: str = "") -> str | None:
        """A text that matches `pattern` as a whole; `allowed` says in words what does."""
        text = self._text(key, required)
        if text is not None and not re.fullmatch(pattern, text, re.DOTALL):
            self.fault(key, f"{quote(text)} is not allowed: {allowed}")
            return None
        return text

    def unit(self, key: str, unit: type[UnitT], required: bool = False) -> UnitT | None:
        """A quantity."""
        node = self.node(key, required)
        return read_unit(node, self.problems, unit) if node else None

    def number(self, key: str, low: float, high: float, required: bool = False) -> float | None:
        """A plain number from `low` to `high`, in any decimal spelling."""
        value = self._number(key, low, high, f"a number from {low:g} to {high:g}", required)
        return None if value is None else float(value)

    def integer(self, key: str, low: int, high: int, required: bool = False) -> int | None:
        """A whole number from `low` to `high`: 4, 4.0 and 4e0 are the same, 4.5 is a fault."""
        allowed = f"a whole number from {low} to {high}"
        value = self._number(key, low, high, allowed, required)
        if value is not None and value.denominator != 1:
            self.fault(key, f"{quote(self._text(key, False) or '')} is not allowed: {allowed}")
            return None
        return None if value is None else int(value)

    def exact(self, key: str, low: float, high: float, required: bool = False) -> Rational | None:
        """As `number`, but its exact value."""
        return self._number(key, low, high, f"a number from {low:g} to {high:g}", required)

    def boolean(self, key: str, required: bool = False) -> bool | None:
        """Either true or false; yes, no, on, off and 1 are faults."""
        text = self._text(key, required)
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
        self,
        key: str,
        keys: Iterable[str],
        later: Iterable[str] = (),
        hints: Mapping[str, str] | None = None,
    ) -> Fields | None:
        """A mapping with known keys below this one."""
        node = self.node(key)
        return read_fields(node, self.problems, keys, later, hints) if node else None

    def _text(self, key: str, required: bool) -> str | None:
        node = self.node(key, required)
        return read_text(node, self.problems) if node else None

    def _number(self, key: str, low: float, high: float, allowed: str, required: bool) -> Rational | None:
        text = self._text(key, required)
        try:
            value = None if text is None else parse_number(text)
        except UnitError as error:
            self.fault(key, f"{error}; allowed: {allowed}")
            return None
        if value is None or text is None:
            return None
        if re.match(r" *[+-]?0[0-9]", text):
            self.fault(key, f"{quote(text)} starts with a zero, which YAML tools read as octal: leave it out")
            return None
        if not low <= value <= high:
            self.fault(key, f"{quote(text)} is not allowed: {allowed}")
            return None
        return value
