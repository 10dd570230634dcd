"""When workers synchronise: a step's position in the run -> yes or no. Pure; no clock, no tensors.

Flow: strategies ask, `parallel.DataParallel` obeys. Steps are optimizer steps, never micro-batches, and are
counted from 1. Within an epoch t runs from 1, so with period K the K-th, 2K-th, ... step of each epoch is a
boundary; the last step of an epoch is one as well. T steps per epoch therefore have ceil(T / K) boundaries,
which is the count that the CPDP paper gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cpdp.errors import StrategyError


@dataclass(frozen=True)
class Position:
    """Where an optimizer step stands: `n` from 1 over the whole run, `epoch` from 0, `t` from 1 in its epoch."""

    n: int
    epoch: int
    t: int
    last_of_epoch: bool


def position(n: int, steps_per_epoch: int | None) -> Position:
    """Position of the n-th step; without a known epoch length the whole run is one epoch that never ends."""
    if steps_per_epoch is None:
        return Position(n, 0, n, last_of_epoch=False)
    epoch, before = divmod(n - 1, steps_per_epoch)
    return Position(n, epoch, before + 1, last_of_epoch=before + 1 == steps_per_epoch)


@dataclass(frozen=True)
class Periodic:
    """Synchronise every `period` steps, at each epoch's end when `epoch_end`, and always in the warm-up
    epochs.
    """

    period: int
    warmup_epochs: int = 0
    epoch_end: bool = True

    def boundary(self, at: Position) -> bool:
        """Whether the step at this position ends with a synchronisation."""
        if at.epoch < self.warmup_epochs:
            return True
        return at.t % self.period == 0 or (self.epoch_end and at.last_of_epoch)

    def check(self, steps_per_epoch: int | None) -> None:
        """Raise StrategyError when the schedule speaks of epochs and nobody said how long one is."""
        if steps_per_epoch is not None:
            if steps_per_epoch < 1:
                raise StrategyError(f"steps_per_epoch: {steps_per_epoch} is not a number of steps; at least 1")
            return
        if self.warmup_epochs > 0:
            raise StrategyError(
                f"warmup_epochs={self.warmup_epochs} needs the length of an epoch: pass steps_per_epoch"
            )
        if self.epoch_end and self.period > 1:
            raise StrategyError(
                "epoch_end=true makes each epoch's last step a boundary and needs the length of an epoch: "
                "pass steps_per_epoch, or set epoch_end=false"
            )

    def boundaries(self, steps: int, steps_per_epoch: int | None = None) -> tuple[int, ...]:
        """The boundary steps among the first `steps` steps of a run."""
        return tuple(n for n in range(1, steps + 1) if self.boundary(position(n, steps_per_epoch)))


@dataclass(frozen=True)
class Every:
    """Synchronise every `period` steps of the whole run, after `warmup` steps that are all boundaries.

    Unlike `Periodic` it does not start anew in each epoch, so a period may be longer than one: the first boundary
    after the warm-up is step warmup + period. Post-local SGD is this with gradients averaged
    during the warm-up.
    """

    period: int
    warmup: int = 0
    epoch_end: bool = False

    def warm(self, at: Position) -> bool:
        """Whether the step belongs to the warm-up."""
        return at.n <= self.warmup

    def boundary(self, at: Position) -> bool:
        """Whether the step at this position ends with a synchronisation."""
        if self.warm(at):
            return True
        return (at.n - self.warmup) % self.period == 0 or (self.epoch_end and at.last_of_epoch)

    def check(self, steps_per_epoch: int | None) -> None:
        """Raise StrategyError when the schedule speaks of epochs and nobody said how long one is."""
        if self.epoch_end and self.period > 1 and steps_per_epoch is None:
            raise StrategyError("epoch_end=true needs the length of an epoch: pass steps_per_epoch")

    def boundaries(self, steps: int, steps_per_epoch: int | None = None) -> tuple[int, ...]:
        """The boundary steps among the first `steps` steps of a run."""
        return tuple(n for n in range(1, steps + 1) if self.boundary(position(n, steps_per_epoch)))


def adacomm_period(
    loss: float, first_loss: float, first_period: int, *, lr_ratio: float = 1.0, lr_power: float = 0.5
) -> int:
    """AdaComm's rule: ceil(sqrt(F_l / F_0) (eta_0 / eta_l)^lr_power tau_0), at least 1.

    `lr_ratio` is eta_0 / eta_l. A power of 1/2 puts it under the root, which is the usable form; 3/2 is what the
    bound asks for (with it a sharp cut of the learning rate gave a period of 1000 and divergence); 0 ignores it.
    The lowest loss is taken as zero, as in the paper. Raises StrategyError for losses that are not finite and for a
    first loss that is not above zero.
    """
    if not (math.isfinite(loss) and math.isfinite(first_loss) and first_loss > 0 and lr_ratio > 0):
        raise StrategyError(f"adacomm: no period follows from loss {loss}, first loss {first_loss}, ratio {lr_ratio}")
    exact = math.sqrt(max(loss, 0.0) / first_loss) * math.pow(lr_ratio, lr_power) * first_period
    return max(1, math.ceil(exact - _ROUNDING))


_ROUNDING = 1e-9
"""So that a product which is a whole number in exact arithmetic is not raised to the next one."""


def adacomm_next(previous: int, proposed: int, *, gamma: float | None = 0.5, longest: int | None = None) -> int:
    """The period after `previous`: what the rule proposes where that is less, else gamma times the previous one.

    That is AdaComm's answer to a loss that has levelled off (saturation). The product is rounded down, so that
    every gamma below 1 shortens a period, and never below 1; gamma = 1 keeps the previous period. None follows the
    rule alone, which may lengthen the period when the learning rate falls: then `longest` is the cap on it.
    """
    saturated = gamma is not None and proposed >= previous
    chosen = max(1, math.floor((gamma or 0.0) * previous + _ROUNDING)) if saturated else proposed
    return chosen if longest is None else min(chosen, longest)


def best_period(gap: float, delay: float, lr: float, smoothness: float, variance: float, duration: float) -> float:
    """The period that minimises AdaComm's bound after `duration`: sqrt(2 gap D / (eta^3 L^2 s^2 T)).

    `gap` is F_1 - F_inf, `delay` D and `duration` T are in the same unit of time. Derived from the paper's bound;
    not rounded, so that a caller sees when it is below one.
    """
    return math.sqrt(2 * gap * delay / (lr**3 * smoothness**2 * variance * duration))


def qsr_period(lr: float, alpha: float, base: int, *, power: float = 2.0, remaining: int | None = None) -> int:
    """Quadratic synchronisation rule: max(base, floor((alpha / lr)^power)), at most the remaining steps.

    arXiv 2310.14423; taken right after an averaging. Raises StrategyError for a learning rate of zero with nothing
    to bound the period.
    """
    if lr <= 0 and remaining is None:
        raise StrategyError(f"qsr: a learning rate of {lr} gives an endless period; say how many steps remain")
    raw = math.inf if lr <= 0 else math.pow(alpha / lr, power) + _ROUNDING
    period = max(base, remaining or 1) if math.isinf(raw) else max(base, math.floor(raw))
    return period if remaining is None else max(1, min(period, remaining))


def lupa_slope(steps: int, rounds: int, first_period: int) -> float:
    """LUPA-SGD's a = 2 / (C + 1) x T / (C tau_0), for T steps in C rounds."""
    return 2 / (rounds + 1) * steps / (rounds * first_period)


