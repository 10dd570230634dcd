"""An Impairment in words and as JSON values. Pure.

For everything that shows or records what a direction does: plans, events, change logs. A quantity in JSON has its unit
in its key; probabilities are shares from 0 to 1; what is not there is null.
"""

from __future__ import annotations

from typing import Any

from netlab.impairment import Chance, FourState, GilbertElliott, Impairment, Jitter, Loss

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
