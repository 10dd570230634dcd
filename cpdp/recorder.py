"""Where a rank's main thread is, moment by moment: phases and collectives of a step -> one `StepEvent`.

Flow: `parallel.DataParallel` and the strategies switch phases, `tap` reports collectives, the worker's sink
writes the events. The main thread is in one phase at a time, so spans cannot overlap; the next phase starts
with the mark that ended the one before. Steps follow each other without a gap: a step starts where the one
before ended, unless the time between them was paused (an evaluation).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cpdp.clock import Clock, MonotonicClock
from cpdp.events import Json, Operation, Span, StepEvent, finite

RECONCILE = "reconcile"
"""The phase in which a strategy averages parameters. It becomes two spans: `exposed.parameters` up to the end
of the last collective, and `update` for the arithmetic that nothing hid after it.
"""


@dataclass
class PendingOperation:
    """A collective on its way. `settle` makes sure, without blocking for the network, that a seen end is
    stamped. One that `travels` may outlive its step and is then followed into the next ones; `origin` is the
    operation that it continues there.
    """

    kind: str
    purpose: str
    bytes: int
    issued: Any
    finished: Any = None
    settle: Callable[[], None] | None = None
    travels: bool = False
    origin: PendingOperation | None = None

    def seen(self) -> bool:
        """Whether the end is known, after asking once more."""
        if self.finished is None and self.settle is not None:
            self.settle()
        if self.finished is None and self.origin is not None:
            self.finished = self.origin.finished
        return self.finished is not None

    def continued(self, now: Any) -> PendingOperation:
        """The rest of an operation that outlives its step: its bytes were counted where it was issued."""
        return PendingOperation(self.kind, self.purpose, 0, now, None, self.settle, True, self.origin or self)


@dataclass
class _RawStep:
    """A step whose marks may not have been reached by the device yet."""

    start: Any
    spans: list[tuple[str, Any, Any]] = field(default_factory=list)
    ops: list[PendingOperation] = field(default_factory=list)
    loss: Any = None
    overhead_ns: int = 0
    end: Any = None
    place: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Json] = field(default_factory=dict)


class Recorder:
    """The recorder that records nothing; also the interface of the one that does."""

    recording = False
    dilation = 1.0
    """How many times slower than the described one the clock of this run is."""

    def switch(self, phase: str | None) -> None:
        """The main thread enters a phase (None: one that nobody accounts for)."""

    def rename(self, phase: str) -> None:
        """The open phase turned out to be another one."""

    def operation(self, kind: str, purpose: str, size: int) -> PendingOperation:
        """A collective of `size` bytes is issued now."""
        return PendingOperation(kind, purpose, size, None)

    def finish(self, operation: PendingOperation) -> None:
        """A collective is complete; may be called from any thread."""

    def operations(self) -> int:
        """How many collectives the step has seen so far."""
        return 0

    def spend(self, overhead_ns: int) -> None:
        """Account time that recording itself cost."""

    def set_loss(self, loss: Any) -> None:
        """The step's loss; a tensor on a GPU is not read before the device has passed the step."""

    def fact(self, name: str, value: Json) -> None:
        """Something else that is known of the step under way."""

    def end_step(self, n: int, epoch: int, *, boundary: bool) -> None:
        """The step is over; the next one starts now."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that belongs to no step. Only between steps."""
        yield

    def paused_s(self) -> float:
        """Seconds so far that belonged to no step: what an evaluation takes is not part of a training's time."""
        return 0.0

    def whereabouts(self) -> str:
        """The step under way, in words, for the message of a failure."""
        return "an unrecorded step"

    def last_activity(self) -> str:
        """The step under way and the oldest collective without an end, in words, for the message of a failure."""
        return self.whereabouts()

    def continue_after(self, n: int) -> None:
        """Step n was done before this recorder was made: it goes on from there."""

    def close(self) -> None:
        """Write what is still pending."""


