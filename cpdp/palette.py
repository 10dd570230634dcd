"""One colour and one marker per strategy, the same in every figure. Pure.

The colours are Okabe and Ito's (Color Universal Design, 2008) without yellow and black, which vanish on a
white or a dark page; they stay apart for the common forms of colour blindness, and the markers do without any
colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#56B4E9", "#009E73", "#CC79A7", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COMPUTATION = "#9AA5B1"
REST = "#5B6470"


@dataclass(frozen=True)
class Look:
    """How a strategy is drawn."""

    colour: str
    marker: str


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look for each label, in the order in which the experiment lists them; past seven the colours return."""
    found: dict[str, Look] = {}
    for label in labels:
        if label not in found:
            number = len(found)
            marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
            found[label] = Look(COLOURS[number % len(COLOURS)], marker)
    return found
