"""A reconciliation that arrives late: what `cpdp_overlapped` sends at a boundary and merges some local steps later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cpdp.schedule import Position
from cpdp.strategies.rounds import restore
from cpdp.strategies.wave import Wave

if TYPE_CHECKING:
    from torch import Tensor

    from cpdp.collectives import Collectives
    from cpdp.flat import FlatBuffer
    from cpdp.strategies.statistics import Statistics


class Late:
    """The parameters as they were when they were sent, and the wave that carries them."""

    def __init__(self, parameters: Sequence[FlatBuffer], statistics: Statistics, collectives: Collectives) -> None:
        """Make room for one copy to send and one to remember."""
        self._parameters = parameters
        self._collectives = collectives
        self._wave = Wave(collectives, parameters, statistics)
        self._start: list[Tensor] = [buffer.data.clone() for buffer in parameters]
        self._sent_at = 0

    @property
    def sums(self) -> list[Tensor]:
        """What the merge's rules work on: on landing, the sum over the workers of what they sent."""
        return self._wave.sums

    def send(self, at: Position) -> None:
        """Remember the parameters and start to sum them, chunk by chunk."""
        self._collectives.recorder.switch("update")
        self._wave.send(self._fill)
        self._sent_at = at.n
        self._collectives.recorder.switch(None)

    def _fill(self, which: int, piece: slice) -> None:
        values = self._parameters[which].data[piece]
        self._start[which][piece].copy_(values)
        self._wave.sums[which][piece].copy_(values)

    def due(self, at: Position, delay: int) -> bool:
        """Whether what is on its way is to be merged after this step."""
        return self._wave.sent and at.n - self._sent_at >= delay

    def merge(self, rules: Sequence[Callable[[slice], None]], *, sends: bool) -> None:
        """As the sums arrive, apply each one's rule, and add to the parameters what it moved since they were sent."""
        for which, piece in self._wave.arriving(sends=sends):
            rules[which](piece)
            start, sums = self._start[which][piece], self._wave.sums[which][piece]
            self._parameters[which].data[piece].sub_(start).add_(sums)

    def wait(self) -> None:
        """Wait for what is on its way and leave it there."""
        self._wave.wait()

    def state_dict(self) -> dict[str, Any]:
        """What was sent and when, arrived."""
        return {"start": list(self._start), "sent_at": self._sent_at, "wave": self._wave.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it. Raises StrategyError when shapes differ."""
        restore("cpdp-overlapped", "start", self._start, state["start"])
        self._sent_at = int(state["sent_at"])
        self._wave.load_state_dict("cpdp-overlapped", state["wave"])
