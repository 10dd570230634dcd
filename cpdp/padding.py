"""How long each step of padded computation takes: a distribution, a seed, a rank, a step -> nanoseconds. Pure.

Flow: an experiment's `compute` -> `Padding` -> cell.json -> `padder.Padder`, which stretches real steps to these times;
`faults` judges afterwards whether the real steps fitted in. A time is a function of (seed, rank, step) and of nothing
else: ranks have streams of their own, every strategy of a repeat meets the same times at the same steps, and a run
that is resumed goes on as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cpdp.errors import CellError
from cpdp.events import EventLog, Json, StepEvent

TIMES = ("constant", "exponential", "shifted")
"""The distributions. `shifted` is a constant, `shift`, plus an exponential that brings the mean to `step`."""

DRAWN, EXCESS = "drawn_ns", "excess_ns"
"""Facts of a step event: the time that was drawn for the step, and how much longer its real work took."""

TOLERANCE = 0.1
"""A step overran when it took longer than drawn by more than this share of the mean time drawn."""

OVERRUN = 0.1
"""Share of overrun steps beyond which a cell does not count, where the experiment states none."""


@dataclass(frozen=True)
class Padding:
    """Computation time per step: mean `step_ns`, times a rank's factor, times the straggler's factor now and then.

    `factors` go by rank; ranks beyond its end have 1. `overrun` is the share of steps that may take longer than drawn.
    """

    step_ns: int
    times: str = "constant"
    shift_ns: int = 0
    factors: tuple[float, ...] = ()
    straggler_chance: float = 0.0
    straggler_factor: float = 1.0
    overrun: float = OVERRUN

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values; `from_json` reads it."""
        return asdict(self)

    def drawn_ns(self, seed: int, rank: int, n: int) -> int:
        """The time of step `n` on `rank`."""
        base = float(self.step_ns)
        if self.times != "constant":
            base = self.shift_ns - (self.step_ns - self.shift_ns) * math.log1p(-uniform(seed, rank, n, "time"))
        slow = self.straggler_chance > 0 and uniform(seed, rank, n, "straggler") < self.straggler_chance
        return round(base * self.factor(rank) * (self.straggler_factor if slow else 1.0))

    def factor(self, rank: int) -> float:
        """How much slower than the others a rank always is."""
        return self.factors[rank] if rank < len(self.factors) else 1.0

    def dilated(self, factor: float) -> Padding:
        """The same computation on a clock that runs `factor` times slower."""
        return replace(self, step_ns=round(self.step_ns * factor), shift_ns=round(self.shift_ns * factor))


def from_json(raw: Mapping[str, Any]) -> Padding:
    """The padding of a cell file. Raises CellError naming the key and the value."""
    try:
        made = Padding(**{**raw, "factors": tuple(float(one) for one in raw.get("factors", ()))})
    except (TypeError, ValueError) as error:
        raise CellError(f"compute: {error}") from error
    problem = fault(made)
    if problem:
        raise CellError(f"compute: {problem}")
    return made


def fault(padding: Padding) -> str | None:
    """What is wrong with it, as "key: value is not allowed; what is"; None when nothing is."""
    checks = (
        (padding.step_ns > 0, "step", f"{padding.step_ns} ns", "more than nothing"),
        (padding.times in TIMES, "times", repr(padding.times), f"one of {', '.join(TIMES)}"),
        (0 <= padding.shift_ns <= padding.step_ns, "shift", f"{padding.shift_ns} ns", "from nothing to step, the mean"),
        (padding.times == "shifted" or padding.shift_ns == 0, "shift", f"{padding.shift_ns} ns", "only when shifted"),
        (all(factor > 0 for factor in padding.factors), "factors", f"{padding.factors}", "numbers above 0"),
        (
            0 <= padding.straggler_chance <= 1,
            "straggler_chance",
            f"{padding.straggler_chance:g}",
            "a share from 0 to 1",
        ),
        (padding.straggler_factor > 0, "straggler_factor", f"{padding.straggler_factor:g}", "a number above 0"),
        (0 <= padding.overrun <= 1, "overrun", f"{padding.overrun:g}", "a share from 0 to 1"),
    )
    found = next(((key, value, allowed) for fine, key, value, allowed in checks if not fine), None)
    return None if found is None else f"{found[0]}: {found[1]} is not allowed; {found[2]}"


def uniform(seed: int, rank: int, n: int, stream: str) -> float:
    """A number from 0 to below 1 that belongs to (seed, rank, step, stream): a hash, so no state and any order."""
    digest = hashlib.blake2b(f"{seed}/{rank}/{n}/{stream}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


@dataclass(frozen=True)
class Overrun:
    """How many padded steps there were, how many took longer than drawn, and by how much in all."""

    steps: int
    overran: int
    drawn_ns: int
    excess_ns: int

    @property
    def share(self) -> float:
        """Share of the steps that overran."""
        return self.overran / self.steps if self.steps else 0.0

    @property
    def excess_share(self) -> float:
        """Time that overrunning added, as a share of the time drawn."""
        return self.excess_ns / self.drawn_ns if self.drawn_ns else 0.0


def overrun(steps: Iterable[StepEvent]) -> Overrun | None:
    """What became of the drawn times; None when no step had one."""
    padded = [(_whole(step.facts.get(DRAWN)), _whole(step.facts.get(EXCESS))) for step in steps if DRAWN in step.facts]
    if not padded:
        return None
    drawn, excess = sum(one for one, _ in padded), sum(one for _, one in padded)
    allowed = TOLERANCE * drawn / len(padded)
    return Overrun(len(padded), sum(1 for _, one in padded if one > allowed), drawn, excess)


def _whole(value: Json) -> int:
    return int(value) if isinstance(value, int | float) else 0


def faults(padding: Padding | None, logs: Iterable[EventLog]) -> list[str]:
    """Why the times of a padded cell are not the ones asked for; empty when they are, or when nothing was padded."""
    found = overrun(step for log in logs for step in log.steps if not step.warmup)
    if padding is None or found is None or found.share <= padding.overrun:
        return []
    return [
        f"the real computation took longer than the drawn time in {found.share:.1%} of the steps"
        f" (allowed: {padding.overrun:.1%}), which added {found.excess_share:.1%} to the time drawn"
    ]
