"""Writes the packets of a link to a pcapng file, as they pass the interfaces at both of its ends.

The keeper opens a packet socket (packet(7)) at each end, in that end's namespace, and hands both to a process of its
own, which this module also is: ``python -m netlab.links.capture``. So capturing works with each carrier, costs one
copy of the first bytes of a packet, and never holds up the link: what the process is too slow for, the kernel counts.

The file has one pcapng interface per end, named NODE/INTERFACE, raw IPv4 packets, times in nanoseconds since 1970 as
the kernel took them, and the direction (in or out) of each packet at that end. Out at one end and in at the other is
the same packet before and after the link, where the relay carries it; netem has delayed a packet before either end
shows it. Units of up to 64 KB appear as one packet where the link carries them so.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

ETH_P_ALL, ETH_P_IP = 0x0003, 0x0800
LINKTYPE_IPV4 = 228  # not RAW, 101: libpcap 1.10 refuses a file with two interfaces of that type
PACKET_OUTGOING = 4
BUFFER_BYTES = 32 << 20
END_TIMEOUT_S = 5.0
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
_STAMP = struct.Struct("=qq")
_BATCH = 256


class Namespaces(Protocol):
    """What this needs of the executor."""

    def enter(self, node: str) -> Any:
        """Context manager: be in the network namespace of a node."""


@dataclass
class Capture:
    """A capture that is going on. The keeper signals it like a program that it started."""

    process: subprocess.Popen[bytes]
    pid: int = field(init=False)

    def __post_init__(self) -> None:
        """Its process id is its handle."""
        self.pid = self.process.pid

    @classmethod
    def start(
        cls, ends: Sequence[tuple[str, str]], namespaces: Namespaces, fd: int, snaplen: int, limit: int
    ) -> Capture:
        """Begin to write what passes the (node, interface) pairs to ``fd``; both stay the caller's."""
        sockets = []
        try:
            for node, interface in ends:
                with namespaces.enter(node):
                    sockets.append(_listen(interface))
            names = [f"{node}/{interface}" for node, interface in ends]
            named = [f"{name}={each.fileno()}" for name, each in zip(names, sockets, strict=True)]
            argv = [sys.executable, "-m", "netlab.links.capture", str(fd), str(snaplen), str(limit), *named]
            fds = (fd, *(each.fileno() for each in sockets))
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=fds)
        finally:
            for each in sockets:
                each.close()
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        return cls(process)

    def signal(self, handle: int, number: int) -> bool:
        """Signal the process."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def end(self) -> tuple[int, int]:
        """Have it complete its file; returns (packets written, packets left out)."""
        self.signal(self.pid, signal.SIGTERM)
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        self.process.stdout.close()
        written, left_out = json.loads(said) if said else (0, 0)
        return int(written), int(left_out)


def _listen(interface: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 0)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # as much as an ordinary user may have
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    sock.bind((interface, ETH_P_ALL))  # only this protocol sees what goes out, too
    return sock


# --- the file: pcapng (draft-ietf-opsawg-pcapng), little or big endian as the machine is ----------------------------


def _block(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack("=I", len(body) + 12)
    return struct.pack("=I", kind) + size + body + size


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("=HH", code, len(value)) + value + bytes(-len(value) % 4)


_END_OF_OPTIONS = bytes(4)


def section(program: str) -> bytes:
    """The block with which a file begins."""
    options = _option(4, program.encode()) + _END_OF_OPTIONS  # shb_userappl
    return _block(0x0A0D0D0A, struct.pack("=IHHq", 0x1A2B3C4D, 1, 0, -1) + options)


def interface_block(name: str, snaplen: int) -> bytes:
    """An interface, with times in nanoseconds."""
    options = _option(2, name.encode()) + _option(9, b"\x09") + _END_OF_OPTIONS  # if_name, if_tsresol
    return _block(1, struct.pack("=HHI", LINKTYPE_IPV4, 0, snaplen) + options)


def packet_block(number: int, at_ns: int, data: bytes, length: int, outgoing: bool) -> bytes:
    """A packet of ``length`` bytes, of which ``data`` is the beginning, at the interface with this number."""
    head = struct.pack("=IIIII", number, at_ns >> 32, at_ns & 0xFFFFFFFF, len(data), length)
    options = _option(2, struct.pack("=I", 2 if outgoing else 1)) + _END_OF_OPTIONS  # epb_flags: the direction
    return _block(6, head + data + bytes(-len(data) % 4) + options)


def statistics_block(number: int, at_ns: int, received: int, dropped: int) -> bytes:
    """How many packets an interface has shown, and how many of them are missing here."""
    counts = _option(4, struct.pack("=Q", received)) + _option(5, struct.pack("=Q", dropped))  # isb_ifrecv, isb_ifdrop
    return _block(5, struct.pack("=III", number, at_ns >> 32, at_ns & 0xFFFFFFFF) + counts + _END_OF_OPTIONS)


# --- the process --------------------------------------------------------------------------------------------------


@dataclass
class Tap:
    """One end of the link."""

    number: int
    sock: socket.socket
    written: int = 0
    over: int = 0  # beyond the limit

    def take(self, buffer: bytearray, room: int) -> tuple[list[bytes], int]:
        """The blocks of at most ``room`` of what has come, and the time of the last."""
        blocks: list[bytes] = []
        at_ns = 0
        for _ in range(_BATCH):
            try:
                length, extra, _, source = self.sock.recvmsg_into([buffer], 64, socket.MSG_TRUNC)
            except BlockingIOError:
                break
            if source[1] != ETH_P_IP:
                continue
            seconds, rest = _STAMP.unpack(extra[0][2])
            at_ns = seconds * 1_000_000_000 + rest
            if len(blocks) == room:
                self.over += 1
                continue
            data = bytes(buffer[: min(length, len(buffer))])
            blocks.append(packet_block(self.number, at_ns, data, length, source[2] == PACKET_OUTGOING))
        self.written += len(blocks)
        return blocks, at_ns

    def lost(self) -> int:
        """Packets for which the kernel found no room since it was last asked."""
        raw = self.sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        return int(struct.unpack("=II", raw)[1])


def run(out: IO[bytes], taps: Sequence[Tap], snaplen: int, limit: int, stop: int) -> tuple[int, int]:
    """Write until ``stop`` becomes readable, and then what has come so far; returns (written, left out)."""
    buffer, last_ns = bytearray(snaplen), 0
    stopping = False
    while True:
        ready, _, _ = select.select([*(tap.sock.fileno() for tap in taps), stop], [], [], 0 if stopping else None)
        stopping = stopping or stop in ready
        for tap in taps:
            if tap.sock.fileno() in ready:
                blocks, at_ns = tap.take(buffer, max(0, limit - sum(each.written for each in taps)))
                last_ns = max(last_ns, at_ns)
                out.write(b"".join(blocks))
        out.flush()
        if stopping and not any(tap.sock.fileno() in ready for tap in taps):
            break
    left_out = 0
    for tap in taps:
        missing = tap.lost() + tap.over
        left_out += missing
        out.write(statistics_block(tap.number, last_ns, tap.written + missing, missing))
    out.flush()
    return sum(tap.written for tap in taps), left_out


def main(arguments: Sequence[str]) -> int:
    """Entry of ``python -m netlab.links.capture FD SNAPLEN LIMIT NAME=FD ...``; SIGTERM completes the file."""
    stop, wake = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fd, snaplen, limit = (int(value) for value in arguments[:3])
    named = [word.rpartition("=") for word in arguments[3:]]
    taps = [Tap(number, socket.socket(fileno=int(each))) for number, (_, _, each) in enumerate(named)]
    with os.fdopen(fd, "wb", buffering=1 << 18) as out:
        out.write(section("netlab"))
        for name, _, _ in named:
            out.write(interface_block(name, snaplen))
        out.flush()
        print("begun", flush=True)
        print(json.dumps(run(out, taps, snaplen, limit, stop)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
