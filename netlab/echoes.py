"""Round trips of a lab's links while it is watched: one program per router sends an echo a second over each link.

For ``netlab top``. The echoes are real packets of 84 bytes, which the links carry like any other.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from netlab.hosts import LaunchOptions
from netlab.spawn import import_path

if TYPE_CHECKING:
    from netlab.lab import Lab
    from netlab.topology import Topology


def targets(topology: Topology) -> dict[str, dict[str, str]]:
    """For each node that sends: the address at the far end of each link that begins there -> the link's name."""
    found: dict[str, dict[str, str]] = {}
    for joint in topology.joints:
        if joint.b.address is not None:  # a worker's place on a bridge has none
            found.setdefault(joint.a.node, {})[joint.b.address] = joint.name
    return found


class Echoes:
    """Context manager: sends from enter to exit. ``rtt_ms``: the newest answer over each link; None: there was none."""

    def __init__(self, lab: Lab, interval_s: float) -> None:
        """Nothing is sent yet."""
        self._lab = lab
        self._interval_s = interval_s
        self._pipes: dict[int, tuple[dict[str, str], bytes]] = {}
        self.rtt_ms: dict[str, float | None] = {}

    def __enter__(self) -> Echoes:
        """Start a program on every node at which a link begins."""
        for node, links in targets(self._lab.topology).items():
            self._pipes[self._start(node, list(links))] = links, b""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A program ends when nobody reads what it says."""
        for fd in self._pipes:
            os.close(fd)
        self._pipes.clear()

    def _start(self, node: str, addresses: list[str]) -> int:
        argv = [sys.executable, "-m", "netlab.probe", "echo", str(self._interval_s), *addresses]
        env = {**os.environ, "PYTHONPATH": import_path(), "PYTHONSAFEPATH": "1"}
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.set_blocking(write, True)
        try:
            options = LaunchOptions(outside=True)
            self._lab.launch(node, argv, env, str(Path.cwd()), (null, write, null, null), options)
        finally:
            os.close(write)
            os.close(null)
        return read

    def read(self) -> Mapping[str, float | None]:
        """Take in what has been said; returns `rtt_ms`."""
        for fd, (links, rest) in list(self._pipes.items()):
            *lines, rest = (rest + _available(fd)).split(b"\n")
            self._pipes[fd] = links, rest
            for line in lines:
                for address, ns in json.loads(line).items():
                    self.rtt_ms[links[address]] = None if ns is None else ns / 1e6
        return self.rtt_ms


def _available(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""
