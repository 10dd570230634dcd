"""What the steward is asked to make: one container per worker, described completely. Pure but for ``owner_of``."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from netlab import registry
from netlab.hosts.settings import HostSettings
from netlab.plan import Plan

LABEL = "netlab.lab"
_OWNER = "netlab.owner"


@dataclass(frozen=True)
class Owner:
    """The process whose end is the containers' end. Pids come back, also after a boot: the rest tells them apart."""

    pid: int
    start: int
    boot: str
    pid_namespace: str

    def labels(self) -> dict[str, str]:
        """As labels of a container."""
        return {
            f"{_OWNER}.pid": str(self.pid),
            f"{_OWNER}.start": str(self.start),
            f"{_OWNER}.boot": self.boot,
            f"{_OWNER}.pidns": self.pid_namespace,
        }

    @classmethod
    def of_labels(cls, labels: dict[str, str]) -> Owner | None:
        """The owner that a container's labels name; None when they are not whole."""
        try:
            pid, start = int(labels[f"{_OWNER}.pid"]), int(labels[f"{_OWNER}.start"])
            return cls(pid, start, labels[f"{_OWNER}.boot"], labels[f"{_OWNER}.pidns"])
        except (KeyError, ValueError):
            return None


def owner_of(pid: int) -> Owner:
    """The process ``pid`` as an owner. Raises ProcessLookupError when it has ended."""
    start = registry.start_ticks(pid)
    if start is None:
        raise ProcessLookupError(f"process {pid} has ended")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Owner(pid, start, boot, os.readlink("/proc/self/ns/pid"))  # noqa: PTH115 - no path but a name


@dataclass(frozen=True)
class Wanted:
    """One container."""

    worker: str
    settings: HostSettings


@dataclass(frozen=True)
class Order:
    """All containers of a lab. ``names`` are the workers' with their addresses; ``needed`` paths must be visible
    where containers show this machine's files, ``writable`` ones be writable in every container.
    """

    lab: str
    profile: str
    folder: str  # of the profile's file: where relative paths of volumes start
    owner: Owner
    containers: tuple[Wanted, ...]
    names: tuple[tuple[str, str], ...]
    needed: tuple[str, ...]
    writable: tuple[str, ...]

    def labels(self, worker: str) -> dict[str, str]:
        """The labels of a worker's container."""
        about = {LABEL: self.lab, "netlab.profile": self.profile, "netlab.worker": worker}
        return about | self.owner.labels()

    def name(self, worker: str) -> str:
        """The name of a worker's container: for people; nothing is ever looked for by it."""
        return f"netlab-{self.lab[:8]}-{worker}"


def place(plan: Plan, owner: Owner, needed: tuple[str, ...], writable: tuple[str, ...]) -> Order:
    """The order for a plan's workers, under a lab id that nothing else has."""
    topology = plan.topology
    return Order(
        lab=uuid.uuid4().hex,
        profile=topology.profile.name,
        folder=str(Path(topology.profile.path).absolute().parent),
        owner=owner,
        containers=tuple(Wanted(worker.name, plan.settings(worker)) for worker in topology.workers),
        names=tuple((worker.name, worker.address) for worker in topology.workers),
        needed=needed,
        writable=writable,
    )
