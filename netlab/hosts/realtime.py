"""Real-time priority in a container, on a kernel that rations it per CPU cgroup (v1, CONFIG_RT_GROUP_SCHED).

There a container's group has no real time at all unless the engine was set up for it, and a relay without it is late on
a busy machine. The netlab service of a compose file therefore takes its keeper, and with it the relay, back to the
root group. It holds the capability to do so, and nothing of the workers is moved.
"""

from __future__ import annotations

from pathlib import Path

from netlab import namespaces as ns


def group_of_cpu(groups: str) -> tuple[str, str] | None:
    """(controllers, path) of the v1 CPU group in the text of /proc/self/cgroup, None for the root group. Pure."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") and path != "/":
            return controllers, path
    return None


def leave_group(stage: str) -> bool:
    """Move this process to the root CPU group; ``stage`` is a mount point to use for a moment. False when refused."""
    found = group_of_cpu(Path("/proc/self/cgroup").read_text())
    if found is None:
        return True
    try:
        ns.mount("cgroup", stage, "cgroup", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC, found[0])
    except OSError:
        return False
    try:
        Path(stage, "cgroup.procs").write_text("0")
    except OSError:
        return False
    finally:
        ns.unmount(stage)
    return True
