"""How the delay of a link varies from packet to packet. Pure.

Part of the model in `netlab.impairment`. A distribution is a table of 4096 equally likely deviations from the mean in
nanoseconds, whose sum is exactly zero. Both carriers draw from the same table, so "the distribution that was asked
for" is one thing, has the link's delay as its mean, and ends somewhere: no value is ever clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

from netlab.chances import NEVER
from netlab.errors import UnitError
from netlab.units import Delay, Fraction

TABLE_SIZE = 4096
PARETO_SHAPE = 3  # of tc's pareto table, too
Distribution = Literal["uniform", "normal", "pareto", "paretonormal", "table"]
DISTRIBUTIONS: tuple[Distribution, ...] = ("uniform", "normal", "pareto", "paretonormal", "table")


@dataclass(frozen=True)
class Jitter:
    """Each packet travels for delay + X, X drawn from `table()`: mean zero.

    `amount` is half of the width of a uniform distribution, the standard deviation of every other. `correlation` is
    that of the X of neighbouring packets (of their ranks in the table, through a Gaussian copula), on top of what
    keeping the order forces.

    Without `reorder`, packets keep their order *and* X keeps its distribution: the carrier chooses each X among
    those that let the packet leave no earlier than the one before, in such a way that the table's values still are
    equally likely in the long run. It never just delays a packet until the one before has left, which would raise the
    mean. With `reorder`, each X is drawn regardless, and packets may overtake.

    `samples` (distribution "table" only): measured deviations from their mean in ns, ascending, at most TABLE_SIZE.
    """

    amount: Delay
    distribution: Distribution = "uniform"
    correlation: Fraction = NEVER
    reorder: bool = False
    samples: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert self.amount.ns > 0, "no jitter is written None"
        assert (self.distribution == "table") == bool(self.samples), self.distribution

    def table(self) -> tuple[int, ...]:
        """TABLE_SIZE deviations in ns, ascending, equally likely; their sum is 0."""
        return _table(self.amount.ns, self.distribution, self.samples)

    @property
    def reach(self) -> Delay:
        """How far below the mean the table may go (to 3 ns, uniform: to a 4096th): a delay must not be shorter."""
        if self.distribution == "uniform":
            return self.amount
        if self.samples:
            return Delay(-self.table()[0])
        return Delay(math.ceil(-self.amount.ns * _standard(self.distribution)[0]) + 2)

    def scaled(self, amount: Delay) -> Jitter:
        """The same distribution, wider or narrower."""
        samples = tuple(_rounded(value * amount.ns, self.amount.ns) for value in self.samples)
        return replace(self, amount=amount, samples=samples)

    def __str__(self) -> str:
        """For people: "2ms uniform"."""
        parts = [f"{self.amount} {self.distribution}"]
        parts += [f"correlation {self.correlation}"] if self.correlation.ppb else []
        return ", ".join(parts + (["may reorder"] if self.reorder else []))


def jitter_of(
    samples: Sequence[int], amount: Delay | None = None, correlation: Fraction = NEVER, reorder: bool = False
) -> Jitter:
    """The jitter that measured delays show (in ns, in any order): their deviations from their mean.

    With an `amount`, scaled to that standard deviation. More than TABLE_SIZE samples are represented by as many
    quantiles. Raises UnitError when they do not differ.
    """
    ordered = sorted(samples)
    if len(ordered) > TABLE_SIZE:
        ordered = [ordered[(2 * i + 1) * len(ordered) // (2 * TABLE_SIZE)] for i in range(TABLE_SIZE)]
    count, total = max(len(ordered), 1), sum(ordered)
    deviations = tuple(_rounded(value * count - total, count) for value in ordered)
    spread = math.isqrt(sum(value * value for value in deviations) // count)
    if spread == 0:
        raise UnitError("at least two measured delays that differ are needed: there is no jitter otherwise")
    jitter = Jitter(Delay(spread), "table", correlation, reorder, deviations)
    return jitter if amount is None else jitter.scaled(amount)


@lru_cache(maxsize=64)
def _table(amount_ns: int, distribution: Distribution, samples: tuple[int, ...]) -> tuple[int, ...]:
    if samples:
        values = [samples[(2 * i + 1) * len(samples) // (2 * TABLE_SIZE)] for i in range(TABLE_SIZE)]
    elif distribution == "uniform":
        above = [_rounded(amount_ns * (2 * i + 1), TABLE_SIZE) for i in range(TABLE_SIZE // 2)]
        values = [-value for value in reversed(above)] + above
    else:
        values = [round(amount_ns * value) for value in _standard(distribution)]
    return _balanced(values)


def _balanced(values: list[int]) -> tuple[int, ...]:
    """Shift so that the sum is exactly zero: the same whole ns for all, one more for as many of the largest as needed.

    The largest take the odd nanoseconds, so the order stays ascending and the smallest moves by 1 ns at most.
    """
    shift, rest = divmod(-sum(values), len(values))
    return tuple(value + shift + (i >= len(values) - rest) for i, value in enumerate(values))


@lru_cache
def _standard(distribution: Distribution) -> tuple[float, ...]:
    """Quantiles at (i + 1/2) / TABLE_SIZE, shifted and scaled to mean 0 and standard deviation 1.

    normal: of the normal distribution, so up to 3.67 standard deviations. pareto: 1 / (1 - u)^(1/3), that is of shape
    3. paretonormal: a quarter of the normal's quantile plus three quarters of the pareto's, both standardised, as the
    table of that name in tc has it.
    """
    shares = [(i + 0.5) / TABLE_SIZE for i in range(TABLE_SIZE)]
    if distribution == "normal":
        return _standardised([NormalDist().inv_cdf(share) for share in shares])
    if distribution == "pareto":
        return _standardised([(1 - share) ** (-1 / PARETO_SHAPE) for share in shares])
    pairs = zip(_standard("normal"), _standard("pareto"), strict=True)
    return _standardised([0.25 * normal + 0.75 * pareto for normal, pareto in pairs])


def _standardised(values: list[float]) -> tuple[float, ...]:
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return tuple((value - mean) / spread for value in values)


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
