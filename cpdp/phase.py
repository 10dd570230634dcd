"""One phase of an experiment file -> frozen `Phase`, every default filled in. Pure.

Flow: `experiment.parse` hands each entry of `phases` to `read_phase`; faults are noted at their line, not raised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpdp import padding, strategies, workloads
from cpdp.errors import StrategyError, WorkloadError
from cpdp.padding import Padding
from cpdp.workloads import optimizers
from netlab import Duration, Fields, Node, Problems, Scalar, read_fields, read_text

KINDS = {"replayed": "replayed", "training": "real"}
"""What a phase does -> how its computation is done."""

_PHASE = (
    "name", "kind", "workload", "strategies", "steps", "warmup_steps", "steps_per_epoch", "epochs", "repeats",
    "seed", "optimizer", "gloo_contexts", "timeout", "limit", "target_accuracy", "duration", "evaluate_every",
    "target_loss", "local_models", "compute", "checkpoint",
)  # fmt: skip
_COMPUTE = ("mode", "step", "times", "shift", "factors", "straggler_chance", "straggler_factor", "overrun")
HINTS = {"k": "a period belongs to a strategy, like localsgd:k=2", "warmup": "write warmup_steps"}
_OPTIMIZER = ("name", "lr", "momentum", "weight_decay", "nesterov", "beta1", "beta2", "eps")
SGD: Mapping[str, Any] = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
"""The optimizer of a phase that names none: the CPDP paper's."""

EPOCH = 48
"""Steps in an epoch of a replayed phase that names none: the CPDP paper's on its WAN."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}"
NAME_RULE = "letters, digits, '.', '_' and '-', at most 60, the first a letter or digit"

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Phase:
    """One kind of measurement: all strategies, `repeats` times each, on one workload.

    `strategies` and `workload` are in the form that the worker reads. `steps` count measured steps, after
    `warmup_steps`; a training phase has `epochs` or a `duration_s` instead. `evaluate_every` counts steps; without it,
    evaluation is at the ends of epochs. `compute` is a `padding.Padding`, or None where time is as it comes. Times are
    in seconds.
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
    duration_s: float | None = None
    evaluate_every: int | None = None
    target_loss: float | None = None
    local_models: bool = False
    compute: Json | None = None
    checkpoint: int | None = None


def or_default(value: int | None, default: int) -> int:
    """A number, or what stands for its absence."""
    return default if value is None else value


def read_phase(node: Node, problems: Problems, common: tuple[Json, ...] | None, seed: int) -> Phase | None:
    """A phase, with the strategies and the seed of the file's top level where it has none of its own."""
    fields = read_fields(node, problems, _PHASE, (), HINTS)
    if fields is None:
        return None
    kind = fields.string("kind", required=True, pattern="|".join(KINDS), allowed=f"one of {', '.join(KINDS)}")
    own = read_strategies(fields) if fields.has("strategies") else common
    if own is None and not fields.has("strategies"):
        fields.fault("strategies", "is missing, here and at the top of the file")
    _check_losses(fields, kind, own or ())
    _check_length(fields, kind)
    return Phase(
        name=fields.string("name", pattern=NAME, allowed=NAME_RULE) or kind or "phase",
        kind=kind or "replayed",
        workload=_workload(fields, kind or "replayed"),
        strategies=own or (),
        optimizer=_optimizer(fields),
        steps=fields.integer("steps", 0, 10**7),
        warmup_steps=or_default(fields.integer("warmup_steps", 0, 10**6), 4 if kind == "replayed" else 0),
        steps_per_epoch=fields.integer("steps_per_epoch", 1, 10**7) or (None if kind == "training" else EPOCH),
        epochs=fields.integer("epochs", 1, 10**5),
        repeats=or_default(fields.integer("repeats", 1, 1000), 1),
        seed=or_default(fields.integer("seed", 0, 2**31 - 1), seed),
        gloo_contexts=or_default(fields.integer("gloo_contexts", 1, 64), 4),
        timeout_s=_seconds(fields, "timeout", 120.0),
        limit_s=_seconds(fields, "limit", 900.0),
        target_accuracy=fields.number("target_accuracy", 0, 1),
        duration_s=_seconds(fields, "duration", 0.0) or None,
        evaluate_every=fields.integer("evaluate_every", 1, 10**7),
        target_loss=fields.number("target_loss", 0, 1e9),
        local_models=fields.boolean("local_models") or False,
        compute=_compute(fields, kind),
        checkpoint=fields.integer("checkpoint", 1, 10**7),
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
    """A replayed phase is as long as its steps, a training phase as its epochs, steps or time; never two of them."""
    lengths = ("epochs", "steps", "duration") if kind == "training" else ("steps",)
    given = [key for key in ("epochs", "steps", "duration") if fields.has(key)]
    if not any(key in lengths for key in given):
        fields.fault(lengths[0], "is missing" if len(lengths) == 1 else f"is missing (or {' or '.join(lengths[1:])})")
    for other in given[1:]:
        fields.fault(other, f"excludes {given[0]}: a {kind} phase has one length")
    if kind == "training":
        return
    for key in ("duration", "evaluate_every", "target_loss", "local_models"):
        if fields.has(key):
            fields.fault(key, "belongs to a training phase: a replayed one has neither loss nor accuracy")


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


def _compute(fields: Fields, kind: str | None) -> Json | None:
    """How a phase's computation is done: as it comes (real or replayed), or padded to times that are drawn."""
    node = fields.node("compute")
    if node is None:
        return None
    if isinstance(node, Scalar):
        own = KINDS.get(kind or "", "real")
        fields.string("compute", pattern=own, allowed=f"{own}, or the times of padded computation, like {{step: 60ms}}")
        return None
    given = fields.fields("compute", _COMPUTE)
    if given is None:
        return None
    if kind != "training":
        fields.fault("compute", "only real computation can be padded: a replayed phase has its timeline's times")
    given.string("mode", pattern="padded", allowed="padded, the only one that has options")
    return _padding(fields, given)


def _padding(fields: Fields, given: Fields) -> Json | None:
    step, shift = given.unit("step", Duration, required=True), given.unit("shift", Duration)
    numbers = {key: given.number(key, 0, 1e6) for key in ("straggler_chance", "straggler_factor", "overrun")}
    texts = {"times": given.string("times")}
    if step is None:
        return None
    known = {key: value for key, value in {**texts, **numbers}.items() if value is not None}
    made = Padding(
        step_ns=step.ns,
        shift_ns=shift.ns if shift else 0,
        factors=tuple(one for node in given.items("factors") or () if (one := _factor(node, given.problems))),
        **known,  # type: ignore[arg-type]
    )
    problem = padding.fault(made)
    if problem:
        fields.fault("compute", problem)
    return made.to_json()


def _factor(node: Node, problems: Problems) -> float | None:
    value = _value(node, problems)
    if isinstance(value, int | float):
        return float(value)
    problems.add(node.place, f"{value} is not allowed: a number above 0")
    return None


def compute_document(compute: Json) -> dict[str, Any]:
    """A phase's padding as an experiment file has it."""
    raw = dict(compute)
    times = {"step": f"{raw.pop('step_ns')}ns", "shift": f"{raw.pop('shift_ns')}ns"}
    return {**times, **{key: list(value) if key == "factors" else value for key, value in raw.items()}}


def read_strategies(fields: Fields) -> tuple[Json, ...] | None:
    """The strategies of a phase, or those of the top level; None where none are listed."""
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
