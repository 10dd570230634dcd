"""Experiment (YAML or command-line flags) -> frozen `Experiment`, every default filled in. Pure but for
`load`.

Flow: file or flags -> `Experiment` -> `matrix` (cells in their order) -> `runner` (one run in one Lab). The
file is read with netlab's document reader, so every fault is "FILE:LINE: key: value, what is allowed", all
faults of a file at once, and numbers may be spelled in any way. The format is described in
docs/reference/experiment.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from cpdp import strategies
from cpdp.errors import ExperimentError
from cpdp.phase import (
    HINTS,
    NAME,
    NAME_RULE,
    Phase,
    compute_document,
    or_default,
    read_phase,
    read_strategies,
)
from netlab import DocumentError, Fields, Node, Problems, find_document, parse_document, read_fields

CARRIERS = ("auto", "relay", "netem")
HOSTS = ("process", "docker")
ON_FAILURE = ("continue", "stop")
ON_INVALID = ("again", "keep")

_TOP = (
    "name", "source", "network", "carrier", "hosts", "strategies", "seed", "order_seed", "on_failure",
    "on_invalid", "on_bad_network", "dilation", "phases",
)  # fmt: skip

MOST_DILATION = 1000
"""No clock is slowed down further: a second would take a quarter of an hour."""


@dataclass(frozen=True)
class Experiment:
    """Everything that was asked for; what is run is `matrix.resolve` of it."""

    name: str
    source: str
    network: str
    phases: tuple[Phase, ...]
    carrier: str = "auto"
    hosts: str = "process"
    order_seed: int = 42
    on_failure: str = "continue"
    on_invalid: str = "again"
    """What follows a cell during which the emulation did not keep up."""
    on_bad_network: str = "stop"
    dilation: float = 1.0
    """Every delay and computation takes that many times longer and every rate is that much lower; times are divided by
    it before they are shown.
    """

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values; `from_json` reads it."""
        return asdict(self)


def from_json(raw: Mapping[str, Any]) -> Experiment:
    """The experiment that resolved.json holds, for a resume. Keys that `to_json` never wrote are not looked
    at.
    """
    try:
        phases = tuple(
            Phase(**{**phase, "strategies": tuple(phase["strategies"])})
            for phase in ({k: p[k] for k in Phase.__dataclass_fields__ if k in p} for p in raw["phases"])
        )
        known = {key: raw[key] for key in Experiment.__dataclass_fields__ if key in raw}
        return Experiment(**{**known, "phases": phases})
    except (KeyError, TypeError) as error:
        raise ExperimentError(f"the run's resolved.json does not hold an experiment: {error}") from error


def render(experiment: Experiment) -> str:
    """The experiment as a file that `parse` reads back, for one that was made from flags."""
    top = {key: value for key, value in experiment.to_json().items() if key != "phases"}
    text: str = yaml.safe_dump({**top, "phases": [_phase_document(one) for one in experiment.phases]}, sort_keys=False)
    return text


def _phase_document(phase: Phase) -> dict[str, Any]:
    raw = {key: value for key, value in asdict(phase).items() if value is not None and value is not False}
    raw |= {key: f"{raw.pop(f'{key}_s'):g}s" for key in ("timeout", "limit", "duration") if f"{key}_s" in raw}
    if phase.compute:
        raw["compute"] = compute_document(phase.compute)
    raw["strategies"] = [strategies.from_mapping(spec).label for spec in phase.strategies]
    return raw


def load(path_or_name: str) -> tuple[Experiment, str]:
    """Read an experiment from a file, or a shipped one by its name; returns it with its text.

    Raises ExperimentError with all faults of the file.
    """
    try:
        path, text = find_document("experiments", path_or_name)
    except DocumentError as error:
        raise ExperimentError(str(error)) from None
    return parse(text, path), text


def parse(text: str, path: str) -> Experiment:
    """Validate an experiment; `path` is used in messages, and a relative network path starts at its folder."""
    problems = Problems()
    try:
        top = read_fields(parse_document(text, path), problems, _TOP, (), HINTS)
        experiment = _experiment(top, path) if top else None
        problems.raise_as(DocumentError)
    except DocumentError as error:
        raise ExperimentError(str(error)) from None
    assert experiment is not None, "no experiment, yet no problem noted"
    return experiment


def _experiment(top: Fields, path: str) -> Experiment:
    seed = or_default(top.integer("seed", 0, 2**31 - 1), 42)
    common = read_strategies(top)
    phases = tuple(phase for node in _phases(top) if (phase := read_phase(node, top.problems, common, seed)))
    _check_phase_names(top, phases)
    dilation = top.number("dilation", 1, MOST_DILATION) or 1.0
    for phase in phases:
        if dilation != 1 and phase.kind == "training" and phase.compute is None:
            top.fault(
                "dilation", f"phase {phase.name}: real computation cannot be stretched; give it a compute: {{step:}}"
            )
    return Experiment(
        name=top.string("name", pattern=NAME, allowed=NAME_RULE) or slug(Path(path).stem) or "experiment",
        source=top.string("source") or "",
        network=_network(top.string("network", required=True) or "", path),
        phases=phases,
        carrier=_choice(top, "carrier", CARRIERS),
        hosts=_choice(top, "hosts", HOSTS),
        order_seed=or_default(top.integer("order_seed", 0, 2**31 - 1), seed),
        on_failure=_choice(top, "on_failure", ON_FAILURE),
        on_invalid=_choice(top, "on_invalid", ON_INVALID),
        on_bad_network=_choice(top, "on_bad_network", ("stop", "continue")),
        dilation=dilation,
    )


def _choice(fields: Fields, key: str, allowed: Sequence[str]) -> str:
    """One word of a list, the first of them when the key is absent."""
    text = fields.string(key, pattern="|".join(allowed), allowed=f"one of {', '.join(allowed)}")
    return text or allowed[0]


def _network(network: str, path: str) -> str:
    """A path is meant from the experiment's folder; a name stays a name."""
    is_path = "/" in network or network.endswith((".yaml", ".yml"))
    return str(Path(path).parent / network) if is_path and not Path(network).is_absolute() else network


def _phases(top: Fields) -> tuple[Node, ...]:
    nodes = top.items("phases", required=True)
    if nodes is not None and not nodes:
        top.fault("phases", "there must be at least one phase")
    return nodes or ()


def _check_phase_names(top: Fields, phases: Sequence[Phase]) -> None:
    names = [phase.name for phase in phases]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            top.fault("phases", f"two phases are named {name!r}: give each a name of its own")


def slug(text: str) -> str:
    """A text as part of a file name: letters, digits, dots and single dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("=", "")).strip("-.")[:60]
