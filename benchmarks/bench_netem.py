"""Kernel netem beside our relay and a bare veth, all in one user-mode kernel, which is slow but has all three."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from benchmarks.netem_inside import ROUNDS
from benchmarks.result import Result
from tests.netem import uml

ROOT = Path(__file__).resolve().parents[1]


def run() -> Result:
    """Measure."""
    result = Result()
    argv = [sys.executable, "-m", "benchmarks.netem_inside", f"{uml.INSIDE}/found.json"]
    env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
    with uml.guest(argv, cwd=ROOT, env=env, timeout_s=280) as outcome:
        assert outcome.code == 0, outcome.console
        found = json.loads((outcome.scratch / "found.json").read_text())
    how = f"one TCP flow, rtt 2 ms (veth: none), no cap, in user-mode Linux; median of {ROUNDS} rounds in turn"
    for carrier, rounds in found.items():
        gbits, cores = (statistics.median(values) for values in zip(*rounds, strict=True))
        result.add(f"{carrier} bulk TCP", gbits, "Gbit/s", how)
        result.add(f"{carrier} CPU per Gbit/s", cores, "cores", "of its one processor, sender and receiver included")
    return result
