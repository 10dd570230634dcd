"""Local SGD (periodic averaging, PASGD): workers step alone and average their parameters every K steps.

What is averaged: the trained parameters and the floating-point buffers (BatchNorm's running mean and
variance), both as plain means. Integer buffers (BatchNorm's step counter) grow alike on every worker and stay
local; frozen parameters keep rank 0's initial values. Optimizer state is never exchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpdp.schedule import Periodic, Position
from cpdp.strategies.averaging import Share, mean_of, reconcile
from cpdp.strategies.base import Attachment, Parameter, Strategy

if TYPE_CHECKING:
    from torch import nn

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


class LocalSgd(Strategy):
    """Local steps, and the mean of all workers' parameters at every boundary."""

    name = "localsgd"
    aliases = ("local_sgd", "local-sgd", "pasgd")
    summary = "parameters averaged every K steps, no gradient exchange"
    source = "Stich, Local SGD Converges Fast, ICLR 2019 (arXiv 1805.09767); papers.md sections 1 and 3"
    parameters = PERIODIC

    def attach(self, to: Attachment) -> nn.Module:
        """Lay the parameters out flat and start everyone from rank 0's state."""
        from cpdp.flat import flatten, float_buffers, trained_parameters  # torch: not for `cpdp strategies`

        values = self.values
        self._schedule = Periodic(values["period"], values["warmup_epochs"], values["epoch_end"])
        self._schedule.check(to.steps_per_epoch)
        self._collectives = to.collectives
        self._parameters = flatten(trained_parameters(to.module))
        self._buffers = flatten(float_buffers(to.module))
        to.collectives.broadcast([*to.module.parameters(), *to.module.buffers()], "start")
        return to.module

    def reduces_gradients(self, at: Position) -> bool:
        """Never."""
        return False

    def boundary(self, at: Position) -> bool:
        """Every K-th step of an epoch, and its last."""
        return self._schedule.boundary(at)

    def synchronise(self, at: Position) -> None:
        """Average buffers and parameters; alone, everything is its own mean already."""
        world = self._collectives.world
        if world > 1:
            reconcile(
                self._collectives,
                [Share(b, "buffers", mean_of(b, world)) for b in self._buffers]
                + [Share(b, "parameters", mean_of(b, world)) for b in self._parameters],
            )
