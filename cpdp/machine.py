"""What a run is measured on: the machine, the versions, the state of the source. Reads files, runs only git.

`describe` goes to machine.json at a run's start, `versions` into resolved.json. Whatever cannot be found out
is null, never guessed.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("torch", "numpy", "pandas", "pyarrow", "pyroute2", "scikit-learn", "matplotlib")
SOURCE = Path(__file__).resolve().parent.parent


def describe() -> dict[str, Any]:
    """The machine as it is now: processor, cores, memory, frequency governors, load, kernel."""
    frequency = psutil.cpu_freq()
    return {
        "cpu": cpu_model(_text(Path("/proc/cpuinfo"))) or platform.processor() or None,
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": psutil.virtual_memory().available,
        "governors": governors(Path("/sys/devices/system/cpu")),
        "frequency_mhz": round(frequency.current) if frequency else None,
        "load": [round(value, 2) for value in os.getloadavg()],
        "kernel": platform.release(),
        "system": platform.platform(),
        "virtual": "hypervisor" in _text(Path("/proc/cpuinfo")).partition("flags")[2].partition("\n")[0].split(),
    }


def versions() -> dict[str, str | None]:
    """Python, the kernel, the packages that take part in a measurement, and our own version and commit."""
    found: dict[str, str | None] = {"python": platform.python_version(), "kernel": platform.release()}
    found |= {name: _version(name) for name in PACKAGES}
    return {**found, "netlab-cpdp": _version("netlab-cpdp"), "commit": commit(SOURCE)}


def cpu_model(cpuinfo: str) -> str | None:
    """The processor's name out of the text of /proc/cpuinfo (x86 names it per core; Arm may not)."""
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else None


def governors(cpus: Path) -> list[str] | None:
    """The frequency governors in use, without repetition; None where the kernel shows none (most guests)."""
    found = sorted({_text(path).strip() for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")} - {""})
    return found or None


def commit(folder: Path) -> str | None:
    """The commit that `folder` is checked out at, "-dirty" appended when files differ; None outside git."""
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--match", ""]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _text(path: Path) -> str:
    """A file's text, empty when it cannot be read: these files differ between kernels and machines."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
