"""Local SGD (periodic averaging): workers step alone and average their parameters every K steps.

    x_i <- mean of x over the workers, after every K local steps of each

`pasgd` is the same with a count that does not start anew in each epoch. Optimizer state is never exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from cpdp.schedule import Periodic, Position
from cpdp.strategies.averaging import mean_of
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.statistics import STATISTICS

PERIODIC = (
    Parameter(
        "period",
        int,
        4,
        "K: optimizer steps between two synchronisations",
        low=1,
        high=1_000_000,
        aliases=("k", "tau"),
        in_label=True,
    ),
    Parameter(
        "warmup_epochs",
        int,
        0,
        "epochs at the start in which every step is a boundary (K = 1), averaging included",
        low=0,
        high=1_000_000,
    ),
    Parameter("epoch_end", bool, True, "make the last step of each epoch a boundary, too"),
)


class LocalSgd(RoundStrategy):
    """Local steps, and the mean of all workers' parameters at every boundary."""

    name = "localsgd"
    aliases: ClassVar[tuple[str, ...]] = ("local_sgd", "local-sgd")
    summary = "parameters averaged every K steps, no gradient exchange"
    source = "Stich, Local SGD Converges Fast, ICLR 2019 (arXiv 1805.09767)"
    parameters: ClassVar[tuple[Parameter, ...]] = (*PERIODIC, STATISTICS)

    def _schedule_for(self, to: Attachment) -> Schedule:
        values = self.values
        return Periodic(values["period"], values["warmup_epochs"], values["epoch_end"])

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        return mean_of(self._parameters[which], self._collectives.world)

    def synchronise(self, at: Position) -> None:
        """Average buffers and parameters; alone, everything is its own mean already."""
        if self._collectives.world > 1:
            super().synchronise(at)
