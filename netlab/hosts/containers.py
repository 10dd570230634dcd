"""What a lab needs of whoever provides its containers, and who that is: our own steward, or a compose project.

``Lab`` asks for one container per worker and gets, of each, its network namespace and a connection to its
netlab-init; it passes both to the keeper, which builds the network around them and starts programs through them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from netlab import namespaces as ns
from netlab.errors import UserError
from netlab.plan import Plan

CONTROL = "NETLAB_CONTROL"
"""Set in the netlab service of a compose file: the socket to which the workers' containers connect by themselves."""

INIT = Path(__file__).with_name("netlab-init")
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True)
class Joined:
    """A worker's container: descriptors of its network namespace and of the connection to its netlab-init.

    ``whole``: its programs get our environment, since they see our files; else ours comes on top of the image's.
    """

    worker: str
    network: int
    control: int
    whole: bool


class Containers(Protocol):
    """The containers of one lab."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen, in words; complete once ``open`` has ended."""

    @property
    def caretaker(self) -> tuple[int, int] | None:
        """Pid and start time of the process that removes the containers when the lab has ended."""

    @property
    def tie(self) -> tuple[int, ...]:
        """Descriptors by whose closing the caretaker learns of the lab's end, for the keeper to hold."""

    def open(self) -> Iterator[Joined]:
        """Make the containers, or wait for them, and hand each over. Raises NetlabError."""

    def explain(self, worker: str) -> str | None:
        """Why a program in the container may have been lost, when that can be said."""

    def release(self) -> None:
        """Leave the containers to the keeper: the lab outlives this process."""

    def close(self) -> None:
        """Wait until nothing of them is left. Raises NetlabError saying what is. The keeper has ended before."""


def check() -> None:
    """Raise UserError where this process could not move an interface into a container."""
    if not ns.has_capability(_CAP_SYS_ADMIN):
        raise UserError(
            "--hosts docker: moving interfaces into containers needs root: run it with sudo, or use a compose file"
            " (netlab compose PROFILE), whose netlab service has the privilege; --hosts process needs neither"
        )
    if CONTROL not in os.environ and not INIT.exists():
        raise UserError(
            f"--hosts docker: {INIT} is missing: it is built at installation where a C compiler and the static C"
            " library are present (build-essential on Debian, glibc-static elsewhere); then install again"
        )


def prepare(plan: Plan, owner: int, writable: tuple[Path, ...]) -> Containers:
    """Who provides the containers of ``plan``; nothing is made before ``open``.

    ``owner`` is the outermost process of the lab, whose end is the containers' end. Raises UserError.
    """
    control = os.environ.get(CONTROL)
    if control:
        from netlab.hosts.attached import Attached

        return Attached(plan, control)
    from netlab.hosts.docker import Docker

    return Docker(plan, owner, writable)
