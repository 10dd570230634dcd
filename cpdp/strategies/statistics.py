"""What becomes of floating-point buffers (BatchNorm's running mean and variance) at a boundary.

*average* replaces them by the workers' plain mean, without any momentum: a momentum could push a variance below zero.
*broadcast* replaces them by rank 0's; it travels as a sum to which the others add nothing, so it rides in the same wave
and is exact. *local* leaves every worker its own. Integer buffers (BatchNorm's step counter) grow alike everywhere and
stay local.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cpdp.strategies.averaging import Share, mean_of
from cpdp.strategies.base import Parameter

if TYPE_CHECKING:
    from torch import Tensor

    from cpdp.collectives import Collectives
    from cpdp.flat import FlatBuffer

STATISTICS = Parameter(
    "statistics",
    str,
    "average",
    "floating-point buffers (BatchNorm's) at a boundary: average, broadcast (rank 0's) or local (each its own)",
    choices=("average", "broadcast", "local"),
)


class Statistics:
    """The flat floating-point buffers of one model under one of the three policies."""

    def __init__(self, policy: str, buffers: Sequence[FlatBuffer], collectives: Collectives) -> None:
        """`policy` is one of STATISTICS' choices."""
        self._collectives = collectives
        self.buffers = () if policy == "local" or collectives.world == 1 else tuple(buffers)
        self._broadcast = policy == "broadcast"

    def shares(self) -> list[Share]:
        """What travels in a wave that is waited for."""
        if self._broadcast:
            for buffer in self.buffers:
                self._fill(buffer.data)
        return [Share(buffer, "buffers", self._rule(buffer)) for buffer in self.buffers]

    def _rule(self, buffer: FlatBuffer) -> Callable[[slice], None]:
        return (lambda chunk: None) if self._broadcast else mean_of(buffer, self._collectives.world)

    def send(self, sums: Sequence[Tensor], values: Sequence[Tensor] | None = None) -> None:
        """Fill what travels beneath local steps: with `values` where given, else with the buffers as they are."""
        for which, (target, buffer) in enumerate(zip(sums, self.buffers, strict=True)):
            buffer.check()
            target.copy_(buffer.data if values is None else values[which])
            self._fill(target)

    def _fill(self, tensor: Tensor) -> None:
        if self._broadcast and self._collectives.rank:
            tensor.zero_()

    def take(self, sums: Sequence[Tensor]) -> None:
        """Put in what has arrived."""
        for arrived, buffer in zip(sums, self.buffers, strict=True):
            buffer.data.copy_(arrived if self._broadcast else arrived.div_(self._collectives.world))
