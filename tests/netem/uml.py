"""Boots Debian's user-mode Linux kernel, which has sch_netem, and runs one command inside it.

For the tests in this folder on machines whose own kernel lacks sch_netem. An ordinary process and its children: no
root needed, no disk image (the root is the host's, read-only), up in about a second and a half.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEMORY = "1G"
INSIDE = "/run/scratch"  # where the command finds the scratch folder
IN_MEMORY = ("/tmp/", "/run/")  # covered inside by file systems in memory
CONSOLE_LINES = 60
MODULES = (
    *("sch_netem", "sch_tbf", "sch_htb", "sch_ingress", "cls_u32", "act_mirred"),
    *("veth", "tun", "ifb", "dummy", "bridge", "tcp_bbr"),
)


class GuestError(Exception):
    """The kernel could not be started, did not end in time, or left no result. The text includes its last words."""


class NotInstalledError(GuestError):
    """There is no such kernel on this machine."""


@dataclass(frozen=True)
class Outcome:
    """How a command inside ended. `scratch` is only there while the `guest` block lasts."""

    code: int
    console: str
    scratch: Path


def find_kernel() -> str:
    """Path of the kernel's program. Raises NotInstalledError saying how to get it."""
    if platform.machine() != "x86_64":
        raise NotInstalledError(
            f"no user-mode kernel for {platform.machine()}: these tests need a kernel with sch_netem here"
        )
    kernel = shutil.which("linux.uml")
    if kernel is None or not Path("/usr/lib/uml/modules").is_dir():
        raise NotInstalledError("user-mode Linux is not installed: apt-get install user-mode-linux (make setup does)")
    return kernel


@contextmanager
def guest(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float) -> Iterator[Outcome]:
    """Boot, run `argv` in `cwd`, halt; inside the block the files left in the scratch folder can be read.

    Only the scratch folder can be written from inside, as /run/scratch. When the block ends, also by an exception or
    a signal to this process, kernel and folder are gone. Raises GuestError.
    """
    kernel = find_kernel()
    scratch = Path(tempfile.mkdtemp(prefix="netlab-uml-"))
    try:
        needed = sorted({str(cwd), str(HERE.parents[1]), sys.prefix, sys.base_prefix})
        request = {"argv": list(argv), "cwd": str(cwd), "env": dict(env)}
        request |= {"modules": MODULES, "keep": [one for one in needed if one.startswith(IN_MEMORY)]}
        (scratch / "request.json").write_text(json.dumps(request))
        yield _run(kernel, scratch, timeout_s)
    finally:
        shutil.rmtree(scratch)


def _run(kernel: str, scratch: Path, timeout_s: float) -> Outcome:
    command = [sys.executable, "-I", "-S", str(HERE / "uml_launch.py"), str(scratch), *command_line(kernel, scratch)]
    env = {**os.environ, "TMPDIR": _memory_folder(), "LD_PRELOAD": _compile_preload(scratch)}
    process = subprocess.Popen(command, start_new_session=True, env=env)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise GuestError(f"the user-mode kernel did not end within {timeout_s:g} s\n{_console(scratch)}") from None
    finally:
        if process.poll() is None:
            process.terminate()  # the launcher kills the kernel and waits for it
        process.wait()
    console = _console(scratch)
    left = scratch / "exit"
    if not left.exists():
        raise GuestError(f"the user-mode kernel ended without a result (status {process.returncode})\n{console}")
    return Outcome(int(left.read_text()), console, scratch)


def command_line(kernel: str, scratch: Path) -> list[str]:
    """The kernel and its arguments; what follows `--` goes to process 1."""
    return [
        kernel,
        *(f"mem={MEMORY}", f"uml_dir={scratch}", "umid=kernel", "quiet"),
        *("rootfstype=hostfs", "rootflags=/", "ro"),
        *("con=null", "con0=null,fd:1"),
        *(f"init={sys.executable}", "--", "-I", "-S", str(HERE / "uml_init.py"), str(scratch)),
    ]


def _compile_preload(scratch: Path) -> str:
    """What makes user-mode Linux run on processors with large registers: see the source."""
    library = scratch / "wide_registers.so"
    command = ["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "wide_registers.c")]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "")
        raise GuestError(f"wide_registers.c could not be compiled: {error} {said}") from error
    return str(library)


def _memory_folder() -> str:
    """Where the guest's memory is kept as a file (unlinked at once): /dev/shm when it is large enough."""
    shared = Path("/dev/shm")
    usable = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 2**30
    return str(shared) if usable else tempfile.gettempdir()


def _console(scratch: Path) -> str:
    path = scratch / "console"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(["--- its console ended with", *lines[-CONSOLE_LINES:]])
