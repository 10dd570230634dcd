"""The few system calls about namespaces and mounts that Python 3.11 lacks, each raising OSError with what was
attempted.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_READ = 23

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, attempt: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{attempt}: {os.strerror(number)}")


def unshare(flags: int, attempt: str) -> None:
    """Move the calling process into new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)), attempt)


def setns(fd: int, kind: int, attempt: str) -> None:
    """Move the calling process into the namespace that ``fd`` refers to."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), attempt)


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """mount(2)."""
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    data = options.encode() if options is not None else None
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), data), f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Detach the mount on ``target``; what still uses it keeps it alive."""
    _check(_libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"unmount {target}")


def sethostname(name: str) -> None:
    """Name the current UTS namespace."""
    encoded = name.encode()
    _check(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), f"set the host name {name}")


def die_with_parent() -> None:
    """Ask the kernel to kill this process as soon as the thread that made it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def has_capability(number: int) -> bool:
    """Whether this process holds the capability in its effective set."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - one line of a pseudo file
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False


def open_current(kind: str) -> int:
    """A descriptor of the calling thread's namespace of the given kind (``net``, ``pid``, ``mnt`` ...)."""
    return os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def inside_network(fd: int, home: int) -> Iterator[None]:
    """Be in the network namespace ``fd`` for the length of the block, then back in ``home``."""
    setns(fd, CLONE_NEWNET, "enter a network namespace")
    try:
        yield
    finally:
        setns(home, CLONE_NEWNET, "return to the lab's own network namespace")
