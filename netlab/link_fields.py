"""Document -> settings of a direction: what `delay`, `jitter`, `loss` and the others may say. Pure.

One reader for three places: links of a profile (`netlab.profile`), entries of a schedule (`netlab.schedule_fields`)
and `netlab set` (`netlab.live`). A key has a short form, a text, and a long form, a mapping. Faults are noted where
they stand; a key with a fault is missing from what is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from netlab.attached import Attached
from netlab.chances import ALWAYS, MAX_BURST, MAX_SEED, NEVER, Chance, FourState, GilbertElliott, Loss, Reorder
from netlab.document import Items, Node, Scalar, Table
from netlab.errors import UnitError
from netlab.fields import Fields, Problems, read_fields, read_unit
from netlab.impairment import BARE_IP, CODEL_INTERVAL, CODEL_TARGET, ETHERNET, Codel, Framing, QueueRule
from netlab.jitter import DISTRIBUTIONS, Distribution, Jitter, jitter_of
from netlab.settings import QueueWish
from netlab.traces import delay_samples
from netlab.units import PPB, Delay, Fraction, Rate, Size, quote

LIVE_KEYS = ("delay", "rate", "queue", "jitter", "loss", "duplicate", "reorder", "corrupt", "state")
"""What can change while a lab runs."""

DIRECTION_KEYS = (*LIVE_KEYS, "framing", "seed", "trace")

HINTS = {
    "latency": "write delay (one way) or rtt (both ways together)",
    "ping": "write rtt",
    "bandwidth": "write rate",
    "speed": "write rate",
    "limit": "write queue",
    "buffer": "write queue",
    "distribution": "write jitter: {amount: 2ms, distribution: normal}",
    "correlation": "write it inside of jitter, loss, duplicate, reorder or corrupt",
    "ecn": "write queue: {discipline: codel, ecn: true}",
    "discipline": "write queue: {discipline: codel}",
    "overhead": "write framing: {overhead: 38B, min_frame: 84B}",
    "burst": "write loss: {probability: 1%, burst: 4}",
    "down": "write state: down",
    "up": "write state: up",
}
_FIXED = ("framing", "seed", "mtu", "trace", "between", "name")
LIVE_HINTS = HINTS | dict.fromkeys(_FIXED, "it cannot change while packets flow: write it with the link")
ONE_WAY_HINTS = HINTS | {"rtt": "here only delay, one way, has a meaning", "latency": "write delay"}

MAX_GAP = 1_000_000
MAX_OVERHEAD, MAX_MIN_FRAME = 1024, 65536
_LOSS_KEYS = {
    "independent": ("model", "probability", "correlation", "burst"),
    "gilbert-elliott": ("model", "to_bad", "to_good", "loss_in_bad", "loss_in_good"),
    "four-state": ("model", "p13", "p31", "p32", "p23", "p14"),
}
_CHANCE_HINTS = dict.fromkeys(("p", "mean", "rate", "percent"), "write probability")
_LOSS_HINTS = {
    "independent": _CHANCE_HINTS,
    "gilbert-elliott": {
        "p": "write to_bad",
        "r": "write to_good",
        "h": "write loss_in_bad, which is 1 - h",
        "k": "write loss_in_good, which is 1 - k",
    },
    "four-state": {},
}

_Reader = Callable[[Node, Problems, Attached], Any]
_FAULTY = object()


def read_settings(fields: Fields | None, attached: Attached) -> dict[str, Any]:
    """The settings that a mapping states; other keys of it, like trace or rtt, are left to the caller."""
    if fields is None:
        return {}
    nodes = {key: fields.node(key) for key in _READERS}
    read = {key: _READERS[key](node, fields.problems, attached) for key, node in nodes.items() if node is not None}
    return {key: value for key, value in read.items() if value is not _FAULTY}


def _or_faulty(value: Any) -> Any:
    return _FAULTY if value is None else value


def _unit(unit: Any) -> _Reader:
    return lambda node, problems, attached: _or_faulty(read_unit(node, problems, unit))


def _checked(fields: Fields, key: str, make: Callable[[], Any]) -> Any:
    """What `make` gives; its UnitError becomes a fault of the key."""
    try:
        return make()
    except UnitError as error:
        fields.fault(key, str(error))
        return _FAULTY


def _word(node: Scalar, problems: Problems, words: Mapping[str, Any]) -> Any:
    if node.text in words:
        return words[node.text]
    allowed = " or ".join(words)
    problems.add(node.place, f"{quote(node.text)} is not allowed: {allowed}")
    return _FAULTY


# --- chances and losses -------------------------------------------------------------------------------------


def _chance(node: Node, problems: Problems, attached: Attached) -> Any:
    """Either "1%" or {probability: 1%, correlation: 25%}."""
    if not isinstance(node, Table):
        share = read_unit(node, problems, Fraction)
        return _FAULTY if share is None else Chance(share) if share.ppb else None
    fields = read_fields(node, problems, ("probability", "correlation"), hints=_CHANCE_HINTS)
    return _FAULTY if fields is None else _chance_of(fields)


def _chance_of(fields: Fields) -> Any:
    probability = fields.unit("probability", Fraction, required=True)
    correlation = fields.unit("correlation", Fraction)
    if probability is None or (correlation is None and fields.has("correlation")):
        return _FAULTY
    if not probability.ppb:
        return None
    return _checked(fields, "correlation", lambda: Chance.checked(probability, correlation or NEVER))


def _reorder(node: Node, problems: Problems, attached: Attached) -> Any:
    if not isinstance(node, Table):
        chance, gap = _chance(node, problems, attached), 1
    else:
        fields = read_fields(node, problems, ("probability", "correlation", "gap"), hints=_CHANCE_HINTS)
        assert fields is not None, "a mapping"
        chance, gap = _chance_of(fields), fields.integer("gap", 1, MAX_GAP) or 1
    return Reorder(chance, gap) if isinstance(chance, Chance) else chance


def _loss(node: Node, problems: Problems, attached: Attached) -> Any:
    if not isinstance(node, Table):
        return _chance(node, problems, attached)
    named = node.entries.get("model", Scalar(node.place, "independent"))
    if not isinstance(named, Scalar) or named.text not in _LOSS_KEYS:
        what = quote(named.text) if isinstance(named, Scalar) else "no text"
        problems.add(named.place, f"{what} is not a model of loss: {', '.join(_LOSS_KEYS)}")
        return _FAULTY
    fields = read_fields(node, problems, _LOSS_KEYS[named.text], hints=_LOSS_HINTS[named.text])
    assert fields is not None, "a mapping"
    if named.text == "independent":
        return _burst(fields) if fields.has("burst") else _chance_of(fields)
    return _gilbert_elliott(fields) if named.text == "gilbert-elliott" else _four_state(fields)


def _burst(fields: Fields) -> Any:
    """{probability: 1%, burst: 4}: so many packets are lost in a row on average."""
    probability = fields.unit("probability", Fraction, required=True)
    burst = fields.exact("burst", 1, MAX_BURST)
    if fields.has("correlation"):
        fields.fault("burst", "excludes correlation: both say how losses cluster")
        return _FAULTY
    if probability is None or burst is None:
        return _FAULTY
    return _checked(fields, "burst", lambda: GilbertElliott.from_burst(probability, burst)) if probability.ppb else None


def _shares(fields: Fields, required: tuple[str, ...], optional: Mapping[str, Fraction]) -> dict[str, Fraction] | None:
    """The fractions of a mapping; None when one of them is missing or faulty."""
    found = {key: fields.unit(key, Fraction, required=True) for key in required}
    found |= {key: fields.unit(key, Fraction) if fields.has(key) else value for key, value in optional.items()}
    good = {key: value for key, value in found.items() if value is not None}
    return good if len(good) == len(found) else None


def _gilbert_elliott(fields: Fields) -> Any:
    shares = _shares(fields, ("to_bad", "to_good"), {"loss_in_bad": ALWAYS, "loss_in_good": NEVER})
    if shares is None:
        return _FAULTY
    for key in ("to_bad", "to_good"):
        if not shares[key].ppb:
            fields.fault(key, "'0%' would never change the state: more than 0% is needed")
            return _FAULTY
    if not shares["loss_in_bad"].ppb and not shares["loss_in_good"].ppb:
        fields.fault("loss_in_bad", "nothing is ever lost in either state: leave loss out")
        return _FAULTY
    return GilbertElliott(**shares)


def _four_state(fields: Fields) -> Any:
    p13 = fields.unit("p13", Fraction, required=True)
    rest = Fraction(PPB - p13.ppb) if p13 else NEVER
    shares = _shares(fields, (), {"p31": rest, "p32": NEVER, "p23": ALWAYS, "p14": NEVER})
    if p13 is None or shares is None:
        return _FAULTY
    faults = {
        "p14": p13.ppb + shares["p14"].ppb > PPB
        and f"p13 and p14 are more than 100% together, {p13} + {shares['p14']}",
        "p32": shares["p31"].ppb + shares["p32"].ppb > PPB
        and f"p31 and p32 are more than 100% together, {shares['p31']} + {shares['p32']}",
        "p31": not shares["p31"].ppb and "at 0% state 1 is never reached again: more is needed",
        "p23": not shares["p23"].ppb and "at 0% state 2 is never left: more is needed",
        "p13": not p13.ppb and not shares["p14"].ppb and "nothing is ever lost: leave loss out",
    }
    for key, message in faults.items():
        if message:
            fields.fault(key, message)
            return _FAULTY
    return FourState(p13, **shares)


# --- jitter -------------------------------------------------------------------------------------------------


def _jitter(node: Node, problems: Problems, attached: Attached) -> Any:
    """Either "2ms" (uniform) or {amount, distribution, correlation, reorder, samples}."""
    if not isinstance(node, Table):
        amount = read_unit(node, problems, Delay)
        return _FAULTY if amount is None else Jitter(amount) if amount.ns else None
    fields = read_fields(node, problems, ("amount", "distribution", "correlation", "reorder", "samples"))
    assert fields is not None, "a mapping"
    samples = _samples(fields, attached)
    amount = fields.unit("amount", Delay, required=not fields.has("samples"))
    correlation, reorder = fields.unit("correlation", Fraction), fields.boolean("reorder")
    name = fields.string("distribution", pattern="|".join(DISTRIBUTIONS), allowed=", ".join(DISTRIBUTIONS))
    distribution = next((known for known in DISTRIBUTIONS if known == name), None)
    read: dict[str, Any] = {"amount": amount, "correlation": correlation, "reorder": reorder}
    read |= {"samples": samples, "distribution": distribution}
    if any(value is None and fields.has(key) for key, value in read.items()) or not _fits(fields, distribution):
        return _FAULTY
    if correlation == ALWAYS:
        fields.fault("correlation", "'100%' would let nothing ever change: it must be less")
        return _FAULTY
    if amount is not None and not amount.ns:
        return None
    if samples is not None:
        return _measured(fields, samples, amount, correlation or NEVER, bool(reorder))
    return _FAULTY if amount is None else Jitter(amount, distribution or "uniform", correlation or NEVER, bool(reorder))


def _fits(fields: Fields, distribution: Distribution | None) -> bool:
    """A table needs samples, and samples are a table."""
    if distribution == "table" and not fields.has("samples"):
        fields.fault("samples", "is missing: a table is made of measured delays, a list or the name of a file")
        return False
    if fields.has("samples") and distribution not in (None, "table"):
        fields.fault("samples", f"excludes distribution {distribution}: samples are a distribution themselves (table)")
        return False
    return True


def _samples(fields: Fields, attached: Attached) -> list[int] | None:
    """Measured delays in ns: a list of them, or the name of a file with a column `delay`."""
    node = fields.node("samples")
    if node is None:
        return None
    if isinstance(node, Items):
        delays = [read_unit(item, fields.problems, Delay) for item in node.items]
        good = [delay.ns for delay in delays if delay is not None]
        return good if len(good) == len(delays) else None
    file = attached.text(node, fields.problems)
    found: Any = _FAULTY if file is None else _checked(fields, "samples", lambda: delay_samples(file[1], file[0]))
    return None if found is _FAULTY else list(found)


def _measured(fields: Fields, samples: list[int], amount: Delay | None, correlation: Fraction, reorder: bool) -> Any:
    return _checked(fields, "samples", lambda: jitter_of(samples, amount, correlation, reorder))


# --- queue, framing, seed, state ----------------------------------------------------------------------------


def _queue(node: Node, problems: Problems, attached: Attached) -> Any:
    """Either "2MB" or {limit, discipline, target, interval, ecn}."""
    if not isinstance(node, Table):
        rule = read_unit(node, problems, QueueRule)
        return _FAULTY if rule is None else QueueWish(rule)
    fields = read_fields(node, problems, ("limit", "discipline", "target", "interval", "ecn"))
    assert fields is not None, "a mapping"
    limit = fields.unit("limit", QueueRule)
    discipline = fields.string("discipline", pattern="droptail|codel", allowed="droptail or codel")
    target, interval = fields.unit("target", Delay), fields.unit("interval", Delay)
    ecn = fields.boolean("ecn")
    read = {"limit": limit, "discipline": discipline, "target": target, "interval": interval, "ecn": ecn}
    faulty = any(value is None and fields.has(key) for key, value in read.items())
    if discipline != "codel":
        for key in ("target", "interval", "ecn"):
            if fields.has(key) and not (key == "ecn" and ecn is False):
                fields.fault(key, f"{key} belongs to discipline: codel; a droptail queue only drops what finds no room")
                faulty = True
        return _FAULTY if faulty else QueueWish(limit)
    codel = _codel(fields, target or CODEL_TARGET, interval or CODEL_INTERVAL, bool(ecn))
    return _FAULTY if faulty or codel is None else QueueWish(limit, codel)


def _codel(fields: Fields, target: Delay, interval: Delay, ecn: bool) -> Codel | None:
    if 0 < target.ns <= interval.ns:
        return Codel(target, interval, ecn)
    fields.fault("target", f"{quote(str(target))} is not allowed: above 0 and up to the interval, {interval}")
    return None


def _framing(node: Node, problems: Problems, attached: Attached) -> Any:
    """Either ethernet, ip or {overhead: 38B, min_frame: 84B}."""
    if isinstance(node, Scalar):
        return _word(node, problems, {"ethernet": ETHERNET, "ip": BARE_IP})
    fields = read_fields(node, problems, ("overhead", "min_frame"))
    if fields is None:
        return _FAULTY
    sizes = [fields.unit(key, Size, required=True) for key in ("overhead", "min_frame")]
    for key, size, most in zip(("overhead", "min_frame"), sizes, (MAX_OVERHEAD, MAX_MIN_FRAME), strict=True):
        if size is not None and size.bytes > most:
            fields.fault(key, f"{quote(str(size))} is not allowed: 0B to {most}B")
            return _FAULTY
    overhead, min_frame = sizes
    return _FAULTY if overhead is None or min_frame is None else Framing(overhead.bytes, min_frame.bytes)


def _seed(node: Node, problems: Problems, attached: Attached) -> Any:
    found = Fields(Table(node.place, {"seed": node}), problems).integer("seed", 0, MAX_SEED)
    return _or_faulty(found)


def _state(node: Node, problems: Problems, attached: Attached) -> Any:
    if isinstance(node, Scalar):
        return _word(node, problems, {"up": True, "down": False})
    problems.add(node.place, "not allowed here: up or down")
    return _FAULTY


_READERS: dict[str, _Reader] = {
    "delay": _unit(Delay),
    "rate": _unit(Rate),
    "queue": _queue,
    "framing": _framing,
    "jitter": _jitter,
    "loss": _loss,
    "duplicate": _chance,
    "reorder": _reorder,
    "corrupt": _chance,
    "seed": _seed,
    "state": _state,
}

__all__ = ["DIRECTION_KEYS", "HINTS", "LIVE_KEYS", "ONE_WAY_HINTS", "Loss", "read_settings"]
