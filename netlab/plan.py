"""Topology -> ordered operations. Pure: the same profile gives the same plan, which can be printed before anything
is done.

The executor carries out each operation and decides nothing by itself. ``describe`` renders an operation in the
words of the ``ip`` and ``sysctl`` tools, so that a plan can be read (and checked by hand) by anybody who knows
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from netlab.describe import describe_impairment as describe_impairment
from netlab.describe import impairment_json
from netlab.errors import PlanError
from netlab.impairment import OFFLOAD_QUEUE_BYTES, OFFLOAD_RATE_BPS, Impairment
from netlab.profile import Tcp
from netlab.topology import BRIDGE, WORKER_INTERFACE, Joint, Topology, router_of
from netlab.units import Rate

Carrier = Literal["relay", "netem"]
Layer = Literal["ip", "ethernet"]

OFFLOAD_FROM = Rate(OFFLOAD_RATE_BPS)
"""Slowest rate at which TCP crosses the relay in 64 KB units: below, one unit would last over 2.6 ms on the link."""

MASTER_PORT = 29500


@dataclass(frozen=True)
class Operation(ABC):
    """One step of a plan."""

    @abstractmethod
    def describe(self) -> str:
        """The operation in the words of the tools an administrator would use."""


@dataclass(frozen=True)
class MakeNamespace(Operation):
    """A network namespace with its loopback up, held open by the lab's keeper and by nothing else."""

    node: str

    def describe(self) -> str:
        """Render like ``ip netns add``."""
        return f"ip netns add {self.node}"


@dataclass(frozen=True)
class SetSysctl(Operation):
    """A sysctl of one namespace, read back after it was written; ``if_present`` passes over a kernel without it."""

    node: str
    key: str
    value: str
    if_present: bool = False

    def describe(self) -> str:
        """Render like ``sysctl``."""
        return f"[{self.node}] sysctl {self.key}='{self.value}'"


@dataclass(frozen=True)
class MakeBridge(Operation):
    """The switch of a site's LAN, in the site's router namespace, up and with the router's address."""

    node: str
    interface: str
    address: str
    mtu: int

    def describe(self) -> str:
        """Render like ``ip link add type bridge``."""
        return (
            f"[{self.node}] ip link add {self.interface} type bridge; ip link set {self.interface} mtu {self.mtu} up;"
            f" ip address add {self.address} dev {self.interface}"
        )


@dataclass(frozen=True)
class MakeVeth(Operation):
    """A veth pair with one end in each of two namespaces, both up."""

    a_node: str
    a_interface: str
    b_node: str
    b_interface: str
    mtu: int

    def describe(self) -> str:
        """Render like ``ip link add type veth``."""
        return (
            f"ip link add {self.a_interface} netns {self.a_node} mtu {self.mtu} type veth"
            f" peer {self.b_interface} netns {self.b_node}"
        )


@dataclass(frozen=True)
class MakeTun(Operation):
    """One end of a relayed joint: a TUN device (TAP when ``layer`` is ethernet), up, whose packets the relay
    carries.
    """

    node: str
    interface: str
    layer: Layer
    offload: bool
    mtu: int

    def describe(self) -> str:
        """Render like ``ip tuntap add``."""
        mode = "tun" if self.layer == "ip" else "tap"
        offload = "on" if self.offload else "off"
        return f"[{self.node}] ip tuntap add {self.interface} mode {mode} vnet_hdr (offload {offload}) mtu {self.mtu}"


@dataclass(frozen=True)
class AttachPort(Operation):
    """An interface becomes a port of the bridge in its namespace."""

    node: str
    interface: str
    bridge: str

    def describe(self) -> str:
        """Render like ``ip link set master``."""
        return f"[{self.node}] ip link set {self.interface} master {self.bridge}"


@dataclass(frozen=True)
class AddAddress(Operation):
    """An IPv4 address (CIDR) on an interface."""

    node: str
    interface: str
    address: str

    def describe(self) -> str:
        """Render like ``ip address add``."""
        return f"[{self.node}] ip address add {self.address} dev {self.interface}"


