"""Why the measured figures differ from the published ones: sentences whose every claim was computed from this
run.

Pure: a run's summary -> lines of text for the terminal and the report. A sentence appears only when the
numbers it speaks of were measured and its condition holds; what stays unexplained is said to be unexplained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cpdp.published import Published, PublishedRow
from cpdp.summary import Line, Summary

NEAR = 0.10
"""Two figures are called alike when they differ by less than this share."""


def differences(summary: Summary, network: Mapping[str, Any] | None = None) -> list[str]:
    """All sentences, phase by phase. `network` is what was verified before the first cell."""
    found: list[str] = []
    for phase, lines in summary.phases.items():
        paper = summary.published.get(phase)
        if paper is None:
            continue
        known = [line for line in lines if line.counted and line.epoch_s is not None]
        found += [
            *_levels(known),
            *_one_collective(known),
            *_shares(known),
            *_hidden(known, paper),
            *_ceiling(known, network),
            *_totals(known, paper),
            *_scale(known, paper),
        ]
    return [*_network(network), *found]


def cautions(experiment: Mapping[str, Any]) -> list[str]:
    """What a reader must know before comparing figures: measured steps that are no whole number of periods."""
    found = list(_dilation(float(experiment.get("dilation", 1.0))))
    for phase in experiment["phases"]:
        steps = phase.get("steps")
        for spec in phase["strategies"] if steps else ():
            period = int(spec.get("period", 1))
            if steps < period:
                found.append(
                    f"{phase['name']}: {spec['label']} may not synchronise at all in {steps} measured steps,"
                    " fewer than its period"
                )
            elif steps % period:
                found.append(
                    f"{phase['name']}: {steps} measured steps are not whole periods of {spec['label']}, so its means"
                    " per step depend on where the measurement starts"
                )
    return found


def _dilation(factor: float) -> Iterator[str]:
    if factor != 1:
        yield (
            f"The run's clock was {factor:g} times slower: delays and computation took that many times longer, rates"
            f" were that much lower. Every time here is divided by {factor:g}, but for the network's table, lateness"
            " and the wall time of a cell, which are as measured. TCP's timers do not scale: its timeouts of at least"
            f" 200 ms, delayed acknowledgements and the idle time before slow start count {factor:g} times less than in"
            " the network described."
        )


def _by_key(lines: list[Line]) -> dict[tuple[str, int], Line]:
    return {(line.strategy, line.period): line for line in lines}


def _network(network: Mapping[str, Any] | None) -> Iterator[str]:
    """Say which quantity of the network was outside its bounds: nothing below it can be trusted then."""
    if network is None or network.get("ok", True):
        return
    bad = [row for row in network.get("links", ()) if not row.get("ok", True)]
    named = [f"{row['quantity']} {row['direction']} {row['achieved']} (asked {row['asked']})" for row in bad]
    yield (f"The network was not the one asked for: {', '.join(named)}. No figure of this run stands for the profile.")


def _levels(lines: list[Line]) -> Iterator[str]:
    """One sentence per strategy whose exposed seconds are not the printed ones, beyond spread and 10 percent."""
    for line in lines:
        row, ours = line.published, line.epoch_s
        if row is None or ours is None or abs(ours.mean / row.exposed_s - 1) < NEAR:
            continue
        if ours.low <= row.exposed_s <= ours.high:
            continue
        ratio = ours.mean / row.exposed_s
        yield (
            f"{line.label}: {ours.mean:.1f} s exposed per epoch here, {row.exposed_s:.1f} s published"
            f" ({ratio:.2f} times).{_per_sync(line, row)}"
        )


def _per_sync(line: Line, row: PublishedRow) -> str:
    """What one synchronisation costs here and there."""
    exposed = line.mean("exposed_ms")
    if exposed is None:
        return ""
    each = exposed * line.period / 1e3
    return f" One synchronisation exposes {each:.2f} s here, {row.sync_s:.2f} s there."


def _one_collective(lines: list[Line]) -> Iterator[str]:
    """LocalSGD against CPDP at the same period: half the collectives, so half the time, or not."""
    lookup = _by_key(lines)
    verdicts: dict[str, list[str]] = {}
    for (name, period), local in lookup.items():
        both = lookup.get(("cpdp", period))
        ours = _ratio(local, both) if both else None
        if name != "localsgd" or both is None or ours is None or not local.published or not both.published:
            continue
        theirs = local.published.exposed_s / both.published.exposed_s
        numbers = f"at K={period} {ours:.2f} of its exposed time here, {theirs:.2f} published"
        verdicts.setdefault(_verdict(ours, theirs), []).append(numbers)
    for verdict, found in verdicts.items():
        yield f"LocalSGD against CPDP: {'; '.join(found)}. {verdict}"


def _verdict(ours: float, theirs: float) -> str:
    """What the ratio of one collective to two says, here and in print."""
    if abs(ours / theirs - 1) < NEAR:
        return "Here and there alike."
    if 0.4 <= ours <= 0.65 and theirs > 1 - NEAR:
        return (
            "A boundary of LocalSGD is one all-reduce, one of CPDP is two, so about half is what the algorithms"
            " ask for. The paper gives both the same cost and no reason: unexplained there."
        )
    return "One all-reduce against two would give about half: the difference is not explained."


def _ratio(one: Line, other: Line) -> float | None:
    below = other.mean("exposed_ms")
    above = one.mean("exposed_ms")
    return above / below if above is not None and below else None


def _shares(lines: list[Line]) -> Iterator[str]:
    """CPDP's share of DDP's exposed time, where it is not the printed one."""
    for line in lines:
        share, printed = line.share_of_ddp, line.published_share
        if line.strategy != "cpdp" or share is None or printed is None:
            continue
        if abs(share.mean / printed - 1) < NEAR:
            yield f"{line.label}: {share.mean:.0%} of DDP's exposed time here, {printed:.0%} published: alike."
            continue
        parts = ", ".join(f"{ms * line.period:.0f} ms {cause}" for cause, ms in line.causes.items() if ms > 0.5)
        yield (
            f"{line.label}: {share.mean:.0%} of DDP's exposed time here, {printed:.0%} published."
            f" A boundary here exposes {parts}."
        )


def _hidden(lines: list[Line], paper: Published) -> Iterator[str]:
    """How much of DDP's all-reduce ran beneath its backward pass, against the printed cost of one traversal."""
    ddp = _by_key(lines).get(("ddp", 1))
    row = paper.find("ddp", 1)
    hidden, exposed = (ddp.mean("hidden_ms"), ddp.mean("exposed_ms")) if ddp else (None, None)
    if hidden is None or not exposed or row is None:
        return
    share = hidden / (hidden + exposed)
    yield (
        f"DDP hides {hidden:.0f} ms of each step's {hidden + exposed:.0f} ms of communication beneath its"
        f" computation ({share:.0%}) and exposes {exposed / 1e3:.2f} s;"
        f" the paper prints {row.sync_s:.2f} s per synchronisation."
    )


