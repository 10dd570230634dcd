"""The verbs of ``netlab`` about labs that outlive a command: up, down, list, exec, shell, events, top."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import selectors
import signal
import struct
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from netlab.cli_common import start
from netlab.describe import describe_impairment
from netlab.errors import UserError
from netlab.hosts import LaunchOptions

if TYPE_CHECKING:
    from netlab.lab import Lab


def up(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab up PROFILE --name LAB``."""
    lab = start(options, name=options.name)
    for choice in lab.choices:
        print(f"netlab: {choice}", file=sys.stderr)
    print(f"{options.name} is up: {', '.join(worker.name for worker in lab.workers)}")
    lab.stop()
    return 0


def down(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab down LAB``."""
    from netlab.lab import Lab

    Lab.attach(options.lab).down(options.lab)
    return 0


def change(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab set LAB LINK KEY=VALUE ...``."""
    with _attached(options.lab) as lab:
        touched = lab.set(options.link, *options.settings)
        state = lab.impairments()
    for direction in touched:
        print(f"{direction}: {describe_impairment(state[direction])}")
    if not touched:
        print("nothing changes: the link is like that already", file=sys.stderr)
    return 0


def list_labs(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab list``."""
    from netlab import registry

    found = registry.entries()
    if options.json:
        json.dump([vars(entry) for entry in found], sys.stdout, indent=2)
        print()
        return 0
    for entry in found:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.since))
        print(f"{entry.name}  {entry.profile}  {entry.carrier}  {entry.workers} workers  since {since}")
    if not found:
        print("no lab is up", file=sys.stderr)
    return 0


def events(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab events LAB``."""
    with _attached(options.lab) as lab:
        found = lab.events()
    if options.json:
        json.dump(found, sys.stdout, indent=2, allow_nan=False)
        print()
        return 0
    for event in found:
        stamp = time.strftime("%H:%M:%S", time.localtime(event["time"])) + f"{event['time'] % 1:.3f}"[1:]
        details = "  ".join(f"{key}={event[key]}" for key in event if key not in ("time", "monotonic_ns", "kind"))
        print(f"{stamp}  {event['kind']}  {details}")
    return 0


def execute(options: argparse.Namespace, command: list[str]) -> int:
    """``netlab exec LAB WORKER -- CMD``: on the caller's own input and output; the command's own exit status."""
    if not command:
        raise UserError("exec: no command; write it behind --: netlab exec LAB WORKER -- ping -c 3 sophia-0")
    with _attached(options.lab) as lab:
        return _foreground(lab, options.worker, command, (0, 1, 2), terminal=False)


def shell(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab shell LAB WORKER``: $SHELL on a pseudo-terminal of its own."""
    argv = [os.environ.get("SHELL", "/bin/sh")]
    with _attached(options.lab) as lab:
        if not os.isatty(0):
            return _foreground(lab, options.worker, argv, (0, 1, 2), terminal=False)
        ours, theirs = os.openpty()
        with _raw_terminal(ours):
            report, handle = _launch(lab, options.worker, argv, (theirs, theirs, theirs), terminal=True)
            os.close(theirs)
            _relay_terminal(ours)
            return _status(lab, report, handle)


def top(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab top LAB``."""
    from netlab.top import watch

    if not 0.05 <= options.interval <= 3600:
        raise UserError(f"--interval {options.interval:g}: 0.05 to 3600 seconds are allowed")
    with _attached(options.lab) as lab:
        watch(lab, options.interval, options.count, echoes=not options.no_rtt)
    return 0


@contextmanager
def _attached(name: str) -> Iterator[Lab]:
    from netlab.lab import Lab

    lab = Lab.attach(name)
    try:
        yield lab
    finally:
        lab.stop()


def _foreground(lab: Lab, node: str, argv: list[str], streams: tuple[int, int, int], *, terminal: bool) -> int:
    report, handle = _launch(lab, node, argv, streams, terminal=terminal)
    return _status(lab, report, handle)


def _launch(lab: Lab, node: str, argv: list[str], streams: tuple[int, int, int], *, terminal: bool) -> tuple[int, int]:
    """Start ``argv``; returns the reading end of its report pipe and its handle."""
    known = {worker.name for worker in lab.workers}
    if node not in {*known, *(made.name for made in lab.topology.nodes)}:
        raise UserError(f"no worker {node!r} in this lab; it has: {', '.join(worker.name for worker in lab.workers)}")
    environment = lab.environment(node) if node in known else dict(os.environ)
    report, write = os.pipe()
    try:
        handle = lab.launch(node, argv, environment, "", (*streams, write), LaunchOptions(terminal))
    finally:
        os.close(write)
    return report, handle


def _status(lab: Lab, report: int, handle: int) -> int:
    """Wait for the program; its exit status as a shell would give it. Ctrl-C and SIGTERM go to the program."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: lab.send_signal(handle, received) and None)
    with os.fdopen(report, "rb") as pipe:
        said = pipe.read()
    if not said:
        return 128 + signal.SIGKILL
    end = json.loads(said.splitlines()[0])
    if "error" in end:
        print(f"netlab: {end['error']}", file=sys.stderr)
        return 127
    return int(end["code"]) if "code" in end else 128 + int(end["signal"])


@contextmanager
def _raw_terminal(master: int) -> Iterator[None]:
    """Our terminal passes every key on; the pseudo-terminal has its size, also when that changes."""
    before = termios.tcgetattr(0)

    def resize(*_: object) -> None:
        fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0)))

    resize()
    signal.signal(signal.SIGWINCH, resize)
    tty.setraw(0, termios.TCSANOW)  # not TCSAFLUSH: what was typed ahead is for the shell
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _relay_terminal(master: int) -> None:
    """Between our terminal and the pseudo-terminal, until nothing has the other end open any more."""
    with selectors.DefaultSelector() as ready:
        ready.register(0, selectors.EVENT_READ)
        ready.register(master, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                try:
                    data = os.read(key.fd, 65536)
                except OSError:  # how Linux says that the last user of a pseudo-terminal has gone
                    return
                if not data:
                    return
                os.write(1 if key.fd == master else master, data)
