"""Two bare network namespaces joined by the relay or by a veth pair: the smallest place where real packets
flow.

Used by the relay's lab tests and by benchmarks/bench_relay.py. Nothing is pinned: the namespaces live as long
as the descriptors held here and the programs started in them.
"""

import json
import os
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from netlab.links.relay import Direction, Effects, Relay
from netlab.links.tun import TX_QUEUE_LENGTH, open_tun
from netlab.namespaces import CLONE_NEWNET, inside_network, open_current, unshare

ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}
ETHERNET_OVERHEAD = 38
MIN_FRAME = 84

_SO_TIMESTAMPNS = 35
_SO_RCVBUFFORCE = 33


@dataclass(frozen=True)
class Shape:
    """What both directions of the pair do; 0 is none, as in Direction."""

    delay_ns: int = 0
    rate_bps: int = 0
    queue_bytes: int = 0
    queue_packets: int = 0
    offload: bool = True
    layer: str = "ip"
    mtu: int = 1500
    effects: Effects = field(default_factory=Effects)


class BarePair:
    """Context manager: namespaces a and b, 10.77.0.1 and 10.77.0.2. carrier is "relay" or "veth"."""

    def __init__(self, shape: Shape = Shape(), *, carrier: str = "relay", backward: Shape | None = None, realtime=True):
        self.shape, self.carrier, self.realtime = shape, carrier, realtime
        self.backward = backward or shape
        self.relay: Relay | None = None
        self._spaces: dict[str, int] = {}
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "BarePair":
        home = open_current("net")
        tuns = {}
        try:
            for side in ADDRESSES:
                self._spaces[side] = _new_network(home)
            if self.carrier == "relay":
                for side, fd in self._spaces.items():
                    with inside_network(fd, home):
                        tuns[side] = open_tun("wan0", layer=self.shape.layer, offload=self.shape.offload)
                self.relay = Relay.start(
                    [
                        _direction("a>b", tuns["a"], tuns["b"], self.shape),
                        _direction("b>a", tuns["b"], tuns["a"], self.backward),
                    ],
                    realtime=self.realtime,
                )
            else:
                self._make_veth()
            for side in ADDRESSES:
                self._configure(side)
        except BaseException:
            self.__exit__()
            raise
        finally:
            for fd in (home, *tuns.values()):
                os.close(fd)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if self.relay:
            self.relay.stop()
        for fd in self._spaces.values():
            os.close(fd)
        self._spaces.clear()

    def _make_veth(self) -> None:
        fd_b = self._spaces["b"]
        peer = f"/proc/{os.getpid()}/fd/{fd_b}"
        self.run("a", ["ip", "link", "add", "wan0", "type", "veth", "peer", "name", "wan0", "netns", peer])

    def _configure(self, side: str) -> None:
        length = str(TX_QUEUE_LENGTH)
        # no packets but those of the test: IPv6 would announce itself
        self.run(
            side, ["sh", "-c", "test ! -d /proc/sys/net/ipv6 || echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"]
        )
        self.run(side, ["ip", "link", "set", "lo", "up"])
        self.run(side, ["ip", "link", "set", "wan0", "up", "mtu", str(self.shape.mtu), "txqueuelen", length])
        self.run(side, ["ip", "addr", "add", f"{ADDRESSES[side]}/24", "dev", "wan0"])

    def inside(self, side: str, argv: list[str]) -> list[str]:
        """Return the command line that runs argv in the namespace."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._spaces[side]}", *argv]

    def run(self, side: str, argv: list[str], timeout: float = 60) -> str:
        """Run a program in the namespace and return what it printed; raises when it fails."""
        done = subprocess.run(self.inside(side, argv), capture_output=True, timeout=timeout)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise AssertionError(f"{' '.join(argv)} in {side} exited with {done.returncode}: {said}")
        return done.stdout.decode()

    def spawn(self, side: str, argv: list[str]) -> "subprocess.Popen[bytes]":
        """Start a program in the namespace; it is killed at the end."""
        process = subprocess.Popen(self.inside(side, argv), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._running.append(process)
        return process

    def socket(self, side: str, kind: int, protocol: int = 0) -> socket.socket:
        """Make an IPv4 socket in the namespace."""
        home = open_current("net")
        try:
            with inside_network(self._spaces[side], home):
                return socket.socket(socket.AF_INET, kind, protocol)
        finally:
            os.close(home)

    def ping_ms(self, count: int, interval_s: float = 0.01, size: int = 56) -> list[float]:
        """Round-trip times of ICMP echoes from a to b in ms, timed as ping times them: the kernel stamps the reply.

        (ping itself prints one decimal above 10 ms.) The first, which pays for caches, is left out; a lost
        one is an error.
        """
        with self.socket("a", socket.SOCK_RAW, socket.IPPROTO_ICMP) as echo:
            echo.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            echo.settimeout(10)
            times = []
            for sequence in range(count + 1):
                times.append(_echo_ms(echo, sequence, size))
                time.sleep(interval_s)
        return times[1:]

    def one_way_ms(self, count: int, interval_s: float) -> list[float]:
        """Times from a to b in ms: from just before the send to the kernel's stamp at the receiver."""
        with self.socket("a", socket.SOCK_DGRAM) as source, self.socket("b", socket.SOCK_DGRAM) as sink:
            sink.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            sink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
            sink.settimeout(5)
            sink.bind((ADDRESSES["b"], 5003))
            source.connect((ADDRESSES["b"], 5003))
            due = time.monotonic()
            for _ in range(count):
                source.send(struct.pack("q", time.time_ns()))
                due += interval_s
                time.sleep(max(due - time.monotonic(), 0))
            return [_stamp_ms(sink) for _ in range(count)]

    def iperf(self, *options: str, seconds: float = 2) -> dict[str, Any]:
        """One iperf3 test from a to b; returns its JSON."""
        server = self.spawn("b", ["iperf3", "-s", "-1", "--forceflush"])
        assert server.stdout is not None
        while b"listening" not in server.stdout.readline():
            pass
        argv = ["iperf3", "-c", ADDRESSES["b"], "-J", "-t", str(seconds), *options]
        result = json.loads(self.run("a", argv, timeout=seconds + 30))
        server.communicate()
        return result

    def goodput_bps(self, *options: str, seconds: float = 2) -> float:
        """Bits per second that arrived in one iperf3 test."""
        return float(self.iperf(*options, seconds=seconds)["end"]["sum_received"]["bits_per_second"])


