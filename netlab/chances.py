"""Random events on a link: how often, and how they cluster. Pure.

Part of the model in `netlab.impairment`. Every model here is a Markov chain over the packets of one direction, with
its mean rate and its mean burst in closed form, so that a carrier can be held to them. Both carriers are given
these objects; verification derives its bounds from `rate` and `burst`.

`Chance` is what tc calls a probability with a correlation, but exact: tc mixes each random number with the one
before, which changes the probability that was asked for. Here the mean is always `probability`, and the correlation
between neighbours is always `correlation`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction as Rational

from netlab.errors import UnitError
from netlab.units import PPB, Fraction

MAX_SEED = 2**53 - 1  # a JSON number keeps it in every language
MAX_BURST = 1_000_000
NEVER, ALWAYS = Fraction(0), Fraction(PPB)


def _share(fraction: Fraction) -> Rational:
    return Rational(fraction.ppb, PPB)


def nearest(value: Rational) -> Fraction:
    """The fraction nearest to an exact value between 0 and 1; halves go up."""
    return Fraction((value * PPB * 2 + 1) // 2)


@dataclass(frozen=True)
class Chance:
    """An event that happens to a packet with `probability`; with `correlation`, events come in clusters.

    Chain: P(event | the packet before had it) = p + c (1 - p); P(event | it had not) = p (1 - c). So the share of
    packets with the event is p and the correlation between neighbouring packets is c, exactly. Before the first
    packet: no event. `correlation` is below 1, with which nothing would ever change.
    """

    probability: Fraction
    correlation: Fraction = NEVER

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert self.probability > NEVER, "an event that never happens is written None"
        assert self.correlation < ALWAYS, self.correlation

    @property
    def rate(self) -> Rational:
        """Share of the packets that have the event in the long run."""
        return _share(self.probability)

    @property
    def after_event(self) -> Rational:
        """P(event | the packet before had it)."""
        return self.rate + _share(self.correlation) * (1 - self.rate)

    @property
    def after_none(self) -> Rational:
        """P(event | the packet before did not have it)."""
        return self.rate * (1 - _share(self.correlation))

    @property
    def burst(self) -> Rational | None:
        """Mean number of packets in an unbroken run of events; None when every packet has it."""
        return None if self.after_event == 1 else 1 / (1 - self.after_event)

    @classmethod
    def checked(cls, probability: Fraction, correlation: Fraction = NEVER) -> Chance:
        """The same, for a user's figures. Raises UnitError for a chain that never or hardly ever changes."""
        if correlation == ALWAYS:
            raise UnitError("a correlation of 100% would let nothing ever change: it must be less")
        chance = cls(probability, correlation)
        if probability < ALWAYS and min(chance.after_none, 1 - chance.after_event) < Rational(1, PPB):
            raise UnitError(
                f"{probability} with a correlation of {correlation} would change less than once in 1e9 packets"
            )
        return chance

    def as_gilbert(self) -> GilbertElliott:
        """The same chain (one packet later, rounded to billionths) for a carrier that has only that form."""
        if self.probability == ALWAYS:
            return GilbertElliott(ALWAYS, ALWAYS, ALWAYS, ALWAYS)
        return GilbertElliott(nearest(self.after_none), nearest(1 - self.after_event))

    def __str__(self) -> str:
        """For people: "1% (correlation 25%)"."""
        return str(self.probability) + (f" (correlation {self.correlation})" if self.correlation.ppb else "")


@dataclass(frozen=True)
class GilbertElliott:
    """Loss in two states, good and bad (Gilbert 1960, Elliott 1963).

    The first packet is judged in the good state. Each packet is lost with `loss_in_good` or `loss_in_bad`, as the
    state is; then the state changes with probability `to_bad` (from good) or `to_good` (from bad), to judge the next.
    tc calls the four p, r, 1-h and 1-k: p = to_bad, r = to_good, 1-h = loss_in_bad, 1-k = loss_in_good.
    """

    to_bad: Fraction
    to_good: Fraction
    loss_in_bad: Fraction = ALWAYS
    loss_in_good: Fraction = NEVER

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert self.to_bad > NEVER, self.to_bad
        assert self.to_good > NEVER, self.to_good
        assert self.loss_in_bad > NEVER or self.loss_in_good > NEVER

    @property
    def bad_share(self) -> Rational:
        """Share of the packets that are judged in the bad state."""
        return Rational(self.to_bad.ppb, self.to_bad.ppb + self.to_good.ppb)

    @property
    def rate(self) -> Rational:
        """Share of the packets lost in the long run."""
        bad = self.bad_share
        return bad * _share(self.loss_in_bad) + (1 - bad) * _share(self.loss_in_good)

    @property
    def burst(self) -> Rational | None:
        """Mean number of packets lost in a row: P(lost) / P(lost, and the one before not). None: all are lost."""
        bad, p, r = self.bad_share, _share(self.to_bad), _share(self.to_good)
        in_bad, in_good = _share(self.loss_in_bad), _share(self.loss_in_good)
        both = (1 - bad) * in_good * ((1 - p) * in_good + p * in_bad) + bad * in_bad * (r * in_good + (1 - r) * in_bad)
        return None if both == self.rate else self.rate / (self.rate - both)

    @classmethod
    def from_burst(cls, rate: Fraction, burst: Rational) -> GilbertElliott:
        """The model that loses `rate` of the packets in runs of `burst` packets on average.

        All packets of the bad state are lost and none of the good: to_good = 1 / burst, to_bad = to_good rate /
        (1 - rate), each rounded to billionths. Raises UnitError where no such chain exists: one packet at least is
        received between two runs, so rate is at most burst / (burst + 1).
        """
        if not 1 <= burst <= MAX_BURST:
            raise UnitError(f"a mean burst has 1 to {MAX_BURST} packets, not {float(burst):g}")
        share = _share(rate)
        if share > burst / (burst + 1):
            limit = Fraction(int(burst / (burst + 1) * PPB))
            raise UnitError(f"bursts of {float(burst):g} packets lose at most {limit} of all packets, not {rate}")
        to_good = 1 / burst
        to_bad = nearest(to_good * share / (1 - share))
        if to_bad == NEVER:
            raise UnitError(f"bursts of {float(burst):g} packets that lose {rate} would begin less than once in 1e9")
        return cls(to_bad, nearest(to_good))

    def __str__(self) -> str:
        """For people."""
        parts = f"to bad {self.to_bad}, to good {self.to_good}"
        return f"gilbert-elliott ({parts}, lost in bad {self.loss_in_bad}, in good {self.loss_in_good})"


