"""Starts the two processes beside a command that make up a lab: the sandbox, and for containers the steward.

Each has one end of a socket pair, a session of its own, so that Ctrl-C reaches the command alone, and runs the same
netlab as the command does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

Helper = tuple[subprocess.Popen[bytes], socket.socket]


def sandbox(folder: Path | None) -> Helper:
    """The process that becomes the lab; one with a ``folder`` of its own, where it logs, does not die with us."""
    # PR_SET_PDEATHSIG watches the thread that forked. A lab started from a short-lived thread must outlive it, and
    # then ends by the closed socket alone.
    watched = folder is None and threading.current_thread() is threading.main_thread()
    parent = os.getpid() if watched else 0
    if folder is None:
        return _start("netlab.sandbox", [str(parent)], subprocess.PIPE)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return _start("netlab.sandbox", [str(parent)], log)
    finally:
        os.close(log)


def steward() -> Helper:
    """The process that makes the lab's containers and outlives the lab by as long as it takes to remove them."""
    return _start("netlab.hosts.steward", [], subprocess.PIPE, cwd="/")


def _start(module: str, arguments: list[str], errors: int, cwd: str | None = None) -> Helper:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": import_path()},
        )
    return process, ours


def import_path() -> str:
    """Where this netlab was imported from, so that the lab runs the same code wherever the command was started."""
    return os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
