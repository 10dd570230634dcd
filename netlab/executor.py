"""Carries a plan out: each operation becomes netlink messages, sysctl writes or TUN devices. Runs in the lab's keeper.

Namespaces are held by descriptors of this process only. Every value written is read back where the kernel may have
refused or changed it silently.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netlab import namespaces as ns
from netlab import operations as p
from netlab.errors import NetlabError, PlanError
from netlab.impairment import Impairment
from netlab.links import netem, tun
from netlab.links.relay import Direction, Effects, PacketLog, Relay
from netlab.links.relay_stats import DirectionStats
from netlab.monitor import Look
from netlab.plan import Plan
from netlab.processors import Processors

_TUNSETPERSIST = 0x400454CB


class ExecutionError(NetlabError):
    """The kernel refused an operation of the plan."""


@dataclass
class Executor:
    """State of a lab while it is built and while it lives."""

    namespaces: dict[str, int] = field(default_factory=dict)
    choices: list[str] = field(default_factory=list)
    adopted: dict[str, int] = field(default_factory=dict)  # network namespaces that containers brought along
    relay: Relay | None = None

    def __post_init__(self) -> None:
        """Remember the keeper's own namespace, to return to."""
        self._home = ns.open_current("net")
        self._netlink: dict[str, IPRoute] = {}
        self._index: dict[tuple[str, str], int] = {}
        self._tun: dict[tuple[str, str], int] = {}
        self._offload: dict[tuple[str, str], bool] = {}
        self._directions: list[Direction] = []
        self._shapes: dict[str, p.Shape] = {}
        self.packet_log: PacketLog | None = None
        self._netem_notes: dict[str, list[str]] = {}  # differences from the model, with the directions that have them
        self.impairments: dict[str, Impairment] = {}

    def build(self, plan: Plan) -> None:
        """Carry out every operation, then start the relay. Raises ExecutionError naming the operation that failed."""
        for operation in plan.operations:
            try:
                self.apply(operation)
            except (OSError, NetlinkError) as error:
                reason = error.strerror or error if isinstance(error, OSError) else error
                raise ExecutionError(f"{operation.describe()}: {reason}") from error
        self.choices += netem.told(self._netem_notes)
        if self._directions:
            self.relay = Relay.start(self._directions, packet_log=self.packet_log)
            for fd in self._tun.values():
                os.close(fd)
            self.choices.append(
                "relay threads run in real time (SCHED_FIFO)"
                if self.relay.realtime
                else "relay threads run without real-time priority"
            )

    def traffic(self) -> tuple[DirectionStats, ...]:
        """The counters of every direction, under the plan's names; of a netem, what it counts (no lateness)."""
        if self.relay is None:
            return tuple(
                netem.statistics(
                    self._netlink[shape.node], self._find(shape.node, shape.interface), name, self.impairments[name]
                )
                for name, shape in self._shapes.items()
            )
        found = zip(self._shapes, self.relay.stats(), strict=True)
        return tuple(replace(stats, name=name) for name, stats in found)

    def look(self) -> Look:
        """Every counter of this moment."""
        state = self.impairments
        rates = {name: None if each.rate is None else each.rate.bps for name, each in state.items()}
        lossless = frozenset(name for name, each in state.items() if each.up and not each.rate and not each.loss)
        return Look(time.monotonic_ns(), time.time(), self.traffic(), Processors.now(), rates, lossless)

    def take_peaks(self) -> dict[str, tuple[int, int]]:
        """Peaks of every direction since this was last called; of a netem there are none but what a look sees."""
        found = self.relay.take_peaks() if self.relay is not None else {}
        return dict(zip(self._shapes, found.values(), strict=True)) if found else {}

    def change(self, direction: str, impairment: Impairment) -> int:
        """Give a direction a new state while traffic flows; returns the CLOCK_MONOTONIC ns from which it holds."""
        shape = self._shapes[direction]
        if self.relay is None:
            self._set_netem(shape, impairment)
            moment = time.monotonic_ns()
        else:
            number = list(self._shapes).index(direction)
            moment = self.relay.change(f"d{number}", **_relayed(impairment, shape.mtu))
        self.impairments[direction] = impairment
        return moment

    def check(self, direction: str, impairment: Impairment) -> None:
        """Refuse a state that a direction's carrier cannot honour: PlanError."""
        reason = None if self.relay is not None else netem.supported(impairment, seeded=False)
        if reason is not None:
            raise PlanError(f"{direction}: netem cannot: {reason}")

    def enter(self, node: str) -> Any:
        """Context manager: be in the namespace of ``node``."""
        return ns.inside_network(self.namespaces[node], self._home)

    @property
    def home(self) -> int:
        """Descriptor of the keeper's own network namespace."""
        return self._home

    @singledispatchmethod
    def apply(self, operation: p.Operation) -> None:
        """Carry out one operation."""
        raise TypeError(f"no way to carry out {type(operation).__name__}")

    @apply.register
    def _(self, op: p.MakeNamespace) -> None:
        ns.unshare(ns.CLONE_NEWNET, f"make the namespace {op.node}")
        try:
            self.namespaces[op.node] = ns.open_current("net")
            self._open_netlink(op.node)
        finally:
            ns.setns(self._home, ns.CLONE_NEWNET, "return to the lab's own network namespace")

    @apply.register
    def _(self, op: p.JoinContainer) -> None:
        self.namespaces[op.node] = self.adopted[op.node]
        with self.enter(op.node):
            self._open_netlink(op.node)

    def _open_netlink(self, node: str) -> None:
        """A netlink socket of the namespace that we are in now, whose loopback comes up."""
        netlink = self._netlink[node] = IPRoute()
        netlink.link("set", index=1, state="up")

    @apply.register
    def _(self, op: p.SetSysctl) -> None:
        path = Path("/proc/sys", *op.key.split("."))
        with self.enter(op.node):
            if op.if_present and not path.exists():
                return
            path.write_text(op.value)
            held = path.read_text().split()
        if held != op.value.split():
            raise OSError(0, f"the kernel holds {' '.join(held)!r} instead")

    @apply.register
    def _(self, op: p.MakeBridge) -> None:
        netlink = self._netlink[op.node]
        # Snooping and spanning tree would hold back first packets; a lab's switch forwards at once.
        netlink.link("add", ifname=op.interface, kind="bridge", br_stp_state=0, br_forward_delay=0, br_mcast_snooping=0)
        index = self._find(op.node, op.interface)
        netlink.link("set", index=index, mtu=op.mtu, state="up")
        self._add_address(op.node, op.interface, op.address)

    @apply.register
    def _(self, op: p.MakeVeth) -> None:
        peer = {"ifname": op.b_interface, "net_ns_fd": self.namespaces[op.b_node], "mtu": op.mtu}
        self._netlink[op.a_node].link("add", ifname=op.a_interface, kind="veth", mtu=op.mtu, peer=peer)
        for node, interface in ((op.a_node, op.a_interface), (op.b_node, op.b_interface)):
            self._netlink[node].link("set", index=self._find(node, interface), state="up")

    @apply.register
    def _(self, op: p.MakeTun) -> None:
        with self.enter(op.node):
            fd = self._tun[op.node, op.interface] = tun.open_tun(op.interface, layer=op.layer, offload=op.offload)
        self._offload[op.node, op.interface] = op.offload
        # Otherwise the relay's end would remove its devices one by one, 20 ms each: a persistent device goes with its
        # namespace instead, all of them at once, and the namespace goes with this process (a container's may stay).
        if op.node not in self.adopted:
            fcntl.ioctl(fd, _TUNSETPERSIST, 1)
        index = self._find(op.node, op.interface)
        self._netlink[op.node].link("set", index=index, mtu=op.mtu, txqlen=tun.TX_QUEUE_LENGTH, state="up")

    @apply.register
    def _(self, op: p.AttachPort) -> None:
        master = self._find(op.node, op.bridge)
        self._netlink[op.node].link("set", index=self._find(op.node, op.interface), master=master)

    @apply.register
    def _(self, op: p.AddAddress) -> None:
        self._add_address(op.node, op.interface, op.address)

    @apply.register
    def _(self, op: p.AddNeighbours) -> None:
        ends = (
            (op.a_node, op.a_interface, op.b_node, op.b_interface, op.b_address),
            (op.b_node, op.b_interface, op.a_node, op.a_interface, op.a_address),
        )
        for node, interface, far_node, far_interface, far_address in ends:
            far = self._netlink[far_node].link("get", index=self._find(far_node, far_interface))[0]
            self._netlink[node].neigh(
                "add",
                dst=far_address,
                lladdr=far.get_attr("IFLA_ADDRESS"),
                ifindex=self._find(node, interface),
                state=0x80,  # NUD_PERMANENT
            )

    @apply.register
    def _(self, op: p.AddRoute) -> None:
        self._netlink[op.node].route("add", dst=op.destination, gateway=op.via, oif=self._find(op.node, op.interface))

    @apply.register
    def _(self, op: p.SetCongestionControl) -> None:
        self._congestion_control(op)

    @apply.register
    def _(self, op: p.Shape) -> None:
        self._shapes[op.direction] = op
        self.impairments[op.direction] = op.impairment
        if op.carrier == "netem":
            self._set_netem(op, op.impairment)
            return
        self._directions.append(
            Direction(
                name=f"d{len(self._directions)}",  # the relay keeps short names only; ours may be two host names long
                in_fd=self._tun[op.node, op.interface],
                out_fd=self._tun[op.to_node, op.to_interface],
                layer=op.layer,
                offload=self._offload[op.node, op.interface],
                overhead=op.impairment.overhead,
                min_frame=op.impairment.min_frame,
                **_relayed(op.impairment, op.mtu),
            )
        )

    @apply.register
    def _(self, op: p.CutUnits) -> None:
        netem.send_single_packets(self._netlink[op.node], self._find(op.node, op.interface))

    def _set_netem(self, shape: p.Shape, impairment: Impairment) -> None:
        """Whether netem may draw random effects without a seed was settled when the carrier was chosen."""
        index = self._find(shape.node, shape.interface)
        applied = netem.apply(self._netlink[shape.node], index, impairment, shape.mtu, seeded=False)
        for note in applied.notes:
            self._netem_notes.setdefault(note, []).append(shape.direction)

    def _find(self, node: str, interface: str) -> int:
        key = (node, interface)
        if key not in self._index:
            found: Sequence[int] = self._netlink[node].link_lookup(ifname=interface)
            if not found:
                raise OSError(19, f"no interface {interface} in {node}")
            self._index[key] = found[0]
        return self._index[key]

    def _add_address(self, node: str, interface: str, cidr: str) -> None:
        address, length = cidr.split("/")
        self._netlink[node].addr("add", index=self._find(node, interface), address=address, prefixlen=int(length))

    def _congestion_control(self, op: p.SetCongestionControl) -> None:
        """By sysctl; where the kernel keeps an algorithm from other namespaces, on the worker's routes."""
        path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
        with self.enter(op.node):
            if path.read_text().strip() == op.name:
                return
            try:
                path.write_text(op.name)
                return
            except OSError:
                pass  # not allowed in this namespace, or not loaded: the route says which
        netlink = self._netlink[op.node]
        for route in netlink.get_routes(family=2, table=254):
            changed = {
                "dst": (route.get_attr("RTA_DST") or "0.0.0.0") + f"/{route['dst_len']}",
                "oif": route.get_attr("RTA_OIF"),
                "scope": route["scope"],
                "proto": route["proto"],
                "metrics": {"cc_algo": op.name},  # an "attrs" list is dropped in silence
            }
            for name, attribute in (("gateway", "RTA_GATEWAY"), ("prefsrc", "RTA_PREFSRC")):
                if route.get_attr(attribute):
                    changed[name] = route.get_attr(attribute)
            netlink.route("replace", **changed)
        note = (
            f"congestion control {op.name} is set on the workers' routes: the kernel refuses the sysctl in a namespace"
        )
        if note not in self.choices:
            self.choices.append(note)


def _relayed(impairment: Impairment, mtu: int) -> dict[str, Any]:
    """What the relay calls the parts of an impairment that can change while it runs."""
    queue = impairment.queue
    return {
        "delay_ns": impairment.delay.ns,
        "rate_bps": impairment.rate.bps if impairment.rate else 0,
        "queue_bytes": (queue.bytes or 0) if queue else 0,
        "queue_packets": (queue.packets or 0) if queue else 0,
        "effects": Effects.of(impairment, mtu),
    }
