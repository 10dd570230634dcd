"""A kernel netem qdisc as a value, its netlink encoding, and what the kernel must report after taking it. Pure.

Below netlab.links.netem, which decides what an Impairment asks of netem and talks to the kernel. pyroute2 has a netem
encoder of its own, but it ignores seeds, distributions and burst losses without a word and knows no 64-bit delay or
rate, so every attribute of include/uapi/linux/pkt_sched.h is spelled out here.

Three habits of the kernel shape this module (net/sched/sch_netem.c, netem_change and netem_dump):

- a change keeps what it does not mention. So `encode` always mentions everything, zeros included, and one change
  never depends on the one before it;
- a delay table cannot be taken away again, only replaced. So a uniform jitter sends a uniform table;
- it accepts attributes that it does not know. So only a comparison with what it reports tells what was taken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink import nla
from pyroute2.netlink.rtnl.tcmsg import tcmsg

KIND = "netem"
U32_MAX = 2**32 - 1
I32_MAX = 2**31 - 1
TICK_SHIFT = 6  # the kernel's packet scheduler clock ticks every 64 ns (PSCHED_SHIFT)
PPB = 1_000_000_000
TABLE_SCALE = 8192  # NETEM_DIST_SCALE: an entry of this value is one `jitter` above the mean
TABLE_MAX = 16384  # NETEM_DIST_MAX, entries


@dataclass(frozen=True)
class GilbertElliott:
    """Loss in two states, each field a `probability`.

    `p` leads from the good state to the bad one and `r` back; `h` is the chance to *survive* in the bad state and `k1`
    the chance to be lost in the good one (the kernel's own, unequal, conventions).
    """

    p: int
    r: int
    h: int
    k1: int


@dataclass(frozen=True)
class FourState:
    """Loss as the 4-state Markov chain of Salsano et al. (netem's "GI" model); each field a `probability`.

    State 1 delivers, 2 delivers within a burst, 3 loses within a burst, 4 loses alone.
    """

    p13: int
    p31: int
    p32: int
    p14: int
    p23: int


@dataclass(frozen=True)
class Slot:
    """Packets are held back and released together, at random intervals between the two delays."""

    min_delay_ns: int
    max_delay_ns: int
    max_packets: int = I32_MAX
    max_bytes: int = I32_MAX


@dataclass(frozen=True)
class Settings:
    """The full state of one netem qdisc, in the kernel's units. Probabilities are of 2**32 - 1 (see `probability`).

    `rate` is in bytes/s, 0 for none; `overhead` and `cell_overhead` are bytes added per packet and per cell, and may be
    negative. `table` is the distribution of the jitter, see `uniform_table`; it is required when there is jitter.
    `seed` None leaves the choice to the kernel.
    """

    latency_ns: int
    limit: int
    jitter_ns: int = 0
    table: tuple[int, ...] = ()
    delay_correlation: int = 0
    loss: int | GilbertElliott | FourState = 0
    loss_correlation: int = 0
    duplicate: int = 0
    duplicate_correlation: int = 0
    gap: int = 0
    reorder: int = 0
    reorder_correlation: int = 0
    corrupt: int = 0
    corrupt_correlation: int = 0
    rate: int = 0
    overhead: int = 0
    cell_size: int = 0
    cell_overhead: int = 0
    ecn: bool = False
    slot: Slot | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse what the kernel would wrap or cap: only a bug of ours gets here."""
        assert 0 <= self.latency_ns < 2**63, self.latency_ns
        assert 0 <= self.jitter_ns <= I32_MAX, "netem caps jitter at 2.147 s"
        assert 0 < self.limit <= U32_MAX, self.limit
        assert 0 <= self.rate < 2**63, self.rate
        assert (self.jitter_ns > 0) <= (0 < len(self.table) <= TABLE_MAX), "jitter needs its table"


class _Corr(nla):  # type: ignore[misc]
    fields = (("delay", "I"), ("loss", "I"), ("duplicate", "I"))


class _Pair(nla):  # type: ignore[misc]
    """Of TCA_NETEM_REORDER and TCA_NETEM_CORRUPT."""

    fields = (("probability", "I"), ("correlation", "I"))


class _Rate(nla):  # type: ignore[misc]
    fields = (("rate", "I"), ("packet_overhead", "i"), ("cell_size", "I"), ("cell_overhead", "i"))


class _Slot(nla):  # type: ignore[misc]
    fields = (
        ("min_delay", "q"),
        ("max_delay", "q"),
        ("max_packets", "i"),
        ("max_bytes", "i"),
        ("dist_delay", "q"),
        ("dist_jitter", "q"),
    )


class _Loss(nla):  # type: ignore[misc]
    """Nested: one of the two models."""

    nla_map = (("NETEM_LOSS_UNSPEC", "none"), ("NETEM_LOSS_GI", "gi"), ("NETEM_LOSS_GE", "ge"))

    class gi(nla):  # type: ignore[misc]
        """struct tc_netem_gimodel."""

        fields = (("p13", "I"), ("p31", "I"), ("p32", "I"), ("p14", "I"), ("p23", "I"))

    class ge(nla):  # type: ignore[misc]
        """struct tc_netem_gemodel."""

        fields = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


class Options(nla):  # type: ignore[misc]
    """TCA_OPTIONS of a netem qdisc: struct tc_netem_qopt, then attributes."""

    fields = (
        ("latency", "I"),
        ("limit", "I"),
        ("loss", "I"),
        ("gap", "I"),
        ("duplicate", "I"),
        ("jitter", "I"),
    )
    nla_map = (
        ("TCA_NETEM_UNSPEC", "none"),
        ("TCA_NETEM_CORR", "corr"),
        ("TCA_NETEM_DELAY_DIST", "cdata"),
        ("TCA_NETEM_REORDER", "pair"),
        ("TCA_NETEM_CORRUPT", "pair"),
        ("TCA_NETEM_LOSS", "loss"),
        ("TCA_NETEM_RATE", "rate"),
        ("TCA_NETEM_ECN", "uint32"),
        ("TCA_NETEM_RATE64", "uint64"),
        ("TCA_NETEM_PAD", "hex"),
        ("TCA_NETEM_LATENCY64", "int64"),
        ("TCA_NETEM_JITTER64", "int64"),
        ("TCA_NETEM_SLOT", "slot"),
        ("TCA_NETEM_SLOT_DIST", "cdata"),
        ("TCA_NETEM_PRNG_SEED", "uint64"),
    )
    corr, pair, loss, rate, slot = _Corr, _Pair, _Loss, _Rate, _Slot


class _Stats(nla):  # type: ignore[misc]
    """TCA_STATS2. The packet count of the basic part wraps at 2**32: the kernel then adds the whole one."""

    nla_map = (
        ("TCA_STATS_UNSPEC", "none"),
        ("TCA_STATS_BASIC", "basic"),
        ("TCA_STATS_RATE_EST", "hex"),
        ("TCA_STATS_QUEUE", "queue"),
        ("TCA_STATS_APP", "hex"),
        ("TCA_STATS_RATE_EST64", "hex"),
        ("TCA_STATS_PAD", "hex"),
        ("TCA_STATS_BASIC_HW", "hex"),
        ("TCA_STATS_PKT64", "uint64"),
    )

    class basic(nla):  # type: ignore[misc]
        """struct gnet_stats_basic."""

        fields = (("bytes", "Q"), ("packets", "I"))

    class queue(nla):  # type: ignore[misc]
        """struct gnet_stats_queue."""

        fields = (("qlen", "I"), ("backlog", "I"), ("drops", "I"), ("requeues", "I"), ("overlimits", "I"))


class NetemMessage(tcmsg):  # type: ignore[misc]
    """pyroute2's traffic control message, with our options and counters where the qdisc is a netem."""

    @staticmethod
    def get_options(message: Any, *args: Any, **keywords: Any) -> Any:
        """Called by pyroute2 with the message: the class that encodes and decodes its TCA_OPTIONS."""
        if message.get_attr("TCA_KIND") == KIND:
            return Options
        return tcmsg.get_options(message, *args, **keywords)

    @staticmethod
    def get_stats2(message: Any, *args: Any, **keywords: Any) -> Any:
        """The same for TCA_STATS2."""
        return _Stats


def probability(ppb: int) -> int:
    """Parts per billion to the kernel's fraction of 2**32 - 1, to the nearest."""
    assert 0 <= ppb <= PPB, ppb
    return (ppb * U32_MAX * 2 + PPB) // (2 * PPB)


def uniform_table(entries: int = 4096) -> tuple[int, ...]:
    """A flat distribution over -jitter to +jitter: the midpoints of equal steps, so that its mean is zero exactly."""
    return tuple(((2 * i + 1 - entries) * TABLE_SCALE) // entries for i in range(entries))


def encode(settings: Settings) -> dict[str, Any]:
    """The value of TCA_OPTIONS for `Options` to encode: every attribute, whether or not it differs from zero."""
    s = settings
    loss_rate = s.loss if isinstance(s.loss, int) else 0
    attrs: list[tuple[str, Any]] = [
        ("TCA_NETEM_CORR", _correlations(s)),
        ("TCA_NETEM_REORDER", {"probability": s.reorder, "correlation": s.reorder_correlation}),
        ("TCA_NETEM_CORRUPT", {"probability": s.corrupt, "correlation": s.corrupt_correlation}),
        ("TCA_NETEM_RATE", _rate(s)),
        ("TCA_NETEM_RATE64", s.rate),
        ("TCA_NETEM_LATENCY64", s.latency_ns),
        ("TCA_NETEM_JITTER64", s.jitter_ns),
        ("TCA_NETEM_ECN", int(s.ecn)),
        ("TCA_NETEM_SLOT", _slot(s.slot or Slot(0, 0))),
    ]
    if not isinstance(s.loss, int):
        attrs.append(("TCA_NETEM_LOSS", {"attrs": [_loss(s.loss)]}))  # left out, the kernel returns to plain loss
    if s.jitter_ns:
        attrs.append(("TCA_NETEM_DELAY_DIST", struct.pack(f"={len(s.table)}h", *s.table)))
    if s.seed is not None:
        attrs.append(("TCA_NETEM_PRNG_SEED", s.seed))
    return {
        "latency": _ticks(s.latency_ns),
        "limit": s.limit,
        "loss": loss_rate,
        "gap": s.gap,
        "duplicate": s.duplicate,
        "jitter": _ticks(s.jitter_ns),
        "attrs": attrs,
    }


def expected_report(settings: Settings) -> dict[str, int]:
    """What a kernel that took `settings` reports of it, by field name, ready to be held against `read_report`.

    The classic 32-bit delay is cut down to ticks of 64 ns; the 64-bit one, which the kernel works with, is exact. ECN,
    slots and a rate of 2**32 and above are only reported when set. The jitter's table is never reported.
    """
    s = settings
    report = {"latency_ticks": _ticks(s.latency_ns), "latency_ns": s.latency_ns}
    report |= {"jitter_ticks": _ticks(s.jitter_ns), "jitter_ns": s.jitter_ns}
    report |= {"limit": s.limit, "gap": s.gap, "duplicate": s.duplicate}
    report |= {f"{name}_correlation": value for name, value in _correlations(s).items()}
    report |= {"reorder": s.reorder, "reorder_correlation": s.reorder_correlation}
    report |= {"corrupt": s.corrupt, "corrupt_correlation": s.corrupt_correlation}
    report |= _rate(s) | {"rate": s.rate, "ecn": int(s.ecn), "loss": s.loss if isinstance(s.loss, int) else 0}
    if not isinstance(s.loss, int):
        name, values = _loss(s.loss)
        report |= {f"{name}.{field}": value for field, value in values.items()}
    if s.slot is not None:
        report |= {f"slot.{field}": value for field, value in _slot(s.slot).items()}
    if s.seed is not None:
        report["seed"] = s.seed
    return report


def read_report(options: Any) -> dict[str, int]:
    """Decoded `Options` as field names and values, in the terms of `expected_report`."""
    rate = options.get_attr("TCA_NETEM_RATE") or {"rate": 0}
    report = {"latency_ticks": options["latency"], "jitter_ticks": options["jitter"]}
    report |= {name: options[name] for name in ("limit", "loss", "gap", "duplicate")}
    report |= {name: rate[name] for name in ("packet_overhead", "cell_size", "cell_overhead") if name in rate}
    report["rate"] = options.get_attr("TCA_NETEM_RATE64") or rate["rate"]
    report["ecn"] = options.get_attr("TCA_NETEM_ECN") or 0
    for attribute, name in (
        ("TCA_NETEM_LATENCY64", "latency_ns"),
        ("TCA_NETEM_JITTER64", "jitter_ns"),
        ("TCA_NETEM_PRNG_SEED", "seed"),
    ):
        if options.get_attr(attribute) is not None:
            report[name] = options.get_attr(attribute)
    correlations = options.get_attr("TCA_NETEM_CORR")
    report |= {f"{name}_correlation": correlations[name] for name in ("delay", "loss", "duplicate")}
    for attribute, name in (("TCA_NETEM_REORDER", "reorder"), ("TCA_NETEM_CORRUPT", "corrupt")):
        pair = options.get_attr(attribute)
        report |= {name: pair["probability"], f"{name}_correlation": pair["correlation"]}
    for model, values in (options.get_attr("TCA_NETEM_LOSS") or {"attrs": []})["attrs"]:
        report |= {f"{model}.{field}": values[field] for field, _ in values.fields}
    slot = options.get_attr("TCA_NETEM_SLOT")
    if slot is not None:
        report |= {f"slot.{field}": slot[field] for field, _ in _Slot.fields}
    return report


def differences(settings: Settings, report: dict[str, int]) -> tuple[str, ...]:
    """Fields in which the kernel's `report` is not what `settings` ask for, one readable line each, in order."""
    expected = expected_report(settings)
    lines = [
        f"{name}: asked {asked}, the kernel has {report.get(name, 'nothing')}"
        for name, asked in expected.items()
        if report.get(name) != asked
    ]
    strange = [name for name in report if name not in expected and name != "seed"]
    return (*lines, *(f"{name}: not asked for, the kernel has {report[name]}" for name in strange))


def _ticks(ns: int) -> int:
    return min(ns >> TICK_SHIFT, U32_MAX)


def _correlations(s: Settings) -> dict[str, int]:
    return {
        "delay": s.delay_correlation,
        "loss": s.loss_correlation,
        "duplicate": s.duplicate_correlation,
    }


def _rate(s: Settings) -> dict[str, int]:
    return {
        "rate": min(s.rate, U32_MAX),  # the kernel takes the larger of this and RATE64
        "packet_overhead": s.overhead,
        "cell_size": s.cell_size,
        "cell_overhead": s.cell_overhead,
    }


def _loss(model: GilbertElliott | FourState) -> tuple[str, dict[str, int]]:
    if isinstance(model, GilbertElliott):
        return "NETEM_LOSS_GE", {"p": model.p, "r": model.r, "h": model.h, "k1": model.k1}
    values = {"p13": model.p13, "p31": model.p31, "p32": model.p32, "p14": model.p14, "p23": model.p23}
    return "NETEM_LOSS_GI", values


def _slot(slot: Slot) -> dict[str, int]:
    return {
        "min_delay": slot.min_delay_ns,
        "max_delay": slot.max_delay_ns,
        "max_packets": slot.max_packets,
        "max_bytes": slot.max_bytes,
        "dist_delay": 0,
        "dist_jitter": 0,
    }
