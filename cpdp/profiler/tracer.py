"""One rank's main thread and collectives, as they happen -> lines of its event file.

Hooks (`install`, `library`) say which phase begins, `groups` which operation was issued or has finished; this class
keeps them for the step under way and writes a line when the step is over. A step is over when the next one begins: at
the first data, forward pass or zero_grad after an optimizer's step, so that what a strategy does after the optimizer
belongs to the step it ends. Nothing here may raise into the program that is profiled.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cpdp.profiler.lines import FORMAT, NEVER, PHASES, WHYS

DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
WAIT, FINALIZE, CALL = range(len(WHYS))

HEARTBEAT_S = 0.5
QUIET_NS = 900_000_000
"""A heartbeat is written when no line was for this long."""


class Op:
    """An operation on its way; times are marks of the tracer's clock."""

    __slots__ = ("called", "finished", "head", "issued", "seq", "settle", "wait_from", "wait_to")

    def __init__(self, head: int, seq: int, issued: Any) -> None:
        """Issued now."""
        self.head, self.seq, self.issued = head, seq, issued
        self.called: Any = None
        self.finished: Any = None
        self.wait_from: Any = None
        self.wait_to: Any = None
        self.settle: Callable[[], None] | None = None


class _Step:
    """What is known of the step under way."""

    __slots__ = ("begin", "data", "end", "evaluated", "n", "ops", "optimized", "spans", "spent", "trained", "waits")

    def __init__(self, begin: Any) -> None:
        self.begin = begin
        self.end: Any = None
        self.n = 0
        self.spans: list[Any] = []
        self.waits: list[Any] = []
        self.ops: list[Op] = []
        self.spent = 0
        self.optimized: Any = None
        self.trained = False
        self.evaluated = False
        self.data: Any = None


