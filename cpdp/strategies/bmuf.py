"""BMUF: blockwise model-update filtering, and its Nesterov form.

After a block of local steps, with x the point where it began and G = mean(x - x_i):

    s <- BM s + BLR G;   x <- x - s;   Nesterov: x <- x - BM s as well;   x_i <- x

This is the update of fairseq's implementation, in which the Nesterov look-ahead becomes the point where the next
block begins (so its G is measured from there, and the look-ahead is part of the next block's history). It is not
torch's Nesterov momentum on the mean update, which `diloco` takes. The learning rate plays no part: with a
constant one and BLR = 1, plain BMUF is SlowMo with alpha = 1; with a decaying one SlowMo rescales its history and
BMUF does not. CPDP without its gradient all-reduce (`cpdp-fused`) is BMUF with BM = beta, BLR = 1.
fairseq's warm-up iterations, in which nothing is exchanged, are not part of it.
"""

from __future__ import annotations

from collections.abc import Callable

from cpdp.schedule import Every, Position
from cpdp.strategies.averaging import Share
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.local_state import LOCAL_BUFFERS, LocalState
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.slow import SlowStep, slow_rule
from cpdp.strategies.slowmo import whole_run
from cpdp.strategies.statistics import STATISTICS


class Bmuf(RoundStrategy):
    """Local steps, then the mean update filtered by a block momentum."""

    name = "bmuf"
    summary = "the workers' mean update filtered by a block momentum every K steps, optionally Nesterov"
    source = "Chen, Huo, ICASSP 2016; rule and defaults as in fairseq's bmuf.py"
    parameters = (
        *whole_run(50),
        Parameter("block_momentum", float, 0.875, "BM; 1 - 1 / workers is usual", low=0, high=1, below_high=True,
                  aliases=("bm",), in_label=True),
        Parameter("block_lr", float, 1.0, "BLR", low=0, high=10, aliases=("blr",)),
        Parameter("nesterov", bool, False, "step ahead by BM s once more and begin the next block there"),
        LOCAL_BUFFERS,
        STATISTICS,
    )  # fmt: skip

    def _schedule_for(self, to: Attachment) -> Schedule:
        return Every(self.values["period"], epoch_end=self.values["epoch_end"])

    def _begin(self, to: Attachment) -> None:
        self._reference = self._keep("reference", start=True)
        self._velocity = self._keep("velocity", start=False)
        self._local = LocalState(self.values["buffers"], to.optimizer, to.collectives)
        momentum = self.values["block_momentum"]
        gain = 1 + momentum if self.values["nesterov"] else 1.0
        self._step = SlowStep(decay=momentum, rate=self.values["block_lr"], gain=gain)

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        flat, world = self._parameters[which].data, self._collectives.world
        return slow_rule(flat, self._reference[which], self._velocity[which], world, self._step)

    def _more_shares(self, at: Position) -> list[Share]:
        return self._local.shares()

    def _settle(self, at: Position) -> None:
        self._local.settle()
