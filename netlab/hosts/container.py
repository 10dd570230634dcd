"""Starts programs in a worker's container, through the connection to its netlab-init. Runs in the keeper.

The connection is what holds the container alive: the keeper is the only process that has this end, so the container
ends when the keeper does, whoever killed it. Nothing that a container sends is ever read after its greeting.

A message is a header of four unsigned 32-bit integers in the machine's own order (bytes that follow, kind, number of
the program, value), as ``core/init.c`` says. START carries two counts and then the working directory, the arguments
and the variables as strings that end with a NUL; its four descriptors travel beside it. SIGNAL has nothing more.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct

from netlab.errors import NetlabError
from netlab.hosts import Program

VERSION = 1
ABSTRACT_NAME = "\0netlab"

_HEADER = struct.Struct("=4I")
_COUNTS = struct.Struct("=2I")
_START, _SIGNAL = 1, 2
_TERMINAL, _WHOLE_ENVIRONMENT = 1, 2
_PATIENCE_S = 10.0
_handles = itertools.count(1 << 32)  # above any pid, so that a handle of one host is never one of another


class ContainerError(NetlabError):
    """A container cannot be had, or has ended."""


class ContainerHost:
    """A worker in a container. With ``whole``, programs get the given environment alone, else on top of the image's."""

    def __init__(self, name: str, control: socket.socket, *, whole: bool) -> None:
        """Take over ``control``, a connection whose greeting has been read."""
        control.settimeout(_PATIENCE_S)
        self._name, self._control, self._whole = name, control, whole
        self._numbers: dict[int, int] = {}

    def start(self, program: Program) -> int:
        """Start ``program``. Raises ContainerError when the container has ended or does not answer."""
        handle = next(_handles)
        self._numbers[handle] = len(self._numbers) + 1
        strings = [program.cwd, *program.argv, *(f"{name}={value}" for name, value in program.env.items())]
        body = _COUNTS.pack(len(program.argv), len(program.env)) + b"".join(
            os.fsencode(text).replace(b"\0", b"") + b"\0" for text in strings
        )
        flags = (_TERMINAL if program.terminal else 0) | (_WHOLE_ENVIRONMENT if self._whole else 0)
        header = _HEADER.pack(len(body), _START, self._numbers[handle], flags)
        try:
            socket.send_fds(self._control, [header], list(program.descriptors))
            self._control.sendall(body)
        except TimeoutError as error:
            raise ContainerError(f"{self._name}: its container does not answer (is it paused?)") from error
        except OSError as error:
            raise ContainerError(f"{self._name}: its container has ended") from error
        return handle

    def signal(self, handle: int, number: int) -> bool:
        """Signal a program; one that has ended is passed over in the container."""
        try:
            self._control.sendall(_HEADER.pack(0, _SIGNAL, self._numbers[handle], number))
        except OSError:
            return False
        return True


def read_greeting(control: socket.socket) -> str:
    """The name with which a netlab-init presents itself. Raises ContainerError for another version or no init."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 128:
        piece = control.recv(1)
        if not piece:
            raise ContainerError("the container ended before it was ready")
        line += piece
    words = line.decode(errors="replace").split()
    if len(words) != 3 or words[0] != "netlab-init":
        raise ContainerError(f"not netlab-init but {line!r} answered")
    if words[1] != str(VERSION):
        raise ContainerError(f"netlab-init of version {words[1]} answered, {VERSION} is needed: make the images anew")
    return words[2]
