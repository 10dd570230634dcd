"""Starts a program in a worker's network namespace, with pid, mount and UTS namespaces of its own. Runs in the keeper.

Each program gets a small init as pid 1 of its pid namespace: it forks the program, passes signals on, collects
orphans and, when the program ends, reports how and ends itself. The kernel then kills whatever the program left
running, so nothing a worker starts can outlive it, daemonised or not.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import termios
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from netlab import namespaces as ns
from netlab.hosts import Program

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
COMMAND_NOT_FOUND = 127
COMMAND_NOT_EXECUTABLE = 126


@dataclass(frozen=True)
class ProcessHost:
    """A node whose programs are children of the keeper; ``network`` is a descriptor of the node's namespace.

    ``home`` and ``own_pids`` are the keeper's own network and pid namespaces, to which it returns.
    """

    name: str
    network: int
    home: int
    own_pids: int

    def start(self, program: Program) -> int:
        """Start ``program``; the handle is the pid of its init."""
        with ns.inside_network(self.network, self.home):
            ns.unshare(ns.CLONE_NEWPID, "make a pid namespace")
            try:
                pid = os.fork()
                if pid == 0:
                    _init(program, self.name)
            finally:
                ns.setns(self.own_pids, ns.CLONE_NEWPID, "return to the keeper's pid namespace")
        return pid

    def signal(self, handle: int, number: int) -> bool:
        """Pass it on to the init, which the keeper has not collected yet."""
        os.kill(handle, number)
        return True


def _init(program: Program, hostname: str) -> NoReturn:
    """Pid 1 of the program's pid namespace."""
    stdin, stdout, stderr, report = program.descriptors
    signal.set_wakeup_fd(-1)
    try:
        os.setsid()
        ns.die_with_parent()
        ns.unshare(ns.CLONE_NEWNS | ns.CLONE_NEWUTS, "make mount and UTS namespaces")
        ns.sethostname(hostname)
        ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
        _mount_sysfs()
        for target, fd in enumerate((stdin, stdout, stderr)):
            os.dup2(fd, target)
        _keep_only(report)
        child = _fork_program(program, report)
        _supervise(child, report)
    except OSError as error:
        _report(report, {"error": error.strerror or str(error), "errno": error.errno})
    os._exit(0)


def _mount_sysfs() -> None:
    """/sys shows the network devices of the namespace it was mounted in; gloo and NCCL read their speed there.

    Where the kernel refuses (a container that hides parts of /sys), the old one stays: it names devices of another
    namespace, and a program that reads it finds none of its own, as in any container.
    """
    flags = ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC | ns.MS_RDONLY
    try:
        ns.mount("sysfs", "/sys", "sysfs", flags)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EBUSY):
            raise


def _keep_only(report: int) -> None:
    """Close every other descriptor of the keeper: namespaces, sockets and the relay's memory are not the program's."""
    os.closerange(3, report)
    os.closerange(report + 1, 1 << 16)


def _fork_program(program: Program, report: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        if program.terminal:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        else:
            os.setpgid(0, 0)
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)  # Python ignores SIGPIPE and the keeper more than that
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(program.cwd)
        os.set_inheritable(report, False)
        os.execvpe(program.argv[0], list(program.argv), dict(program.env))
    except OSError as error:
        what = f"cannot start {program.argv[0]!r}" if error.filename != program.cwd else f"cannot enter {program.cwd!r}"
        _report(report, {"error": f"{what}: {error.strerror}", "errno": error.errno})
    os._exit(COMMAND_NOT_FOUND)


def _supervise(child: int, report: int) -> None:
    def forward(number: int, _frame: FrameType | None) -> None:
        try:
            os.killpg(child, number)
        except ProcessLookupError:
            pass

    for number in FORWARDED:
        signal.signal(number, forward)
    while True:
        pid, status = os.wait()
        if pid == child:
            break
    if os.WIFSIGNALED(status):
        _report(report, {"signal": os.WTERMSIG(status)})
    else:
        _report(report, {"code": os.WEXITSTATUS(status)})


def _report(fd: int, message: dict[str, object]) -> None:
    os.write(fd, json.dumps(message).encode() + b"\n")
