"""CoCoD-SGD: the average of the last boundary arrives at this one and is corrected by the progress made meanwhile.

At a boundary, with start_i the parameters with which worker i left the boundary before:

    x_i <- mean(start) + (x_i - start_i);   start_i <- x_i;   send x_i to be averaged beneath the next K steps

At the first boundary the mean of the starts is the common start, and x_i stays. The averaging has K steps to
arrive; only what takes longer is exposed.
"""

from __future__ import annotations

from cpdp.strategies.base import Attachment
from cpdp.strategies.overlapped import OverlappedStrategy
from cpdp.strategies.slowmo import whole_run
from cpdp.strategies.statistics import STATISTICS


class CoCoD(OverlappedStrategy):
    """Computation and communication decoupled: averages one round late, local progress kept."""

    name = "cocod"
    aliases = ("cocod-sgd", "cocod_sgd")
    summary = "averages travel beneath the next K steps and are merged with the progress made meanwhile"
    source = "Shen et al., IJCAI 2019; rule as in Overlap-Local-SGD's code"
    parameters = (*whole_run(4), STATISTICS)

    def _begin(self, to: Attachment) -> None:
        super()._begin(to)
        self._start = self._keep("start", start=True)

    def _turn(self, which: int, piece: slice, *, landed: bool) -> None:
        x, start, sums = (t[piece] for t in (self._parameters[which].data, self._start[which], self._wave.sums[which]))
        if landed:
            x.sub_(start).add_(sums.div_(self._collectives.world))
        start.copy_(x)
        sums.copy_(x)
