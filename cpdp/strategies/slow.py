"""The slow step that SlowMo, BMUF, AdaComm's block momentum and DiLoCo take with the mean of all workers.

All four keep the point where the round began (the reference) and a velocity, and differ in four numbers:

    delta    = mean - reference
    velocity <- decay velocity + rate delta
    theta    =  reference + gain velocity + direct delta;   reference <- theta
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpdp.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class SlowStep:
    """The four numbers. The defaults are plain averaging."""

    decay: float = 0.0
    rate: float = 1.0
    gain: float = 1.0
    direct: float = 0.0

    @property
    def lands_on_velocity(self) -> bool:
        """Whether theta = mean + decay velocity: then plain averaging is exactly the mean, without rounding."""
        return (self.rate, self.gain, self.direct) == (1.0, 1.0, 0.0)


def slow_rule(
    total: Tensor, reference: Tensor, velocity: Tensor, world: int, step: SlowStep
) -> Callable[[slice], None]:
    """The rule for slices of a flat buffer that hold the sum over `world` workers; allocates nothing."""
    import torch

    def onto_velocity(chunk: slice) -> None:
        theta, ref, v = total[chunk], reference[chunk], velocity[chunk]
        theta.div_(world).add_(v, alpha=step.decay)
        torch.sub(theta, ref, out=v)
        ref.copy_(theta)

    def general(chunk: slice) -> None:
        theta, ref, v = total[chunk], reference[chunk], velocity[chunk]
        theta.div_(world).sub_(ref)
        v.mul_(step.decay).add_(theta, alpha=step.rate)
        theta.mul_(step.direct).add_(v, alpha=step.gain).add_(ref)
        ref.copy_(theta)

    return onto_velocity if step.lands_on_velocity else general


class LearningRate:
    """The learning rate that a slow step divides by, where the optimizer may have several parameter groups.

    A strategy needs only the ratio between two boundaries. It is the same for all groups as long as one schedule
    scales them together; where it is not, the published rule says nothing, and `ratio_since` raises UsageError.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, strategy: str) -> None:
        """Watch an optimizer; nothing is read yet."""
        self._optimizer = optimizer
        self._strategy = strategy

    def now(self) -> list[float]:
        """The learning rate of each parameter group; 1 for an optimizer that has none, as that of a replayed model."""
        return [float(group.get("lr", 1.0)) for group in self._optimizer.param_groups]

    def ratio_since(self, before: list[float] | None) -> float:
        """now / before. 1 when there was no boundary before this one."""
        if before is None:
            return 1.0
        now = self.now()
        if len(now) != len(before) or min(*before, *now) <= 0:
            raise UsageError(
                f"{self._strategy}: the learning rate was {before} at the last boundary and is {now} now; its rule "
                "divides by the learning rate, so it must stay above zero for the same parameter groups"
            )
        ratios = [a / b for a, b in zip(now, before, strict=True)]
        if max(ratios) - min(ratios) > 1e-6 * max(ratios):
            raise UsageError(
                f"{self._strategy}: the parameter groups' learning rates changed by different factors ({ratios}); "
                "its momentum is only defined when one schedule scales them all"
            )
        return ratios[0]
