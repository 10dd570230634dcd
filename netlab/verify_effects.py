"""What verification expects of links that judge single packets: loss, jitter, duplicates. Pure.

A train of numbered, time-stamped datagrams crosses one direction, slowly enough that no queue builds. What arrives
gives the share that was lost or came twice, and the quantiles of the one-way delay (both ends read the same clock).
Bounds are two-sided: the model's figure, plus or minus what chance does in a train of that length (99.9 %; wider for
losses that come in bursts, whose packets say less each), plus the machine's slack for delays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from netlab.impairment import Impairment

TRAIN_BYTES = 128
CONFIDENCE = NormalDist().inv_cdf(0.9995)
QUANTILES = (0.05, 0.5, 0.95)
_GRID = 128


@dataclass(frozen=True)
class Expected:
    """One quantity of a direction: the model's figure and the accepted interval, in the unit."""

    quantity: str
    unit: str
    asked: float
    low: float
    high: float


def judges_packets(crossed: Sequence[Impairment]) -> bool:
    """Whether anything on the way treats packets differently from one another."""
    return any(step.jitter or step.loss or step.duplicate or step.corrupt or step.reorder for step in crossed)


def jitter_quantile_ns(crossed: Sequence[Impairment], q: float) -> float:
    """The q-quantile of what all jitter on the way adds to the delay: of the sum of independent draws, on a grid."""
    sums = [0.0]
    for step in crossed:
        if step.jitter is None:
            continue
        table = step.jitter.table()
        grid = [table[(2 * number + 1) * len(table) // (2 * _GRID)] for number in range(_GRID)]
        sums = _thinned(sorted(total + draw for total in sums for draw in grid))
    return _quantile(sums, q)


def _thinned(values: list[float]) -> list[float]:
    if len(values) <= 4 * _GRID:
        return values
    return [values[(2 * number + 1) * len(values) // (8 * _GRID)] for number in range(4 * _GRID)]


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]


def loss_share(crossed: Sequence[Impairment]) -> float:
    """The share of packets that the way loses by chance (a corrupted datagram fails its checksum, and counts)."""
    kept = 1.0
    for step in crossed:
        for chance in (step.loss, step.corrupt):
            kept *= 1 - float(chance.rate) if chance is not None else 1
    return 1 - kept


def loss_bounds(crossed: Sequence[Impairment], count: int) -> Expected:
    """Loss in a train of ``count``: normal approximation, its variance inflated by the mean burst."""
    share = loss_share(crossed)
    inflation = 1.0
    for step in crossed:
        burst = float(step.loss.burst or 1) if step.loss is not None else 1.0
        # A two-state chain with mean p and mean burst B has lag-1 correlation (1 - 1/B - p) / (1 - p).
        correlation = max(0.0, (1 - 1 / burst - share) / (1 - share)) if share < 1 else 0.0
        inflation = max(inflation, (1 + correlation) / (1 - correlation) if correlation < 1 else float(count))
    half = CONFIDENCE * math.sqrt(share * (1 - share) * inflation / count) + 1 / count
    return Expected("loss", "%", 100 * share, 100 * max(0.0, share - half), 100 * min(1.0, share + half))


def duplicate_bounds(crossed: Sequence[Impairment], count: int) -> Expected:
    """The share of datagrams that come twice."""
    share = 1.0
    for step in crossed:
        share *= 1 + (float(step.duplicate.rate) if step.duplicate is not None else 0)
    share -= 1
    half = CONFIDENCE * math.sqrt(share * (1 - share) / count) + 1 / count
    return Expected("duplicates", "%", 100 * share, 100 * max(0.0, share - half), 100 * (share + half))


def delay_bounds(crossed: Sequence[Impairment], q: float, count: int, slack_ms: float) -> Expected:
    """The q-quantile of the one-way delay: the model's quantiles a little below and above q, and the slack."""
    lone = sum(step.delay.ns + step.serialization(TRAIN_BYTES).ns for step in crossed)
    half = CONFIDENCE * math.sqrt(q * (1 - q) / max(count, 1))
    low, middle, high = (jitter_quantile_ns(crossed, min(max(p, 0.0), 1.0)) for p in (q - half, q, q + half))
    asked, bottom, top = ((lone + value) / 1e6 for value in (middle, low, high))
    return Expected(f"delay p{round(100 * q)}", "ms", asked, max(0.0, bottom - slack_ms), top + slack_ms)
