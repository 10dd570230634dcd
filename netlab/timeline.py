"""What changes on a link over time: the shapes of change and the entries of a schedule. Pure data and arithmetic.

A profile's `schedule` and `trace` keys are read into these (`netlab.schedule_fields`); `netlab.schedule` plays them.
A shape says which settings it makes at a time counted from its start, and when the next of them comes. All times are
whole nanoseconds and exact; a ramp or a wave is a staircase whose steps have the stated length, each step at the
value that the smooth curve has where the step begins.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from netlab.settings import Settings, figure, with_figure
from netlab.units import Duration

Way = Literal["forward", "backward"]
WAYS: tuple[Way, Way] = ("forward", "backward")


@dataclass(frozen=True)
class Hold:
    """Fixed settings."""

    values: Settings

    def settings(self, elapsed_ns: int, before: Settings) -> Settings:
        """The settings at `elapsed_ns` after the start; `before` are those that the shape found."""
        return self.values

    def next_ns(self, elapsed_ns: int) -> int | None:
        """When they change next, counted from the start; None: never."""
        return None


@dataclass(frozen=True)
class Ramp:
    """From the figures found at the start in a straight line to `targets`, reached at `over_ns`, and kept."""

    targets: Mapping[str, int]
    over_ns: int
    step_ns: int

    def settings(self, elapsed_ns: int, before: Settings) -> Settings:
        """As of Hold. `before` must have a figure for every target (see `netlab.settings.figure`)."""
        if elapsed_ns >= self.over_ns:
            elapsed_ns = self.over_ns
        else:
            elapsed_ns -= elapsed_ns % self.step_ns
        return {key: self._value(key, target, elapsed_ns, before) for key, target in self.targets.items()}

    def _value(self, key: str, target: int, elapsed_ns: int, before: Settings) -> Any:
        start = _figure(before, key)
        way = 2 * (target - start) * elapsed_ns + self.over_ns
        return with_figure(before, key, start + way // (2 * self.over_ns))

    def next_ns(self, elapsed_ns: int) -> int | None:
        """As of Hold."""
        if elapsed_ns >= self.over_ns:
            return None
        return min(elapsed_ns - elapsed_ns % self.step_ns + self.step_ns, self.over_ns)


@dataclass(frozen=True)
class Sine:
    """The link's own figure (from the profile) plus `amplitudes` x sin(2 pi t / `period_ns`), without end."""

    amplitudes: Mapping[str, int]
    means: Settings
    period_ns: int
    step_ns: int

    def settings(self, elapsed_ns: int, before: Settings) -> Settings:
        """As of Hold. Each figure is rounded to a whole unit."""
        phase = (elapsed_ns - elapsed_ns % self.step_ns) % self.period_ns
        height = _sine(phase, self.period_ns)
        return {
            key: with_figure(self.means, key, _figure(self.means, key) + round(amplitude * height))
            for key, amplitude in self.amplitudes.items()
        }

    def next_ns(self, elapsed_ns: int) -> int | None:
        """As of Hold."""
        return elapsed_ns - elapsed_ns % self.step_ns + self.step_ns


@dataclass(frozen=True)
class Series:
    """Settings that hold from one point to the next, each point (time from the start, all settings from there on).

    With `loop_ns` the points start again after that time; the first is then at 0. Else the last holds for ever.
    """

    points: tuple[tuple[int, Settings], ...]
    loop_ns: int | None = None

    def settings(self, elapsed_ns: int, before: Settings) -> Settings:
        """As of Hold; empty before the first point."""
        position = elapsed_ns if self.loop_ns is None else elapsed_ns % self.loop_ns
        index = self._after(position) - 1
        return self.points[index][1] if index >= 0 else {}

    def next_ns(self, elapsed_ns: int) -> int | None:
        """As of Hold."""
        rounds_ns, position = 0, elapsed_ns
        if self.loop_ns is not None:
            position = elapsed_ns % self.loop_ns
            rounds_ns = elapsed_ns - position
        index = self._after(position)
        if index < len(self.points):
            return rounds_ns + self.points[index][0]
        return None if self.loop_ns is None else rounds_ns + self.loop_ns

    def _after(self, position: int) -> int:
        return bisect_right(self.points, position, key=lambda point: point[0])


Shape = Hold | Ramp | Sine | Series


@dataclass(frozen=True)
class Target:
    """One direction of one link, and what happens to it."""

    link: str
    way: Way
    shape: Shape


@dataclass(frozen=True)
class OnStep:
    """A moment of a training job: rank `rank` begins step `step`. Whoever runs the job says when that is."""

    step: int
    rank: int

    def __str__(self) -> str:
        """For people."""
        return f"step {self.step} of rank {self.rank}"


@dataclass(frozen=True)
class Entry:
    """One entry of a schedule: from `at` on, the shapes hold in their directions.

    After `lasts` what held before returns; None: never. With `every`, it all happens again, so long after its start,
    `times` times in all (None: without end). Of several entries that speak for the same key, the one that started
    last is heard; of those that started together, the later one in the schedule.
    """

    at: Duration | OnStep
    targets: tuple[Target, ...]
    lasts: Duration | None = None
    every: Duration | None = None
    times: int | None = None
    label: str = ""  # where it is written, like "schedule[0]"
    line: int = 0


def _figure(settings: Settings, key: str) -> int:
    found = figure(settings, key)
    assert found is not None, "checked when the shape starts"
    return found


def _sine(phase_ns: int, period_ns: int) -> float:
    """sin(2 pi phase / period), exact at the quarters and the same on every machine at the others, to 1e-15."""
    quarter, rest = divmod(4 * phase_ns, period_ns)
    angle = math.pi / 2 * rest / period_ns
    height = math.sin(angle) if quarter % 2 == 0 else math.cos(angle)
    return height if quarter < 2 else -height
