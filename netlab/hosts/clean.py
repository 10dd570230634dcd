"""``netlab clean``: remove containers whose owner is dead, and only those.

Every container of a lab carries its owner as labels: pid, start time, boot and pid namespace. Owners of this boot that
this process can see are alive or dead beyond doubt; of any other boot they are dead; one of another pid namespace
(netlab in a container) cannot be judged from here and is left alone. Names are never looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from netlab import registry
from netlab.hosts.engine import Engine, connect
from netlab.hosts.order import LABEL, Owner
from netlab.hosts.steward import remove

Verdict = Literal["dead", "alive", "unknown"]


@dataclass(frozen=True)
class Left:
    """A container of some lab, and what is known about its owner."""

    id: str
    worker: str
    profile: str
    lab: str
    owner: Owner | None
    verdict: Verdict

    def describe(self) -> str:
        """For people."""
        who = "nobody it names" if self.owner is None else f"process {self.owner.pid}"
        state = {"dead": "which has ended", "alive": "which is alive", "unknown": "which cannot be seen from here"}
        return f"container {self.id[:12]} ({self.worker} of {self.profile}), owned by {who}, {state[self.verdict]}"


def judge(owner: Owner | None, boot: str, pid_namespace: str, start: int | None) -> Verdict:
    """Whether an owner lives. ``start`` is when the process that has its pid now was started, if there is one. Pure."""
    if owner is None:
        return "unknown"
    if owner.boot != boot:
        return "dead"
    if owner.pid_namespace != pid_namespace:
        return "unknown"
    return "alive" if start == owner.start else "dead"


def survey(engine: Engine) -> list[Left]:
    """Every container of every lab in the engine, in the engine's order."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no path but a name
    found = engine.api.containers(all=True, filters={"label": LABEL})
    return [_left(each, boot, namespace) for each in found]


def _left(container: dict[str, Any], boot: str, namespace: str) -> Left:
    labels = container.get("Labels") or {}
    owner = Owner.of_labels(labels)
    verdict = judge(owner, boot, namespace, None if owner is None else registry.start_ticks(owner.pid))
    worker, profile = labels.get("netlab.worker", "?"), labels.get("netlab.profile", "?")
    return Left(str(container["Id"]), worker, profile, labels[LABEL], owner, verdict)


def clean(engine: Engine, found: Iterable[Left]) -> list[Left]:
    """Remove those whose owner is dead; returns them."""
    dead = [left for left in found if left.verdict == "dead"]
    for left in dead:
        remove(engine, left.id)
    return dead


def open_engine() -> Engine | None:
    """The engine, or None where there is none at the usual place: then no container can be left either."""
    from netlab.hosts.engine import address

    path = address().removeprefix("unix://")
    return connect() if "DOCKER_HOST" in os.environ or Path(path).exists() else None
