"""The relay as the lab sees it: start a process that carries links, read its counters, change it, stop it.

The executor opens a TUN device at each end of a link (netlab.links.tun) and describes the link as two
Directions. Relay.start runs them in one child process, a thread each; the C core (core/) moves the packets.
Parent and child share one memory area: parameters in, counters out, so that looking costs the relay nothing.

The child is tied to its parent three ways: it asks the kernel to be killed with it, it ends when the control
socket closes, and it lives in the same pid namespace.
"""

import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import _cffi_backend

from netlab.errors import NetlabError
from netlab.links import _relay
from netlab.links.relay_direction import CHANGEABLE, Direction
from netlab.links.relay_model import Effects
from netlab.links.relay_stats import DirectionStats, LatenessBuckets

__all__ = ["Direction", "DirectionStats", "Effects", "PacketLog", "Relay"]

_ffi, _lib = _relay.ffi, _relay.lib

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
CHANGE_TIMEOUT_S = 5.0
FIRST_TABLE = 1  # number of the jitter table that a direction starts with
# Waking by a timer takes 20-100 us (the processor's idle state, in a virtual machine also the host's). A thread
# therefore wakes up earlier by what it has lately taken, and spins; that costs little more than a late wake-up.
# Measured on 2 cores with 8.3 ms one way: median lateness 22-57 us without, under 1 us with, idle or busy.
SPIN_CAP_NS = 100_000
SPIN_PERMILLE = 100  # of a processor for each direction, and of the machine for all

Scheduling = Literal["normal", "nice", "fifo"]


@dataclass(frozen=True)
class PacketLog:
    """An open file (see `netlab.packets`) to which every packet's fate goes: its descriptor, which stays the caller's,
    where in it the first record goes, and the most records."""

    fd: int
    offset: int
    limit: int


