"""The containers of a lab as its owner sees them: a steward makes and removes them, this talks to the steward."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from netlab import registry, spawn, wire
from netlab.errors import NetlabError
from netlab.hosts.container import ContainerError
from netlab.hosts.containers import Joined
from netlab.hosts.order import owner_of, place
from netlab.plan import Plan

_CLOSE_S = 45.0


class Docker:
    """Fulfils ``containers.Containers`` with containers that are made for the lab and removed with it."""

    def __init__(self, plan: Plan, owner: int, writable: tuple[Path, ...]) -> None:
        """Start the steward; it makes nothing before ``open``."""
        self._plan = plan
        self._order = place(plan, owner_of(owner), _needed(), tuple(str(path.absolute()) for path in writable))
        self._process, self._channel = spawn.steward()
        self._lock = threading.Lock()
        self._notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen, in words."""
        return self._notes

    @property
    def caretaker(self) -> tuple[int, int] | None:
        """The steward."""
        ticks = registry.start_ticks(self._process.pid)
        return None if ticks is None else (self._process.pid, ticks)

    @property
    def tie(self) -> tuple[int, ...]:
        """Our end of the connection to the steward."""
        return (self._channel.fileno(),)

    def open(self) -> Iterator[Joined]:
        """Have the containers made; each is handed over as soon as it is up."""
        with self._lock:
            self._send("open", self._order)
            while True:
                (status, value), descriptors = self._receive()
                if status != "joined":
                    break
                worker, whole = value
                network, control = descriptors
                yield Joined(worker, network, control, whole)
        engine, seconds = self._result(status, value)
        images = dict.fromkeys(wanted.settings.image_name for wanted in self._order.containers)
        self._notes = (
            f"hosts docker: {len(self._order.containers)} containers in {seconds:.1f} s, {engine}",
            f"images: {', '.join(images)}" + (" (host: this machine's files, read-only)" if "host" in images else ""),
        )

    def explain(self, worker: str) -> str | None:
        """What the engine says about a worker's container."""
        with self._lock:
            try:
                self._send("explain", worker)
                (status, value), _ = self._receive()
                text: str | None = self._result(status, value)
            except NetlabError as error:
                return str(error)
        return text

    def release(self) -> None:
        """Let go: the keeper has the other copy of our end."""
        self._channel.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process.returncode = 0  # nobody's child any more; no warning about a process that still runs

    def close(self) -> None:
        """Let go and wait until every container is gone."""
        self._channel.close()
        try:
            _, said = self._process.communicate(timeout=_CLOSE_S)
        except subprocess.TimeoutExpired as error:
            raise ContainerError("the engine does not remove the lab's containers; try netlab clean") from error
        if self._process.returncode:
            raise ContainerError(said.decode(errors="replace").strip() or "the lab's steward was killed: netlab clean")

    def _send(self, name: str, argument: object) -> None:
        try:
            wire.send(self._channel, (name, argument))
        except OSError as error:
            raise ContainerError(f"the lab's steward has ended{self._last_words()}") from error

    def _receive(self) -> tuple[Any, tuple[int, ...]]:
        try:
            return wire.receive(self._channel)
        except (EOFError, OSError) as error:
            raise ContainerError(f"the lab's steward has ended{self._last_words()}") from error

    def _result(self, status: str, value: Any) -> Any:
        if status == "failed":
            raise value
        return value

    def _last_words(self) -> str:
        try:
            _, said = self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            return ""
        text = said.decode(errors="replace").strip()
        return f": {text}" if text else ""


def _needed() -> tuple[str, ...]:
    """What programs that we start must find in a container over this machine: where we are, and our Python."""
    paths = [str(Path.cwd()), sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path]
    paths += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return tuple(dict.fromkeys(str(Path(path).absolute()) for path in paths if path and Path(path).exists()))
