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
MOST_UNWRITTEN = 64
"""Steps are written by the heartbeat's thread, many at once; a program of very short steps writes as many itself."""
MOST_WORKS = 64
QUIET_NS = 900_000_000
"""A heartbeat is written when no line was for this long."""


HEAD, SEQ, ISSUED, CALLED, FINISHED, WAIT_FROM, WAIT_TO, FUTURE, WORK = range(9)
Op = list[Any]
"""An operation: the fields of `OP_FIELDS`, then its future and its work while it is on its way. Times are marks of the
tracer's clock, 0 where none was seen. A list, because one is made for every operation: it costs a fifth of an object
with names."""


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
        self.ops: list[Op] = []
        """Operations since the step began; before the first step, those before it."""
        self.spent = 0
        """Nanoseconds that the profiler itself took since the step began."""
        self.counts: Callable[[], list[list[int]]] = list
        """Gives [group, issued, finished] of every group; set by whoever watches groups."""
        self.works: dict[int, Op] = {}
        """Operations by the identity of their work, for as long as their work is kept in them."""
        self.computed: Any = None
        """When the last gradient of the backward pass under way was there."""
        self.ask: Callable[[], None] | None = None
        """Set while a backward pass has issued no operation: asks to be told of its last gradient."""
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
        began = time.monotonic_ns()
        if self.step is not None:
            self._finish(self.step, now)
        self.step = _Step(now)
        self.phase, self.since = OTHER, now
        if len(self.works) > MOST_WORKS:
            self.works = {key: op for key, op in self.works.items() if not op[FINISHED]}
        if self.clock is not None or self.on_step is not None or len(self._unwritten) >= MOST_UNWRITTEN:
            self._write_ready()
        self.spent += time.monotonic_ns() - began

    def _finish(self, step: _Step, now: Any) -> None:
        step.spans += (self.phase, self.since, now)
        step.end = now
        step.ops, self.ops = self.ops, []
        step.spent, self.spent = self.spent, 0
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

    def backward(self, ask: Callable[[], None] | None = None) -> int:
        """A backward pass begins; returns the phase to come back to. `ask` is called at its first operation."""
        if self.phase != OPTIMIZER:  # a closure of LBFGS runs inside the optimizer's step
            self.begin_if_over()
        if self.step is not None:
            self.step.trained = True
        self.computed, self.ask = None, ask
        return self.switch(BACKWARD)

    def backward_over(self, before: int) -> None:
        """It returned; where operations were issued in it, it has waited for them since the last gradient."""
        self.switch(OPTIMIZER if before == OPTIMIZER else OTHER)
        computed, self.computed, self.ask = self.computed, None, None
        if computed is not None and self.step is not None:
            self.step.waits += (FINALIZE, computed, self.since)

    def asked(self) -> None:
        """The backward pass has issued its first operation: ask when its last gradient is there."""
        ask, self.ask = self.ask, None
        if ask is not None:
            ask()

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

    def waited(self, began: Any, ended: Any, op: Op | None, why: int = WAIT) -> None:
        """A thread stood still for an operation. Only the main thread's standing still is a step's."""
        if threading.get_ident() != self.thread or self.step is None:
            return
        self.step.waits += (why, began, ended)
        if op is not None:
            op[WAIT_FROM], op[WAIT_TO] = began, ended

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
            step.end, step.ops, step.spent = step.spans[-1], self.ops, self.spent
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
            while self._unwritten and not self._closed.is_set():
                if self.clock is not None and self.clock.resolve(self._unwritten[0].end) is None:
                    return
                self._emit("step", self._unwritten.pop(0), settled=False)

    def _emit(self, kind: str, step: _Step, *, settled: bool) -> None:
        """One step's line. Operations without an end wait for the next line, once."""
        begin = self._time(step.begin)
        ready, self._late = self._late, []
        for op in step.ops:
            (ready if op[FINISHED] or settled or _ended(op) else self._late).append(op)
        end = self._time(step.end)
        self._write_line(
            {
                "k": kind,
                "n": step.n,
                "t": [begin, end],
                "s": self._relative(step.spans, begin),
                "w": self._relative(step.waits, begin),
                "o": self._fields(ready, begin),
                "c": step.spent,
            }
        )
        self._written_ns = time.monotonic_ns()
        if kind == "step" and self.on_step is not None:
            self.on_step({"n": step.n, "step_ns": end - begin})

    def _fields(self, ops: list[Op], begin: int) -> list[int]:
        flat: list[int] = []
        if self.clock is None:
            for head, seq, issued, called, finished, low, high, *_ in ops:
                flat += (head, seq, issued - begin, called - begin if called else NEVER,
                         finished - begin if finished else NEVER, low - begin if low else NEVER,
                         high - begin if high else NEVER)  # fmt: skip
            return flat
        for op in ops:
            flat += (op[HEAD], op[SEQ], *(self._time(mark) - begin if mark else NEVER for mark in op[ISSUED:FUTURE]))
        return flat

    def _relative(self, triples: list[Any], begin: int) -> list[int]:
        if self.clock is None:
            return [value - begin if i % 3 else value for i, value in enumerate(triples)]
        return [self._time(value) - begin if i % 3 else value for i, value in enumerate(triples)]

    def _time(self, mark: Any) -> int:
        if self.clock is None:
            return mark  # type: ignore[no-any-return]
        resolved = self.clock.resolve(mark)
        return NEVER if resolved is None else int(resolved)

    # what a killed run and `cpdp watch` read

    def _heartbeat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            if self.clock is None:
                self._write_ready()
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
        line["counts"] = self.counts()
        line["optimized"] = step.optimized is not None
        if self.clock is None:
            line["begin"] = step.begin
            line["open"] = [op[:CALLED] for op in [*self._late, *self.ops] if not op[FINISHED]][:8]
            line["s"] = [*self._relative(list(step.spans), step.begin), self.phase, self.since - step.begin,
                         now - step.begin]  # fmt: skip
        return line


SETTLE_S = 0.02


def _ended(op: Op) -> bool:
    """Whether the operation's end is known, after asking once more.

    A future is complete a moment before its callback has run: a step that is written in that moment waits for it.
    """
    future = op[FUTURE]
    if future is None or not future.done():
        return bool(op[FINISHED])
    deadline = time.monotonic() + SETTLE_S
    while not op[FINISHED] and time.monotonic() < deadline:
        time.sleep(2e-5)
    return bool(op[FINISHED])


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encode(line: Mapping[str, Any]) -> bytes:
    """A line as it is stored."""
    return _encode(line).encode() + b"\n"


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