class Relay:
    """A running relay process. Use start(); call stop() when done (the process also ends with this one)."""

    def __init__(
        self,
        directions: tuple[Direction, ...],
        process: "subprocess.Popen[bytes]",
        control: socket.socket,
        memory: mmap.mmap,
        wake_fds: tuple[int, ...],
    ) -> None:
        """Keep what start() made."""
        self._directions = {direction.name: direction for direction in directions}
        self._index = {direction.name: index for index, direction in enumerate(directions)}
        self._process = process
        self._control = control
        self._memory = memory
        self._wake_fds = wake_fds
        self._shared = _shared_of(memory)
        self._tables = {direction.name: direction.jitter_table() for direction in directions}
        self._table_numbers = FIRST_TABLE
        self._peaks: dict[str, tuple[int, int]] = {}  # taken so far

    @classmethod
    def start(
        cls, directions: Sequence[Direction], *, realtime: bool = True, packet_log: PacketLog | None = None
    ) -> "Relay":
        """Start carrying the directions; returns when every thread runs.

        With realtime, each thread asks for SCHED_FIFO, else the best niceness: see scheduling() for what was
        granted. Must be called from the thread that lives as long as the relay shall: the kernel ties a child
        to the thread that made it. Raises NetlabError when the process does not come up.
        """
        directions = tuple(directions)
        names = [direction.name for direction in directions]
        if len(set(names)) != len(names):
            raise NetlabError(f"two directions of one name: {', '.join(sorted(names))}")
        for direction in directions:
            direction.check()
        shared_fd = os.memfd_create("netlab-relay", os.MFD_CLOEXEC)
        try:
            memory = _make_shared(shared_fd, len(directions))
            wake_fds = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in directions)
            _fill_shared(memory, directions, wake_fds, realtime)
            if packet_log is not None:
                shared = _shared_of(memory)
                shared.fate_fd, shared.fate_offset, shared.fate_limit = astuple(packet_log)
            logs = () if packet_log is None else (packet_log.fd,)
            process, control, errors_fd = _spawn(shared_fd, (*_descriptors(directions, wake_fds), *logs))
        finally:
            os.close(shared_fd)
        relay = cls(directions, process, control, memory, wake_fds)
        relay._wait_ready(errors_fd)
        return relay

    def _wait_ready(self, errors_fd: int) -> None:
        try:
            ready, _, _ = select.select([self._control], [], [], START_TIMEOUT_S)
            if ready and self._control.recv(1) == b"R":
                states = {name: self._direction(i).state for name, i in self._index.items()}
                failed = [name for name, state in states.items() if state != _lib.NL_RUNNING]
                if not failed:
                    return
                reason = f"no memory or no device for {', '.join(failed)}"
            else:
                reason = "the process did not come up"
            self.stop()
            said = os.pread(errors_fd, 4096, 0).decode(errors="replace").strip()
        finally:
            os.close(errors_fd)
        raise NetlabError(f"the relay could not start: {reason}{': ' + said if said else ''}")

    def _direction(self, index: int) -> Any:
        return _lib.nl_shared_direction(self._shared, index)

    @property
    def pid(self) -> int:
        """Process id of the relay."""
        return self._process.pid

    @property
    def realtime(self) -> bool:
        """Whether every direction that has a delay or a rate to keep was really granted SCHED_FIFO."""
        timed = [d.name for d in self._directions.values() if d.delay_ns or d.rate_bps]
        return all(self.scheduling(name) == "fifo" for name in timed or self._index)

    def scheduling(self, name: str) -> Scheduling:
        """Return what the direction's thread was granted: fifo, nice (-20) or normal."""
        granted: tuple[Scheduling, ...] = ("normal", "nice", "fifo")
        return granted[int(self._direction(self._index[name]).scheduling)]

    @property
    def memory_locked(self) -> bool:
        """Whether the packet memory prepared at the start is locked (never paged out)."""
        return all(self._direction(index).memory_locked for index in self._index.values())

    @property
    def kernel_stamps(self) -> bool:
        """Whether arrival times come from the kernel; else a packet arrives when the relay gets to read it."""
        return all(self._direction(index).kernel_stamps for index in self._index.values())

    def alive(self) -> bool:
        """Return whether the process runs and every direction is being carried."""
        running = (self._direction(index).state == _lib.NL_RUNNING for index in self._index.values())
        return self._process.poll() is None and all(running)

    def ended(self) -> dict[str, str]:
        """Return, for each direction whose thread ended by itself, why."""
        ends = {name: self._direction(index) for name, index in self._index.items()}
        return {
            name: os.strerror(direction.ended_errno)
            for name, direction in ends.items()
            if direction.state == _lib.NL_ENDED and direction.ended_errno
        }

    def stats(self) -> tuple[DirectionStats, ...]:
        """Return the counters of every direction, in the order given to start(). Also after the end."""
        found = (_stats_of(name, self._direction(index)) for name, index in self._index.items())
        return tuple(self._with_peaks(stats) for stats in found)

    def take_peaks(self) -> dict[str, tuple[int, int]]:
        """Per direction, the most wire bytes that waited and the largest lateness (ns) since this was last called.

        The peaks in stats() are of the whole time all the same.
        """
        return {name: self._take_peaks(name, self._direction(index).stats) for name, index in self._index.items()}

    def _take_peaks(self, name: str, stats: Any) -> tuple[int, int]:
        peaks = [_ffi.addressof(stats, key) for key in ("queue_bytes_peak", "lateness_max_ns")]
        queue, late = (int(_lib.nl_peak_take(peak)) for peak in peaks)
        before = self._peaks.get(name, (0, 0))
        self._peaks[name] = max(before[0], queue), max(before[1], late)
        return queue, late

    def _with_peaks(self, stats: DirectionStats) -> DirectionStats:
        queue, late = self._peaks.get(stats.name, (0, 0))
        queue, late = max(queue, stats.queue_bytes_peak), max(late, stats.lateness_max_ns)
        return replace(stats, queue_bytes_peak=queue, lateness_max_ns=late)

    def change(self, name: str, **changes: Any) -> int:
        """Change delay_ns, rate_bps, queue_bytes, queue_packets or effects of a direction while it carries traffic.

        Nothing in flight is lost or reordered: what was sent keeps its release time, what waits is sent at the new
        rate. Random sequences go on where they are. Returns the CLOCK_MONOTONIC time (ns) from which the new values
        held. Raises NetlabError when the direction is unknown or does not answer.
        """
        unknown = sorted(set(changes) - set(CHANGEABLE))
        if unknown or name not in self._index:
            raise NetlabError(
                f"cannot change {name} {' '.join(unknown)}: directions are {', '.join(self._index)}; "
                f"what can change is {', '.join(CHANGEABLE)}"
            )
        direction = replace(self._directions[name], **changes)
        direction.check()
        held_since = self._publish(name, direction)
        self._directions[name] = direction
        return held_since

    def _publish(self, name: str, direction: Direction) -> int:
        index = self._index[name]
        shared = self._direction(index)
        table, number = direction.jitter_table(), int(shared.params.jitter)
        jitter = _ffi.NULL
        if table is None:
            number = 0
        elif table != self._tables.get(name) or not number:
            self._table_numbers += 1
            number, jitter = self._table_numbers, _ffi.new("int64_t[]", table)
            self._tables[name] = table
        params = _ffi.new("struct nl_params *", direction.to_core(number))
        _lib.nl_params_publish(shared, params, jitter, direction.memory_cap())
        os.eventfd_write(self._wake_fds[index], 1)
        return self._await_answer(name, shared)

    def _await_answer(self, name: str, shared: Any) -> int:
        deadline = time.monotonic() + CHANGE_TIMEOUT_S
        while _lib.nl_params_taken(shared) != shared.sequence:
            if not self.alive() or time.monotonic() > deadline:
                raise NetlabError(f"the relay does not answer: {name} keeps its old parameters")
            time.sleep(0.0001)
        return int(shared.taken_ns)

    def stop(self) -> None:
        """End the process and wait for it. What it still held is gone. Counters stay readable. May be called
        twice.
        """
        self._control.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        for fd in self._wake_fds:
            os.close(fd)
        self._wake_fds = ()


