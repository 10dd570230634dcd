"""Pid 1 of a lab: builds it, starts programs in it, answers questions about it, and takes it along when it ends.

Single-threaded on purpose: it forks and changes namespaces, which threads would make unsafe. It serves the connection
it was born with and, once ``adopt`` gave it a listening socket, others. Without such a socket it ends when its first
connection closes; with one it lives until it is told to stop. A program ends when the connection that started it does.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from pathlib import Path
from typing import Any

from netlab import namespaces as ns
from netlab import wire
from netlab.errors import NetlabError, UserError
from netlab.executor import Executor
from netlab.followed import unfollowed
from netlab.hosts import Host, LaunchOptions, Program, Signalled, realtime
from netlab.hosts.container import ContainerHost
from netlab.hosts.process import ProcessHost
from netlab.impairment import Impairment
from netlab.links.capture import Capture
from netlab.links.relay import PacketLog
from netlab.links.relay_stats import DirectionStats
from netlab.monitor import Look, Monitor, Sample
from netlab.plan import Plan
from netlab.player import Player
from netlab.schedule import Change

_STAGE = "/tmp"  # a mount point that exists everywhere; covered for a moment in our private mount namespace
_PATIENCE_S = 10.0


class Keeper:
    """The lab's state and the requests that it answers: every public method is one."""

    def __init__(self) -> None:
        """Start with nothing built."""
        self._executor = Executor()
        self._own_pids = ns.open_current("pid")
        self._containers: dict[str, ContainerHost] = {}
        self._held: list[int] = []
        self._details: dict[str, Any] = {}
        self._programs: dict[int, Signalled] = {}
        self._plan: Plan | None = None
        self._why = ""
        self._events: list[dict[str, Any]] = []
        self.monitor = Monitor(self._executor.look, self._executor.take_peaks)
        self._faults_noted = 0
        self._captures: dict[int, Capture] = {}
        self.player: Player | None = None
        self.listener: socket.socket | None = None
        self.stopping = False
        self.started: set[int] = set()

    def join(self, worker: str, whole: bool, network: int, control: int) -> None:
        """Take a worker's container into the lab: its network namespace and the connection that holds it alive."""
        self._executor.adopted[worker] = network
        self._containers[worker] = ContainerHost(worker, socket.socket(fileno=control), whole=whole)

    def hold(self, notes: tuple[str, ...], caretaker: tuple[int, int] | None, *tie: int) -> None:
        """Take over what was chosen for the containers, and the descriptor by whose closing their caretaker (a process
        with its start time) learns that the lab has ended.
        """
        self._held += tie
        self._executor.choices += notes
        self._details = {"caretaker": caretaker, "attached": caretaker is None}
        if caretaker is None:
            realtime.leave_group(_STAGE)

    def build(self, plan: Plan, why: str) -> dict[str, Any]:
        """Build the lab; returns what was chosen on the way."""
        ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
        _replace_file("/etc/hosts", plan.topology.hosts_file)
        self._executor.build(plan)
        self._plan, self._why = plan, why
        executor = self._executor
        self.player = Player(plan.topology, executor.change, self._note_change, time.monotonic_ns, executor.check)
        self._note("up", profile=plan.topology.profile.name, carrier=plan.carrier)
        return self._built()

    def describe(self) -> tuple[Plan | None, str, dict[str, Any]]:
        """What was built, why on this carrier, and what was chosen on the way."""
        return self._plan, self._why, self._built()

    def adopt(self, listening: int) -> None:
        """Outlive the first connection, and accept others on the given listening socket."""
        self.listener = socket.socket(fileno=listening)

    def stop(self) -> None:
        """End the lab once this request is answered."""
        self.finish()
        self.stopping = True

    def start(
        self, node: str, argv: list[str], env: dict[str, str], cwd: str, options: LaunchOptions, *descriptors: int
    ) -> int:
        """Start a program on a node; returns its handle."""
        stdin, stdout, stderr, report = descriptors
        program = Program(argv, env, cwd, (stdin, stdout, stderr, report), options.terminal)
        host = self._host(node, options.outside)
        try:
            handle = host.start(program)
        finally:
            for fd in descriptors:
                os.close(fd)
        self._programs[handle] = host
        self.started.add(handle)
        return handle

    def signal(self, handle: int, number: int) -> bool:
        """Send a signal to a program (SIGKILL takes all that it started along); False when it is gone already."""
        host = self._programs.get(handle)
        return host is not None and host.signal(handle, number)

    def _host(self, node: str, outside: bool) -> Host:
        if node in self._containers and not outside:
            return self._containers[node]
        return ProcessHost(node, self._executor.namespaces[node], self._executor.home, self._own_pids)

    def log_packets(self, offset: int, limit: int, fd: int) -> None:
        """Have the relay, once it is started, write every packet's fate to a file."""
        self._executor.packet_log = PacketLog(fd, offset, limit)

    def finish(self) -> None:
        """Complete every record: packets under way are noted as such. Nothing crosses the links any more."""
        for handle in list(self._captures):
            self.end_capture(handle)
        if self._executor.relay is not None and self._executor.packet_log is not None:
            self._executor.relay.stop()

    def capture(self, link: str, snaplen: int, limit: int, fd: int) -> int:
        """Write what passes both ends of a link to a file; returns a handle for `end_capture`."""
        assert self._plan is not None, "built"
        joint = next(joint for joint in self._plan.topology.joints if joint.name == link)
        try:
            ends = [(end.node, end.interface) for end in (joint.a, joint.b)]
            found = Capture.start(ends, self._executor, fd, snaplen, limit)
        finally:
            os.close(fd)
        self._captures[found.pid] = found
        self._programs[found.pid] = found
        self.started.add(found.pid)
        return found.pid

    def end_capture(self, handle: int) -> tuple[int, int]:
        """End a capture; returns how many packets it wrote and how many it left out."""
        found = self._captures.pop(handle, None)
        if found is None:
            raise UserError(f"no capture {handle} is going on")
        return found.end()

    def begin(self) -> int | None:
        """Start the profile's schedule, unless it has begun; returns its start (CLOCK_MONOTONIC ns)."""
        return self.player.begin() if self.player else None

    def change(self, link: str, words: list[str]) -> list[str]:
        """Change a link by hand; returns the directions that got a new state."""
        return self.player.set(link, words) if self.player else []

    def reached(self, rank: int, step: int) -> bool:
        """A training step begins; True when the schedule waited for it."""
        return self.player is not None and self.player.reached(rank, step)

    def play(self) -> None:
        """Apply the changes that are due. What the schedule asks for and cannot be is an event, and a fault."""
        if self.player is not None:
            self.player.play()
            for fault in self.player.faults[self._faults_noted :]:
                self._note("fault", reason=fault)
            self._faults_noted = len(self.player.faults)

    def unfollowed(self, since_ns: int) -> tuple[str, ...]:
        """Why the links did not change since then as was asked for; empty: they did."""
        self.play()
        return unfollowed(self._events, since_ns)

    def wait_s(self) -> float | None:
        """Seconds until something is to be done without a request, or None."""
        waits = [self.player.wait_s() if self.player else None, self.monitor.wait_s()]
        return min((wait for wait in waits if wait is not None), default=None)

    def impairments(self) -> dict[str, Impairment]:
        """The present state of every direction."""
        return dict(self._executor.impairments)

    def events(self) -> list[dict[str, Any]]:
        """What happened to the lab so far, in order."""
        return list(self._events)

    def traffic(self) -> tuple[DirectionStats, ...]:
        """Counters of every relayed direction."""
        return self._executor.traffic()

    def mark(self) -> Look:
        """Watch the lab from now on; returns what is seen now."""
        return self.monitor.begin()

    def since(self, from_ns: int) -> tuple[Look, tuple[Sample, ...], bool]:
        """What is seen now, every sample since a mark, and whether the relay, if there is one, still runs."""
        return (*self.monitor.since(from_ns), self.relay_alive())

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
            self._programs.pop(pid, None)

    def end_programs(self, handles: set[int]) -> None:
        """Kill programs whose connection has closed."""
        for handle in sorted(handles):
            self.signal(handle, signal.SIGKILL)
            self._programs.pop(handle, None)

    def _built(self) -> dict[str, Any]:
        relay = self._executor.relay
        realtime = relay.realtime if relay else None
        return {"choices": tuple(self._executor.choices), "realtime": realtime, **self._details}

    def _note_change(self, change: Change, direction: str, due_ns: int, held_ns: int) -> None:
        self._note(
            "change",
            direction=direction,
            values=dict(change.values),
            causes=list(change.causes),
            due_ns=due_ns,
            held_ns=held_ns,
        )

    def _note(self, kind: str, **details: Any) -> None:
        stamp = {"time": time.time(), "monotonic_ns": time.monotonic_ns(), "kind": kind}
        self._events.append(stamp | details)


