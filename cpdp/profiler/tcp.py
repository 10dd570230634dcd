"""State of this network namespace's TCP connections and interfaces: the kernel's own counters, read without a tool.

`connections` asks the sock_diag netlink family, as `ss -ti` does; `interfaces` reads /proc/net/dev. Both describe the
namespace of the calling process, so each lab worker's launcher sees its own.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCP_ESTABLISHED_BIT = 1 << 1
_INET_DIAG_INFO = 2

_RTT, _RTTVAR, _CWND, _TOTAL_RETRANS = 68, 72, 80, 100
_BYTES_ACKED, _BYTES_RECEIVED, _MIN_RTT, _DELIVERY_RATE = 120, 128, 148, 160
"""Offsets in struct tcp_info, which only ever grows at its end."""


@dataclass(frozen=True)
class Connection:
    """One established connection. Times in microseconds, rate in bytes per second, window in segments."""

    local: str
    peer: str
    rtt_us: int
    min_rtt_us: int
    window: int
    retransmits: int
    bytes_acked: int
    bytes_received: int
    delivery_rate: int


def interfaces(path: Path = Path("/proc/self/net/dev")) -> dict[str, tuple[int, int]]:
    """Bytes received and sent so far by every interface of this namespace."""
    found = {}
    for line in path.read_text(encoding="ascii").splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        found[name.strip()] = (int(fields[0]), int(fields[8]))
    return found


def connections() -> list[Connection]:
    """Every established TCP connection of this namespace. Raises OSError where the kernel does not tell."""
    found: list[Connection] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack(
                "=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _TCP_ESTABLISHED_BIT
            )
            header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
            link.sendto(header + request, (0, 0))
            while _read(link.recv(1 << 18), found):
                pass
    return found


def _read(data: bytes, found: list[Connection]) -> bool:
    """Take one datagram's messages; False when the last one was among them."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind == _NLMSG_DONE:
            return False
        if kind == _NLMSG_ERROR:
            code = -struct.unpack_from("=i", data, at + 16)[0]
            raise OSError(code, "sock_diag refused")
        connection = parse(data[at + 16 : at + length])
        if connection is not None:
            found.append(connection)
        at += (length + 3) & ~3
    return True


def parse(message: bytes) -> Connection | None:
    """One inet_diag_msg with its attributes; None without tcp_info."""
    family = message[0]
    source, target = struct.unpack_from("!HH", message, 4)
    size = 4 if family == socket.AF_INET else 16
    ends = [socket.inet_ntop(family, message[start : start + size]) for start in (8, 24)]
    at = 72
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _INET_DIAG_INFO:
            return _connection(f"{ends[0]}:{source}", f"{ends[1]}:{target}", message[at + 4 : at + length])
        at += (max(length, 4) + 3) & ~3
    return None


def _connection(local: str, peer: str, info: bytes) -> Connection:
    info = info.ljust(_DELIVERY_RATE + 8, b"\0")  # an older kernel's structure is shorter: what it lacks is 0

    def u32(offset: int) -> int:
        return int(struct.unpack_from("=I", info, offset)[0])

    def u64(offset: int) -> int:
        return int(struct.unpack_from("=Q", info, offset)[0])

    return Connection(
        local, peer, u32(_RTT), u32(_MIN_RTT), u32(_CWND), u32(_TOTAL_RETRANS), u64(_BYTES_ACKED),
        u64(_BYTES_RECEIVED), u64(_DELIVERY_RATE),
    )  # fmt: skip
