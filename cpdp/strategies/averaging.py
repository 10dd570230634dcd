"""The one way in which strategies exchange parameters: all buffers in one wave, arithmetic beneath the
traffic.

Flow: a strategy's `synchronise` -> `reconcile` -> `Collectives.sum_in_chunks`. While the main thread applies
a strategy's rule to one chunk, gloo's threads move the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpdp.recorder import RECONCILE

if TYPE_CHECKING:
    from cpdp.collectives import Collectives
    from cpdp.flat import FlatBuffer


@dataclass(frozen=True)
class Share:
    """A buffer to be summed over the workers and the rule to apply to each slice once it holds the sum."""

    buffer: FlatBuffer
    purpose: str
    apply: Callable[[slice], None]


def reconcile(collectives: Collectives, shares: Sequence[Share]) -> None:
    """Sum all buffers over the workers and apply each one's rule slice by slice. Raises UsageError, PeerLost."""
    collectives.recorder.switch(RECONCILE)
    for share in shares:
        share.buffer.check()
    flats = [(share.buffer.data, share.purpose) for share in shares]
    for which, chunk in collectives.sum_in_chunks(flats):
        shares[which].apply(chunk)
    collectives.recorder.switch(None)


def mean_of(buffer: FlatBuffer, world: int) -> Callable[[slice], None]:
    """The rule that makes a mean of a sum."""

    def divide(chunk: slice) -> None:
        buffer.data[chunk].div_(world)

    return divide
