"""Runs a program on several workers at once: streams what they print, ends the others when one fails, reports how
each ended.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Sink = Callable[[str, bytes], None]
"""Called with a worker's name and a piece of what it printed, as it arrives; b"" once its stream has ended."""

GRACE_S = 3.0
"""How long a program may take to end after SIGTERM before its whole pid namespace is killed."""

_READ_SIZE = 1 << 18


class Starter(Protocol):
    """What a job needs from a lab."""

    def launch(
        self,
        node: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        descriptors: tuple[int, int, int, int],
    ) -> int:
        """Start a program with the given stdin, stdout, stderr and report descriptors; returns its handle."""

    def send_signal(self, handle: int, number: int) -> bool:
        """Signal a program; False when it is gone."""

    def explain(self, node: str) -> str | None:
        """Why a program on ``node`` may have been lost without a word, when that can be said."""


@dataclass(frozen=True)
class WorkerExit:
    """How one worker's program ended. ``error`` says why it could not even start."""

    worker: str
    rank: int
    code: int | None = None
    signal: int | None = None
    error: str | None = None
    ended_by_us: bool = False

    @property
    def ok(self) -> bool:
        """Ended by itself with status 0."""
        return self.code == 0

    def describe(self) -> str:
        """For people: ``b-0 (rank 1) exited with status 7``."""
        who = f"{self.worker} (rank {self.rank})"
        if self.error is not None:
            return f"{who}: {self.error}"
        if self.signal is not None:
            return f"{who} was ended by {_signal_name(self.signal)}"
        return f"{who} exited with status {self.code}"


@dataclass(frozen=True)
class JobResult:
    """How a job ended on every worker, in rank order; ``failure`` is the first worker that failed by itself."""

    exits: tuple[WorkerExit, ...]
    failure: WorkerExit | None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Every worker ended with status 0, in time."""
        return not self.timed_out and all(end.ok for end in self.exits)

    def describe(self) -> str:
        """One line for people."""
        if self.ok:
            return "all workers ended with status 0"
        ended = [end.worker for end in self.exits if end.ended_by_us]
        rest = f"; {', '.join(ended)} ended with it" if ended else ""
        if self.failure is not None:
            return self.failure.describe() + rest
        return "the job ran out of time" + rest


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass
class _Running:
    """One worker's program while it runs."""

    worker: str
    rank: int
    handle: int = 0
    report: bytes = b""
    exit: WorkerExit | None = None
    ended_by_us: bool = False
    open_streams: int = 0


@dataclass
class Job:
    """One run of a program on some workers. Use ``run`` once.

    ``idle`` is called between reads and returns in how many seconds it wants to be called again, or None.
    """

    starter: Starter
    workers: Sequence[tuple[str, int]]
    output: Sink
    errors: Sink | None = None
    idle: Callable[[], float | None] | None = None
    grace_s: float = GRACE_S
    _all: list[_Running] = field(default_factory=list)
    _failure: WorkerExit | None = None
    _kill_at: float | None = None

    def run(
        self, argv: Sequence[str], env_of: Callable[[str], Mapping[str, str]], cwd: str, timeout: float | None
    ) -> JobResult:
        """Start ``argv`` on every worker and wait for all; an exception (Ctrl-C) ends every program first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        timed_out = False
        with selectors.DefaultSelector() as ready:
            try:
                for worker, rank in self.workers:
                    self._start(ready, worker, rank, argv, env_of(worker), cwd)
                while ready.get_map():
                    timed_out = self._turn(ready, deadline) or timed_out
            except BaseException:
                self._end_all(ready)
                raise
            finally:
                for key in list(ready.get_map().values()):
                    os.close(key.fd)
        exits = tuple(run.exit or self._lost(run) for run in self._all)
        return JobResult(exits, self._failure, timed_out)

    def _start(
        self,
        ready: selectors.BaseSelector,
        worker: str,
        rank: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
    ) -> None:
        running = _Running(worker, rank)
        stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe() if self.errors is not None else (None, os.dup(out_write))
        report_read, report_write = os.pipe()
        given = (stdin, out_write, err_write, report_write)
        try:
            running.handle = self.starter.launch(worker, argv, env, cwd, given)
        except BaseException:
            for fd in (out_read, report_read, *(() if err_read is None else (err_read,))):
                os.close(fd)
            raise
        finally:
            for fd in given:
                os.close(fd)
        self._all.append(running)
        streams: list[tuple[int, Sink]] = [(out_read, self.output)]
        if err_read is not None and self.errors is not None:
            streams.append((err_read, self.errors))
        for fd, sink in streams:
            running.open_streams += 1
            ready.register(fd, selectors.EVENT_READ, (running, sink))
        ready.register(report_read, selectors.EVENT_READ, (running, None))

    def _turn(self, ready: selectors.BaseSelector, deadline: float | None) -> bool:
        """One round: wait, read, act on the clock. True when the job just ran out of time."""
        now = time.monotonic()
        waits = [moment - now for moment in (deadline, self._kill_at) if moment is not None]
        if self.idle is not None and (wait := self.idle()) is not None:
            waits.append(wait)
        for key, _ in ready.select(max(0.0, min(waits)) if waits else None):
            running, sink = key.data
            self._read(ready, key.fd, running, sink)
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._signal_rest(signal.SIGKILL)
            self._kill_at = None
        if deadline is not None and now >= deadline and self._kill_at is None and not self._ending():
            self._begin_end()
            return True
        return False

    def _read(self, ready: selectors.BaseSelector, fd: int, running: _Running, sink: Sink | None) -> None:
        data = os.read(fd, _READ_SIZE)
        if sink is not None:
            sink(running.worker, data)
        elif data:
            running.report += data
        if data:
            return
        ready.unregister(fd)
        os.close(fd)
        if sink is not None:
            running.open_streams -= 1
            return
        running.exit = self._parse(running)
        if not running.exit.ok and not running.ended_by_us and self._failure is None:
            self._failure = running.exit
            self._begin_end()

    def _ending(self) -> bool:
        return any(run.ended_by_us for run in self._all)

    def _begin_end(self) -> None:
        self._signal_rest(signal.SIGTERM)
        self._kill_at = time.monotonic() + self.grace_s

    def _signal_rest(self, number: int) -> None:
        for run in self._all:
            if run.exit is None:
                run.ended_by_us = True
                self.starter.send_signal(run.handle, number)

    def _end_all(self, ready: selectors.BaseSelector) -> None:
        """End what runs, in order: SIGTERM, a moment, SIGKILL. A second Ctrl-C goes straight to SIGKILL."""
        try:
            self._begin_end()
            while any(run.exit is None for run in self._all) and ready.get_map():
                self._turn(ready, None)
        except BaseException:
            self._signal_rest(signal.SIGKILL)
            raise

    def _parse(self, running: _Running) -> WorkerExit:
        if not running.report:
            return self._lost(running)
        report = json.loads(running.report.splitlines()[0])  # one that could not start reports before its init does
        number, error = report.get("signal"), report.get("error")
        if number == signal.SIGKILL and not running.ended_by_us:
            error = self.starter.explain(running.worker)
        return WorkerExit(
            running.worker,
            running.rank,
            code=report.get("code"),
            signal=number,
            error=error,
            ended_by_us=running.ended_by_us,
        )

    def _lost(self, running: _Running) -> WorkerExit:
        """Nothing was reported: whoever was to report was killed."""
        why = None if running.ended_by_us else self.starter.explain(running.worker)
        return WorkerExit(
            running.worker, running.rank, signal=signal.SIGKILL, error=why, ended_by_us=running.ended_by_us
        )
