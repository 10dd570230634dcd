"""What this machine has and what a lab on it would use; every missing piece with how to get it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from netlab import carriers, sandbox
from netlab.links import netem


def examine() -> dict[str, Any]:
    """Everything that matters to a lab, as JSON values."""
    relay_works, relay_why = carriers.probe_relay()
    netem_works, netem_why = netem.probe()
    sandbox_works, sandbox_why = probe_sandbox()
    auto = "netem" if netem_works else "relay" if relay_works else None
    return {
        "ok": sandbox_works and auto is not None,
        "carriers": {
            "netem": {"available": netem_works, "why": netem_why},
            "relay": {"available": relay_works, "why": relay_why},
        },
        "carrier": auto,
        "hosts": {
            "process": {"available": sandbox_works, "why": sandbox_why},
            "docker": _docker(),
        },
        "machine": {
            "kernel": platform.release(),
            "cores": os.cpu_count(),
            "affinity": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "user": os.geteuid(),
            "congestion_control": _read("/proc/sys/net/ipv4/tcp_available_congestion_control").split(),
        },
        "gpus": _gpus(),
        "tools": {name: shutil.which(name) is not None for name in ("ping", "iperf3", "ip", "tc")},
    }


def probe_sandbox() -> tuple[bool, str]:
    """Whether a lab's namespaces can be made here: tried, in a child that ends at once."""
    needs_user = sandbox.needs_user_namespace()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            sandbox.enter(needs_user)
        except OSError as error:
            code = error.errno or 1
        os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    how = "in a user namespace (not root)" if needs_user else "as root"
    if code == 0:
        return True, f"network, mount and pid namespaces can be made {how}"
    hint = "allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone) or run as root"
    return (
        False,
        f"namespaces are refused {how}: {os.strerror(code)}; {hint if needs_user else 'CAP_SYS_ADMIN is needed'}",
    )


def _docker() -> dict[str, Any]:
    """Whether workers can be containers here: asked of the engine itself."""
    from netlab.errors import UserError
    from netlab.hosts import containers, engine

    try:
        found = engine.connect()
        found.api.close()
        containers.check()
    except UserError as error:
        return {"available": False, "why": str(error), "engine": False}
    return {
        "available": True,
        "why": found.describe(),
        "engine": True,
        "version": found.version.get("Version"),
        "cgroup": str(found.info.get("CgroupVersion") or "1"),
        "runtimes": sorted(found.info.get("Runtimes") or {}),
    }


def _gpus() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