def lupa_period(round_index: int, first_period: int, slope: float) -> int:
    """LUPA-SGD: the period of round i is tau_0 (1 + a i), rounded down; rounds count from 0."""
    return max(1, math.floor(first_period * (1 + slope * round_index) + _ROUNDING))


def linear_period(done: float, first: int, last: int) -> int:
    """From `first` to `last` in a straight line while `done`, the share of the run that is over, goes from 0 to 1."""
    share = min(max(done, 0.0), 1.0)
    return max(1, math.floor(first + (last - first) * share + 0.5))


def step_period(n: int, stages: Sequence[tuple[int, int]]) -> int:
    """The period of the last stage that has begun; `stages` are (first step, period), in order, the first from 1."""
    begun = [period for start, period in stages if start <= n]
    if not begun:
        raise StrategyError(f"no stage covers step {n}; the first one must begin at step 1")
    return begun[-1]


def adpsgd_period(previous: int, variance: float, lr: float, scale: float) -> int:
    """ADPSGD (arXiv 2007.06134): one step longer where the workers differ little, one shorter where they differ much.

    `variance` is the workers' mean squared distance from their mean at an averaging, `scale` its mean ratio to the
    learning rate during the warm-up: longer below 0.7 lr scale, shorter above 1.3 lr scale. These bounds were
    not read in the paper, but taken from accounts of it.
    """
    if variance < 0.7 * lr * scale:
        return previous + 1
    return max(1, previous - 1) if variance > 1.3 * lr * scale else previous
