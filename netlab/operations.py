"""What a plan is made of: each operation is data, and can say itself in the words of ``ip``, ``sysctl`` and ``docker``.

`netlab.plan` orders them, `netlab.executor` carries them out. Pure.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from netlab.describe import describe_impairment
from netlab.hosts.settings import HostSettings
from netlab.impairment import Impairment

Carrier = Literal["relay", "netem"]
Layer = Literal["ip", "ethernet"]


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
class JoinContainer(Operation):
    """The network namespace of a worker's container, which has none but its loopback and is given its interface by us.

    The container is made before the rest of the plan is carried out, and ends with the lab.
    """

    node: str
    settings: HostSettings

    def describe(self) -> str:
        """Render like ``docker run``."""
        options = ["--network none", f"--hostname {self.node}", *map(shlex.quote, self.settings.options())]
        image = "SCRATCH (over this machine's own files)" if self.settings.on_machine else self.settings.image_name
        return f"docker run --detach --rm {' '.join(options)} {image} netlab-init"


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
class CutUnits(Operation):
    """The interface cuts what it sends into packets of its MTU: a netem behind it on the path judges whole units, of up
    to 64 KB, as one packet.
    """

    node: str
    interface: str

    def describe(self) -> str:
        """Render like ``ip link set``."""
        return f"[{self.node}] ip link set {self.interface} gso_max_segs 1"


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
