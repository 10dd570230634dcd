"""Who provides a worker's namespaces and starts its programs: bare processes, or Docker containers.

The keeper starts programs through a ``Host`` per node and knows no more about it: ``process.py`` and ``container.py``
each have one. What makes containers, and ends them, is on the other side of the keeper: ``docker.py`` (through
``steward.py``, a process of its own) and ``attached.py`` (containers that compose has made).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

HostKind = Literal["process", "docker"]


@dataclass(frozen=True)
class Program:
    """What to start and as what: ``descriptors`` are stdin, stdout, stderr and the report pipe, in this order.

    The report is one line of JSON: {"code": 7}, {"signal": 11} or {"error": "...", "errno": 2}. A pipe that closes
    without a line means that whoever was to write it was killed. With ``terminal``, stdin is a terminal that becomes
    the program's own, so that a shell has job control.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    descriptors: tuple[int, int, int, int]
    terminal: bool = False


@dataclass(frozen=True)
class LaunchOptions:
    """How to start a program. ``terminal``: its stdin becomes its terminal. ``outside``: on this machine's own file
    system even where the worker is a container, sharing only its network; what measures the network needs that.
    """

    terminal: bool = False
    outside: bool = False


PLAIN = LaunchOptions()


class Signalled(Protocol):
    """Whoever can end what it started."""

    def signal(self, handle: int, number: int) -> bool:
        """Signal a program; SIGKILL also ends all that it started. False when it is known to be gone."""


class Host(Signalled, Protocol):
    """What one worker (or router) runs in."""

    def start(self, program: Program) -> int:
        """Start a program and return a handle that no other program of the lab has. Raises OSError."""
