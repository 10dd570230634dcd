"""Starts a user-mode Linux kernel such that it cannot outlive whoever asked for it. A program, standard library only.

    python uml_launch.py SCRATCH KERNEL ARGUMENT...

The kernel and its helper processes live in a pid namespace of their own and die with its process 1, which ends with the
kernel and with this launcher. The launcher in turn gets SIGTERM when its parent dies, even by SIGKILL; then it also
removes SCRATCH. (The kernel cannot be process 1 itself: after a panic it aborts, and process 1 survives that.) Its
console goes to SCRATCH/console.

Processors with AMX need a workaround. Their extended register state is larger than user-mode Linux 6.1 has room for,
and the host's kernel then refuses to restore it (a panic at the first instruction: "ptrace set fp regs failed"). With
that ptrace request forbidden by seccomp, user-mode Linux uses the older one, which carries SSE registers only. Hence
`environment` tells programs inside to leave AVX alone; those compiled for plain x86-64 never use it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import struct
import sys
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWPID = 0x10000000, 0x20000000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 1, 22, 38, 2
_AUDIT_ARCH_X86_64, _NR_PTRACE, _GETREGSET, _SETREGSET, _NT_X86_XSTATE = 0xC000003E, 101, 0x4204, 0x4205, 0x202
_LOAD, _EQUAL, _RETURN, _ALLOW, _FAIL = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000

_NO_AVX = {
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load",
    "OPENSSL_ia32cap": "~0x1000000000000000:0",
}

_libc = ctypes.CDLL(None, use_errno=True)


def registers_too_large() -> bool:
    """Whether this processor's register state does not fit into user-mode Linux 6.1."""
    return " amx_tile" in Path("/proc/cpuinfo").read_text()


def environment() -> dict[str, str]:
    """Variables that every program inside must have."""
    return _NO_AVX if registers_too_large() else {}


def _check(result: int, attempt: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), attempt)


def _forbid_large_register_sets() -> None:
    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    program = b"".join(
        [
            step(_LOAD, 4),  # seccomp_data.arch
            step(_EQUAL, _AUDIT_ARCH_X86_64, no=7),
            step(_LOAD, 0),  # .nr
            step(_EQUAL, _NR_PTRACE, no=5),
            step(_LOAD, 16),  # .args[0]
            step(_EQUAL, _GETREGSET, yes=1),
            step(_EQUAL, _SETREGSET, no=2),
            step(_LOAD, 32),  # .args[2]
            step(_EQUAL, _NT_X86_XSTATE, yes=1),
            step(_RETURN, _ALLOW),
            step(_RETURN, _FAIL | errno.EINVAL),
        ]
    )
    held = ctypes.create_string_buffer(program)
    described = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(held)))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, described, 0, 0), "prctl(PR_SET_SECCOMP)")


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
    if registers_too_large():
        _forbid_large_register_sets()
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
