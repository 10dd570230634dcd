"""Does this kernel have sch_netem? Tried in a network namespace that vanishes with the process that made it.

Run as a program (standard library only, no netlab, so that it takes tens of milliseconds) it makes the namespace, asks
the kernel for a netem qdisc on that namespace's loopback and prints "STAGE ERRNO". `probe` runs it and puts the answer
into words. Nothing of the host is touched, except that the kernel may load its own module.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import subprocess
import sys
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_RTM_NEWQDISC = 36
_REQUEST_ACK_CREATE_EXCL = 0x1 | 0x4 | 0x400 | 0x200
_TC_H_ROOT = 0xFFFFFFFF
_LOOPBACK = 1  # the index of lo in a new namespace
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TIMEOUT_S = 5.0

_WHERE = (
    "Debian's linux-image-amd64 has it, Ubuntu's linux-modules-extra-$(uname -r), Fedora's kernel-modules-extra;"
    " WSL2 and many micro-VM kernels do not. The relay carrier needs none of it"
)


def probe() -> tuple[bool, str]:
    """Whether netem can carry links here, and why (not), with how to get it. Takes well under 0.3 s."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        stage, code = done.stdout.split()
    except (subprocess.TimeoutExpired, ValueError, OSError) as error:
        return False, f"the test for sch_netem could not be run: {error}"
    return explain(stage, int(code), platform.release(), Path("/"))


def explain(stage: str, code: int, release: str, root: Path) -> tuple[bool, str]:
    """The program's answer in words; `root` is where lib/modules and boot are looked for."""
    if code == 0:
        return True, "this kernel has sch_netem"
    if stage == "namespace":
        return False, (
            f"no network namespace could be made to try it in ({os.strerror(code)}); run as root, or allow user"
            " namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)"
        )
    if code == errno.ENOENT:
        return False, _missing(release, root)
    return False, f"the kernel refused a netem qdisc: {os.strerror(code)}"


def _missing(release: str, root: Path) -> str:
    modules = root / "lib/modules" / release
    if any(modules.glob("kernel/net/sched/sch_netem.ko*")):
        return "sch_netem is installed but not loaded; load it as root with: modprobe sch_netem"
    config = root / "boot" / f"config-{release}"
    if config.exists() and "# CONFIG_NET_SCH_NETEM is not set" in config.read_text().splitlines():
        return f"kernel {release} was built without CONFIG_NET_SCH_NETEM; boot another kernel: {_WHERE}"
    return f"kernel {release} has no sch_netem, and no such module lies in {modules}: {_WHERE}"


def _attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def _request() -> bytes:
    options = struct.pack("=6I", 0, 1000, 0, 0, 0, 0)  # struct tc_netem_qopt: only the limit differs from zero
    body = struct.pack("=BxHiIII", 0, 0, _LOOPBACK, 0, _TC_H_ROOT, 0)
    body += _attribute(_TCA_KIND, b"netem\0") + _attribute(_TCA_OPTIONS, options)
    return struct.pack("=IHHII", 16 + len(body), _RTM_NEWQDISC, _REQUEST_ACK_CREATE_EXCL, 1, 0) + body


def _try_netem() -> int:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(_TIMEOUT_S / 2)
        sock.send(_request())
        answer = sock.recv(4096)
    (code,) = struct.unpack_from("=i", answer, 16)  # struct nlmsgerr, which acknowledges too
    return -int(code)


def main() -> None:
    """Print "STAGE ERRNO", 0 for success. Without root, a user namespace brings the rights over the network one."""
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWNET | _CLONE_NEWUSER
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        print("namespace", ctypes.get_errno())
        return
    try:
        print("qdisc", _try_netem())
    except OSError as error:
        print("qdisc", error.errno or errno.EIO)


if __name__ == "__main__":
    main()
