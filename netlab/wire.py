"""How the Lab and its keeper talk: one request, one reply, over a Unix socket; descriptors travel beside a request.

Messages are pickled: both ends are the same user's same program on the same machine, and the socket is never
reachable by anybody else.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_HEADER = struct.Struct("!Q")
MAX_DESCRIPTORS = 8


def send(channel: socket.socket, message: Any, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message, with up to MAX_DESCRIPTORS open descriptors."""
    payload = pickle.dumps(message)
    header = _HEADER.pack(len(payload))
    if descriptors:
        socket.send_fds(channel, [header], list(descriptors))
    else:
        channel.sendall(header)
    channel.sendall(payload)


def receive(channel: socket.socket) -> tuple[Any, tuple[int, ...]]:
    """Receive one message with its descriptors. Raises EOFError when the other end is gone."""
    header, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, MAX_DESCRIPTORS)
    header += _exactly(channel, _HEADER.size - len(header)) if header else b""
    if not header:
        raise EOFError("the other end closed the connection")
    (length,) = _HEADER.unpack(header)
    return pickle.loads(_exactly(channel, length)), tuple(descriptors)


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("the other end closed the connection within a message")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
