"""What a direction of a link is asked to do, key by key, and the Impairment that follows. Pure.

Between reading (`netlab.link_fields`: a profile, a schedule or `netlab set` says `loss: 1%`) and the model
(`netlab.impairment`). Settings map a key to its value; a missing key is not asked for, None asks for nothing of the
kind. All three sources meet in `resolve`, so the same combination is refused by all, with the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from netlab.chances import Chance, Reorder
from netlab.errors import UnitError
from netlab.impairment import ETHERNET, Codel, Impairment, Queue, QueueRule, derive_queue
from netlab.jitter import Jitter
from netlab.units import MAX_RATE_BPS, MIN_RATE_BPS, NS_PER_S, PPB, Delay, Fraction, Rate, quote

Settings = Mapping[str, Any]
"""delay: Delay; rate: Rate | None; queue: QueueWish; framing: Framing; jitter: Jitter | None; loss: Loss | None;
duplicate, corrupt: Chance | None; reorder: Reorder | None; seed: int; state: bool (True: up)."""

SCALAR_KEYS = ("delay", "rate", "jitter", "loss", "duplicate", "reorder", "corrupt")
"""Keys with one figure that a ramp or a wave can move: ns, bit/s, or billionths."""

REACH_SLACK_NS = 4  # to which Jitter.reach is not proportional to its amount
MAX_DELAY_NS = 600 * NS_PER_S
_RANGES = {"delay": (0, MAX_DELAY_NS), "rate": (MIN_RATE_BPS, MAX_RATE_BPS), "jitter": (0, MAX_DELAY_NS)}


class Conflict(UnitError):
    """Settings that are fine one by one, but not together. `key` is the one to blame."""

    def __init__(self, key: str, message: str) -> None:
        """Keep the key for the caller, who knows where it is written."""
        self.key = key
        super().__init__(message)


@dataclass(frozen=True)
class QueueWish:
    """A queue as asked for. No rule: derive the limit. No `codel`: drop the tail only."""

    rule: QueueRule | None = None
    codel: Codel | None = None

    def __str__(self) -> str:
        """As a profile would write it, more or less."""
        limit = "derived" if self.rule is None else str(self.rule)
        return limit if self.codel is None else f"{limit}, {self.codel}"


def resolve(settings: Settings, rtt: Delay, mtu: int) -> Impairment:
    """The impairment that these settings ask for, on a link with this round trip and MTU.

    `rtt` is the link's own, from the profile, also after the delay has changed: a router's memory does not grow with
    the distance. Raises Conflict.
    """
    delay, rate = settings["delay"], settings.get("rate")
    jitter, reorder = settings.get("jitter"), settings.get("reorder")
    _check_delay(delay, jitter, reorder)
    framing = settings.get("framing", ETHERNET)
    wish, queue = settings.get("queue"), None
    if rate is None:
        for key in ("queue", "framing"):
            if settings.get(key) is not None:
                raise Conflict(key, f"{quote(str(settings[key]))}: a {key} needs a rate, and there is none")
    else:
        queue = _queue(wish or QueueWish(), rate, rtt, mtu, settings)
    return Impairment(
        delay,
        rate,
        queue,
        overhead=framing.overhead,
        min_frame=framing.min_frame,
        queue_derived=rate is not None and (wish is None or wish.rule is None),
        queue_rule=wish.rule if wish else None,
        jitter=jitter,
        loss=settings.get("loss"),
        duplicate=settings.get("duplicate"),
        reorder=reorder,
        corrupt=settings.get("corrupt"),
        codel=wish.codel if wish else None,
        seed=settings.get("seed", 0),
        up=settings.get("state", True),
    )


def _queue(wish: QueueWish, rate: Rate, rtt: Delay, mtu: int, settings: Settings) -> Queue:
    framing = settings.get("framing", ETHERNET)
    if wish.rule is None:
        return derive_queue(rate, rtt, mtu, framing)
    try:
        return wish.rule.resolve(rate, rtt, mtu, framing)
    except UnitError as error:
        raise Conflict("queue", str(error)) from None


def _check_delay(delay: Delay, jitter: Jitter | None, reorder: Reorder | None) -> None:
    if jitter is not None and jitter.reach > delay:
        most = Delay(jitter.amount.ns * max(delay.ns - REACH_SLACK_NS, 0) // jitter.reach.ns)
        most = min(jitter.amount, delay) if jitter.distribution == "uniform" else most
        raise Conflict(
            "jitter",
            f"{quote(str(jitter))} goes {jitter.reach} below the delay, which is {delay}: a packet cannot arrive "
            f"before it was sent, and cutting off would change the mean; at most {most}, or more delay",
        )
    if reorder is not None and delay.ns == 0:
        raise Conflict("reorder", f"{quote(str(reorder))}: a packet overtakes by skipping the delay, and there is none")


def settings_of(impairment: Impairment) -> dict[str, Any]:
    """The settings that ask for this impairment: `resolve` gives it back."""
    settings: dict[str, Any] = {"delay": impairment.delay, "state": impairment.up, "seed": impairment.seed}
    if impairment.rate is not None:
        rule = None if impairment.queue_derived else impairment.queue_rule or _rule_of(impairment.queue)
        settings["rate"], settings["framing"] = impairment.rate, impairment.framing
        settings["queue"] = QueueWish(rule, impairment.codel)
    for key in ("jitter", "loss", "duplicate", "reorder", "corrupt"):
        settings[key] = getattr(impairment, key)
    return settings


def _rule_of(queue: Queue | None) -> QueueRule | None:
    if queue is None:
        return None
    return QueueRule("bytes", queue.bytes) if queue.bytes is not None else QueueRule("packets", queue.packets or 0)


def figure(settings: Settings, key: str) -> int | None:
    """The one figure of a setting (a key of SCALAR_KEYS); 0 where there is none. None: it has more than one, or a
    rate is missing."""
    value = settings.get(key)
    if isinstance(value, Delay):
        return value.ns
    if isinstance(value, Rate):
        return value.bps
    if isinstance(value, Jitter):
        return value.amount.ns
    if isinstance(value, Reorder):
        return value.chance.probability.ppb
    if isinstance(value, Chance):
        return value.probability.ppb
    return 0 if value is None and key != "rate" else None


def with_figure(settings: Settings, key: str, amount: int) -> Any:
    """The setting with another figure and all else (distribution, correlation, gap) as it was. Raises UnitError."""
    value = settings.get(key)
    low, high = _RANGES.get(key, (0, PPB))
    if not low <= amount <= high:
        raise UnitError(f"{key} would become {amount_text(key, amount)}, outside of what is allowed")
    if key == "delay":
        return Delay(amount)
    if key == "rate":
        return Rate(amount)
    if amount == 0:
        return None
    if key == "jitter":
        return value.scaled(Delay(amount)) if isinstance(value, Jitter) else Jitter(Delay(amount))
    if key == "reorder":
        old = value if isinstance(value, Reorder) else Reorder(Chance(Fraction(amount)))
        return replace(old, chance=Chance.checked(Fraction(amount), old.chance.correlation))
    return Chance.checked(Fraction(amount), value.correlation) if value else Chance(Fraction(amount))


def amount_text(key: str, amount: int) -> str:
    """A figure of SCALAR_KEYS for people, also a negative one."""
    sign, size = ("-" if amount < 0 else ""), abs(amount)
    if key in ("delay", "jitter"):
        return sign + str(Delay(size))
    if key == "rate":
        return sign + (str(Rate(size)) if size else "0bit")
    return f"{sign}{size * 100 / PPB:g}%"


def setting_text(key: str, value: Any) -> str:
    """A setting for people and records."""
    if key == "state":
        return "up" if value else "down"
    return "none" if value is None else str(value)
