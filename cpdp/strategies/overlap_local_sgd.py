"""Overlap-Local-SGD: workers are pulled towards an anchor that is averaged beneath the local steps.

At a boundary, with z the anchor that has arrived (at first the common start) and g the learning rate:

    x_i <- (1 - a) x_i + a z;   u_i <- b u_i + (z - x_i) / g;   z <- mean(z - g u_i)

The new z is on its way beneath the next K steps.

Kept here is w_i = g u_i in the parameters' own unit: w_i <- b (g / g_before) w_i + (z - x_i), the same rule. With
b = 0 the anchor is the mean of the pulled workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpdp.schedule import Position
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.overlapped import OverlappedStrategy
from cpdp.strategies.slow import LearningRate
from cpdp.strategies.slowmo import whole_run
from cpdp.strategies.statistics import STATISTICS


class OverlapLocalSgd(OverlappedStrategy):
    """A pull towards an anchor that travels while workers compute."""

    name = "overlap"
    aliases = ("overlap_local_sgd", "overlap-local-sgd", "overlaplocalsgd")
    summary = "workers pulled towards an anchor with momentum, which is averaged beneath the next K steps"
    source = "Wang, Liang, Joshi, ICASSP 2020 (arXiv 2002.09539); rule as in the authors' code"
    parameters = (
        *whole_run(2),
        Parameter("alpha", float, 0.6, "a: strength of the pull; 0 leaves the workers alone", low=0, high=1),
        Parameter("beta", float, 0.7, "b: the anchor's momentum", low=0, high=1, below_high=True, in_label=True),
        STATISTICS,
    )

    def _begin(self, to: Attachment) -> None:
        super()._begin(to)
        if self.values["beta"]:
            self._velocity = self._keep("velocity", start=False)
        for sums, buffer in zip(self._wave.sums, self._parameters, strict=True):
            sums.copy_(buffer.data)  # the first anchor
        self._rate = LearningRate(to.optimizer, self.name)
        self._rate_before: list[float] | None = None

    def _turn(self, which: int, piece: slice, *, landed: bool) -> None:
        x, anchor = self._parameters[which].data[piece], self._wave.sums[which][piece]
        if landed:
            anchor.div_(self._collectives.world)
        x.lerp_(anchor, self.values["alpha"])
        if not self.values["beta"]:
            anchor.copy_(x)
            return
        velocity = self._velocity[which][piece]
        velocity.mul_(self.values["beta"] * self._rate.ratio_since(self._rate_before)).add_(anchor).sub_(x)
        anchor.sub_(velocity)

    def synchronise(self, at: Position) -> None:
        """Take up the anchor, pull, and send the next one."""
        super().synchronise(at)
        self._rate_before = self._rate.now()

    def state_dict(self) -> dict[str, Any]:
        """What is kept, the wave, and the learning rates at the last boundary."""
        return {**super().state_dict(), "rate": self._rate_before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        self._rate_before = None if state["rate"] is None else [float(rate) for rate in state["rate"]]
