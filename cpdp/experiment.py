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

from cpdp import strategies, workloads
from cpdp.errors import ExperimentError, StrategyError, WorkloadError
from cpdp.workloads import optimizers
from netlab import (
    DocumentError,
    Duration,
    Fields,
    Node,
    Problems,
    Scalar,
    find_document,
    parse_document,
    read_fields,
    read_text,
)

KINDS = {"replayed": "replayed", "training": "real"}
"""What a phase does -> how its computation is done."""

CARRIERS = ("auto", "relay", "netem")
HOSTS = ("process", "docker")
ON_FAILURE = ("continue", "stop")

_TOP = (
    "name", "source", "network", "carrier", "hosts", "strategies", "seed", "order_seed", "on_failure",
    "on_bad_network", "phases",
)  # fmt: skip
_PHASE = (
    "name", "kind", "workload", "strategies", "steps", "warmup_steps", "steps_per_epoch", "epochs", "repeats",
    "seed", "optimizer", "gloo_contexts", "timeout", "limit", "target_accuracy",
)  # fmt: skip
_HINTS = {"k": "a period belongs to a strategy, like localsgd:k=2", "warmup": "write warmup_steps"}
_OPTIMIZER = ("name", "lr", "momentum", "weight_decay", "nesterov", "beta1", "beta2", "eps")
SGD: Mapping[str, Any] = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
"""The optimizer of a phase that names none: the CPDP paper's."""

EPOCH = 48
"""Steps in an epoch of a replayed phase that names none: the CPDP paper's on its WAN."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}"
_NAME_RULE = "letters, digits, '.', '_' and '-', at most 60, the first a letter or digit"

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Phase:
    """One kind of measurement: all strategies, `repeats` times each, on one workload.

    `strategies` and `workload` are in the form that the worker reads. `steps` count measured steps, after
    `warmup_steps`; a training phase has `epochs` instead. Times are in seconds.
    """

    name: str
    kind: str
    workload: Json
    strategies: tuple[Json, ...]
    optimizer: Json
    steps: int | None = None
    warmup_steps: int = 0
    steps_per_epoch: int | None = None
    epochs: int | None = None
    repeats: int = 1
    seed: int = 42
    gloo_contexts: int = 4
    timeout_s: float = 120.0
    limit_s: float = 900.0
    target_accuracy: float | None = None


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
    on_bad_network: str = "stop"

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
    raw = {key: value for key, value in asdict(phase).items() if value is not None}
    raw |= {"timeout": f"{raw.pop('timeout_s'):g}s", "limit": f"{raw.pop('limit_s'):g}s"}
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
        top = read_fields(parse_document(text, path), problems, _TOP, (), _HINTS)
        experiment = _experiment(top, path) if top else None
        problems.raise_as(DocumentError)
    except DocumentError as error:
        raise ExperimentError(str(error)) from None
    assert experiment is not None, "no experiment, yet no problem noted"
    return experiment


def _experiment(top: Fields, path: str) -> Experiment:
    seed = _or(top.integer("seed", 0, 2**31 - 1), 42)
    common = _strategies(top)
    phases = tuple(phase for node in _phases(top) if (phase := _phase(node, top.problems, common, seed)))
    _check_phase_names(top, phases)
    return Experiment(
        name=top.string("name", pattern=_NAME, allowed=_NAME_RULE) or slug(Path(path).stem) or "experiment",
        source=top.string("source") or "",
        network=_network(top.string("network", required=True) or "", path),
        phases=phases,
        carrier=_choice(top, "carrier", CARRIERS),
        hosts=_choice(top, "hosts", HOSTS),
        order_seed=_or(top.integer("order_seed", 0, 2**31 - 1), seed),
        on_failure=_choice(top, "on_failure", ON_FAILURE),
        on_bad_network=_choice(top, "on_bad_network", ("stop", "continue")),
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


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


def _phase(node: Node, problems: Problems, common: tuple[Json, ...] | None, seed: int) -> Phase | None:
    fields = read_fields(node, problems, _PHASE, (), _HINTS)
    if fields is None:
        return None
    kind = fields.string("kind", required=True, pattern="|".join(KINDS), allowed=f"one of {', '.join(KINDS)}")
    own = _strategies(fields) if fields.has("strategies") else common
    if own is None and not fields.has("strategies"):
        fields.fault("strategies", "is missing, here and at the top of the file")
    _check_losses(fields, kind, own or ())
    _check_length(fields, kind)
    return Phase(
        name=fields.string("name", pattern=_NAME, allowed=_NAME_RULE) or kind or "phase",
        kind=kind or "replayed",
        workload=_workload(fields, kind or "replayed"),
        strategies=own or (),
        optimizer=_optimizer(fields),
        steps=fields.integer("steps", 0, 10**7),
        warmup_steps=_or(fields.integer("warmup_steps", 0, 10**6), 4 if kind == "replayed" else 0),
        steps_per_epoch=fields.integer("steps_per_epoch", 1, 10**7) or (None if kind == "training" else EPOCH),
        epochs=fields.integer("epochs", 1, 10**5),
        repeats=_or(fields.integer("repeats", 1, 1000), 1),
        seed=_or(fields.integer("seed", 0, 2**31 - 1), seed),
        gloo_contexts=_or(fields.integer("gloo_contexts", 1, 64), 4),
        timeout_s=_seconds(fields, "timeout", 120.0),
        limit_s=_seconds(fields, "limit", 900.0),
        target_accuracy=fields.number("target_accuracy", 0, 1),
    )


def _check_losses(fields: Fields, kind: str | None, chosen: Sequence[Json]) -> None:
    """A replayed phase has no loss that a strategy could follow."""
    for spec in chosen:
        if kind == "replayed" and strategies.strategy_class(str(spec["name"])).needs_loss:
            key = "strategies" if fields.has("strategies") else "kind"
            fields.fault(key, f"{spec['name']} follows the training loss, and a replayed phase has none")


def _seconds(fields: Fields, key: str, default: float) -> float:
    length = fields.unit(key, Duration)
    if length is not None and length.ns == 0:
        fields.fault(key, "must be more than nothing")
    return default if length is None else length.ns / 1e9


def _check_length(fields: Fields, kind: str | None) -> None:
    """A replayed phase is as long as its steps, a training phase as its epochs; never both."""
    wanted, other = ("epochs", "steps") if kind == "training" else ("steps", "epochs")
    if not fields.has(wanted) and not (kind == "training" and fields.has("steps")):
        fields.fault(wanted, "is missing")
    if fields.has(wanted) and fields.has(other):
        fields.fault(other, f"excludes {wanted}: a {kind} phase has one length")


def _workload(fields: Fields, kind: str) -> Json:
    """A name, or a mapping with a name and the workload's own options; every default filled in."""
    node = fields.node("workload", required=True)
    if node is None:
        return {}
    if isinstance(node, Scalar):
        given: dict[str, int | float | str | None] = {"name": read_text(node, fields.problems)}
    else:
        entries = fields.table("workload") or {}
        given = {key: _value(item, fields.problems) for key, item in entries.items()}
    try:
        workload = workloads.check(given)
    except WorkloadError as error:
        fields.fault("workload", str(error))
        return {}
    if workload["compute"] != KINDS[kind]:
        right = next(name for name, compute in KINDS.items() if compute == workload["compute"])
        fields.fault("workload", f"{given['name']} is {workload['compute']}: its phase's kind is {right}, not {kind}")
    return {"name": given["name"], **workload}


