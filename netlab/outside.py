"""Programs on this machine's own file system, in a worker's network only: how a container's network is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netlab.hosts import LaunchOptions

if TYPE_CHECKING:
    from netlab.lab import Lab


@dataclass(frozen=True)
class Outside:
    """Starts them; a ``job.Starter``."""

    lab: Lab

    def launch(
        self, node: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, descriptors: tuple[int, int, int, int]
    ) -> int:
        """Start a program."""
        return self.lab.launch(node, argv, env, cwd, descriptors, LaunchOptions(outside=True))

    def send_signal(self, handle: int, number: int) -> bool:
        """Signal a program."""
        return self.lab.send_signal(handle, number)

    def explain(self, node: str) -> str | None:
        """Nothing is known beyond what was reported."""
        return None
