"""An Impairment, and an entry of a schedule, in words and as JSON values. Pure.

For everything that shows or records what a direction does: plans, events, change logs. A quantity in JSON has its unit
in its key; probabilities are shares from 0 to 1; what is not there is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netlab.impairment import Chance, FourState, GilbertElliott, Impairment, Jitter, Loss
from netlab.settings import amount_text, setting_text
from netlab.timeline import Entry, Hold, OnStep, Ramp, Shape, Sine
from netlab.units import Duration

_GILBERT_KEYS = ("to_bad", "to_good", "loss_in_bad", "loss_in_good")
_FOUR_STATE_KEYS = ("p13", "p31", "p32", "p23", "p14")


def describe_impairment(impairment: Impairment) -> str:
    """One line for people: delay, rate, queue, and whatever else the direction does."""
    parts = [] if impairment.up else ["down"]
    parts.append(f"delay {impairment.delay}")
    if impairment.jitter is not None:
        parts.append(f"jitter {impairment.jitter}")
    if impairment.rate is not None:
        parts.append(f"rate {impairment.rate} (+{impairment.overhead} B framing per packet)")
    queue = impairment.queue
    if queue is not None:
        limits = [f"{queue.bytes} B"] if queue.bytes is not None else []
        limits += [f"{queue.packets} packets"] if queue.packets is not None else []
        parts.append("queue " + ", ".join(limits) + (" (derived)" if impairment.queue_derived else ""))
    if impairment.codel is not None:
        parts.append(str(impairment.codel))
    for name in ("loss", "duplicate", "reorder", "corrupt"):
        value = getattr(impairment, name)
        parts += [f"{name} {value}"] if value is not None else []
    if impairment.random:
        parts.append(f"seed {impairment.seed}")
    return ", ".join(parts)


def impairment_json(impairment: Impairment) -> dict[str, Any]:
    """The full state of a direction as JSON values."""
    queue, codel, reorder = impairment.queue, impairment.codel, impairment.reorder
    return {
        "up": impairment.up,
        "delay_ns": impairment.delay.ns,
        "jitter": None if impairment.jitter is None else _jitter(impairment.jitter),
        "rate_bps": None if impairment.rate is None else impairment.rate.bps,
        "queue_bytes": None if queue is None else queue.bytes,
        "queue_packets": None if queue is None else queue.packets,
        "queue_derived": impairment.queue_derived,
        "codel": None if codel is None else _codel(codel.target.ns, codel.interval.ns, codel.ecn),
        "overhead_bytes": impairment.overhead,
        "min_frame_bytes": impairment.min_frame,
        "loss": None if impairment.loss is None else _loss(impairment.loss),
        "duplicate": None if impairment.duplicate is None else _chance(impairment.duplicate),
        "reorder": None if reorder is None else {**_chance(reorder.chance), "gap": reorder.gap},
        "corrupt": None if impairment.corrupt is None else _chance(impairment.corrupt),
        "seed": impairment.seed,
    }


def _jitter(jitter: Jitter) -> dict[str, Any]:
    return {
        "amount_ns": jitter.amount.ns,
        "distribution": jitter.distribution,
        "correlation": jitter.correlation.value,
        "reorder": jitter.reorder,
        "least_ns": jitter.table()[0],
        "most_ns": jitter.table()[-1],
    }


def _codel(target_ns: int, interval_ns: int, ecn: bool) -> dict[str, Any]:
    return {"target_ns": target_ns, "interval_ns": interval_ns, "ecn": ecn}


def _chance(chance: Chance) -> dict[str, Any]:
    return {"probability": chance.probability.value, "correlation": chance.correlation.value}


def _loss(loss: Loss) -> dict[str, Any]:
    """The parameters of the model, and what follows from them: `mean` share lost, `burst` packets lost in a row."""
    burst = loss.burst
    follows = {"mean": float(loss.rate), "burst": None if burst is None else float(burst)}
    if isinstance(loss, Chance):
        return {"model": "independent", **_chance(loss), **follows}
    keys = _GILBERT_KEYS if isinstance(loss, GilbertElliott) else _FOUR_STATE_KEYS
    model = "four-state" if isinstance(loss, FourState) else "gilbert-elliott"
    return {"model": model, **{key: getattr(loss, key).value for key in keys}, **follows}


def describe_entry(entry: Entry) -> str:
    """One line for people: when, where and what."""
    when = f"at {entry.at}" if isinstance(entry.at, Duration) else f"when {entry.at} begins"
    rounds = [f"for {entry.lasts}"] if entry.lasts else []
    rounds += [f"every {entry.every}"] if entry.every else []
    rounds += [f"{entry.times} times"] if entry.times else []
    what = dict.fromkeys(f"{target.link} {target.way}: {_shape_text(target.shape)}" for target in entry.targets)
    return f"{', '.join([when, *rounds])}: {'; '.join(what)}"


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry of the schedule as JSON values."""
    step = entry.at if isinstance(entry.at, OnStep) else None
    return {
        "label": entry.label,
        "at_ns": None if isinstance(entry.at, OnStep) else entry.at.ns,
        "at_step": None if step is None else {"step": step.step, "rank": step.rank},
        "for_ns": entry.lasts.ns if entry.lasts else None,
        "every_ns": entry.every.ns if entry.every else None,
        "times": entry.times,
        "links": [{"link": target.link, "direction": target.way} for target in entry.targets],
        "text": describe_entry(entry),
    }


def _shape_text(shape: Shape) -> str:
    if isinstance(shape, Hold):
        return ", ".join(f"{key} {setting_text(key, value)}" for key, value in shape.values.items())
    if isinstance(shape, Ramp):
        return f"ramp to {_figures(shape.targets)} over {Duration(shape.over_ns)} in steps of {Duration(shape.step_ns)}"
    if isinstance(shape, Sine):
        length = f"period {Duration(shape.period_ns)} in steps of {Duration(shape.step_ns)}"
        return f"sine of {_figures(shape.amplitudes)}, {length}"
    keys = ", ".join(dict.fromkeys(key for _, values in shape.points for key in values))
    again = "once" if shape.loop_ns is None else f"again every {Duration(shape.loop_ns)}"
    return f"series of {keys} in {len(shape.points)} steps, {again}"


def _figures(figures: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {amount_text(key, amount)}" for key, amount in figures.items())
