"""Traffic between the workers of a lab, every datagram with its number and both its times: traffic.c, run there."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from netlab import Lab

SOURCE = Path(__file__).with_name("traffic.c")
QUIET_MS = 700  # after so long without a datagram none is on its way any more: longer than any delay in use
HEADERS = 28


@dataclass(frozen=True)
class Arrivals:
    """What came through of ``count`` datagrams, in the order of arrival; times in ns of one clock."""

    count: int
    number: np.ndarray
    sent_ns: np.ndarray
    received_ns: np.ndarray

    @property
    def delay_ms(self) -> np.ndarray:
        """One way, of each that arrived."""
        return (self.received_ns - self.sent_ns) / 1e6

    @property
    def overtaken(self) -> int:
        """How many arrived behind one that was sent after them."""
        return int(np.sum(self.number < np.maximum.accumulate(self.number)))

    @property
    def lost(self) -> np.ndarray:
        """For each number whether it never arrived."""
        missing = np.ones(self.count, dtype=bool)
        missing[self.number] = False
        return missing


class Streams:
    """Sends between the workers of one lab. Use it as a context manager, ``with streams(lab) as made``."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        """Keep what the helper leaves in ``folder``."""
        self.lab, self.folder = lab, folder
        self.pool = ThreadPoolExecutor(max_workers=16)
        self._ports = iter(range(6000, 60_000))

    @cached_property
    def program(self) -> str:
        """The compiled helper."""
        binary = self.folder / "traffic"
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(binary), str(SOURCE)], check=True)
        return str(binary)

    def run(self, worker: str, *arguments: object, timeout: float = 140) -> None:
        """Run the helper on a worker."""
        done = self.lab.exec(worker, [self.program, *(str(argument) for argument in arguments)], timeout=timeout)
        if done.returncode:
            raise RuntimeError(f"{worker}: traffic {arguments}: {done.stderr.decode()}")

    def start(self, worker: str, *arguments: object, timeout: float = 140) -> Future[None]:
        """The same beside whatever else goes on."""
        return self.pool.submit(self.run, worker, *arguments, timeout=timeout)

    @contextmanager
    def hearing(self, target: str) -> Iterator[tuple[int, Callable[[int], Arrivals]]]:
        """A port of ``target`` on which everything is recorded, and a function that gives it, of so many sent."""
        port = next(self._ports)
        file = self.folder / f"{target}-{port}"
        heard = self.pool.submit(self.run, target, "receive", port, QUIET_MS, file)
        self._wait_bound(target, port)

        def result(count: int) -> Arrivals:
            heard.result()
            found = np.fromfile(file, dtype=np.int64).reshape(-1, 3)
            return Arrivals(count, *(found[:, column].copy() for column in range(3)))

        yield port, result

    def stream(self, source: str, target: str, count: int, rate: float, ip_bytes: int = 64) -> Arrivals:
        """Send ``count`` datagrams of ``ip_bytes``, ``rate`` a second."""
        with self.hearing(target) as (port, result):
            self.run(source, "send", self.address(target), port, count, round(1e9 / rate), ip_bytes)
            return result(count)

    def flood(
        self, source: str, target: str, seconds: float, rate_bps: float, ip_bytes: int = 1500, batch: int = 1
    ) -> Arrivals:
        """Send for so long at ``rate_bps`` of IP bytes; the numbers of what arrives are all 0."""
        with self.hearing(target) as (port, result):
            self.run(source, "flood", self.address(target), port, seconds, ip_bytes, round(rate_bps), batch, 1)
            return result(0)

    @contextmanager
    def load(self, source: str, target: str, seconds: float, rate_bps: float, batch: int) -> Iterator[None]:
        """The same of full-size packets beside whatever the block does, and nobody reads it."""
        port = next(self._ports)
        sink = self.start(target, "sink", port, seconds + 1)
        flood = self.start(source, "flood", self.address(target), port, seconds, 1500, round(rate_bps), batch, 1)
        yield
        flood.result()
        sink.result()

    def tcp(self, source: str, target: str, skip_s: float, seconds: float) -> float:
        """Bits per second of payload that one TCP connection delivers, after ``skip_s`` of start-up."""
        port = next(self._ports)
        file = self.folder / f"{target}-{port}"
        received = self.start(target, "tcp-receive", port, skip_s, seconds, file)
        self._wait_bound(target, port, "tcp")
        self.run(source, "tcp-send", self.address(target), port)
        received.result()
        return float(file.read_text())

    def address(self, worker: str) -> str:
        """Of a worker."""
        return self.lab.worker(worker).address

    def _wait_bound(self, worker: str, port: int, protocol: str = "udp") -> None:
        """Until the port is there, by asking the kernel."""
        entry = f":{port:04X} "
        for _ in range(200):
            if entry in self.lab.exec(worker, ["cat", f"/proc/net/{protocol}"]).stdout.decode():
                return
        raise RuntimeError(f"{worker}: port {port} was not bound")


@contextmanager
def streams(lab: Lab) -> Iterator[Streams]:
    """A Streams for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="netlab-bench-") as folder:
        made = Streams(lab, Path(folder))
        try:
            yield made
        finally:
            made.pool.shutdown()
