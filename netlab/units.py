"""Quantities as types: Delay, Rate, Size and Fraction. The only place that knows "16.6ms" or "10gbit".

First in the flow: profiles, experiments and `netlab set` all read their quantities here, so that one text
means one thing everywhere. Values are integers in the smallest unit (ns, bit/s, bytes, parts per billion) and
arithmetic is exact: a text that is not a whole number of that unit is refused, never rounded.

Rules, chosen where other tools disagree with each other:

- a number always has a unit ("100" is refused: tc reads it as microseconds, others as milliseconds);
- "m" is refused as a time (minute or milli?), "mbps" as a rate (bytes per second to tc, bits to others);
- time units are lower case; rate units may have any case (nobody writes millibits); sizes need a capital B;
- a share is "1%" or "0.01"; "1" is refused (one percent to tc, all to others);
- rate prefixes are powers of 1000; so are kB, MB, GB of a size, and KiB, MiB, GiB are powers of 1024.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction as Rational
from typing import ClassVar, Self

from netlab.errors import UnitError

_NUMBER = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?")
_UNIT = re.compile(r"([^\W\d_]+(/[sS])?)?")
_LONGEST_TEXT = 80  # characters; beyond it the text is no quantity, and exact arithmetic would only cost time
_LARGEST_EXPONENT = 99  # the same bound for 1e999999999, whose exact value would fill the memory

NS_PER_S = 1_000_000_000
PPB = 1_000_000_000
MIN_RATE_BPS = 1_000  # a full frame then takes 12 s; below, no TCP handshake survives its timers
MAX_RATE_BPS = 10**12
MAX_SIZE_BYTES = 2**40

DELAY_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5 micro sign
    "μs": 1_000,  # U+03BC Greek small mu
    "ms": 1_000_000,
    "s": NS_PER_S,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
SIZE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}

# What people write, and why we will not guess it.
_DELAY_HINTS = {"m": '"m" could be minutes or milliseconds: write "min" or "ms"'}
_RATE_HINTS = {
    prefix + "bps": f'"{prefix}bps" is bytes per second to some tools and bits per second to others: '
    f'write "{prefix}bit"'
    for prefix in ("", "k", "m", "g", "t")
}
_SIZE_HINTS = {
    "b": 'a small "b" could be bits: write "B" for bytes',
    "kb": 'a small "b" could be bits: write "kB" (1000 bytes) or "KiB" (1024 bytes)',
    "Kb": 'a small "b" could be bits: write "kB" (1000 bytes) or "KiB" (1024 bytes)',
    "mb": 'write "MB" (1000000 bytes) or "MiB" (1048576 bytes)',
    "Mb": 'a small "b" could be bits: write "MB" (1000000 bytes) or "MiB" (1048576 bytes)',
}


def quote(text: str) -> str:
    """A user's text for an error message: quoted, control characters escaped, shortened when long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def parse_number(text: str) -> Rational:
    """The exact value of a plain decimal number: ASCII digits, optional fraction, optional exponent.

    Raises UnitError for anything else, including what Python's float() would take: "nan", "inf", "1_0",
    full-width digits, hexadecimal.
    """
    stripped = text.strip(" ")
    if stripped.startswith("-") and _NUMBER.fullmatch(stripped[1:]):
        return -parse_number(stripped[1:])
    match = _NUMBER.fullmatch(stripped) if len(stripped) <= _LONGEST_TEXT else None
    if match is None:
        raise UnitError(f"{quote(text)} is not a number (like 3, 0.25 or 1e-2)")
    return _exact(match, text)


def _exact(match: re.Match[str], text: str) -> Rational:
    exponent = match.group(2) or "0"
    if abs(int(exponent)) > _LARGEST_EXPONENT:
        raise UnitError(f"{quote(text)}: an exponent beyond {_LARGEST_EXPONENT} is not accepted")
    digits = match.group(1).rstrip(".")
    return Rational(digits if digits[0] != "." else "0" + digits) * Rational(10) ** int(exponent)