def _echo_ms(echo: socket.socket, sequence: int, size: int) -> float:
    message = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, sequence) + bytes(size)
    total = sum(struct.unpack(f"!{len(message) // 2}H", message))
    total = (total & 0xFFFF) + (total >> 16)
    message = message[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + message[4:]
    sent_ns = time.time_ns()
    echo.sendto(message, (ADDRESSES["b"], 0))
    while True:
        packet, control, _, _ = echo.recvmsg(65536, 64)
        seconds, nanoseconds = struct.unpack("qq", control[0][2])
        if packet[20] == 0 and packet[24:28] == message[4:8]:
            return (seconds * 10**9 + nanoseconds - sent_ns) / 1e6


def _stamp_ms(sink: socket.socket) -> float:
    message, control, _, _ = sink.recvmsg(64, 64)
    seconds, nanoseconds = struct.unpack("qq", control[0][2])
    return (seconds * 10**9 + nanoseconds - struct.unpack("q", message)[0]) / 1e6


def _new_network(home: int) -> int:
    with inside_network(home, home):
        unshare(CLONE_NEWNET, "make a network namespace")
        return open_current("net")


def _direction(name: str, in_fd: int, out_fd: int, shape: Shape) -> Direction:
    return Direction(
        name=name,
        in_fd=in_fd,
        out_fd=out_fd,
        delay_ns=shape.delay_ns,
        rate_bps=shape.rate_bps,
        queue_bytes=shape.queue_bytes,
        queue_packets=shape.queue_packets,
        overhead=ETHERNET_OVERHEAD,
        min_frame=MIN_FRAME,
        layer=shape.layer,
        offload=shape.offload,
        effects=shape.effects,
    )
