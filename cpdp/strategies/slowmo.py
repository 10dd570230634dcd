"""SlowMo: local steps, an exact average, and a slow momentum on top of it.

After tau local steps, with g the learning rate of the last of them, x0 the point where the round began and xbar
the mean of all workers:

    u <- beta u + (x0 - xbar) / g;   x0 <- x0 - alpha g u;   x_i <- x0

Kept here is the velocity v = -g u, in the parameters' own unit: v <- beta (g / g_before) v + (xbar - x0) and
x0 <- x0 + alpha v. It is the same rule, needs no division by small numbers, and shows that the history is
rescaled by the *current* learning rate, in which it differs from BMUF. alpha = 1 and beta = 0 is Local SGD bit
for bit; one worker with beta = 0 is Lookahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cpdp.schedule import Every, Position
from cpdp.strategies.averaging import Share
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.local_sgd import PERIODIC
from cpdp.strategies.local_state import LOCAL_BUFFERS, LocalState
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.slow import LearningRate, SlowStep, slow_rule
from cpdp.strategies.statistics import STATISTICS


def whole_run(period: int) -> tuple[Parameter, ...]:
    """The parameters of a schedule that counts over the whole run, with a default period."""
    epoch_end = replace(PERIODIC[2], default=False, meaning="make the last step of each epoch a boundary as well")
    return (replace(PERIODIC[0], default=period), epoch_end)


class SlowMo(RoundStrategy):
    """Local steps, then the mean with slow momentum."""

    name = "slowmo"
    summary = "parameters averaged every K steps, with a slow momentum rescaled by the learning rate"
    source = "Wang, Tantia, Ballas, Rabbat, ICLR 2020 (arXiv 1910.00643)"
    parameters = (
        *whole_run(12),
        Parameter("alpha", float, 1.0, "slow learning rate", low=0, high=10),
        Parameter("beta", float, 0.5, "slow momentum", low=0, high=1, below_high=True, in_label=True),
        replace(LOCAL_BUFFERS, default="reset"),
        STATISTICS,
    )

    def _schedule_for(self, to: Attachment) -> Schedule:
        return Every(self.values["period"], epoch_end=self.values["epoch_end"])

    def _begin(self, to: Attachment) -> None:
        self._reference = self._keep("reference", start=True)
        self._velocity = self._keep("velocity", start=False)
        self._rate = LearningRate(to.optimizer, self.name)
        self._rate_before: list[float] | None = None
        self._local = LocalState(self.values["buffers"], to.optimizer, to.collectives)

    def _slow_step(self) -> SlowStep:
        """The four numbers of the boundary at hand."""
        beta = self.values["beta"]
        ratio = self._rate.ratio_since(self._rate_before) if beta else 0.0
        return SlowStep(decay=beta * ratio, gain=self.values["alpha"])

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        flat, world = self._parameters[which].data, self._collectives.world
        return slow_rule(flat, self._reference[which], self._velocity[which], world, self._slow_step())

    def _more_shares(self, at: Position) -> list[Share]:
        return self._local.shares()

    def _settle(self, at: Position) -> None:
        self._rate_before = self._rate.now()
        self._local.settle()

    def state_dict(self) -> dict[str, Any]:
        """Reference, velocity, and the learning rates at the last boundary."""
        return {**super().state_dict(), "rate": self._rate_before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        self._rate_before = None if state["rate"] is None else [float(rate) for rate in state["rate"]]
