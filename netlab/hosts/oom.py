"""Whether the kernel has killed something in a process's memory cgroup, read from outside: cgroup v1 and v2."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def kills(pid: int) -> int:
    """How many processes the kernel has killed for memory in the cgroup of ``pid``; 0 where that cannot be read."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return 0
    for path in files(groups):
        try:
            return count(path.read_text())
        except OSError:
            continue
    return 0


def files(groups: str) -> list[Path]:
    """Where the counter may be, from the text of /proc/PID/cgroup. Pure."""
    found = []
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append(ROOT / "memory" / path.lstrip("/") / "memory.oom_control")
        elif number == "0" and not controllers:
            found.append(ROOT / path.lstrip("/") / "memory.events")
    return found


def count(text: str) -> int:
    """The counter ``oom_kill`` of either version's file. Pure."""
    rows = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return int(rows.get("oom_kill", 0))