def _value(node: Node, problems: Problems) -> int | float | str | None:
    """An option whose type only the workload knows: a number where the text is one."""
    text = read_text(node, problems)
    if text is None or not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text):
        return text
    number = float(text)
    return int(number) if number.is_integer() else number


def _optimizer(fields: Fields) -> Json:
    """SGD as the paper sets it, unless written otherwise."""
    given = fields.fields("optimizer", _OPTIMIZER)
    if given is None:
        return dict(SGD)
    numbers = {key: given.number(key, 0, 1e6) for key in _OPTIMIZER if key not in ("name", "nesterov")}
    chosen: dict[str, Any] = {"name": given.string("name") or "sgd"}
    default = dict(SGD) if chosen["name"] == "sgd" else {}
    nesterov = given.boolean("nesterov")
    chosen = {**default, **chosen, **{key: value for key, value in numbers.items() if value is not None}}
    chosen |= {} if nesterov is None else {"nesterov": nesterov}
    try:
        optimizers.complete(chosen)
    except WorkloadError as error:
        fields.fault("optimizer", str(error))
    return chosen


def _strategies(fields: Fields) -> tuple[Json, ...] | None:
    nodes = fields.items("strategies")
    if nodes is None:
        return None
    if not nodes:
        fields.fault("strategies", "there must be at least one")
    return tuple(spec for node in nodes if (spec := _strategy(node, fields.problems)))


def _strategy(node: Node, problems: Problems) -> Json | None:
    text = read_text(node, problems)
    if text is None:
        return None
    try:
        return strategies.parse(text).to_json()
    except StrategyError as error:
        problems.add(node.place, str(error))
        return None


def parse_strategies(text: str) -> tuple[Json, ...]:
    """The strategies of a flag: "ddp,cpdp:k=4,beta=0.3" is ddp and cpdp:k=4,beta=0.3, since beta=0.3 is no
    name.

    Raises StrategyError naming the part that is wrong.
    """
    parts: list[str] = []
    for item in text.split(","):
        if parts and "=" in item and ":" not in item:
            parts[-1] += f",{item}"
        else:
            parts.append(item)
    return tuple(strategies.parse(part).to_json() for part in parts)


def slug(text: str) -> str:
    """A text as part of a file name: letters, digits, dots and single dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("=", "")).strip("-.")[:60]