def _ceiling(lines: list[Line], network: Mapping[str, Any] | None) -> Iterator[str]:
    """What an averaging gets out of the link, beside the rate that was verified: the network's part of the
    cost.
    """
    rate = _slowest_mbit(network)
    for line in lines:
        exposed, wire = line.mean("exposed_ms"), line.mean("wire_bytes_per_step")
        if line.strategy != "localsgd" or not exposed or not wire or rate is None:
            continue
        got = wire * 8 / exposed / 1e3
        drops = line.mean("queue_drops")
        lost = f"; the link's queues dropped {drops:.0f} packets per cell" if drops else ""
        yield (
            f"{line.label}: an averaging moves {wire * line.period / 1e6:.1f} MB in {exposed * line.period:.0f} ms,"
            f" {got:.0f} Mbit/s or {got / rate:.0%} of the {rate:.0f} Mbit/s that were verified{lost}."
        )


def _slowest_mbit(network: Mapping[str, Any] | None) -> float | None:
    """The slowest rate that was measured before the run, in Mbit/s."""
    rows = network.get("links", ()) if network else ()
    rates = [row["achieved"] for row in rows if row["quantity"] == "rate" and row.get("unit") == "Mbit/s"]
    return min((rate for rate in rates if rate is not None), default=None)


def _totals(lines: list[Line], paper: Published) -> Iterator[str]:
    """The paper's own totals against its own parts, beside how well the parts add up here."""
    gaps = {row.key: row.total_s / paper.predicted_total_s(row) for row in paper.rows}
    under = [line for line in lines if gaps.get((line.strategy, line.period), 1.0) > 1 + NEAR]
    rests = [(line.mean("rest_ms"), line.mean("step_ms")) for line in lines]
    worst = max((rest / step for rest, step in rests if rest is not None and step), default=None)
    if not under or worst is None:
        return
    named = ", ".join(f"{line.label} {gaps[(line.strategy, line.period)]:.2f}" for line in under)
    yield (
        "Published total time over what published computation and exposed time add up to:"
        f" {named}; the paper leaves that gap unexplained. Here the parts leave at most {worst:.1%} of a step"
        " unaccounted for, so compare exposed time, not totals."
    )


def _scale(lines: list[Line], paper: Published) -> Iterator[str]:
    """What one worker stands for, with the bytes that were measured."""
    ddp = _by_key(lines).get(("ddp", 1))
    wire, payload = (ddp.mean(f"{name}_bytes_per_step") if ddp else None for name in ("wire", "payload"))
    if not wire or not payload:
        return
    once = "one traversal per node pair" if 0.98 <= wire / payload <= 1.15 else "not one plain traversal"
    yield (
        f"Scale: one worker stands for a node of 4 GPUs ({paper.setting}). DDP moved {wire / 1e6:.1f} MB per"
        f" step each way over the WAN, {wire / payload:.2f} times its {payload / 1e6:.1f} MB of gradients:"
        f" {once}."
    )