def _make_shared(fd: int, count: int) -> mmap.mmap:
    size = int(_lib.nl_shared_bytes(count))
    os.ftruncate(fd, size)
    return mmap.mmap(fd, size)


def _shared_of(memory: mmap.mmap) -> Any:
    return _ffi.from_buffer("struct nl_shared *", memory, require_writable=True)


def _fill_shared(
    memory: mmap.mmap, directions: tuple[Direction, ...], wake_fds: tuple[int, ...], realtime: bool
) -> None:
    shared = _shared_of(memory)
    shared.abi_version = _lib.NL_ABI_VERSION
    shared.directions = len(directions)
    shared.realtime = realtime
    shared.spin_cap_ns = SPIN_CAP_NS
    shared.spin_permille = min(SPIN_PERMILLE, SPIN_PERMILLE * len(os.sched_getaffinity(0)) // len(directions))
    for index, (direction, wake_fd) in enumerate(zip(directions, wake_fds, strict=True)):
        target = _lib.nl_shared_direction(shared, index)
        target.name = direction.name.encode()
        target.in_fd, target.out_fd, target.wake_fd = direction.in_fd, direction.out_fd, wake_fd
        target.memory_cap_bytes = direction.memory_cap()
        target.memory_start_bytes = direction.memory_start(len(directions))
        table = direction.jitter_table()
        if table:
            target.jitter = table
        target.params = direction.to_core(FIRST_TABLE if table else 0)


def _descriptors(directions: tuple[Direction, ...], wake_fds: tuple[int, ...]) -> tuple[int, ...]:
    used = {fd for direction in directions for fd in (direction.in_fd, direction.out_fd)}
    return (*sorted(used), *wake_fds)


def _spawn(shared_fd: int, fds: tuple[int, ...]) -> tuple["subprocess.Popen[bytes]", socket.socket, int]:
    """Run relay_main.py isolated: nothing of the environment, no site-packages, no signal meant for our
    terminal.
    """
    ours, theirs = socket.socketpair()
    errors_fd = os.memfd_create("netlab-relay-errors", os.MFD_CLOEXEC)
    main = Path(__file__).with_name("relay_main.py")
    argv = [sys.executable, "-I", "-S", str(main), _relay.__file__, str(Path(_cffi_backend.__file__).parent)]
    with theirs:
        process = subprocess.Popen(
            [*argv, str(shared_fd), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors_fd,
            env={key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ},
            cwd="/",
            pass_fds=(shared_fd, theirs.fileno(), *fds),
            start_new_session=True,
        )
    return process, ours, errors_fd


def _stats_of(name: str, direction: Any) -> DirectionStats:
    raw = _ffi.new("struct nl_stats *")
    _lib.nl_stats_read(direction, raw)
    values = {key: int(getattr(raw, key)) for key in _COUNTERS}
    return DirectionStats(
        name=name, lateness=_buckets(raw.lateness), lateness_wake=_buckets(raw.lateness_wake), **values
    )


def _buckets(counts: Any) -> LatenessBuckets:
    return tuple((_UPPER_NS[i], count) for i, count in enumerate(_ffi.unpack(counts, _lib.NL_BUCKETS)) if count)


_COUNTERS = tuple(key for key, _ in _ffi.typeof("struct nl_stats").fields if key not in ("lateness", "lateness_wake"))
_UPPER_NS = tuple(int(_lib.nl_bucket_upper_ns(i)) for i in range(_lib.NL_BUCKETS))