def _replace_file(target: str, text: str) -> None:
    """Cover ``target`` in this mount namespace with a file that lives in a tmpfs which has no other place."""
    ns.mount("tmpfs", _STAGE, "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "size=16m,mode=755")
    try:
        staged = Path(_STAGE, "file")
        staged.write_text(text)
        ns.mount(str(staged), target, None, ns.MS_BIND)
    finally:
        ns.unmount(_STAGE)


class Server:
    """Waits for requests on every connection and for ended children."""

    def __init__(self, first: socket.socket) -> None:
        """Serve ``first``, the connection of whoever made the lab."""
        self._keeper = Keeper()
        self._ready = selectors.DefaultSelector()
        self._started: dict[socket.socket, set[int]] = {}
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._ready.register(self._wake, selectors.EVENT_READ)
        self._add(first)

    def run(self) -> None:
        """Serve until told to stop, or until nobody is left who could."""
        while not self._keeper.stopping and (self._started or self._keeper.listener):
            ready = self._ready.select(self._keeper.wait_s())
            self._keeper.play()
            self._keeper.monitor.tick()
            for key, _ in ready:
                if key.fileobj == self._wake:
                    os.read(self._wake, 4096)
                    self._keeper.reap()
                elif key.fileobj is self._keeper.listener:
                    self._add(self._keeper.listener.accept()[0])
                elif isinstance(key.fileobj, socket.socket):
                    self._serve(key.fileobj)

    def _add(self, channel: socket.socket) -> None:
        # A peer that stops in the middle of a message must not stop the lab.
        channel.settimeout(_PATIENCE_S)
        self._started[channel] = set()
        self._ready.register(channel, selectors.EVENT_READ)

    def _serve(self, channel: socket.socket) -> None:
        listening = self._keeper.listener is not None
        self._keeper.started = self._started[channel]
        if not _answer(self._keeper, channel):
            self._ready.unregister(channel)
            self._keeper.end_programs(self._started.pop(channel))
            channel.close()
        if self._keeper.listener is not None and not listening:
            self._ready.register(self._keeper.listener, selectors.EVENT_READ)


def serve(fd: int) -> None:
    """Answer requests on the connected socket ``fd``, and on others once the lab is adopted."""
    Server(socket.socket(fileno=fd)).run()


def _answer(keeper: Keeper, channel: socket.socket) -> bool:
    """Handle one request; False when the other end is gone."""
    try:
        (name, arguments), descriptors = wire.receive(channel)
    except (EOFError, OSError):
        return False
    reply: tuple[str, Any]
    try:
        reply = ("done", getattr(keeper, name)(*arguments, *descriptors))
    except UserError as error:
        reply = ("refused", str(error))
    except (NetlabError, OSError) as error:
        reply = ("failed", str(error.strerror or error) if isinstance(error, OSError) else str(error))
    try:
        wire.send(channel, reply)
    except OSError:
        return False
    return True
