"""How far a sample is from its model, and how far chance alone would take it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from netlab.chances import Loss
from netlab.links.relay_model import chain_of

Z99 = 2.5758293  # 99 % of a normal distribution lie within so many standard deviations


def ks_distance(values: np.ndarray, table: Sequence[int]) -> float:
    """Kolmogorov-Smirnov: the largest difference of the shares of both that lie at or below x, for any x."""
    points = np.union1d(values, table)
    shares = [np.searchsorted(np.sort(side), points, side="right") / len(side) for side in (values, np.asarray(table))]
    return float(np.max(np.abs(shares[0] - shares[1])))


def bursts(lost: np.ndarray) -> np.ndarray:
    """Lengths of the unbroken runs of losses."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], lost.astype(int), [0]))))
    return edges[1::2] - edges[::2]


def inflation(loss: Loss) -> float:
    """How much larger the variance of the lost share is than of independent losses, in a long run.

    1 + 2 x the sum of all autocorrelations of the loss process, of the Markov chain that the model is: for independent
    losses 1, and the 99 % interval is the binomial one.
    """
    chain = chain_of(loss)
    moves = np.array([[float(p) for p in row] for row in chain.moves])
    events = np.array([float(p) for p in chain.events])
    count = len(events)
    balance = np.vstack([moves.T - np.eye(count), np.ones(count)])
    share = np.linalg.lstsq(balance, np.concatenate([np.zeros(count), [1.0]]), rcond=None)[0]
    mean = float(share @ events)
    # Sum over k >= 1 of E[loss now, and loss k packets later] - mean^2, by the fundamental matrix of the chain.
    fundamental = np.linalg.inv(np.eye(count) - moves + np.outer(np.ones(count), share))
    covariances = float((share * events) @ (moves @ fundamental - np.outer(np.ones(count), share)) @ events)
    return 1 + 2 * covariances / (mean * (1 - mean))


def loss_interval(loss: Loss, count: int) -> tuple[float, float]:
    """The 99 % interval of the lost share of ``count`` packets."""
    share = float(loss.rate)
    half = Z99 * float(np.sqrt(share * (1 - share) * inflation(loss) / count))
    return share - half, share + half


def mean_error_99(values: np.ndarray) -> float:
    """By how much (relative) the mean of these independent values may be off in 99 of 100 cases."""
    return float(Z99 * np.std(values) / np.sqrt(len(values)) / np.mean(values))


@dataclass(frozen=True)
class Step:
    """A change of the rate: when it was seen, and the rate from then on."""

    at_s: float
    rate_bps: float


def steps_of_rate(arrived_ns: np.ndarray, count: int, bits: int) -> list[Step]:
    """Where the slope of (time, packets arrived) changes, near second 1, 2 ... ``count``; each packet has ``bits``.

    A line is laid through the arrivals of each second, without the tenth of a second next to its ends; where two meet,
    the rate changed.
    """
    numbers = np.arange(len(arrived_ns))
    lines = []
    for second in range(count + 1):
        inside = (arrived_ns > (second + 0.1) * 1e9) & (arrived_ns < (second + 0.9) * 1e9)
        times, seen = arrived_ns[inside] / 1e9, numbers[inside]
        lines.append(np.polyfit(times - second, seen, 1))
    steps = []
    for second, (before, after) in enumerate(pairwise(lines), start=1):
        meeting = (after[1] - before[1] - before[0]) / (before[0] - after[0])
        steps.append(Step(second + meeting, float(after[0] * bits)))
    return steps
