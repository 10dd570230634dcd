"""Eager DiLoCo: the outer step is taken at once, with one's own new update in place of the others', which still travel.

At a boundary, with start_i the point where worker i began the round, M workers, and what the last boundary sent:

    Delta_i <- start_i - theta_i
    g_i <- mean(Delta before) + (Delta_i - Delta_i before) / M
    m_i <- mu m_i + g_i;   theta_i <- start_i - eta (mu m_i + g_i);   start_i <- theta_i;   send Delta_i

so a whole round passes beneath the exchange. What a worker used too early of itself and too late of the others is made
good at the next boundary: summed over the rounds, all workers apply the same updates. At the first boundary nothing has
arrived and g_i is Delta_i / M. A lone worker is DiLoCo. The mixture of fresh and old was taken from accounts of the
paper, not read in it.
"""

from __future__ import annotations

from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.overlapped import OverlappedStrategy
from cpdp.strategies.slowmo import whole_run
from cpdp.strategies.statistics import STATISTICS


class EagerDiLoCo(OverlappedStrategy):
    """Outer Nesterov steps with the newest of one's own update and the last round's of the others."""

    name = "eager"
    aliases = ("eager-diloco", "eager_diloco")
    summary = "outer Nesterov steps that do not wait: own update at once, the others' one round later"
    source = "Kale, Douillard, Donchev, arXiv 2502.12996 (2025)"
    parameters = (
        *whole_run(30),
        Parameter("outer_lr", float, 0.4, "eta", low=0, high=10),
        Parameter("outer_momentum", float, 0.9, "mu", low=0, high=1, below_high=True),
        STATISTICS,
    )

    def _begin(self, to: Attachment) -> None:
        super()._begin(to)
        self._start = self._keep("start", start=True)
        self._before = self._keep("before", start=False)
        self._velocity = self._keep("velocity", start=False)

    def _turn(self, which: int, piece: slice, *, landed: bool) -> None:
        x, start, before = (t[piece] for t in (self._parameters[which].data, self._start[which], self._before[which]))
        velocity, sums = self._velocity[which][piece], self._wave.sums[which][piece]
        rate, momentum, share = self.values["outer_lr"], self.values["outer_momentum"], 1.0 / self._collectives.world
        x.neg_().add_(start)  # the update of this round
        if landed:
            sums.mul_(share).add_(x, alpha=share).sub_(before, alpha=share)
        else:
            sums.copy_(x).mul_(share)
        before.copy_(x)
        velocity.mul_(momentum).add_(sums)
        start.sub_(velocity, alpha=rate * momentum).sub_(sums, alpha=rate)
        x.copy_(start)
        sums.copy_(before)
