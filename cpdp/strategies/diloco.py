"""DiLoCo: many local steps of any optimizer, then one step of an outer optimizer on the mean update.

After H inner steps, with theta the point where the round began and Delta = mean(theta - theta_i):

    m <- mu m + Delta;   theta <- theta - eta (mu m + Delta);   theta_i <- theta      (Nesterov)
    m <- mu m + Delta;   theta <- theta - eta m;                theta_i <- theta      (nesterov=false)

The outer step is torch's SGD with momentum on Delta as its gradient, momentum buffer zero at the start. The inner
optimizer (the paper: AdamW) is the one the training loop made; its state is kept through boundaries and never
exchanged. mu = 0 and eta = 1 is Local SGD bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

from cpdp.schedule import Every, Position
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.slow import SlowStep, slow_rule
from cpdp.strategies.slowmo import whole_run
from cpdp.strategies.statistics import STATISTICS


class DiLoCo(RoundStrategy):
    """Inner steps alone, an outer Nesterov step together."""

    name = "diloco"
    summary = "every K inner steps an outer Nesterov step on the workers' mean update"
    source = "Douillard et al., arXiv 2311.08105; outer rate and momentum as in OpenDiLoCo's code"
    parameters = (
        *whole_run(500),
        Parameter("outer_lr", float, 0.7, "eta", low=0, high=10),
        Parameter("outer_momentum", float, 0.9, "mu", low=0, high=1, below_high=True),
        Parameter("nesterov", bool, True, "look ahead in the outer step"),
        STATISTICS,
    )

    def _schedule_for(self, to: Attachment) -> Schedule:
        return Every(self.values["period"], epoch_end=self.values["epoch_end"])

    def _begin(self, to: Attachment) -> None:
        self._reference = self._keep("reference", start=True)
        self._velocity = self._keep("velocity", start=False)
        rate, momentum = self.values["outer_lr"], self.values["outer_momentum"]
        if self.values["nesterov"] and momentum > 0:
            self._step = SlowStep(decay=momentum, gain=rate * momentum, direct=rate)
        else:
            self._step = SlowStep(decay=momentum, gain=rate)

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        flat, world = self._parameters[which].data, self._collectives.world
        return slow_rule(flat, self._reference[which], self._velocity[which], world, self._step)