class StepRecorder(Recorder):
    """Records every step and hands it to `sink` as soon as all its marks can be read.

    On a CPU that is at once. `warmup_steps` marks the first steps of the run as warm-up.
    """

    recording = True

    def __init__(self, sink: Callable[[StepEvent], None], clock: Clock | None = None, *, warmup_steps: int = 0) -> None:
        """Start the first step now."""
        self.clock = clock or MonotonicClock()
        self._sink = sink
        self._warmup_steps = warmup_steps
        self._unwritten: list[_RawStep] = []
        self._phase: str | None = None
        self._since: Any = self.clock.mark()
        self._step = _RawStep(self._since)
        self._last_n = 0
        self._between_ns, self._paused_ns = time.monotonic_ns(), 0

    def switch(self, phase: str | None) -> None:
        """Close the open phase and open another with one mark; switching to the open phase changes nothing."""
        if phase == self._phase:
            return
        now = self.clock.mark()
        if self._phase is not None:
            self._step.spans.append((self._phase, self._since, now))
        self._phase, self._since = phase, now

    def rename(self, phase: str) -> None:
        """Give the open phase another name; what was closed before stays as it is."""
        self._phase = phase

    def operation(self, kind: str, purpose: str, size: int) -> PendingOperation:
        """Note a collective as issued now."""
        operation = PendingOperation(kind, purpose, size, self.clock.mark())
        self._step.ops.append(operation)
        return operation

    def finish(self, operation: PendingOperation) -> None:
        """Stamp a collective's end."""
        operation.finished = self.clock.mark()

    def operations(self) -> int:
        """How many collectives this step has issued."""
        return len(self._step.ops)

    def spend(self, overhead_ns: int) -> None:
        """Add to the step's overhead."""
        self._step.overhead_ns += overhead_ns

    def set_loss(self, loss: Any) -> None:
        """Keep the loss, unread."""
        self._step.loss = loss

    def fact(self, name: str, value: Json) -> None:
        """Keep it for the step's event."""
        self._step.facts[name] = value

    def end_step(self, n: int, epoch: int, *, boundary: bool) -> None:
        """Close the step with one mark, which starts the next, and write what can be written."""
        now = self.clock.mark()
        step = self._step
        if self._phase is not None:
            step.spans.append((self._phase, self._since, now))
        self._phase, self._since, step.end = None, now, now
        step.place = {"n": n, "epoch": epoch, "boundary": boundary, "warmup": n <= self._warmup_steps}
        self._unwritten.append(step)
        self._step = self._following(step.ops, now)
        self._last_n = n
        began = self._between_ns = time.monotonic_ns()
        self._write_ready()
        self.spend(time.monotonic_ns() - began)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside the block out of every step."""
        yield
        self._paused_ns += time.monotonic_ns() - self._between_ns
        self._phase, self._since = None, self.clock.mark()
        self._step = self._following(self._step.ops, self._since)

    @staticmethod
    def _following(ops: Sequence[PendingOperation], now: Any) -> _RawStep:
        """The step after one with these operations: those still travelling go on in it."""
        return _RawStep(now, ops=[op.continued(now) for op in ops if op.travels and not op.seen()])

    def paused_s(self) -> float:
        """Time from the end of a step to the end of a pause behind it, summed over all pauses."""
        return self._paused_ns / 1e9

    def whereabouts(self) -> str:
        """Number of the step under way and of the last complete one."""
        return f"step {self._last_n + 1} (last complete step: {self._last_n})"

    def last_activity(self) -> str:
        """Step, and the oldest collective without an end if there is one."""
        open_ops = [op for op in self._step.ops if op.finished is None]
        where = self.whereabouts()
        if not open_ops:
            return f"{where}, no collective pending"
        first = open_ops[0]
        size = (first.origin or first).bytes
        return f"{where}, {first.kind} of {first.purpose} ({size} bytes)"

    def continue_after(self, n: int) -> None:
        """Remember the last complete step of the run that goes on."""
        self._last_n = n

    def close(self) -> None:
        """Wait for the device, then write the remaining steps. The step under way is incomplete and not
        written.
        """
        self.clock.settle()
        self._write_ready()

    def _write_ready(self) -> None:
        while self._unwritten:
            event = self._resolve(self._unwritten[0])
            if event is None:
                return
            self._sink(event)
            del self._unwritten[0]

    def _resolve(self, raw: _RawStep) -> StepEvent | None:
        """The step in nanoseconds, or None when the device has not passed all of its marks."""
        end = self.clock.resolve(raw.end)
        start = self.clock.resolve(raw.start)
        if end is None or start is None:
            return None
        ops = tuple(self._resolve_operation(op, end) for op in raw.ops)
        spans: list[Span] = []
        for name, a, b in raw.spans:
            spans += split_reconcile(Span(name, self._time(a), self._time(b)), ops)
        loss, notes = finite("loss", None if raw.loss is None else float(raw.loss))
        return StepEvent(
            start_ns=start,
            end_ns=end,
            spans=tuple(spans),
            ops=ops,
            loss=loss,
            overhead_ns=raw.overhead_ns,
            notes=notes,
            facts=raw.facts,
            **raw.place,
        )

    def _time(self, mark: Any) -> int:
        """Time of a mark that lies before one already resolved on the same stream."""
        time_ns = self.clock.resolve(mark)
        if time_ns is None:
            raise AssertionError("a mark inside a finished step is still pending")
        return time_ns

    def _resolve_operation(self, op: PendingOperation, end: int) -> Operation:
        issued = self._time(op.issued)
        finished = self.clock.resolve(op.finished) if op.seen() else None
        if finished is not None and not op.travels:
            finished = min(finished, end)  # the step waited for it: only the stamp can be late, for want of the GIL
        if finished is not None and op.origin is not None:
            finished = max(finished, issued)  # it may have ended while its step did
        return Operation(op.kind, op.purpose, op.bytes, issued, finished)


def split_reconcile(span: Span, ops: tuple[Operation, ...]) -> list[Span]:
    """Split a reconcile phase where its last collective ended; other spans, and empty halves, are left as
    they are.

    An operation belongs to the phase when it was issued in it. One whose end was not seen ends with the
    phase.
    """
    if span.name != RECONCILE:
        return [span]
    ends = [
        span.end_ns if op.finished_ns is None else op.finished_ns
        for op in ops
        if span.start_ns <= op.issued_ns <= span.end_ns
    ]
    cut = min(max([span.start_ns, *ends]), span.end_ns)
    halves = [Span("exposed.parameters", span.start_ns, cut), Span("update", cut, span.end_ns)]
    return [half for half in halves if half.duration_ns > 0]