@dataclass(frozen=True)
class AddNeighbours(Operation):
    """Both ends of a veth know each other's address for good, so that no ARP waits for the emulated delay."""

    a_node: str
    a_interface: str
    a_address: str
    b_node: str
    b_interface: str
    b_address: str

    def describe(self) -> str:
        """Render like ``ip neighbour add``."""
        return (
            f"[{self.a_node}] ip neighbour add {self.b_address} dev {self.a_interface} nud permanent;"
            f" [{self.b_node}] ip neighbour add {self.a_address} dev {self.b_interface} nud permanent"
        )


@dataclass(frozen=True)
class AddRoute(Operation):
    """A route of one namespace."""

    node: str
    destination: str
    via: str
    interface: str

    def describe(self) -> str:
        """Render like ``ip route add``."""
        return f"[{self.node}] ip route add {self.destination} via {self.via} dev {self.interface}"


@dataclass(frozen=True)
class SetCongestionControl(Operation):
    """TCP congestion control of a worker: by sysctl, or on its routes where the kernel keeps the sysctl to the host."""

    node: str
    name: str

    def describe(self) -> str:
        """Render like ``sysctl`` with its alternative."""
        return (
            f"[{self.node}] sysctl net.ipv4.tcp_congestion_control={self.name}"
            f" (where refused: ip route change ... congctl {self.name})"
        )


@dataclass(frozen=True)
class Shape(Operation):
    """What happens to packets that leave ``node`` through ``interface``: carried by the relay or set as a netem
    qdisc.
    """

    direction: str
    carrier: Carrier
    node: str
    interface: str
    to_node: str
    to_interface: str
    layer: Layer
    impairment: Impairment
    mtu: int

    def describe(self) -> str:
        """Render like ``tc qdisc add``."""
        return f"[{self.node}] {self.carrier} dev {self.interface}: {describe_impairment(self.impairment)}"


