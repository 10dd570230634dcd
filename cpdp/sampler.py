"""Watches one cell while it runs, from a thread: the WAN's byte counters and how many steps rank 0 has taken.

The samples go to traffic.jsonl as they are taken, stamped with CLOCK_MONOTONIC, which the workers' events use
too, so that `tables` can ask how many bytes crossed between any two moments, even of a run that was killed.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cpdp import wire

INTERVAL_S = 0.1
"""Ten samples a second: a reading costs the lab one short call, and bytes between two moments are
interpolated.
"""

STEP_MARK = b'"k":"step"'


@dataclass(frozen=True)
class Progress:
    """How far a cell is: steps that rank 0 has finished, and bytes per second over the busiest WAN direction."""

    steps: int
    bytes_per_s: float


class StepTail:
    """Counts the step lines of an event file as it grows, reading every byte once."""

    def __init__(self, path: Path) -> None:
        """The file need not exist yet."""
        self._path = path
        self._offset = 0
        self.steps = 0

    def read(self) -> int:
        """Steps so far."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return self.steps
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.steps += whole.count(STEP_MARK)
        return self.steps


class Sampler:
    """A context manager: samples from enter to exit, with one sample exactly at each end.

    `read` gives the bytes that crossed each WAN direction so far. What it raises ends the sampling and is
    kept in `error`; the cell itself must not die of it.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, int]],
        samples: Path,
        events: Path,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Sample `read` into the file `samples`; tell `progress` after each sample."""
        self._read = read
        self._progress = progress
        self._tail = StepTail(events)
        self._file = os.open(samples, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="cpdp-sampler", daemon=True)
        self._last: tuple[int, Mapping[str, int]] | None = None
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        """Take the first sample, then start the thread."""
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread and take the last sample."""
        self._stop.set()
        self._thread.join()
        if self.error is None and kind is None:
            self._sample()
        os.close(self._file)

    def _loop(self) -> None:
        while self.error is None and not self._stop.wait(INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        try:
            before = time.monotonic_ns()
            counts = self._read()
            now = (before + time.monotonic_ns()) // 2
            os.write(self._file, json.dumps({wire.TIME: now, **counts}).encode() + b"\n")
            if self._progress is not None:
                self._progress(Progress(self._tail.read(), self._speed(now, counts)))
        except Exception as error:  # noqa: BLE001 - kept and reported with the cell: a lab that ended, a full disk
            self.error = error

    def _speed(self, now: int, counts: Mapping[str, int]) -> float:
        last, self._last = self._last, (now, counts)
        if last is None or now <= last[0]:
            return 0.0
        return max(((counts[name] - last[1][name]) * 1e9 / (now - last[0]) for name in counts), default=0.0)