@dataclass(frozen=True)
class _Kind:
    """What one quantity accepts, and how its refusals read."""

    noun: str
    example: str
    units: Mapping[str, int]
    smallest: str  # the unit in which values are whole numbers
    hints: Mapping[str, str]
    fold_case: bool = False

    def parse(self, text: str) -> int:
        """A text to a whole number of the smallest unit, exactly; UnitError says what is wrong with it."""
        stripped = text.strip(" ")
        if len(stripped) > _LONGEST_TEXT:
            raise self._refusal(text)
        if stripped.startswith("-"):
            raise UnitError(f"{quote(text)}: a {self.noun} cannot be negative")
        match = _NUMBER.match(stripped)
        if match is None:
            raise self._refusal(text)
        value = _exact(match, text) * self._factor(stripped[match.end() :].strip(" "), text)
        if value.denominator != 1:
            raise UnitError(f"{quote(text)} would lose precision: a {self.noun} is a whole number of {self.smallest}")
        return int(value)

    def _factor(self, unit: str, text: str) -> int:
        if not _UNIT.fullmatch(unit):
            raise self._refusal(text)
        known = self._unit_name(unit)
        if known in self.units:
            return self.units[known]
        if unit == "":
            raise UnitError(f"{quote(text)} has no unit: write a {self.noun} like {self.example}")
        hint = self.hints.get(known)
        if hint is None:
            lowered = {name.lower(): name for name in self.units}
            near = difflib.get_close_matches(unit.lower(), list(lowered), n=1)
            hint = f'did you mean "{lowered[near[0]]}"?' if near else f"write it like {self.example}"
        raise UnitError(f"{quote(text)}: unknown unit {quote(unit)} ({self._allowed()}); {hint}")

    def _unit_name(self, unit: str) -> str:
        if not (self.fold_case and unit.isascii()):  # the Kelvin sign, too, has a small k
            return unit
        return unit.lower().removesuffix("/s")

    def _allowed(self) -> str:
        return "allowed: " + ", ".join(name for name in self.units if name.isascii())

    def _refusal(self, text: str) -> UnitError:
        return UnitError(f"{quote(text)} is not a {self.noun}: write a number and a unit like {self.example}")


_DELAY = _Kind("time", '"16.6ms"', DELAY_UNITS, "nanoseconds", _DELAY_HINTS)
_RATE = _Kind("rate", '"1.5mbit" or "10gbit"', RATE_UNITS, "bits per second", _RATE_HINTS, fold_case=True)
_SIZE = _Kind("size", '"64KiB" or "2MB"', SIZE_UNITS, "bytes", _SIZE_HINTS)


def decimal_text(value: int, factor: int) -> str:
    """value / factor in plain decimal digits, exact; factor is a power of ten."""
    whole, rest = divmod(value, factor)
    if rest == 0:
        return str(whole)
    return f"{whole}.{str(rest).rjust(len(str(factor)) - 1, '0').rstrip('0')}"


def _largest_unit(value: int, units: Mapping[str, int], names: tuple[str, ...]) -> str:
    """Print with the largest unit of which there is at least one."""
    if value == 0:
        return "0" + names[0]
    name = next((n for n in names if value >= units[n]), names[-1])
    return decimal_text(value, units[name]) + name


def _in_range(value: int, low: int, high: int, text: str, show: Callable[[int], str], noun: str) -> int:
    if not low <= value <= high:
        raise UnitError(f"{quote(text)}: a {noun} must be between {show(low)} and {show(high)}")
    return value


