"""Sums that travel beneath the next local steps: what overlapped strategies send at one boundary and take up later.

Flow: the strategy fills `sums` (one tensor for each flat parameter buffer), `send` starts the all-reduce and
returns, local steps go on, `arriving` waits for what has not arrived. When it is taken up is decided by counting
steps, never by asking whether it has arrived: that would differ from worker to worker, and from run to run.
Floating-point buffers (BatchNorm's) travel along and are replaced by their mean (or rank 0's) on arrival. What the
local steps in between measured goes out with the next wave; would that send what has just arrived, nothing that is
measured would ever be kept.

Time: waiting is `exposed.parameters`, copying and merging are `update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cpdp.strategies.rounds import restore

if TYPE_CHECKING:
    from torch import Tensor

    from cpdp.collectives import Collectives, Flight
    from cpdp.flat import FlatBuffer
    from cpdp.strategies.statistics import Statistics


class Wave:
    """One set of sums, on its way or not."""

    def __init__(self, collectives: Collectives, parameters: Sequence[FlatBuffer], statistics: Statistics) -> None:
        """Make room for the sums of `parameters` (which the strategy fills) and of the buffers that travel along."""
        import torch

        self.sums: list[Tensor] = [torch.zeros_like(b.data) for b in parameters]
        self.sent = False
        self._collectives = collectives
        self._parameters = parameters
        self._statistics = statistics
        self._buffer_sums = [torch.zeros_like(b.data) for b in statistics.buffers]
        self._flight: Flight | None = None
        self._measured: list[Tensor] | None = None

    def send(self, fill: Callable[[int, slice], None] | None = None) -> None:
        """Start to sum; `fill` fills each chunk before it leaves. Nobody may touch `sums` until they have arrived."""
        self._statistics.send(self._buffer_sums, self._measured)
        self._measured = None
        loads = [(sums, "parameters") for sums in self.sums] + [(sums, "buffers") for sums in self._buffer_sums]

        def fill_sums(which: int, piece: slice) -> None:
            if fill is not None and which < len(self.sums):
                fill(which, piece)

        self._flight = self._collectives.launch(loads, fill_sums)
        self.sent = True

    def arriving(self, *, sends: bool = True) -> Iterator[tuple[int, slice]]:
        """(which, slice) of every chunk of `sums` as it arrives, then the buffers; nothing when nothing was sent. The
        arithmetic on one chunk runs beneath those that are still on their way. `sends`: the next wave follows at once,
        with the buffers as the steps up to here have measured them.
        """
        if not self.sent:
            return
        self._check()
        self.sent = False
        flight, self._flight = self._flight, None
        for which, piece in flight.arriving() if flight else self.pieces():
            if which < len(self.sums):
                yield which, piece
        self._measured = [buffer.data.clone() for buffer in self._statistics.buffers] if sends else None
        self._statistics.take(self._buffer_sums)

    def pieces(self) -> Iterator[tuple[int, slice]]:
        """The same chunks when nothing travels: before the first wave, and for one that arrived before a restart."""
        self._check()
        for which, sums in enumerate(self.sums):
            yield from ((which, piece) for piece in self._collectives.chunks(sums))

    def _check(self) -> None:
        self._collectives.recorder.switch("update")
        for buffer in self._parameters:
            buffer.check()

    def wait(self) -> None:
        """Wait for what is on its way and leave it there."""
        if self._flight is not None:
            self._flight.land()
            self._flight = None

    def state_dict(self) -> dict[str, Any]:
        """What was sent, arrived: a restart need not send it again."""
        self.wait()
        return {"sent": self.sent, "sums": list(self.sums), "buffer_sums": list(self._buffer_sums)}

    def load_state_dict(self, strategy: str, state: Mapping[str, Any]) -> None:
        """Restore it. Raises StrategyError when shapes differ."""
        self.wait()
        restore(strategy, "sums", self.sums, state["sums"])
        restore(strategy, "buffer_sums", self._buffer_sums, state["buffer_sums"])
        self.sent = bool(state["sent"])
