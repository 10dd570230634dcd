"""AdaComm's delay model: what an iteration takes when workers of random speed average every tau of them. Pure.

    T(tau) = E[slowest of m means of tau computation times] + D / tau

With constant times y that is y + D / tau, and the speed-up over tau = 1 is (1 + a) / (1 + a / tau) with a = D / y. With
exponential times of mean y the slowest of m is y H_m, H_m = 1 + 1/2 + ... + 1/m, and the mean of tau of them is
Erlang: the slowest of those follows by numerical integration. From Wang, Joshi (arXiv 1810.08313), section 3; the
shifted case is a constant plus the exponential one.
"""

from __future__ import annotations

import math
from functools import lru_cache

from cpdp.padding import Padding

POINTS = 4000
"""Points of the numerical integral; more change nothing in the fifth digit."""

ROUNDS = 2000
"""Rounds over which the slowest is averaged where no formula is known (workers that differ, stragglers)."""


def harmonic(count: int) -> float:
    """H_m."""
    return math.fsum(1 / one for one in range(1, count + 1))


@lru_cache(maxsize=4096)
def slowest_of_means(tau: int, workers: int) -> float:
    """E[max over workers of the mean of tau exponentials of mean 1]: H_m for tau = 1, towards 1 for long periods."""
    if tau == 1:
        return harmonic(workers)
    top = 1 + 14 / math.sqrt(tau) + 40 / tau  # F there is 1 to more than twelve digits
    step = top / POINTS
    inside = math.fsum(1 - _erlang(tau, tau * step * point) ** workers for point in range(1, POINTS))
    return step * (0.5 + inside)


def _erlang(shape: int, x: float) -> float:
    """P(sum of `shape` exponentials of mean 1 is at most x); its terms through logarithms, so that none overflows."""
    if x <= 0:
        return 0.0
    terms = (k * math.log(x) - x - math.lgamma(k + 1) for k in range(shape))
    return max(0.0, 1 - math.fsum(math.exp(term) for term in terms))


def slowest_ns(padding: Padding, tau: int, workers: int, seed: int = 0) -> float:
    """Expected time per step of the slowest of `workers` in a round of tau steps."""
    alike = padding.straggler_chance == 0 and all(padding.factor(rank) == 1 for rank in range(workers))
    if alike and padding.times == "constant":
        return float(padding.step_ns)
    if alike:
        return padding.shift_ns + (padding.step_ns - padding.shift_ns) * slowest_of_means(tau, workers)
    rounds = max(1, ROUNDS // tau)
    return math.fsum(drawn_slowest_ns(padding, seed, workers, tau * r, tau) for r in range(rounds)) / rounds


def drawn_slowest_ns(padding: Padding, seed: int, workers: int, after: int, tau: int) -> float:
    """What the drawn times give for the tau steps behind step `after`, per step."""
    steps = range(after + 1, after + tau + 1)
    return max(sum(padding.drawn_ns(seed, rank, n) for n in steps) for rank in range(workers)) / tau
