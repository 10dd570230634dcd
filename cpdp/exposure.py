"""Where the time of one step went: step event -> `StepBreakdown`. Pure arithmetic on integers, no clock, no
files.

Words: *computation* is forward, backward (up to where the autograd engine says that all gradients are
computed), optimizer and data loading. *Exposed* is time in which the computation stood still because of
synchronisation: the spans named `exposed.*` and `update`, the strategy's own arithmetic that nothing hid.
*Hidden* is time in which some collective was on its way while the computation went on. *Rest* is what no span
accounts for. computation + exposed + rest = step, exactly; hidden lies beneath computation and rest and is
not part of the sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cpdp.errors import EventError
from cpdp.events import Operation, Span, StepEvent

COMPUTATION = ("data", "forward", "backward", "optimizer")
"""Names of the spans that are computation."""

EXPOSED_PREFIX = "exposed."
UPDATE = "update"

Interval = tuple[int, int]


@dataclass(frozen=True)
class StepBreakdown:
    """One step's wall time in parts, in nanoseconds.

    `exposed_by_cause` has "gradients", "parameters", ... for the spans `exposed.gradients`, ... and "update";
    its values sum to `exposed_ns`. `rest_ns` is the residual and should stay under one percent of the step.
    """

    step_ns: int
    computation_ns: int
    exposed_ns: int
    hidden_ns: int
    rest_ns: int
    exposed_by_cause: Mapping[str, int]
    payload_bytes: int

    @property
    def rest_share(self) -> float | None:
        """The residual as a share of the step; None for a step of no length."""
        return self.rest_ns / self.step_ns if self.step_ns else None


def break_down(step: StepEvent) -> StepBreakdown:
    """Split one step. Raises EventError when its spans overlap, leave the step or have an unknown name."""
    check_spans(step)
    computation = sum(span.duration_ns for span in step.spans if span.name in COMPUTATION)
    causes: dict[str, int] = {}
    for span in step.spans:
        if (cause := cause_of(span)) is not None:
            causes[cause] = causes.get(cause, 0) + span.duration_ns
    exposed = sum(causes.values())
    total = step.end_ns - step.start_ns
    return StepBreakdown(
        step_ns=total,
        computation_ns=computation,
        exposed_ns=exposed,
        hidden_ns=_hidden(step),
        rest_ns=total - computation - exposed,
        exposed_by_cause=causes,
        payload_bytes=sum(op.bytes for op in step.ops),
    )


def cause_of(span: Span) -> str | None:
    """What a span exposes ("gradients", "parameters", "update", ...), or None when it is not exposed time."""
    if span.name == UPDATE:
        return UPDATE
    return span.name.removeprefix(EXPOSED_PREFIX) if span.name.startswith(EXPOSED_PREFIX) else None


def check_spans(step: StepEvent) -> None:
    """Raise EventError unless the spans are known, ordered in themselves, inside the step and free of
    overlaps.
    """
    for span in step.spans:
        if span.name not in COMPUTATION and cause_of(span) is None:
            known = ", ".join((*COMPUTATION, "exposed.*", UPDATE))
            raise EventError(f"step {step.n}: unknown span {span.name!r}; known: {known}")
        if not step.start_ns <= span.start_ns <= span.end_ns <= step.end_ns:
            raise EventError(f"step {step.n}: span {span.name} [{span.start_ns}, {span.end_ns}] leaves its step")
    ordered = sorted(step.spans, key=lambda span: (span.start_ns, span.end_ns))
    for before, after in itertools.pairwise(ordered):
        if after.start_ns < before.end_ns:
            raise EventError(f"step {step.n}: spans {before.name} and {after.name} overlap")


def _hidden(step: StepEvent) -> int:
    """Time within the step in which a collective was on its way and the main thread was not standing still
    for it.

    An operation whose end was never seen counts up to the end of the step.
    """
    window = (step.start_ns, step.end_ns)
    moving = union((op.issued_ns, _end_of(op, step)) for op in step.ops)
    exposed = union((span.start_ns, span.end_ns) for span in step.spans if cause_of(span) is not None)
    return length(subtract(clip(moving, window), exposed))


def _end_of(op: Operation, step: StepEvent) -> int:
    return step.end_ns if op.finished_ns is None else op.finished_ns


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Sorted, disjoint intervals that cover exactly what the given ones cover; empty ones vanish."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts of the intervals that lie inside the window."""
    low, high = window
    return [(max(a, low), min(b, high)) for a, b in intervals if max(a, low) < min(b, high)]


def subtract(intervals: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """What is left of the intervals outside the holes. Both must be sorted and disjoint, as `union` returns
    them.
    """
    left: list[Interval] = []
    cuts = list(holes)
    for start, end in intervals:
        for low, high in cuts:
            if high <= start or low >= end:
                continue
            if low > start:
                left.append((start, low))
            start = max(start, high)
        if start < end:
            left.append((start, end))
    return left


def length(intervals: Iterable[Interval]) -> int:
    """Summed length."""
    return sum(end - start for start, end in intervals)


def bytes_sent(kind: str, payload_bytes: int, world: int) -> int:
    """Bytes that each of `world` ranks must at least send for one collective, headers
    not counted.

    A ring (and every bandwidth-optimal) all-reduce sends 2 (p - 1) / p of the tensor per rank, a
    reduce-scatter or all-gather half of that; a broadcast is counted as the tensor once, which is what a
    non-root of a chain sends at most. Raises EventError for an unknown kind: a missing formula must not look
    like silence on the wire.
    """
    if world <= 1:
        return 0
    share = {"all_reduce": (2 * (world - 1), world), "reduce_scatter": (world - 1, world)}
    share |= {"all_gather": (world - 1, world), "broadcast": (1, 1), "barrier": (0, 1)}
    if kind not in share:
        raise EventError(f"no traffic formula for collective {kind!r}; known: {', '.join(sorted(share))}")
    over, under = share[kind]
    return payload_bytes * over // under
