"""Numbered, time-stamped UDP datagrams. Standard library only, and also a program, to be run in the hosts of a lab:

python traffic.py receive PORT                            prints what arrived
python traffic.py send ADDRESS PORT COUNT IP_BYTES GAP_S  prints when each was sent

Both print JSON: a list of [number, sent, received], and a list of times. Times are ns of CLOCK_REALTIME, which all
namespaces of a kernel share; that of arrival is the kernel's own.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_TIMESTAMPNS = 32, 33, 35  # not in Python 3.11's socket module
BUFFER_BYTES = 1 << 24
QUIET_S = 0.6  # after so long without a datagram, none is on its way any more; longer than any delay in use
HEADERS = 28  # IPv4 and UDP
HELLO = b"hello"


@dataclass(frozen=True)
class Arrival:
    """A datagram that came through; times in ns of CLOCK_REALTIME, `received` as the kernel took it from the link."""

    number: int
    sent: int
    received: int

    @property
    def delay_ms(self) -> float:
        """One way."""
        return (self.received - self.sent) / 1e6


@dataclass(frozen=True)
class Flood:
    """When each datagram was sent, and what arrived, in order of arrival."""

    sent: list[int]
    arrivals: list[Arrival]

    @property
    def numbers(self) -> list[int]:
        """Of what arrived."""
        return [one.number for one in self.arrivals]


def make_receiver(sock: socket.socket, port: int) -> None:
    """Bind, with room for a whole experiment."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    sock.bind(("0.0.0.0", port))


def send(
    sock: socket.socket, count: int, ip_bytes: int, gap_s: float = 0.0, before: Callable[[int], None] | None = None
) -> list[int]:
    """Send `count` datagrams on a connected socket, `gap_s` apart; returns when each was sent.

    `before`, when given, is called with each datagram's number before it is sent.
    """
    sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
    padding = bytes(ip_bytes - HEADERS - 16)
    times = []
    start = time.monotonic()
    for number in range(count):
        if before is not None:
            before(number)
        time.sleep(max(0.0, start + number * gap_s - time.monotonic()))
        times.append(time.time_ns())
        sock.send(number.to_bytes(8, "little") + times[-1].to_bytes(8, "little") + padding)
    return times


def arrivals(receiver: socket.socket) -> Iterator[Arrival]:
    """Everything that arrives, until it stays quiet."""
    receiver.settimeout(QUIET_S)
    while True:
        try:
            data, control, _, _ = receiver.recvmsg(64, 64)
        except TimeoutError:
            return
        number, sent = (int.from_bytes(data[at : at + 8], "little") for at in (0, 8))
        seconds, nanoseconds = (int.from_bytes(control[0][2][at : at + 8], "little") for at in (0, 8))
        yield Arrival(number, sent, seconds * 10**9 + nanoseconds)


def _receive(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        make_receiver(sock, port)
        sock.settimeout(20)
        while True:
            data, sender = sock.recvfrom(64)
            if data != HELLO:
                break  # the first datagram of the experiment, which does not count: the sender sends one ahead
            sock.sendto(HELLO, sender)
        json.dump([astuple(one) for one in arrivals(sock)], sys.stdout)


def _send(address: str, port: int, count: int, ip_bytes: int, gap_s: float) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.2)
        sock.connect((address, port))
        for _ in range(100):
            try:
                sock.send(HELLO)
                sock.recv(64)
                break
            except (TimeoutError, ConnectionRefusedError):
                time.sleep(0.02)  # the receiver is not there yet
        sock.settimeout(None)
        time.sleep(0.1)  # whatever answers are still under way
        sock.send(b"begin")
        time.sleep(0.1)
        json.dump(send(sock, count, ip_bytes, gap_s), sys.stdout)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        _receive(int(sys.argv[2]))
    else:
        _send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]))
