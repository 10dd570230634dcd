"""Makes the containers of one lab and removes them when the lab ends: ``python -m netlab.hosts.steward FD``.

A process of its own, in a session of its own, because a command that is killed can remove nothing, and a container
that was created but not yet started is removed by nobody else. It alone talks to the engine. Its other end of the
socket FD is held by the lab (the command and the keeper): when the last of them is gone, whatever happened to them,
the steward removes every container that carries the lab's label and ends. Should it be killed itself, the containers
still end with the keeper, and the engine removes those that had started; ``netlab clean`` finds the rest.

Requests: ("open", Order) is answered with one ("joined", worker) per container, its two descriptors beside it, and
then ("done", seconds); ("explain", worker) with ("done", text). Any may be answered with ("failed", error).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from netlab import namespaces as ns
from netlab import registry, wire
from netlab.errors import NetlabError
from netlab.hosts import creation, machine, oom
from netlab.hosts.container import ABSTRACT_NAME, ContainerError, read_greeting
from netlab.hosts.containers import Joined
from netlab.hosts.engine import Engine, EngineError, connect, reason
from netlab.hosts.order import LABEL, Order, Wanted

MACHINE_IMAGE = "netlab/this-machine"
_REACH_S = 15.0
_REMOVE_S = 30.0
_ENDING_S = 0.3
_CREDENTIALS = struct.Struct("3i")


@dataclass
class Steward:
    """The containers of one lab."""

    channel: socket.socket
    engine: Engine | None = None
    order: Order | None = None
    ids: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Serve until the lab has ended, then remove what there is."""
        try:
            while True:
                (name, argument), _ = wire.receive(self.channel)
                try:
                    reply = self.open(argument) if name == "open" else self.explain(argument)
                    wire.send(self.channel, ("done", reply))
                except NetlabError as error:
                    wire.send(self.channel, ("failed", error))
        except (EOFError, OSError):
            pass  # the lab has ended, perhaps in the middle of a request
        self.remove()

    def open(self, order: Order) -> tuple[str, float]:
        """Make every container and hand it over; returns the engine in words and the seconds it took."""
        started = time.monotonic()
        engine = self.engine = connect()
        self.order = order
        with _engine_errors(engine):
            seen, image = self._machine(engine, order)
            with ThreadPoolExecutor(max_workers=min(16, 2 * (os.cpu_count() or 1))) as pool:
                waiting = {pool.submit(self._make, engine, wanted, seen, image) for wanted in order.containers}
                try:
                    self._hand_over(waiting)
                except BaseException:
                    for future in waiting:
                        future.cancel()
                    raise
        return engine.describe(), time.monotonic() - started

    def explain(self, worker: str) -> str | None:
        """Why a program in the worker's container was lost. A container's end takes a moment after its programs'."""
        assert self.engine is not None
        pid, deadline = self.pids[worker], time.monotonic() + _ENDING_S
        while registry.start_ticks(pid) is not None:
            if oom.kills(pid):
                return "the kernel killed it: its container came to its memory limit"
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        try:
            self.engine.api.ping()
        except (DockerException, requests.RequestException):
            return f"its container has ended: the engine at {self.engine.url} no longer answers"
        return "its container has ended"

    def remove(self) -> None:
        """Remove every container of the lab and wait until the engine has none of them. Raises ContainerError."""
        if self.engine is None or self.order is None:
            return
        deadline = time.monotonic() + _REMOVE_S
        try:
            while (left := containers_of(self.engine, self.order.lab)) and time.monotonic() < deadline:
                with ThreadPoolExecutor(max_workers=16) as pool:
                    list(pool.map(lambda each: remove(self.engine, each), left))
                time.sleep(0.02)
        except (DockerException, requests.RequestException) as error:
            raise ContainerError(
                f"the engine at {self.engine.url} no longer answers ({reason(error)}); the lab's containers have ended,"
                " but it may still list them: when it is back, netlab clean removes them"
            ) from error
        self.engine.api.close()
        if left:
            raise ContainerError(f"{len(left)} containers are still there after {_REMOVE_S:.0f} s; try netlab clean")

    def _machine(self, engine: Engine, order: Order) -> tuple[machine.Machine | None, str]:
        """This machine as an image, made at most once in an engine, when a container is to be over it."""
        if not any(wanted.settings.on_machine for wanted in order.containers):
            return None, ""
        seen = machine.look(order.needed, engine.root)
        layer = seen.image()
        tag = machine.digest(layer)
        name = f"{MACHINE_IMAGE}:{tag}"
        try:
            engine.api.inspect_image(name)  # type: ignore[no-untyped-call]
        except ImageNotFound:
            engine.api.import_image_from_data(layer, repository=MACHINE_IMAGE, tag=tag)
        return seen, name

    def _make(self, engine: Engine, wanted: Wanted, seen: machine.Machine | None, machine_image: str) -> Joined:
        assert self.order is not None
        if _hung_up(self.channel):
            raise ContainerError("the lab has ended")
        on_machine = wanted.settings.on_machine
        image = machine_image if on_machine else wanted.settings.image_name
        config = creation.host_config(self.order, wanted, seen if on_machine else None, engine)
        settings = creation.container_config(self.order, wanted, image)
        with _engine_errors(engine, wanted):
            made = engine.api.create_container(**settings, host_config=engine.api.create_host_config(**config))["Id"]
            self.ids[wanted.worker] = made
            words = engine.api.attach_socket(made, params={"stdout": 1, "stderr": 1, "stream": 1})
            engine.api.start(made)
            pid = self.pids[wanted.worker] = int(engine.api.inspect_container(made)["State"]["Pid"])
        try:
            return Joined(wanted.worker, *reach(pid), whole=on_machine)
        except (ContainerError, OSError) as error:
            said = _last_words(words)
            raise ContainerError(f"{wanted.worker}: its container died at start: {error}{said}") from error
        finally:
            words._response.close()  # the SDK keeps the connection there
            words.close()

    def _hand_over(self, waiting: set[Future[Joined]]) -> None:
        """Pass each container on as soon as it is there. The first that fails ends it."""
        while waiting:
            done, rest = wait(waiting, return_when=FIRST_COMPLETED)
            waiting.clear()
            waiting |= rest
            for future in done:
                joined = future.result()
                try:
                    message = ("joined", (joined.worker, joined.whole))
                    wire.send(self.channel, message, (joined.network, joined.control))
                finally:
                    os.close(joined.network)
                    os.close(joined.control)


