"""Starts a user-mode Linux kernel such that it cannot outlive whoever asked for it. A program, standard library only.

    python uml_launch.py SCRATCH KERNEL ARGUMENT...

The kernel and its helper processes live in a pid namespace of their own and die with its process 1, which ends with the
kernel and with this launcher. The launcher in turn gets SIGTERM when its parent dies, even by SIGKILL; then it also
removes SCRATCH. (The kernel cannot be process 1 itself: after a panic it aborts, and process 1 survives that.) Its
console goes to SCRATCH/console.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWPID = 0x10000000, 0x20000000
_PR_SET_PDEATHSIG = 1
_NICENESS = -15

_libc = ctypes.CDLL(None, use_errno=True)


def _ask_for_priority() -> None:
    """A measurement must not lose its processor to whatever else runs. Where it is not allowed, it goes without."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    except PermissionError:
        pass


def _check(result: int, attempt: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), attempt)


def _become_process_1(scratch: Path, command: list[str]) -> None:
    """In the child: ends with the kernel, and never returns."""
    code = 127
    try:
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
        kernel = os.fork()
        if kernel == 0:
            _become_kernel(scratch, command)
        while (ended := os.wait())[0] != kernel:
            pass  # an orphaned helper of the kernel
        code = abs(os.waitstatus_to_exitcode(ended[1]))
    finally:
        os._exit(code)


def _become_kernel(scratch: Path, command: list[str]) -> None:
    console = os.open(scratch / "console", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(console, 1)
    os.dup2(console, 2)
    os.execv(command[0], command)


def main(scratch: Path, command: list[str]) -> int:
    """Run the kernel to its end and return its exit status."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    _ask_for_priority()
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.unshare(_CLONE_NEWPID if uid == 0 else _CLONE_NEWPID | _CLONE_NEWUSER), "unshare")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    first = os.fork()
    if first == 0:
        _become_process_1(scratch, command)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    except SystemExit:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        if os.getppid() != parent:
            shutil.rmtree(scratch, ignore_errors=True)
        raise


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
