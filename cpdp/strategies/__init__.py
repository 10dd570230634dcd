"""All strategies by name: text or mapping -> checked `StrategySpec` -> `Strategy`.

`parse("cpdp:k=4,beta=0.3")` and `from_mapping({"name": "cpdp", "period": 4, "beta": 0.3})` give the same
spec. Numbers may be spelled in any way that means the same number (4, 4e0, 4.0); unknown names and parameters
are refused with what is valid and the nearest match. Importing this module does not import torch.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cpdp.errors import StrategyError
from cpdp.strategies.base import Attachment, Parameter, Strategy, Value

__all__ = [
    "Attachment",
    "Parameter",
    "Strategy",
    "StrategySpec",
    "build",
    "catalogue",
    "from_mapping",
    "names",
    "parse",
    "strategy_class",
]

_MODULES = {
    "ddp": ("cpdp.strategies.ddp", "Ddp"),
    "localsgd": ("cpdp.strategies.local_sgd", "LocalSgd"),
    "cpdp": ("cpdp.strategies.cpdp", "Cpdp"),
    "cpdp-fused": ("cpdp.strategies.cpdp_fused", "CpdpFused"),
    "cpdp-overlapped": ("cpdp.strategies.cpdp_overlapped", "CpdpOverlapped"),
    "postlocal": ("cpdp.strategies.post_local", "PostLocalSgd"),
    "slowmo": ("cpdp.strategies.slowmo", "SlowMo"),
    "bmuf": ("cpdp.strategies.bmuf", "Bmuf"),
    "pasgd": ("cpdp.strategies.pasgd", "Pasgd"),
    "scheduled": ("cpdp.strategies.scheduled", "Scheduled"),
    "adacomm": ("cpdp.strategies.adacomm", "AdaComm"),
    "diloco": ("cpdp.strategies.diloco", "DiLoCo"),
    "hierarchical": ("cpdp.strategies.hierarchical", "Hierarchical"),
    "cocod": ("cpdp.strategies.cocod", "CoCoD"),
    "overlap": ("cpdp.strategies.overlap_local_sgd", "OverlapLocalSgd"),
    "streaming": ("cpdp.strategies.streaming_diloco", "StreamingDiLoCo"),
    "eager": ("cpdp.strategies.eager_diloco", "EagerDiLoCo"),
}

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class StrategySpec:
    """A strategy and a value for each of its parameters, in the order in which the strategy lists them."""

    name: str
    values: tuple[tuple[str, Value], ...]

    @property
    def label(self) -> str:
        """Short canonical text that `parse` understands: what a reader needs, and all that is not default."""
        shown = []
        for parameter in strategy_class(self.name).parameters:
            value = dict(self.values)[parameter.name]
            if parameter.in_label or value != parameter.default:
                key = parameter.aliases[0] if parameter.aliases else parameter.name
                shown.append(f"{key}={_text(value)}")
        return f"{self.name}:{','.join(shown)}" if shown else self.name

    def to_json(self) -> dict[str, Value]:
        """The mapping that `from_mapping` understands, every parameter spelled out."""
        return {"name": self.name, **dict(self.values)}


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def names() -> tuple[str, ...]:
    """The names of all strategies."""
    return tuple(_MODULES)


def strategy_class(name: str) -> type[Strategy]:
    """The class behind a name or one of its aliases. Raises StrategyError with what is valid."""
    for module, attribute in _MODULES.values():
        found: type[Strategy] = getattr(importlib.import_module(module), attribute)
        if name.strip().lower() in (found.name, *found.aliases):
            return found
    raise StrategyError(f"strategy: {name!r} does not exist; {_valid(name, names())}")


def parse(text: str) -> StrategySpec:
    """Read "NAME" or "NAME:key=value,key=value". Raises StrategyError naming the part that is wrong."""
    name, colon, rest = text.strip().partition(":")
    options: dict[str, object] = {}
    for item in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise StrategyError(f"strategy {text!r}: {item!r} is not key=value")
        if key in options:
            raise StrategyError(f"strategy {text!r}: {key!r} is given twice")
        options[key] = value
    return from_mapping({"name": name, **options})


def from_mapping(mapping: Mapping[str, object]) -> StrategySpec:
    """Check a mapping with a "name" and parameters whose values are numbers, booleans or their text."""
    if "name" not in mapping:
        raise StrategyError(f"strategy: 'name' is missing; valid names: {', '.join(names())}")
    kind = strategy_class(str(mapping["name"]))
    given: dict[str, Value] = {}
    for key, value in mapping.items():
        if key == "name":
            continue
        parameter = _find_parameter(kind, key)
        if parameter.name in given:
            raise StrategyError(f"strategy {kind.name}: {parameter.name!r} is given twice")
        given[parameter.name] = _convert(kind, parameter, value)
    return StrategySpec(kind.name, tuple((p.name, given.get(p.name, p.default)) for p in kind.parameters))


def build(spec: StrategySpec | str) -> Strategy:
    """Make the strategy object for one model on one rank."""
    if isinstance(spec, str):
        spec = parse(spec)
    return strategy_class(spec.name)(**dict(spec.values))


def catalogue() -> list[dict[str, Any]]:
    """Every strategy with its parameters, defaults, allowed values and sources, ready for JSON."""
    return [_describe(strategy_class(name)) for name in names()]


def _describe(kind: type[Strategy]) -> dict[str, Any]:
    parameters = [
        {
            "name": p.name,
            "aliases": list(p.aliases),
            "type": {int: "integer", float: "number", bool: "boolean", str: "string"}[p.kind],
            "default": p.default,
            "allowed": p.allowed,
            "meaning": p.meaning,
        }
        for p in kind.parameters
    ]
    head = {"name": kind.name, "aliases": list(kind.aliases), "summary": kind.summary, "source": kind.source}
    return {**head, "parameters": parameters}


def _find_parameter(kind: type[Strategy], key: str) -> Parameter:
    for parameter in kind.parameters:
        if key.lower() in (parameter.name, *parameter.aliases):
            return parameter
    known = [name for p in kind.parameters for name in (p.name, *p.aliases)]
    raise StrategyError(f"strategy {kind.name}: no parameter {key!r}; {_valid(key, known)}")


def _valid(wrong: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(wrong.lower(), known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"valid: {', '.join(known) or 'none'}{hint}"


def _convert(kind: type[Strategy], parameter: Parameter, value: object) -> Value:
    meant = _meant(parameter, value)
    if meant is None:
        raise StrategyError(f"strategy {kind.name}: {parameter.name}: {value!r} is not allowed; {parameter.allowed}")
    return meant


def _meant(parameter: Parameter, value: object) -> Value | None:
    """The allowed value that was written, or None."""
    if parameter.kind is bool:
        return _boolean(value)
    if parameter.kind is str:
        word = str(value).strip().lower()
        return word if word in parameter.choices else None
    number = _number(value, whole=parameter.kind is int)
    return number if number is not None and parameter.holds(float(number)) else None


def _boolean(value: object) -> bool | None:
    return value if isinstance(value, bool) else _BOOLEANS.get(str(value).strip().lower())


def _number(value: object, *, whole: bool) -> int | float | None:
    """The number that a value means, or None. Python's own float() also takes "1_0", "nan" and full-width
    digits.
    """
    text = str(value).strip()
    if isinstance(value, bool) or not _NUMBER.fullmatch(text):
        return None
    exact = Decimal(text)
    if not whole:
        return float(exact)
    return int(exact) if exact == exact.to_integral_value() else None