@dataclass(frozen=True)
class Plan:
    """The ordered operations that build a topology on a given carrier."""

    topology: Topology
    carrier: Carrier
    operations: tuple[Operation, ...]

    def shapes(self) -> tuple[Shape, ...]:
        """The shaped directions, in order."""
        return tuple(op for op in self.operations if isinstance(op, Shape))

    def describe(self) -> str:
        """One operation a line."""
        return "\n".join(operation.describe() for operation in self.operations)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values: workers, shaped directions with units in their keys, and every operation."""
        topology = self.topology
        return {
            "name": topology.profile.name,
            "carrier": self.carrier,
            "workers": [asdict(worker) for worker in topology.workers],
            "links": [_joint_json(joint) for joint in topology.joints],
            "notes": list(topology.notes),
            "operations": [_operation_json(operation) for operation in self.operations],
        }


def make(topology: Topology, carrier: Carrier) -> Plan:
    """Order the operations that build ``topology`` with its joints carried by ``carrier``.

    Raises PlanError when the carrier cannot carry one of them.
    """
    if carrier == "netem":
        for joint in topology.joints:
            if joint.kind == "access":
                raise PlanError(
                    f"{topology.profile.path}: {joint.name}: netem would have to shape the LAN on the worker itself,"
                    " where it distorts TCP; --carrier relay can shape this LAN"
                )
    return Plan(topology, carrier, tuple(_operations(topology, carrier)))


def _operations(topology: Topology, carrier: Carrier) -> Iterator[Operation]:
    for node in topology.nodes:
        yield MakeNamespace(node.name)
    yield from _sysctls(topology)
    yield from _lan_operations(topology)
    for joint in topology.joints:
        yield from _joint_operations(joint, carrier)
    yield from _worker_addresses(topology)
    for route in topology.routes:
        yield AddRoute(route.node, route.destination, route.via, route.interface)
    yield from _congestion_control(topology)
    for joint in topology.joints:
        layer = _layer(joint)
        for name, near, far, impairment in joint.directions:
            ends = (near.node, near.interface, far.node, far.interface)
            yield Shape(name, carrier, *ends, layer, impairment, joint.mtu)


def _sysctls(topology: Topology) -> Iterator[Operation]:
    for node in topology.nodes:
        if node.kind != "worker":
            yield SetSysctl(node.name, "net.ipv4.ip_forward", "1")
            # The lab speaks IPv4. A router's IPv6 would send packets of its own (router solicitations, multicast
            # reports) over the WAN links, where nobody asked for them and a slow link would notice.
            for scope in ("all", "default"):
                yield SetSysctl(node.name, f"net.ipv6.conf.{scope}.disable_ipv6", "1", if_present=True)
        # Programs in a lab run as its root (group 0, the only one that a user namespace maps): ping needs no more.
        yield SetSysctl(node.name, "net.ipv4.ping_group_range", "0 0")
        if node.kind == "worker":
            yield from _tcp_sysctls(node.name, topology.profile.tcp)


def _tcp_sysctls(node: str, tcp: Tcp) -> Iterator[Operation]:
    # A route that remembers the last connection's ssthresh would make one measurement depend on the one before it.
    yield SetSysctl(node, "net.ipv4.tcp_no_metrics_save", "1")
    if tcp.slow_start_after_idle is not None:
        yield SetSysctl(node, "net.ipv4.tcp_slow_start_after_idle", str(int(tcp.slow_start_after_idle)))
    for key, sizes in (("rmem", tcp.rmem), ("wmem", tcp.wmem)):
        if sizes is not None:
            yield SetSysctl(node, f"net.ipv4.tcp_{key}", "\t".join(str(size) for size in sizes))


def _lan_operations(topology: Topology) -> Iterator[Operation]:
    mtu = topology.profile.mtu
    for number, site in enumerate(topology.profile.sites, start=1):
        yield MakeBridge(router_of(site.name), BRIDGE, f"10.{number}.0.1/16", mtu)
    for port in topology.ports:
        yield MakeVeth(port.worker, WORKER_INTERFACE, port.node, port.interface, mtu)
        yield AttachPort(port.node, port.interface, BRIDGE)


def _worker_addresses(topology: Topology) -> Iterator[Operation]:
    for worker in topology.workers:
        yield AddAddress(worker.name, worker.interface, f"{worker.address}/16")


def _layer(joint: Joint) -> Layer:
    return "ethernet" if joint.kind == "access" else "ip"


def _offload(joint: Joint) -> bool:
    ways = [impairment for _, _, _, impairment in joint.directions]
    return not joint.single_packets and all(_carries_units(impairment) for impairment in ways)


def _carries_units(impairment: Impairment) -> bool:
    """64 KB units are fit for a direction that is fast, whose queue does not turn a unit away for its size, and where
    no single packet is judged.
    """
    if impairment.per_packet or (impairment.rate is not None and impairment.rate < OFFLOAD_FROM):
        return False
    queue = impairment.queue
    return queue is None or queue.bytes is None or queue.bytes >= OFFLOAD_QUEUE_BYTES


def _joint_operations(joint: Joint, carrier: Carrier) -> Iterator[Operation]:
    a, b = joint.a, joint.b
    if carrier == "netem":
        yield MakeVeth(a.node, a.interface, b.node, b.interface, joint.mtu)
    else:
        for end in (a, b):
            yield MakeTun(end.node, end.interface, _layer(joint), _offload(joint), joint.mtu)
    if joint.kind == "access":
        yield AttachPort(b.node, b.interface, BRIDGE)
        return
    assert a.address is not None
    assert b.address is not None
    for end in (a, b):
        yield AddAddress(end.node, end.interface, f"{end.address}/30")
    if carrier == "netem":
        yield AddNeighbours(a.node, a.interface, a.address, b.node, b.interface, b.address)


def _congestion_control(topology: Topology) -> Iterator[Operation]:
    name = topology.profile.tcp.congestion_control
    if name is not None:
        for worker in topology.workers:
            yield SetCongestionControl(worker.name, name)


def _joint_json(joint: Joint) -> dict[str, Any]:
    directions = [
        {"name": name, "from": near.node, "to": far.node, **impairment_json(impairment)}
        for name, near, far, impairment in joint.directions
    ]
    return {"link": joint.name, "kind": joint.kind, "mtu": joint.mtu, "directions": directions}


def _operation_json(operation: Operation) -> dict[str, Any]:
    values: dict[str, Any] = {"operation": type(operation).__name__}
    for field in fields(operation):
        value = getattr(operation, field.name)
        if not isinstance(value, Impairment):
            values[field.name] = value
    values["text"] = operation.describe()
    return values
