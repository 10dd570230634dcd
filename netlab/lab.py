"""The public API: a running lab. ``with Lab.start(profile) as lab: lab.run(["python", "train.py"])``.

The lab itself lives in a process of its own (``netlab.sandbox`` and, in it, ``netlab.keeper``); this object is its only
client. When this object, or the process that holds it, goes away, so does the lab.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from netlab import carriers, environment, notes, packets, registry, spawn, topology, verify, wire
from netlab.environment import Way
from netlab.errors import NetlabError, UserError
from netlab.hosts import PLAIN, HostKind, LaunchOptions, containers
from netlab.job import Job, JobResult, Sink
from netlab.operations import Shape
from netlab.outside import Outside
from netlab.plan import Plan, make
from netlab.profile import Profile, load_profile
from netlab.requests import Requests
from netlab.topology import Topology, Worker

CarrierChoice = Literal["auto", "relay", "netem"]
_STOP_TIMEOUT_S = 10.0


class LabError(NetlabError):
    """The lab could not be built, or it ended before it was asked to."""


class Lab(Requests):
    """A running network of workers. Make one with ``Lab.start``; it is a context manager that stops itself."""

    def __init__(self, plan: Plan, why: str, process: subprocess.Popen[bytes] | None, channel: socket.socket) -> None:
        """Not for callers: use ``Lab.start`` or ``Lab.attach``. ``process`` is None for a lab that others own."""
        super().__init__(plan)
        self._why = why
        self._process = process
        self._channel = channel
        self._lock = threading.Lock()
        self._built: dict[str, Any] = {}
        self._containers: containers.Containers | None = None
        self._recording = False

    @classmethod
    def start(
        cls,
        profile: Profile | str | Path,
        *,
        carrier: CarrierChoice = "auto",
        hosts: HostKind = "process",
        name: str | None = None,
        writable: Sequence[str | Path] = (),
        packet_log: str | Path | None = None,
        packet_log_limit: int = packets.DEFAULT_LIMIT,
    ) -> Lab:
        """Build the network of ``profile`` (a Profile, a path or the name of a shipped one) and return when it is up.

        A lab with a ``name`` outlives this object and this process: ``Lab.attach`` finds it, ``down`` ends it.
        ``writable`` folders are at the same path in every container, and can be written there.
        ``packet_log`` is a file for the fate of every packet, of at most so many, see `netlab.read_packets`.
        Raises UserError for what the caller can change, LabError for what this machine refused.
        """
        if hosts not in ("process", "docker"):
            raise UserError(f"hosts: {hosts!r} is not supported; supported: process, docker")
        loaded = profile if isinstance(profile, Profile) else load_profile(profile)
        laid_out = topology.build(loaded)
        chosen, why = carriers.choose(carrier, laid_out, packet_log=packet_log is not None)
        plan = make(laid_out, chosen, hosts)
        if hosts == "docker":
            containers.check()
        folder = registry.claim(name) if name is not None else None
        process, channel = spawn.sandbox(folder)
        lab = cls(plan, why, process, channel)
        try:
            if hosts == "docker":
                lab._join_containers(process.pid, writable)
            if packet_log is not None:
                lab._log_packets(Path(packet_log), packet_log_limit)
            lab._built = lab._call("build", plan, why)
            if name is not None:
                lab._publish(name, process.pid)
                lab.begin_schedule()
        except BaseException:
            lab.stop()
            if name is not None:
                registry.forget(name)
            raise
        return lab

    @classmethod
    def attach(cls, name: str) -> Lab:
        """The lab that ``start(name=...)`` or ``netlab up`` made. Closing it leaves the lab up. Raises UserError."""
        channel = registry.connect(name)
        request = cls.__new__(cls)
        request._channel, request._lock, request._process = channel, threading.Lock(), None
        plan, why, built = request._call("describe")
        lab = cls(plan, why, None, channel)
        lab._built = built
        return lab

    def _log_packets(self, path: Path, limit: int) -> None:
        names = [op.direction for op in self.plan.operations if isinstance(op, Shape)]
        fd, offset = packets.create(path, names, self.profile.name, limit)
        try:
            self._call("log_packets", offset, limit, descriptors=(fd,))
        finally:
            os.close(fd)
        self._recording = True

    def _join_containers(self, owner: int, writable: Sequence[str | Path]) -> None:
        """Have a container made for every worker and give the keeper what it needs of each."""
        self._containers = found = containers.prepare(self.plan, owner, tuple(map(Path, writable)))
        for joined in found.open():
            try:
                self._call("join", joined.worker, joined.whole, descriptors=(joined.network, joined.control))
            finally:
                os.close(joined.network)
                os.close(joined.control)
        self._call("hold", found.notes, found.caretaker, descriptors=found.tie)

    def down(self, name: str) -> None:
        """End the lab that is up as ``name`` and wait until nothing of it is left."""
        entry = registry.read(name)
        caretaker = self._built.get("caretaker")
        self._call("stop")
        self._channel.close()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        parts = [(entry.pid, entry.start_ticks)] if entry is not None else []
        for pid, ticks in [*parts, *([caretaker] if caretaker else [])]:
            while registry.start_ticks(pid) == ticks and time.monotonic() < deadline:
                time.sleep(0.005)
        registry.forget(name)

    def _publish(self, name: str, pid: int) -> None:
        with registry.listen(name) as listening:
            self._call("adopt", descriptors=(listening.fileno(),))
        ticks = registry.start_ticks(pid)
        assert ticks is not None
        entry = registry.Entry(name, self.profile.name, self.carrier, len(self.workers), time.time(), pid, ticks)
        registry.write(entry)
        self._process = None  # the lab is nobody's child any more
        if self._containers is not None:
            self._containers.release()
            self._containers = None

    @property
    def profile(self) -> Profile:
        """The network that was asked for."""
        return self.plan.topology.profile

    @property
    def topology(self) -> Topology:
        """The network as laid out."""
        return self.plan.topology

    @property
    def hosts(self) -> HostKind:
        """What a worker runs in."""
        return self.plan.hosts

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers in rank order."""
        return self.topology.workers

    @property
    def choices(self) -> tuple[str, ...]:
        """Everything that was chosen automatically, in words."""
        return (f"carrier {self.carrier}: {self._why}", *self.topology.notes, *self._built.get("choices", ()))

    def describe(self) -> dict[str, Any]:
        """The plan, what was chosen and the kernel, as JSON values."""
        return {
            "plan": self.plan.to_json(),
            "carrier": self.carrier,
            "hosts": self.hosts,
            "choices": list(self.choices),
            "kernel": platform.release(),
        }

    def environment(self, name: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a worker's program: the caller's, what training launchers set, and ``extra`` on top.

        A container over an image of its own does not get the caller's: this comes on top of the image's.
        """
        worker = self.worker(name)
        base = os.environ if self._shares_files(worker) else {}
        given = environment.of_worker(self.plan, worker, self.impairments())
        said = self.plan.settings(worker).environment if self.hosts == "docker" else ()
        return {**base, **given, **dict(said), **(extra or {})}

    def paths(self, name: str) -> dict[str, Way]:
        """From one worker to each other, as the links are now: `rtt_ns` there and back, and `bytes_per_s` of TCP
        payload on the slowest link of either direction (None: no rate limit).
        """
        return environment.paths(self.topology, name, self.impairments())

    @property
    def python(self) -> str:
        """The Python interpreter to name in a command for all workers: ours where they see our files, else theirs."""
        return sys.executable if all(map(self._shares_files, self.workers)) else "python3"

    def _shares_files(self, worker: Worker) -> bool:
        """Whether the worker's programs see this machine's own file system."""
        return self.hosts == "process" or (not self._built.get("attached") and self.plan.settings(worker).on_machine)

    def worker(self, name: str) -> Worker:
        """The worker of that name. Raises UserError naming those that exist."""
        for worker in self.workers:
            if worker.name == name:
                return worker
        known = ", ".join(worker.name for worker in self.workers)
        raise UserError(f"no worker {name!r} in this lab; it has: {known}")

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        output: Sink | None = None,
        errors: Sink | None = None,
        timeout: float | None = None,
    ) -> JobResult:
        """Run ``argv`` on every worker at once and wait for all; the first failure ends the others.

        ``output`` gets what they print as it arrives (with ``errors`` given, only standard output). ``timeout`` in
        seconds.
        """
        if self.profile.schedule:
            self.begin_schedule()
        job = Job(self, [(w.name, w.rank) for w in self.workers], output or _discard, errors)
        shared = {"NETLAB_RUN": notes.run_id(), **(env or {})}
        return job.run(argv, lambda name: self.environment(name, shared), str(cwd or ""), timeout)

    def exec(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        outside: bool = False,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``argv`` on one worker (or router) and collect what it prints. Status 128 + N means signal N, as in a
        shell.

        ``outside``: where the worker is a container, run it on this machine's file system, in the worker's network
        only. Raises subprocess.TimeoutExpired.
        """
        out, err = bytearray(), bytearray()
        names = {worker.name: worker.rank for worker in self.workers}
        job = Job(
            Outside(self) if outside else self,
            [(node, names.get(node, -1))],
            lambda _, data: out.extend(data),
            lambda _, data: err.extend(data),
        )
        own = node in names and not outside
        whole = (lambda name: self.environment(name, env)) if own else (lambda _: {**os.environ, **(env or {})})
        result = job.run(argv, whole, "", timeout)
        if result.timed_out:
            raise subprocess.TimeoutExpired(list(argv), timeout or 0.0, bytes(out), bytes(err))
        end = result.exits[0]
        if end.error is not None:
            err.extend(f"{end.error}\n".encode())
        code = 128 + end.signal if end.signal is not None else 127 if end.error is not None else end.code or 0
        return subprocess.CompletedProcess(list(argv), code, bytes(out), bytes(err))

    def verify(self, level: verify.Level = "quick", links: Sequence[str] = ()) -> verify.Verification:
        """Measure what the network achieves with real traffic, and compare with the profile; ``links``: only these."""
        return verify.measure(self, level, links)

    def launch(
        self,
        node: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        descriptors: tuple[int, int, int, int],
        options: LaunchOptions = PLAIN,
    ) -> int:
        """Start a program on a node with the given stdin, stdout, stderr and report descriptors; returns its handle.

        An empty ``cwd`` is our own working directory, or where a container over an image of its own starts programs.
        """
        place = cwd or self._place(node, options)
        handle: int = self._call("start", node, list(argv), dict(env), place, options, descriptors=descriptors)
        return handle

    def _place(self, node: str, options: LaunchOptions) -> str:
        worker = next((worker for worker in self.workers if worker.name == node), None)
        if worker is None or options.outside or self.hosts == "process":
            return str(Path.cwd())
        return self.plan.settings(worker).workdir or (str(Path.cwd()) if self._shares_files(worker) else "")

    def explain(self, node: str) -> str | None:
        """Why a program on ``node`` may have been lost without a word, when that can be said."""
        return self._containers.explain(node) if self._containers is not None else None

    def send_signal(self, handle: int, number: int) -> bool:
        """Signal a program started with ``launch``; False when it is gone, or the lab is."""
        try:
            return bool(self._call("signal", handle, int(number)))
        except LabError:
            return False

    def stop(self) -> None:
        """End everything in the lab and wait until it is gone; of a lab that has a name, only let go of it.

        Does nothing the second time.
        """
        if self._recording and self._process is not None:
            self._recording = False
            self._finish_recording()
        self._channel.close()
        if self._process is None:
            return
        try:
            self._process.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        found, self._containers = self._containers, None
        if found is not None:
            found.close()

    def _finish_recording(self) -> None:
        """The relay writes its last records when it is asked to end, and cannot when it is killed."""
        try:
            self._call("finish")
        except NetlabError:
            pass  # the lab has ended already: what it has written is all there is

    def __enter__(self) -> Lab:
        """The lab is already up."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def _call(self, name: str, *arguments: Any, descriptors: tuple[int, ...] = ()) -> Any:
        with self._lock:
            try:
                wire.send(self._channel, (name, arguments), descriptors)
                (status, value), _ = wire.receive(self._channel)
            except (EOFError, OSError) as error:
                raise LabError(f"the lab has ended{self._last_words()}") from error
        if status == "refused":
            raise UserError(value)
        if status == "failed":
            raise LabError(f"{self.profile.name}: {value}")
        return value

    def _last_words(self) -> str:
        if self._process is None:
            return ""
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return ""
        said = self._process.stderr.read().decode(errors="replace").strip() if self._process.stderr else ""
        return f": {said}" if said else ""


def _discard(_worker: str, _data: bytes) -> None:
    return None
