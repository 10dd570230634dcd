"""Process 1 inside the user-mode kernel: mounts, modules, then one command, whose exit code it leaves behind.

    init=PYTHON ... -- -I -S uml_init.py SCRATCH

The root is the host's, read-only. SCRATCH is the one folder of the host that can be written, and appears inside as
/run/scratch; /tmp, /run and /dev/shm live in memory. SCRATCH/request.json says what to run:
{"argv": [...], "cwd": "...", "env": {...}, "modules": [...], "keep": [folders below /tmp or /run to show anyway]}.
SCRATCH/exit then holds the exit code.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

_NR_FINIT_MODULE = 313
_MS_RDONLY = 1
_RB_POWER_OFF = 0x4321FEDC
_SCRATCH = Path("/run/scratch")
_MODULES = Path("/usr/lib/uml/modules") / os.uname().release

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, attempt: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{attempt}: {os.strerror(ctypes.get_errno())}")


def mount(kind: str, target: str, options: str = "", flags: int = 0) -> None:
    """Mount a file system of `kind`, making the mount point where there is none."""
    Path(target).mkdir(parents=True, exist_ok=True)
    names = kind.encode(), target.encode(), kind.encode()
    _check(_libc.mount(*names, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def mount_all(scratch: str) -> None:
    """The pseudo file systems, memory for what programs write, and the scratch folder."""
    for kind, target in (("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/tmp"), ("tmpfs", "/run")):
        mount(kind, target)
    mount("devpts", "/dev/pts", "ptmxmode=0666")
    mount("tmpfs", "/dev/shm")
    mount("hostfs", str(_SCRATCH), scratch)
    Path("/dev/fd").symlink_to("/proc/self/fd")


def load(names: list[str]) -> None:
    """Load modules by name, each after those it depends on."""
    needs = {}
    for line in (_MODULES / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[Path(path).name.removesuffix(".ko")] = [path, *others.split()]
    loaded: set[str] = set()
    for name in names:
        for path in reversed(needs[name]):  # modules.dep names the nearest dependency first
            if path not in loaded:
                _insert(_MODULES / path)
                loaded.add(path)


def _insert(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.syscall(_NR_FINIT_MODULE, fd, b"", 0), f"load {path.name}")
    finally:
        os.close(fd)


def run(request: dict) -> int:
    """Run the command to its end, reaping the orphans that come to process 1 meanwhile."""
    environ = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
    }
    environ |= {name: value for name, value in os.environ.items() if name not in environ}
    command = subprocess.Popen(request["argv"], cwd=request["cwd"], env=environ | request["env"])
    while True:
        pid, status = os.wait()
        if pid == command.pid:
            command.returncode = os.waitstatus_to_exitcode(status)
            return command.returncode


def main(scratch: str) -> None:
    """Everything; what goes wrong is said on the console, and then no exit code is left behind."""
    try:
        mount_all(scratch)
        request = json.loads((_SCRATCH / "request.json").read_text())
        for folder in request["keep"]:
            mount("hostfs", folder, folder, _MS_RDONLY)
        load(request["modules"])
        print("booted", Path("/proc/uptime").read_text().split()[0], flush=True)
        code = run(request)
        (_SCRATCH / "exit").write_text(str(code))
    except (OSError, KeyError, ValueError) as error:
        print("init failed:", repr(error))
    finally:
        sys.stdout.flush()
        os.sync()
        _libc.reboot(ctypes.c_int(_RB_POWER_OFF))


if __name__ == "__main__":
    main(sys.argv[1])
