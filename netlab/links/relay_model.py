"""The effects of a link as the relay's core is told them: chances as thresholds, jitter as a table. Pure.

Between netlab.impairment, which says what is asked for, and core/abi.h, which says what the core computes with.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction as Rational
from typing import Any

from netlab.chances import Chance, FourState, GilbertElliott, Loss, Reorder
from netlab.impairment import Codel, Impairment
from netlab.jitter import Jitter
from netlab.links import _relay
from netlab.units import PPB, Fraction

CERTAIN = int(_relay.lib.NL_CERTAIN)
STATES_MAX = int(_relay.lib.NL_STATES_MAX)


@dataclass(frozen=True)
class Chain:
    """A random event as a Markov chain over packets, in exact probabilities.

    `moves[i]` are the probabilities to go from state i to each state, `events[i]` that of the event in state i. With
    `move_first` the state moves before it is judged. The first state is 0.
    """

    moves: tuple[tuple[Rational, ...], ...]
    events: tuple[Rational, ...]
    move_first: bool

    def to_core(self) -> dict[str, Any]:
        """As struct nl_chain."""
        move = [0] * (STATES_MAX * (STATES_MAX - 1))
        for state, row in enumerate(self.moves):
            for target in range(STATES_MAX - 1):
                move[state * (STATES_MAX - 1) + target] = _threshold(sum(row[: target + 1], Rational(0)))
        events = [_threshold(event) for event in self.events]
        return {
            "states": len(self.moves),
            "move_first": self.move_first,
            "move": move,
            "event": events + [0] * (STATES_MAX - len(events)),
        }


NEVER: dict[str, Any] = {"states": 0}


def chain_of(loss: Loss) -> Chain:
    """The chain of a model of netlab.chances."""
    if isinstance(loss, Chance):
        after_event, after_none = loss.after_event, loss.after_none
        moves = ((1 - after_none, after_none), (1 - after_event, after_event))
        return Chain(moves, (Rational(0), Rational(1)), move_first=True)
    if isinstance(loss, GilbertElliott):
        to_bad, to_good = _share(loss.to_bad), _share(loss.to_good)
        moves = ((1 - to_bad, to_bad), (to_good, 1 - to_good))
        return Chain(moves, (_share(loss.loss_in_good), _share(loss.loss_in_bad)), move_first=False)
    return _four_states(loss)


def _four_states(loss: FourState) -> Chain:
    p13, p14, p31, p32, p23 = (_share(p) for p in (loss.p13, loss.p14, loss.p31, loss.p32, loss.p23))
    none = Rational(0)
    moves = (
        (1 - p13 - p14, none, p13, p14),
        (none, 1 - p23, p23, none),
        (p31, p32, 1 - p31 - p32, none),
        (Rational(1), none, none, none),
    )
    return Chain(moves, (none, none, Rational(1), Rational(1)), move_first=True)


def _share(fraction: Fraction) -> Rational:
    return Rational(fraction.ppb, PPB)


def _threshold(probability: Rational) -> int:
    """In units of 2^-63, to the nearest."""
    return round(probability * CERTAIN)


@dataclass(frozen=True)
class Effects:
    """What goes wrong with packets in one direction, beside delay, rate and queue. None: it does not.

    `full_frame` is the largest packet's size on the wire, which CoDel leaves alone.
    """

    jitter: Jitter | None = None
    loss: Loss | None = None
    duplicate: Chance | None = None
    reorder: Reorder | None = None
    corrupt: Chance | None = None
    codel: Codel | None = None
    seed: int = 0
    up: bool = True
    full_frame: int = 1538

    @classmethod
    def of(cls, impairment: Impairment, mtu: int) -> Effects:
        """The part of an impairment that is none of delay, rate, queue and framing."""
        return cls(
            impairment.jitter,
            impairment.loss,
            impairment.duplicate,
            impairment.reorder,
            impairment.corrupt,
            impairment.codel,
            impairment.seed,
            impairment.up,
            impairment.wire_bytes(mtu),
        )

    @property
    def per_packet(self) -> bool:
        """Whether every single packet is judged, so that units of several packets must not come."""
        parts = (self.jitter, self.loss, self.duplicate, self.reorder, self.corrupt, self.codel)
        return any(part is not None for part in parts)

    def to_core(self) -> dict[str, Any]:
        """As members of struct nl_params; the number of the jitter's table is the caller's to give."""
        return {
            "down": not self.up,
            "seed": self.seed,
            "full_frame": self.full_frame,
            "loss": _chain(self.loss),
            "duplicate": _chain(self.duplicate),
            "corrupt": _chain(self.corrupt),
            "reorder": _chain(self.reorder.chance if self.reorder else None),
            "reorder_gap": self.reorder.gap if self.reorder else 1,
            "jitter_reorder": bool(self.jitter and self.jitter.reorder),
            "jitter_correlation": _threshold(_share(self.jitter.correlation)) if self.jitter else 0,
            "codel_target_ns": self.codel.target.ns if self.codel else 0,
            "codel_interval_ns": self.codel.interval.ns if self.codel else 0,
            "codel_ecn": bool(self.codel and self.codel.ecn),
        }


def _chain(loss: Loss | None) -> dict[str, Any]:
    return chain_of(loss).to_core() if loss else NEVER
