"""The containers of a compose project: they exist already, and their netlab-inits come to us.

In a compose file (``netlab compose``) the workers are services without a network, and this netlab runs in a privileged
service beside them that shares the host's pid namespace. Each worker's pid 1 connects to a socket in a volume that all
services share and says its name; who is at the other end, the kernel says, and so which network namespace is its. The
engine is never asked anything, so any engine that can run the file will do, wherever it is.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from netlab.hosts.container import ContainerError, read_greeting
from netlab.hosts.containers import Joined
from netlab.plan import Plan

PATIENCE_S = 120.0
"""How long workers may take to come; compose starts them after us."""

_CREDENTIALS = struct.Struct("3i")


class Attached:
    """Fulfils ``containers.Containers`` with containers that compose has made and will remove."""

    caretaker = None
    tie: tuple[int, ...] = ()

    def __init__(self, plan: Plan, control: str, patience_s: float = PATIENCE_S) -> None:
        """Expect the plan's workers at the socket ``control``."""
        self._path = Path(control)
        self._missing = [worker.name for worker in plan.topology.workers]
        self._count = len(self._missing)
        self._patience_s = patience_s
        self._networks: dict[int, str] = {}
        home = os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116 - a namespace, not a file
        self._networks[home] = "netlab itself"

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen, in words."""
        return (f"hosts docker: attached to {self._count} containers that came to {self._path}",)

    def open(self) -> Iterator[Joined]:
        """Wait until every worker has come."""
        deadline = time.monotonic() + self._patience_s
        with self._listen() as listening:
            while self._missing:
                listening.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    control, _ = listening.accept()
                except TimeoutError:
                    raise ContainerError(
                        f"these workers' containers did not come to {self._path} within {self._patience_s:g} s:"
                        f" {', '.join(self._missing)}; are their services in the compose file, and running?"
                    ) from None
                with control:
                    yield self._join(control)

    def explain(self, worker: str) -> str | None:
        """Nothing is known here; docker compose logs may say more."""
        return f"it was killed, or its container has ended (docker compose logs {worker})"

    def release(self) -> None:
        """Nothing is ours."""

    def close(self) -> None:
        """Nothing is ours but the socket's name."""
        self._path.unlink(missing_ok=True)

    def _listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)  # of a netlab service that was killed
            listening.bind(str(self._path))
            self._path.chmod(0o666)  # a worker may run as any user
            listening.listen(self._count + 8)
        except OSError as error:
            listening.close()
            raise ContainerError(f"{self._path}: cannot listen for the workers there: {error.strerror}") from error
        return listening

    def _join(self, control: socket.socket) -> Joined:
        control.settimeout(10)
        name = read_greeting(control)
        if name not in self._missing:
            raise ContainerError(f"a container came as {name}; expected are: {', '.join(self._missing)}")
        pid = _CREDENTIALS.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
        if pid == 0:
            raise ContainerError(f"{name}: its processes cannot be seen: the netlab service needs pid: host")
        try:
            network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            why = f"{name}: its network cannot be entered ({error.strerror}): the netlab service needs SYS_PTRACE"
            raise ContainerError(why) from error
        shared = self._networks.setdefault(os.fstat(network).st_ino, name)
        if shared != name:
            os.close(network)
            raise ContainerError(f"{name} shares the network of {shared}; each worker needs network_mode: none")
        self._missing.remove(name)
        return Joined(name, network, control.detach(), whole=False)
