"""What CoCoD-SGD and Overlap-Local-SGD share: at each boundary take up the last wave, then send the next."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from cpdp.schedule import Every, Position
from cpdp.strategies.base import Attachment
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.wave import Wave


class OverlappedStrategy(RoundStrategy):
    """Local steps go on while the last boundary's sums travel; replicas are never equal."""

    @abstractmethod
    def _turn(self, which: int, piece: slice, *, landed: bool) -> None:
        """Merge a piece of `self._wave.sums[which]` (when it has landed) into the parameters and fill it for the next
        wave.
        """

    def _schedule_for(self, to: Attachment) -> Schedule:
        return Every(self.values["period"], epoch_end=self.values["epoch_end"])

    def _begin(self, to: Attachment) -> None:
        self._wave = Wave(to.collectives, self._parameters, self._statistics)

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        raise AssertionError("an overlapped strategy has no rule for sums that arrive while it waits")

    def equalises(self, at: Position) -> bool:
        """Never: every worker keeps its own progress since the wave left."""
        return False

    def synchronise(self, at: Position) -> None:
        """Take up the last wave, chunk by chunk as it arrives, and send the next."""
        landed = self._wave.sent
        for which, piece in self._wave.arriving() if landed else self._wave.pieces():
            self._turn(which, piece, landed=landed)
        self._wave.send()
        self._collectives.recorder.switch(None)

    def finish(self) -> None:
        """Wait for the wave that nobody will take up."""
        self._wave.wait()

    def state_dict(self) -> dict[str, Any]:
        """What is kept, and the wave."""
        return {**super().state_dict(), "wave": self._wave.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        super().load_state_dict(state)
        self._wave.load_state_dict(self.name, state["wave"])
