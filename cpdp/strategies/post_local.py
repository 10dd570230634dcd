"""Post-local SGD: synchronous steps first, local steps with periodic averaging after that.

    step n <= W:  gradients averaged in the backward pass, as DDP does
    step n > W:   local steps; x_i <- mean of x at steps W + K, W + 2 K, ...

One schedule object decides both, so gradients and parameters cannot disagree about where the warm-up ends
(torch's communication hook and averager are given that step separately). In torch's terms: the hook's
start_localSGD_iter = W and the averager's warmup_steps = W + K - 1, since torch's averager averages once at its own
warmup_steps + 1. While gradients are averaged buffers follow DDP's rule (rank 0's, broadcast before each forward
pass); from then on they are averaged with the parameters. With `statistics=local` neither happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cpdp.errors import StrategyError
from cpdp.schedule import Every, Position
from cpdp.strategies.averaging import mean_of
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.ddp import BUCKETS
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.slowmo import whole_run
from cpdp.strategies.statistics import STATISTICS

if TYPE_CHECKING:
    from torch import nn


class PostLocalSgd(RoundStrategy):
    """DDP up to a step, Local SGD from there."""

    name = "postlocal"
    aliases = ("post_local", "post-local", "postlocalsgd")
    summary = "gradients averaged in every step of a warm-up, then parameters averaged every K steps"
    source = "Lin, Stich, Patel, Jaggi, ICLR 2020 (arXiv 1808.07217)"
    parameters = (
        *whole_run(16),
        Parameter("warmup_steps", int, 0, "W: steps with averaged gradients at the start", low=0, high=10**9,
                  aliases=("warmup",), in_label=True),
        Parameter("warmup_epochs", int, 0, "the same in epochs; added to warmup_steps", low=0, high=10**6),
        *BUCKETS,
        STATISTICS,
    )  # fmt: skip

    def _schedule_for(self, to: Attachment) -> Schedule:
        values = self.values
        if values["warmup_epochs"] and to.steps_per_epoch is None:
            raise StrategyError("postlocal: warmup_epochs needs the length of an epoch: pass steps_per_epoch")
        warmup = values["warmup_steps"] + values["warmup_epochs"] * (to.steps_per_epoch or 0)
        self._rounds = Every(values["period"], warmup, values["epoch_end"])
        return self._rounds

    def attach(self, to: Attachment) -> nn.Module:
        """Lay the parameters out flat and wrap them in DDP for the warm-up."""
        module = super().attach(to)
        return to.collectives.data_parallel(
            module,
            bucket_mb=self.values["bucket_mb"],
            find_unused=self.values["find_unused"],
            forward_buffers=self.values["statistics"] != "local",
        )

    def reduces_gradients(self, at: Position) -> bool:
        """During the warm-up."""
        return self._rounds.warm(at)

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        return mean_of(self._parameters[which], self._collectives.world)

    def synchronise(self, at: Position) -> None:
        """After the warm-up, average; during it equal gradients keep equal parameters equal."""
        if self._collectives.world > 1 and not self._rounds.warm(at):
            super().synchronise(at)
