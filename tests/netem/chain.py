"""A chain of private namespaces joined by veths, and traffic across it. Gone with the process that made it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from netlab import namespaces as ns
from netlab.impairment import Impairment, Queue
from netlab.links import netem
from netlab.units import Delay, Rate
from tests.netem import traffic
from tests.netem.traffic import Flood

PORT = 5001
MTU = 1500


@dataclass
class Node:
    """A namespace, held by a descriptor of this process."""

    fd: int
    netlink: Any
    index: dict[str, int] = field(default_factory=dict)


class Chain:
    """Nodes 0, 1, ... in a row, all forwarding. Node k's interface "down" leads to node k + 1, whose end is "up"."""

    def __init__(self, length: int) -> None:
        self.home = ns.open_current("net")
        self.nodes = [self._node() for _ in range(length)]
        for hop in range(length - 1):
            self._join(hop)
        for number in range(length):
            self._route(number)

    def close(self) -> None:
        """Let go of everything."""
        for node in self.nodes:
            node.netlink.close()
            os.close(node.fd)
        os.close(self.home)

    def inside(self, number: int) -> Any:
        """Context manager: be in the namespace of a node."""
        return ns.inside_network(self.nodes[number].fd, self.home)

    def address(self, number: int) -> str:
        """Of a node: on its veth towards the start, except for node 0."""
        return "10.0.0.1" if number == 0 else f"10.0.{number - 1}.2"

    def run(self, number: int, argv: Sequence[str]) -> str:
        """A command's output, in the namespace of a node."""
        with self.inside(number):
            return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout

    def socket(self, number: int, kind: int) -> socket.socket:
        """A socket of a node's namespace."""
        with self.inside(number):
            sock = socket.socket(socket.AF_INET, kind)
        sock.settimeout(20)
        return sock

    def _node(self) -> Node:
        ns.unshare(ns.CLONE_NEWNET, "make a namespace")
        try:
            node = Node(ns.open_current("net"), IPRoute())
            node.netlink.link("set", index=1, state="up")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            ipv6 = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
            if ipv6.exists():
                ipv6.write_text("1")  # its router solicitations would be counted among our packets
            return node
        finally:
            ns.setns(self.home, ns.CLONE_NEWNET, "return")

    def _join(self, hop: int) -> None:
        near, far = self.nodes[hop], self.nodes[hop + 1]
        near.netlink.link("add", ifname="down", kind="veth", peer={"ifname": "up", "net_ns_fd": far.fd})
        for node, name, host in ((near, "down", 1), (far, "up", 2)):
            node.index[name] = node.netlink.link_lookup(ifname=name)[0]
            node.netlink.addr("add", index=node.index[name], address=f"10.0.{hop}.{host}", prefixlen=24)
            node.netlink.link("set", index=node.index[name], state="up")
        self._introduce(near, "down", far, "up", f"10.0.{hop}.2")
        self._introduce(far, "up", near, "down", f"10.0.{hop}.1")

    @staticmethod
    def _introduce(node: Node, interface: str, other: Node, its: str, address: str) -> None:
        """Make `node` know its neighbour for good: an ARP exchange would cross the emulated link too."""
        hardware = other.netlink.link("get", index=other.index[its])[0].get_attr("IFLA_ADDRESS")
        permanent = 0x80
        node.netlink.neigh("add", dst=address, lladdr=hardware, ifindex=node.index[interface], state=permanent)

    def _route(self, number: int) -> None:
        netlink = self.nodes[number].netlink
        for hop in range(len(self.nodes) - 1):
            if hop < number - 1:
                netlink.route("add", dst=f"10.0.{hop}.0/24", gateway=f"10.0.{number - 1}.1")
            elif hop > number:
                netlink.route("add", dst=f"10.0.{hop}.0/24", gateway=f"10.0.{number}.2")


@contextmanager
def chain(length: int) -> Iterator[Chain]:
    """A Chain for the length of the block."""
    made = Chain(length)
    try:
        yield made
    finally:
        made.close()


def ping(chain: Chain, count: int, interval_s: float = 0.01, size: int = 56) -> list[float]:
    """Round trips in ms from the first node to the last, by ping(8); fewer than `count` where echoes were lost."""
    target = chain.address(len(chain.nodes) - 1)
    argv = ["ping", "-n", "-c", str(count), "-i", str(interval_s), "-s", str(size), "-W", "2", target]
    return [float(line.split("time=")[1].split()[0]) for line in chain.run(0, argv).splitlines() if "time=" in line]


def flood(
    chain: Chain,
    ends: tuple[int, int],
    count: int,
    ip_bytes: int,
    gap_s: float = 0.0,
    before: Callable[[int], None] | None = None,
) -> Flood:
    """Send `count` datagrams from one node to another, as traffic.send does."""
    source, target = ends
    with chain.socket(target, socket.SOCK_DGRAM) as receiver, chain.socket(source, socket.SOCK_DGRAM) as sender:
        traffic.make_receiver(receiver, PORT)
        sender.connect((chain.address(target), PORT))
        sent = traffic.send(sender, count, ip_bytes, gap_s, before)
        return Flood(sent, list(traffic.arrivals(receiver)))


def tcp_goodput(chain: Chain, skip_s: float, seconds: float, watch: Callable[[], None] = lambda: None) -> float:
    """Payload in bit/s that one TCP flow delivers from the first node to the last, after `skip_s` of start-up.

    `watch` is called again and again while it is measured.
    """
    with chain.socket(len(chain.nodes) - 1, socket.SOCK_STREAM) as listener, chain.socket(0, socket.SOCK_STREAM) as out:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", PORT))
        listener.listen()
        out.connect((chain.address(len(chain.nodes) - 1), PORT))
        sender = threading.Thread(target=_send_until_closed, args=(out,))
        sender.start()
        with listener.accept()[0] as into:
            into.settimeout(20)
            _drain(into, skip_s)
            began = time.monotonic()
            received = _drain(into, seconds, watch)
            took = time.monotonic() - began
        sender.join()
        return received * 8 / took


def _send_until_closed(sock: socket.socket) -> None:
    try:
        while True:
            sock.sendall(bytes(65536))
    except OSError:
        return  # the receiver has had enough


def _drain(sock: socket.socket, seconds: float, watch: Callable[[], None] = lambda: None) -> int:
    end, received = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        watch()
        received += len(sock.recv(1 << 20))
    return received


def wan(delay_ms: float, bps: int | None = None, packets: int = 1000) -> Impairment:
    """A direction with a queue of whole packets."""
    rate = None if bps is None else Rate(bps)
    return Impairment(Delay(round(delay_ms * 1e6)), rate, None if bps is None else Queue(packets=packets))


def apply(chain: Chain, number: int, interface: str, impairment: Impairment) -> netem.Applied:
    """Set on a node's interface."""
    node = chain.nodes[number]
    return netem.apply(node.netlink, node.index[interface], impairment, MTU)