@dataclass(frozen=True, order=True)
class Delay:
    """What a link adds to a packet's way, in whole nanoseconds."""

    ns: int
    _longest_ns: ClassVar[int] = 600 * NS_PER_S  # longer is a mistyped unit: the moon is 1.3 s away

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert self.ns >= 0, self.ns

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "16.6ms": 0 up to and including 600 s. Raises UnitError."""
        ns = _DELAY.parse(text)
        return cls(_in_range(ns, 0, cls._longest_ns, text, lambda ns: str(Delay(ns)), "time"))

    @property
    def ms(self) -> float:
        """For people and plots; arithmetic stays in `ns`."""
        return self.ns / 1e6

    @property
    def seconds(self) -> float:
        """For system calls that take seconds."""
        return self.ns / 1e9

    def __str__(self) -> str:
        """Exact and canonical: Delay.parse(str(d)) == d for every parsed d."""
        return _largest_unit(self.ns, DELAY_UNITS, ("s", "ms", "us", "ns"))


@dataclass(frozen=True, order=True)
class Duration(Delay):
    """How long something may take or goes on: the same spellings as Delay, up to and including 30 days."""

    _longest_ns: ClassVar[int] = 30 * 24 * 3600 * NS_PER_S


@dataclass(frozen=True, order=True)
class Rate:
    """A data rate in whole bits per second, counted on the wire."""

    bps: int

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert self.bps >= 0, self.bps

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "10gbit" (also "10Gbit/s"): 1 kbit/s up to and including 1 Tbit/s. Raises UnitError."""
        return cls(_in_range(_RATE.parse(text), MIN_RATE_BPS, MAX_RATE_BPS, text, lambda bps: str(Rate(bps)), "rate"))

    def __str__(self) -> str:
        """Exact and canonical: Rate.parse(str(r)) == r for every parsed r."""
        return _largest_unit(self.bps, RATE_UNITS, ("tbit", "gbit", "mbit", "kbit", "bit"))


@dataclass(frozen=True, order=True)
class Size:
    """An amount of data in whole bytes."""

    bytes: int

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert self.bytes >= 0, self.bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "64KiB" or "2MB": 0 up to and including 1024 GiB. Raises UnitError."""
        return cls(_in_range(_SIZE.parse(text), 0, MAX_SIZE_BYTES, text, lambda n: str(Size(n)), "size"))

    def __str__(self) -> str:
        """Exact and canonical: the largest unit that divides it, powers of 1024 before powers of 1000."""
        names = ("GiB", "MiB", "KiB", "GB", "MB", "kB", "B")
        name = next(n for n in names if self.bytes % SIZE_UNITS[n] == 0 and (self.bytes or n == "B"))
        return f"{self.bytes // SIZE_UNITS[name]}{name}"


@dataclass(frozen=True, order=True)
class Fraction:
    """A share or probability, 0 to 1, in whole parts per billion."""

    ppb: int

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert 0 <= self.ppb <= PPB, self.ppb

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "1%", "0.01" or "1e-2", all the same value: 0 to 1, that is 0% to 100%. Raises UnitError.

        A bare 1 is refused: to some tools it is one percent.
        """
        stripped = text.strip(" ")
        share = stripped.endswith("%")
        try:
            value = parse_number(stripped.removesuffix("%")) * (Rational(1, 100) if share else 1)
        except UnitError:
            raise UnitError(f'{quote(text)} is not a fraction: write it like "1%" or "0.01"') from None
        if not 0 <= value <= 1:
            raise UnitError(f"{quote(text)}: a fraction must be between 0% and 100%, that is 0 and 1")
        if value == 1 and not share:
            raise UnitError(f'{quote(text)} could be one percent or all: write "1%" or "100%"')
        if (value * PPB).denominator != 1:
            raise UnitError(f"{quote(text)} would lose precision: a fraction is a whole number of billionths")
        return cls(int(value * PPB))

    @property
    def value(self) -> float:
        """For arithmetic that is statistical anyway."""
        return self.ppb / PPB

    def __str__(self) -> str:
        """Exact and canonical, in percent."""
        return decimal_text(self.ppb, PPB // 100) + "%"
