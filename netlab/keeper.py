"""Pid 1 of a lab: builds it, starts programs in it, answers questions about it, and takes it along when it ends.

Single-threaded on purpose: it forks and changes namespaces, which threads would make unsafe. It serves one
connection at a time from ``netlab.lab`` and ends as soon as that connection closes.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
from pathlib import Path
from typing import Any

from netlab import namespaces as ns
from netlab import wire
from netlab.errors import NetlabError
from netlab.executor import Executor
from netlab.hosts import process
from netlab.links.relay_stats import DirectionStats
from netlab.plan import Plan

_STAGE = "/tmp"  # a mount point that exists everywhere; covered for a moment in our private mount namespace


class Keeper:
    """The lab's state and the requests that it answers: every public method is one."""

    def __init__(self) -> None:
        """Start with nothing built."""
        self._executor = Executor()
        self._own_pids = ns.open_current("pid")
        self._programs: set[int] = set()

    def build(self, plan: Plan) -> dict[str, Any]:
        """Build the lab; returns what was chosen on the way."""
        ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
        _replace_file("/etc/hosts", plan.topology.hosts_file)
        self._executor.build(plan)
        relay = self._executor.relay
        return {"choices": tuple(self._executor.choices), "realtime": relay.realtime if relay else None}

    def start(self, node: str, argv: list[str], env: dict[str, str], cwd: str, *descriptors: int) -> int:
        """Start a program; returns the pid of its init in the lab."""
        stdin, stdout, stderr, report = descriptors
        program = process.Program(argv, env, cwd, node, (stdin, stdout, stderr, report))
        try:
            pid = process.start(program, self._executor.namespaces[node], self._executor.home, self._own_pids)
        finally:
            for fd in descriptors:
                os.close(fd)
        self._programs.add(pid)
        return pid

    def signal(self, pid: int, number: int) -> bool:
        """Send a signal to a program (SIGKILL takes all that it started along); False when it is gone already."""
        if pid not in self._programs:
            return False
        os.kill(pid, number)
        return True

    def traffic(self) -> tuple[DirectionStats, ...]:
        """Counters of every relayed direction."""
        return self._executor.traffic()

    def relay_alive(self) -> bool:
        """Whether the relay, if the lab has one, is still running."""
        relay = self._executor.relay
        return relay is None or relay.alive()

    def devices(self, node: str) -> str:
        """/proc/net/dev of a node."""
        with self._executor.enter(node):
            return Path("/proc/thread-self/net/dev").read_text()

    def reap(self) -> None:
        """Collect ended children: programs' inits and orphans that became ours."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._programs.discard(pid)


def _replace_file(target: str, text: str) -> None:
    """Cover ``target`` in this mount namespace with a file that lives in a tmpfs which has no other place."""
    ns.mount("tmpfs", _STAGE, "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "size=16m,mode=755")
    try:
        staged = Path(_STAGE, "file")
        staged.write_text(text)
        ns.mount(str(staged), target, None, ns.MS_BIND)
    finally:
        ns.unmount(_STAGE)


def serve(fd: int) -> None:
    """Answer requests on the connected socket ``fd`` until it closes."""
    channel = socket.socket(fileno=fd)
    keeper = Keeper()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with selectors.DefaultSelector() as ready:
        ready.register(channel, selectors.EVENT_READ)
        ready.register(wake_read, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is channel:
                    if not _answer(keeper, channel):
                        return
                else:
                    os.read(wake_read, 4096)
                    keeper.reap()


def _answer(keeper: Keeper, channel: socket.socket) -> bool:
    """Handle one request; False when the other end is gone."""
    try:
        (name, arguments), descriptors = wire.receive(channel)
    except (EOFError, ConnectionError):
        return False
    reply: tuple[str, Any]
    try:
        reply = ("done", getattr(keeper, name)(*arguments, *descriptors))
    except (NetlabError, OSError) as error:
        reply = ("failed", str(error.strerror or error) if isinstance(error, OSError) else str(error))
    try:
        wire.send(channel, reply)
    except ConnectionError:
        return False
    return True