class Tracer:
    """Writes what one rank does. `write` takes a dictionary and hands one line to the kernel."""

    def __init__(self, write: Callable[[Mapping[str, Any]], None], clock: Any = None) -> None:
        """Nothing is written before the first step begins. `clock` None: the host's monotonic one."""
        self._write_line = write
        self.clock = clock
        self.mark: Callable[[], Any] = time.monotonic_ns if clock is None else clock.mark
        self.thread = threading.get_ident()
        self.step: _Step | None = None
        self.steps = 0
        self.phase = OTHER
        self.since: Any = 0
        self.on_step: Callable[[Mapping[str, Any]], None] | None = None
        self._unwritten: list[_Step] = []
        self._late: list[Op] = []
        self._orphans: list[Op] = []
        self._counts: dict[int, list[int]] = {}
        self._lock = threading.Lock()
        self._written_ns = time.monotonic_ns()
        self._closed = threading.Event()
        threading.Thread(target=self._heartbeat, name="cpdp-heartbeat", daemon=True).start()

    # phases, called from the main thread

    def switch(self, phase: int) -> int:
        """Enter a phase; returns the one that was left."""
        step, before = self.step, self.phase
        if step is not None and phase != before:
            now = self.mark()
            step.spans += (before, self.since, now)
            self.since = now
        self.phase = phase
        return before

    def begin_if_over(self) -> None:
        """Something begins that only a new step does: end the step whose optimizer has run; start the first one."""
        if self.step is None or self.step.optimized is not None:
            self._turn(self.mark())

    def _turn(self, now: Any) -> None:
        if self.step is not None:
            self._finish(self.step, now)
        self.step = step = _Step(now)
        step.ops, self._orphans = self._orphans, []
        self.phase, self.since = OTHER, now
        began = time.monotonic_ns()
        self._write_ready()
        step.spent += time.monotonic_ns() - began

    def _finish(self, step: _Step, now: Any) -> None:
        step.spans += (self.phase, self.since, now)
        step.end = now
        self.steps += 1
        step.n = self.steps
        self._unwritten.append(step)

    def data(self) -> None:
        """The loop asks for its next batch."""
        self.begin_if_over()
        if self.step is not None:
            self.switch(DATA)
            self.step.data = self.since

    def got_data(self) -> None:
        """It has it."""
        self.switch(OTHER)

    def forward(self, *, training: bool) -> None:
        """A module is called while no other is."""
        self.begin_if_over()
        step = self.step
        if step is None:
            return
        if not training:
            step.evaluated = True
            return
        if step.evaluated and not step.trained:
            self._restart(step)
        step.trained = True
        if self.phase in (OTHER, DATA):
            self.switch(FORWARD)

    def _restart(self, step: _Step) -> None:
        """What came before was an evaluation: the step begins with the batch that it trains on."""
        begin = self.mark() if step.data is None or self.clock is not None else step.data
        spans = step.spans
        kept = [i for i in range(0, len(spans), 3) if self.clock is None and spans[i + 1] >= begin]
        step.spans = [value for i in kept for value in spans[i : i + 3]]
        step.waits = []
        step.begin = begin
        if not kept:
            self.since = begin
        step.evaluated = False

    def backward(self) -> int:
        """A backward pass begins; returns the phase to come back to."""
        if self.phase != OPTIMIZER:  # a closure of LBFGS runs inside the optimizer's step
            self.begin_if_over()
        if self.step is not None:
            self.step.trained = True
        return self.switch(BACKWARD)

    def backward_over(self, before: int, computed: Any, issued: int) -> None:
        """It returned. `computed`: when the last gradient was there; `issued`: operations issued in it."""
        self.switch(OPTIMIZER if before == OPTIMIZER else OTHER)
        if computed is not None and issued and self.step is not None:
            self.step.waits += (FINALIZE, computed, self.since)

    def optimizer(self) -> None:
        """An optimizer's step begins."""
        if self.step is None:
            self._turn(self.mark())
        self.switch(OPTIMIZER)

    def optimizer_over(self) -> None:
        """It is over, and so will be the step."""
        self.switch(OTHER)
        if self.step is not None:
            self.step.optimized = self.since

    # operations, called from any thread

    def issued(self, head: int, group: int, seq: int) -> Op:
        """An operation is issued now."""
        op = Op(head, seq, self.mark())
        step = self.step
        (self._orphans if step is None else step.ops).append(op)
        self._counts.setdefault(group, [0, 0])[0] += 1
        return op

    def count(self) -> int:
        """How many operations the step has issued."""
        return len(self.step.ops) if self.step is not None else 0

    def finished(self, op: Op, group: int) -> None:
        """Its result is there."""
        op.finished = self.mark()
        self._counts[group][1] += 1

    def waited(self, began: Any, ended: Any, op: Op | None, why: int = WAIT) -> None:
        """A thread stood still for an operation. Only the main thread's standing still is a step's."""
        if threading.get_ident() != self.thread or self.step is None:
            return
        self.step.waits += (why, began, ended)
        if op is not None:
            op.wait_from, op.wait_to = began, ended

    def spend(self, nanoseconds: int) -> None:
        """What the profiler itself cost."""
        if self.step is not None:
            self.step.spent += nanoseconds

    # lines

    def say(self, line: Mapping[str, Any]) -> None:
        """Write a line of another kind."""
        with self._lock:
            self._write_line(line)

    def close(self, *, ok: bool, reason: str | None = None) -> None:
        """Write what is left; a second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        step, self.step = self.step, None
        if step is not None:
            step.spans += (self.phase, self.since, self.mark())
            step.end = step.spans[-1]
        if self.clock is not None:
            self.clock.settle()
        with self._lock:
            for finished in self._unwritten:
                self._emit("step", finished, settled=True)
            if step is not None and step.optimized is not None:
                self.steps += 1
                step.n = self.steps
                self._cut(step)
                self._emit("step", step, settled=True)
            elif step is not None:
                step.n = self.steps + 1
                self._emit("tail", step, settled=True)
            line = {"k": "end", "t": time.monotonic_ns(), "ok": ok}
            self._write_line(line | ({"reason": reason} if reason else {}))

    def _cut(self, step: _Step) -> None:
        """The last step ends with its optimizer or its last wait: what follows is the program's end."""
        end = max(self._time(mark) for mark in (step.optimized, *step.waits[2::3]))
        spans, kept = step.spans, []
        for i in range(0, len(spans), 3):
            low, high = self._time(spans[i + 1]), min(self._time(spans[i + 2]), end)
            if low < high:
                kept += [spans[i], spans[i + 1], spans[i + 2] if self._time(spans[i + 2]) == high else step.end]
        last = step.optimized
        for mark in step.waits[2::3]:
            last = mark if self._time(mark) > self._time(last) else last
        if kept:
            kept[-1] = last
        step.spans, step.end = kept, last

    def _write_ready(self) -> None:
        with self._lock:
            while self._unwritten:
                if self.clock is not None and self.clock.resolve(self._unwritten[0].end) is None:
                    return
                self._emit("step", self._unwritten.pop(0), settled=False)

    def _emit(self, kind: str, step: _Step, *, settled: bool) -> None:
        """One step's line. Operations without an end wait for the next line, once."""
        begin = self._time(step.begin)
        ready: list[int] = []
        late, self._late = self._late, []
        for op in late:
            ready += self._fields(op, begin)
        for op in step.ops:
            if op.settle is not None and op.finished is None:
                op.settle()
            if op.finished is None and not settled:
                self._late.append(op)
            else:
                ready += self._fields(op, begin)
        end = self._time(step.end)
        self._write_line(
            {
                "k": kind,
                "n": step.n,
                "t": [begin, end],
                "s": self._relative(step.spans, begin),
                "w": self._relative(step.waits, begin),
                "o": ready,
                "c": step.spent,
            }
        )
        self._written_ns = time.monotonic_ns()
        if kind == "step" and self.on_step is not None:
            self.on_step({"n": step.n, "step_ns": end - begin})

    def _fields(self, op: Op, begin: int) -> list[int]:
        marks = (op.issued, op.called, op.finished, op.wait_from, op.wait_to)
        return [op.head, op.seq, *(NEVER if mark is None else self._time(mark) - begin for mark in marks)]

    def _relative(self, triples: list[Any], begin: int) -> list[int]:
        return [value if i % 3 == 0 else self._time(value) - begin for i, value in enumerate(triples)]

    def _time(self, mark: Any) -> int:
        if self.clock is None:
            return mark  # type: ignore[no-any-return]
        resolved = self.clock.resolve(mark)
        return NEVER if resolved is None else int(resolved)

    # what a killed run and `cpdp watch` read

    def _heartbeat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            step = self.step
            if step is None or time.monotonic_ns() - self._written_ns < QUIET_NS:
                continue
            with self._lock:
                if not self._closed.is_set():
                    self._write_line(self._now_line(step))
                    self._written_ns = time.monotonic_ns()

    def _now_line(self, step: _Step) -> dict[str, Any]:
        now = time.monotonic_ns()
        line: dict[str, Any] = {"k": "now", "t": now, "n": self.steps + 1, "phase": PHASES[self.phase]}
        line["counts"] = [[group, *counts] for group, counts in list(self._counts.items())]
        line["optimized"] = step.optimized is not None
        if self.clock is None:
            ops = list(step.ops)
            line["begin"] = step.begin
            line["open"] = [[op.head, op.seq, op.issued] for op in [*self._late, *ops] if op.finished is None][:8]
            line["s"] = [*self._relative(list(step.spans), step.begin), self.phase, self.since - step.begin,
                         now - step.begin]  # fmt: skip
        return line


def encode(line: Mapping[str, Any]) -> bytes:
    """A line as it is stored."""
    return json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def append_to(fd: int) -> Callable[[Mapping[str, Any]], None]:
    """Hands each line to the kernel in one write; a full disk is said once and ends the recording."""
    broken = False

    def write(line: Mapping[str, Any]) -> None:
        nonlocal broken
        if broken:
            return
        try:
            os.write(fd, encode(line))
        except OSError as error:
            broken = True
            os.write(2, f"cpdp profile: events can no longer be written: {error}\n".encode())

    return write


def start_line(**facts: Any) -> dict[str, Any]:
    """The first line of a rank."""
    return {"k": "start", "v": FORMAT, "t": time.monotonic_ns(), **facts}
