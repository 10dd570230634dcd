"""Samples this worker's interfaces and TCP connections while a profiled command runs, from the launcher's process.

One JSON line every `INTERVAL_S`, stamped with CLOCK_MONOTONIC as the events are, so that bytes, retransmits and round
trips can be joined to steps. The profiled program itself is not touched.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import astuple
from pathlib import Path
from types import TracebackType
from typing import Self

from cpdp.profiler import tcp

INTERVAL_S = 0.05
TCP_EVERY = 4
"""Connections are asked for in every fourth sample: the kernel walks all of them."""

CONNECTION = ("local", "peer", "rtt_us", "min_rtt_us", "window", "retransmits", "bytes_acked", "bytes_received",
              "delivery_rate")  # fmt: skip


class Monitor:
    """A context manager: samples from enter to exit, one exactly at each end."""

    def __init__(self, path: Path) -> None:
        """Samples go to `path`."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="cpdp-monitor", daemon=True)
        self.first: dict[str, tuple[int, int]] = {}
        self.last: dict[str, tuple[int, int]] = {}
        self.error: str | None = None

    def __enter__(self) -> Self:
        """Take the first sample."""
        self._sample(with_tcp=False)
        self.first = self.last
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the last one."""
        self._stop.set()
        self._thread.join()
        self._sample(with_tcp=False)
        os.close(self._fd)

    def moved(self) -> dict[str, tuple[int, int]]:
        """Bytes received and sent by each interface between the two ends."""
        zero = (0, 0)
        return {
            name: (counts[0] - self.first.get(name, zero)[0], counts[1] - self.first.get(name, zero)[1])
            for name, counts in self.last.items()
        }

    def _loop(self) -> None:
        number = 0
        while not self._stop.wait(INTERVAL_S):
            number += 1
            self._sample(with_tcp=number % TCP_EVERY == 0)

    def _sample(self, *, with_tcp: bool) -> None:
        try:
            line: dict[str, object] = {"t": time.monotonic_ns()}
            self.last = tcp.interfaces()
            line["dev"] = self.last
            if with_tcp:
                line["tcp"] = [astuple(one) for one in tcp.connections() if not one.peer.startswith(("127.", "::1"))]
            os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self.error = str(error)
