"""The clocks under which spans are measured: the host's monotonic clock, or CUDA events.

A clock hands out *marks* (points in time on the computing device) and later turns them into nanoseconds of
CLOCK_MONOTONIC. On a CPU a mark is that number already. On a GPU the host runs ahead of the device, so a mark
is an event recorded on the current stream, read a step later when the device has passed it: no
synchronisation is added.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """Four things a recorder needs from a clock."""

    name: str

    def mark(self) -> Any:
        """A point in time, now; on a GPU: when the current stream gets here."""

    def resolve(self, mark: Any) -> int | None:
        """The mark in nanoseconds of CLOCK_MONOTONIC; None while the device has not reached it."""

    def settle(self) -> None:
        """Wait until every mark can be resolved; called once, when a run ends."""


class MonotonicClock:
    """CLOCK_MONOTONIC of the host: what the CPU does is over when the call returns."""

    name = "monotonic"

    def mark(self) -> int:
        """The time now."""
        return time.monotonic_ns()

    def resolve(self, mark: int) -> int:
        """A mark is its own time."""
        return mark

    def settle(self) -> None:
        """Nothing is ever pending."""


class CudaEventClock:
    """CUDA events on the current stream, placed on the host's clock through one synchronised pair at the
    start.

    `elapsed_time` returns milliseconds in single precision, whose resolution at 1 s is 60 ns; the reference
    event is therefore moved forward once it is `REBASE_NS` old. Marks must be resolved in about the order
    they were made.
    """

    name = "cuda-events"
    REBASE_NS = 1_000_000_000

    def __init__(
        self, new_event: Callable[[], Any] | None = None, synchronize: Callable[[], None] | None = None
    ) -> None:
        """Use torch.cuda's events unless others are given (a test's). Synchronises the device once."""
        self._new_event = new_event or _timing_event
        self._synchronize = synchronize or _synchronize
        self._synchronize()
        self._base = self._new_event()
        self._base.record()
        self._synchronize()
        self._base_ns = time.monotonic_ns()

    def mark(self) -> Any:
        """An event recorded on the current stream."""
        event = self._new_event()
        event.record()
        return event

    def resolve(self, mark: Any) -> int | None:
        """The event's time, or None while the device has not reached it."""
        if not mark.query():
            return None
        elapsed_ns = round(self._base.elapsed_time(mark) * 1e6)
        time_ns: int = self._base_ns + elapsed_ns
        if elapsed_ns > self.REBASE_NS:
            self._base, self._base_ns = mark, time_ns
        return time_ns

    def settle(self) -> None:
        """Wait for the device."""
        self._synchronize()


def _timing_event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()


def clock_for(device_type: str) -> Clock:
    """The clock for tensors on a device of this type ("cpu", "cuda")."""
    return CudaEventClock() if device_type == "cuda" else MonotonicClock()