@dataclass(frozen=True)
class FourState:
    """Loss in four states (Salsano, Ludovici, Ordine 2009; netem's "loss state").

    State 1: received, in a gap; 2: received, in a burst; 3: lost, in a burst; 4: lost alone, in a gap. Each packet
    first moves the state, then has the fate of the new one; before the first packet the state is 1. `p13` is the
    probability to move from 1 to 3, and so on; from 4 the way always leads to 1. What is left over stays.
    """

    p13: Fraction
    p31: Fraction
    p32: Fraction = NEVER
    p23: Fraction = ALWAYS
    p14: Fraction = NEVER

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert self.p13.ppb + self.p14.ppb <= PPB, "from state 1"
        assert self.p31.ppb + self.p32.ppb <= PPB, "from state 3"
        assert self.p31 > NEVER, "state 1 must be reached again"
        assert self.p23 > NEVER, "state 2 must be left again"
        assert self.p13 > NEVER or self.p14 > NEVER, "a model without loss is written None"

    @property
    def shares(self) -> tuple[Rational, Rational, Rational, Rational]:
        """Share of the packets in each state in the long run.

        Balance gives s4 = p14 s1, s3 = s1 p13 / p31 and s2 = s3 p32 / p23; they add up to 1.
        """
        third = _share(self.p13) / _share(self.p31)
        second = third * _share(self.p32) / _share(self.p23)
        fourth = _share(self.p14)
        total = 1 + second + third + fourth
        return 1 / total, second / total, third / total, fourth / total

    @property
    def rate(self) -> Rational:
        """Share of the packets lost in the long run."""
        return self.shares[2] + self.shares[3]

    @property
    def burst(self) -> Rational:
        """Mean number of packets lost in a row: lost packets per run, and runs begin in state 1 or 2."""
        first, second, _, _ = self.shares
        return self.rate / (first * (_share(self.p13) + _share(self.p14)) + second * _share(self.p23))

    def __str__(self) -> str:
        """For people."""
        names = ("p13", "p31", "p32", "p23", "p14")
        return "four-state (" + ", ".join(f"{name} {getattr(self, name)}" for name in names) + ")"


Loss = Chance | GilbertElliott | FourState


@dataclass(frozen=True)
class Reorder:
    """Some packets overtake: they are sent in their turn at the rate, but skip the delay (and jitter).

    A packet is a candidate when at least `gap` - 1 packets since the last one that overtook did not; each candidate
    overtakes by `chance`, whose chain runs over the candidates alone. gap 5 at 100%: every fifth packet.
    """

    chance: Chance
    gap: int = 1

    def __post_init__(self) -> None:
        """Refuse what could only be a bug of ours."""
        assert self.gap >= 1, self.gap

    @property
    def rate(self) -> Rational:
        """Share of the packets that overtake in the long run: one in gap - 1 + (mean tries), for independent tries.

        With a correlation: the chain is back in "it did" after each one that overtook.
        """
        again = self.chance.after_event
        tries = again + (1 - again) * (1 + 1 / self.chance.after_none)
        return 1 / (self.gap - 1 + tries)

    def __str__(self) -> str:
        """For people."""
        return str(self.chance) + (f" (gap {self.gap})" if self.gap > 1 else "")


def derive_seed(seed: int, link: str, direction: str) -> int:
    """The seed of one direction of a link, from the profile's: the same on every machine and in every version.

    The first 53 bits of SHA-256 over "SEED/LINK/DIRECTION".
    """
    digest = hashlib.sha256(f"{seed}/{link}/{direction}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 11
