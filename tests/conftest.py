"""What every suite shares: where things are, and running our commands as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PLAIN = """\
name: p
sites: {a: {workers: 1}, b: {workers: 1}}
links: [{between: [a, b], rtt: 20ms, rate: 100mbit}]
"""

MEASURING = ("lab", "netem", "docker")
"""Suites whose tests measure real traffic and real processes; a test elsewhere that does is marked `measures`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What measures may be measured again, twice at most: a machine's busy moment passes, a fault does not."""
    for item in items:
        if item.path.relative_to(ROOT).parts[1] in MEASURING or item.get_closest_marker("measures"):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))


Netlab = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def plain_profile(tmp_path: Path) -> Path:
    """Two sites of one worker, 20 ms, 100 Mbit/s: the base profile of the reported faults."""
    path = tmp_path / "p.yaml"
    path.write_text(PLAIN)
    return path


@pytest.fixture
def netlab() -> Netlab:
    """Run the netlab command and collect what it printed."""

    def run(
        *arguments: object, timeout: float = 60.0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        argv: Sequence[str] = [sys.executable, "-m", "netlab.cli", *(str(argument) for argument in arguments)]
        whole = {**os.environ, **(env or {})}
        return subprocess.run(argv, capture_output=True, timeout=timeout, env=whole, cwd=ROOT, check=False)

    return run
