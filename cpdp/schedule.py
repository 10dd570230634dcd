"""When workers synchronise: a step's position in the run -> yes or no. Pure; no clock, no tensors.

Flow: strategies ask, `parallel.DataParallel` obeys. Steps are optimizer steps, never micro-batches, and are
counted from 1. Within an epoch t runs from 1, so with period K the K-th, 2K-th, ... step of each epoch is a
boundary; the last step of an epoch is one as well. T steps per epoch therefore have ceil(T / K) boundaries,
which is the count that the CPDP paper gives (papers.md section 6).
"""

from __future__ import annotations

from dataclasses import dataclass

from cpdp.errors import StrategyError


@dataclass(frozen=True)
class Position:
    """Where an optimizer step stands: `n` from 1 over the whole run, `epoch` from 0, `t` from 1 in its epoch."""

    n: int
    epoch: int
    t: int
    last_of_epoch: bool


def position(n: int, steps_per_epoch: int | None) -> Position:
    """Position of the n-th step; without a known epoch length the whole run is one epoch that never ends."""
    if steps_per_epoch is None:
        return Position(n, 0, n, last_of_epoch=False)
    epoch, before = divmod(n - 1, steps_per_epoch)
    return Position(n, epoch, before + 1, last_of_epoch=before + 1 == steps_per_epoch)


@dataclass(frozen=True)
class Periodic:
    """Synchronise every `period` steps, at each epoch's end when `epoch_end`, and always in the warm-up
    epochs.
    """

    period: int
    warmup_epochs: int = 0
    epoch_end: bool = True

    def boundary(self, at: Position) -> bool:
        """Whether the step at this position ends with a synchronisation."""
        if at.epoch < self.warmup_epochs:
            return True
        return at.t % self.period == 0 or (self.epoch_end and at.last_of_epoch)

    def check(self, steps_per_epoch: int | None) -> None:
        """Raise StrategyError when the schedule speaks of epochs and nobody said how long one is."""
        if steps_per_epoch is not None:
            if steps_per_epoch < 1:
                raise StrategyError(f"steps_per_epoch: {steps_per_epoch} is not a number of steps; at least 1")
            return
        if self.warmup_epochs > 0:
            raise StrategyError(
                f"warmup_epochs={self.warmup_epochs} needs the length of an epoch: pass steps_per_epoch"
            )
        if self.epoch_end and self.period > 1:
            raise StrategyError(
                "epoch_end=true makes each epoch's last step a boundary and needs the length of an epoch: "
                "pass steps_per_epoch, or set epoch_end=false"
            )

    def boundaries(self, steps: int, steps_per_epoch: int | None = None) -> tuple[int, ...]:
        """The boundary steps among the first `steps` steps of a run."""
        return tuple(n for n in range(1, steps + 1) if self.boundary(position(n, steps_per_epoch)))
