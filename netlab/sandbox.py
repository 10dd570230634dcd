"""The private namespaces in which a lab lives and with which it dies.

``python -m netlab.sandbox FD PARENT`` is started by ``netlab.lab`` with one end of a socket pair. It moves into new
user (only without CAP_SYS_ADMIN), mount, network, pid, UTS and IPC namespaces and forks the keeper, which becomes
pid 1 there. Every process of the lab descends from the keeper, every interface lives in namespaces that only the
keeper's descriptors hold, every mount is in the private mount namespace: when the keeper ends, for whatever reason,
the kernel removes all of it. The keeper ends when this process ends, and this process ends when its parent does
(PR_SET_PDEATHSIG), so a SIGKILL of the command leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from netlab import namespaces as ns

CAP_SYS_ADMIN = 21
_FLAGS = ns.CLONE_NEWNS | ns.CLONE_NEWNET | ns.CLONE_NEWPID | ns.CLONE_NEWUTS | ns.CLONE_NEWIPC


def needs_user_namespace() -> bool:
    """An ordinary user (or a root without CAP_SYS_ADMIN) gets a user namespace, in which it is root."""
    return not ns.has_capability(CAP_SYS_ADMIN)


def enter(user_namespace: bool) -> None:
    """Move this process into the lab's namespaces; its next child is pid 1 there. Raises OSError."""
    uid, gid = os.geteuid(), os.getegid()
    if user_namespace:
        ns.unshare(ns.CLONE_NEWUSER | _FLAGS, "make the lab's namespaces without being root")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    else:
        ns.unshare(_FLAGS, "make the lab's namespaces")
    ns.mount("none", "/", None, ns.MS_REC | ns.MS_PRIVATE)


def main() -> int:
    """Entry of ``python -m netlab.sandbox FD PARENT``; PARENT is the pid to die with, or 0 to watch only the socket."""
    channel, parent = int(sys.argv[1]), int(sys.argv[2])
    if parent:
        ns.die_with_parent()
        if os.getppid() != parent:
            return 1  # it died before the line above took effect
    try:
        enter(needs_user_namespace())
    except OSError as error:
        os.write(2, f"{error.strerror}\n".encode())
        return 1
    child = os.fork()
    if child == 0:
        ns.die_with_parent()
        from netlab import keeper  # after the fork: pyroute2 and the rest load in pid 1 only

        keeper.serve(channel)
        os._exit(0)
    os.close(channel)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