def containers_of(engine: Engine, lab: str) -> list[str]:
    """Ids of every container with the lab's label, also of those that never started."""
    found = engine.api.containers(all=True, quiet=True, filters={"label": f"{LABEL}={lab}"})
    return [str(each["Id"]) for each in found]


def remove(engine: Engine | None, container: str) -> None:
    """Remove a container, running or not; one that the engine is just removing is left to it."""
    assert engine is not None
    with suppress(NotFound):
        try:
            engine.api.remove_container(container, force=True, v=True)
        except APIError as error:
            if error.status_code != 409:
                raise


def reach(pid: int) -> tuple[int, int]:
    """The network namespace of the container whose pid 1 is our process ``pid``, and a connection to its netlab-init.

    Raises ContainerError when it ends before it answers, OSError when we may not enter it.
    """
    if pid == 0:
        raise ContainerError("it has ended")
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        home = ns.open_current("net")
        try:
            if os.path.sameopenfile(network, home):
                raise ContainerError("it shares our network")
            control = _knock(pid, network, home)
        finally:
            os.close(home)
        with control:
            read_greeting(control)
            return network, control.detach()
    except BaseException:
        os.close(network)
        raise


def _knock(pid: int, network: int, home: int) -> socket.socket:
    deadline = time.monotonic() + _REACH_S
    while time.monotonic() < deadline:
        with ns.inside_network(network, home):
            control = socket.socket(socket.AF_UNIX)
            try:
                control.settimeout(_REACH_S)
                control.connect(ABSTRACT_NAME)
                break
            except OSError:
                control.close()
        if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110 - a process, not a file
            raise ContainerError("it has ended")
        time.sleep(0.002)
    else:
        raise ContainerError(f"netlab-init does not answer for {_REACH_S:.0f} s")
    peer = _CREDENTIALS.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    if peer != pid:
        control.close()
        raise ContainerError(f"process {peer} answers where its pid 1, {pid}, should")
    return control


def _last_words(words: object) -> str:
    """What a container has printed, out of the frames of an attached stream."""
    raw = getattr(words, "_sock", words)
    text = b""
    try:
        raw.settimeout(1.0)  # type: ignore[attr-defined]
        while len(text) < 1 << 16 and (piece := raw.recv(4096)):  # type: ignore[attr-defined]
            text += piece
    except OSError:
        pass
    body = text.split(b"\r\n\r\n", 1)[-1]
    lines = b""
    while len(body) > 8:  # a frame: stream, three zeros, length, bytes
        size = int.from_bytes(body[4:8], "big")
        lines += body[8 : 8 + size]
        body = body[8 + size :]
    last = lines.decode(errors="replace").splitlines()[-5:]
    return "".join(f"\n  {line}" for line in last)


@contextmanager
def _engine_errors(engine: Engine, wanted: Wanted | None = None) -> Iterator[None]:
    """What the engine refuses becomes an error that a user can act on."""
    who = f"{wanted.worker}: " if wanted is not None else ""
    try:
        yield
    except ImageNotFound as error:
        image = wanted.settings.image_name if wanted is not None else MACHINE_IMAGE
        raise EngineError(
            f"{who}image {image} is not in the engine at {engine.url}; docker pull {image}, or build it first"
        ) from error
    except APIError as error:
        raise EngineError(f"{who}{_refused(reason(error))}") from error
    except (DockerException, requests.RequestException) as error:
        raise ContainerError(f"{who}the engine at {engine.url} no longer answers: {reason(error)}") from error


def _refused(text: str) -> str:
    if "bind source path does not exist" in text:
        return f"{text}: the engine does not see this machine's files; use images and a compose file (netlab compose)"
    return f"the engine refuses its container: {text}"


def _hung_up(channel: socket.socket) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    return bool(poll.poll(0))


def main() -> int:
    """Entry of ``python -m netlab.hosts.steward FD``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the lab does, and not before everything is removed
    try:
        Steward(socket.socket(fileno=int(sys.argv[1]))).run()
    except NetlabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
