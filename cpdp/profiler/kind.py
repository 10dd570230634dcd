"""Is a run folder a profiled run? Asked by the commands that read runs of either kind, before anything heavy."""

from __future__ import annotations

from cpdp import jsonfile
from cpdp.rundir import RunDir


def is_profile(run: RunDir) -> bool:
    """Whether `cpdp profile` made it."""
    resolved = jsonfile.read(run.resolved)
    return isinstance(resolved, dict) and resolved.get("kind") == "profile"
