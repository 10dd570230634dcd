"""AdaComm's search for its first period: a grid of candidates, each trained for a while from the same start. Pure.

The paper trains one or two epochs with each candidate and takes the one with the lowest training loss. Here every
candidate gets the same time (or number of steps): that is what a period buys, more steps where it is longer. A
candidate's loss is the mean over the rounds that end in the second half of its time, over all workers; where none does,
its last round's. `AdaComm` does the training, restores the start in between, and begins with the winner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


def candidates(first: int, count: int) -> tuple[int, ...]:
    """`count` periods from `first` downwards, each half of the one before, none twice and none below 1."""
    halves = (max(1, first >> power) for power in range(count))
    return tuple(dict.fromkeys(halves))


@dataclass
class PeriodSearch:
    """Where a search stands. `losses` belong to the first candidates, in order; `rounds` to the one under way."""

    periods: tuple[int, ...]
    losses: list[float] = field(default_factory=list)
    rounds: list[tuple[float, float]] = field(default_factory=list)
    """(share of the candidate's time that was over, mean loss)"""

    @property
    def period(self) -> int:
        """The candidate under way."""
        return self.periods[len(self.losses)]

    @property
    def over(self) -> bool:
        """Whether every candidate has been tried."""
        return len(self.losses) == len(self.periods)

    @property
    def best(self) -> int:
        """The candidate with the lowest loss; the longest of equals, since it costs least. Losses that are no number
        come last.
        """
        ranked = [(loss if math.isfinite(loss) else math.inf, -period) for loss, period in self._pairs()]
        return -min(ranked)[1]

    def _pairs(self) -> list[tuple[float, int]]:
        return list(zip(self.losses, self.periods, strict=True))

    def round_ended(self, share: float, loss: float) -> bool:
        """Note a round of the candidate; whether that was its last one."""
        self.rounds.append((share, loss))
        if share < 1:
            return False
        late = [one for when, one in self.rounds if when > 0.5]
        self.losses.append(math.fsum(late) / len(late))
        self.rounds = []
        return True

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> PeriodSearch:
        """What `to_json` gave."""
        rounds = [(float(share), float(loss)) for share, loss in raw["rounds"]]
        return cls(tuple(raw["periods"]), list(raw["losses"]), rounds)
