"""Topology -> ordered operations. Pure: the same profile gives the same plan, which can be printed before anything
is done.

The executor carries out each operation and decides nothing by itself. ``describe`` renders an operation in the
words of the ``ip`` and ``sysctl`` tools, so that a plan can be read (and checked by hand) by anybody who knows
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from netlab.describe import describe_entry, entry_json, impairment_json
from netlab.errors import PlanError
from netlab.hosts import HostKind
from netlab.hosts.settings import HostSettings
from netlab.impairment import OFFLOAD_QUEUE_BYTES, OFFLOAD_RATE_BPS, Impairment
from netlab.operations import (
    AddAddress,
    AddNeighbours,
    AddRoute,
    AttachPort,
    Carrier,
    CutUnits,
    JoinContainer,
    Layer,
    MakeBridge,
    MakeNamespace,
    MakeTun,
    MakeVeth,
    Operation,
    SetCongestionControl,
    SetSysctl,
    Shape,
)
from netlab.profile import Profile, Tcp
from netlab.topology import BRIDGE, WORKER_INTERFACE, Joint, Topology, Worker, router_of
from netlab.units import Rate

OFFLOAD_FROM = Rate(OFFLOAD_RATE_BPS)
"""Slowest rate at which TCP crosses the relay in 64 KB units: below, one unit would last over 2.6 ms on the link."""

MASTER_PORT = 29500


@dataclass(frozen=True)
class Plan:
    """The ordered operations that build a topology on a given carrier."""

    topology: Topology
    carrier: Carrier
    operations: tuple[Operation, ...]
    hosts: HostKind = "process"

    def settings(self, worker: Worker) -> HostSettings:
        """How the host of a worker is made."""
        index = int(worker.name.rpartition("-")[2])
        return self.topology.profile.settings(worker.site, index)

    def shapes(self) -> tuple[Shape, ...]:
        """The shaped directions, in order."""
        return tuple(op for op in self.operations if isinstance(op, Shape))

    def describe(self) -> str:
        """One operation a line, then one entry of the schedule a line."""
        lines = [operation.describe() for operation in self.operations]
        lines += [f"{entry.label}: {describe_entry(entry)}" for entry in self.topology.profile.schedule]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values: workers, shaped directions with units in their keys, and every operation."""
        topology = self.topology
        return {
            "name": topology.profile.name,
            "carrier": self.carrier,
            "hosts": self.hosts,
            "workers": [asdict(worker) for worker in topology.workers],
            "links": [_joint_json(joint) for joint in topology.joints],
            "notes": list(topology.notes),
            "seed": topology.profile.seed,
            "schedule": [entry_json(entry) for entry in topology.profile.schedule],
            "operations": [_operation_json(operation) for operation in self.operations],
        }


def make(topology: Topology, carrier: Carrier, hosts: HostKind = "process") -> Plan:
    """Order the operations that build ``topology`` with its joints carried by ``carrier`` and workers in ``hosts``.

    Raises PlanError when the carrier cannot carry one of them, or bare processes cannot be what the profile says.
    """
    if hosts == "process":
        _check_bare(topology.profile)
    if carrier == "netem":
        for joint in topology.joints:
            if joint.kind == "access":
                raise PlanError(
                    f"{topology.profile.path}: {joint.name}: netem would have to shape the LAN on the worker itself,"
                    " where it distorts TCP; --carrier relay can shape this LAN"
                )
    return Plan(topology, carrier, tuple(_operations(topology, carrier, hosts)), hosts)


def _check_bare(profile: Profile) -> None:
    """What a profile says about hosts is about containers: bare processes would be another experiment."""
    places = [("hosts", profile.hosts)]
    for site in profile.sites:
        places.append((f"sites.{site.name}.hosts", site.hosts))
        places += [(f"sites.{site.name}.hosts.workers.{index}", each) for index, each in site.hosts_of]
    for where, settings in places:
        if settings.said():
            raise PlanError(
                f"{profile.path}: {where}.{settings.said()[0]}: bare processes are not confined to such settings;"
                " --hosts docker is"
            )


def _operations(topology: Topology, carrier: Carrier, hosts: HostKind) -> Iterator[Operation]:
    plan = Plan(topology, carrier, (), hosts)
    workers = {worker.name: worker for worker in topology.workers} if hosts == "docker" else {}
    for node in topology.nodes:
        worker = workers.get(node.name)
        yield MakeNamespace(node.name) if worker is None else JoinContainer(node.name, plan.settings(worker))
    yield from _sysctls(topology, hosts)
    yield from _lan_operations(topology, carrier)
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


def _sysctls(topology: Topology, hosts: HostKind) -> Iterator[Operation]:
    for node in topology.nodes:
        if node.kind != "worker":
            yield SetSysctl(node.name, "net.ipv4.ip_forward", "1")
            # The lab speaks IPv4. A router's IPv6 would send packets of its own (router solicitations, multicast
            # reports) over the WAN links, where nobody asked for them and a slow link would notice.
            for scope in ("all", "default"):
                yield SetSysctl(node.name, f"net.ipv6.conf.{scope}.disable_ipv6", "1", if_present=True)
        # Bare processes run as the lab's root (group 0, the only one that a user namespace maps): ping needs no more.
        # A container may have any user.
        everyone = hosts == "docker" and node.kind == "worker"
        yield SetSysctl(node.name, "net.ipv4.ping_group_range", "0 2147483647" if everyone else "0 0")
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


def _lan_operations(topology: Topology, carrier: Carrier) -> Iterator[Operation]:
    mtu = topology.profile.mtu
    for number, site in enumerate(topology.profile.sites, start=1):
        yield MakeBridge(router_of(site.name), BRIDGE, f"10.{number}.0.1/16", mtu)
    for port in topology.ports:
        yield MakeVeth(port.worker, WORKER_INTERFACE, port.node, port.interface, mtu)
        if port.address is None:
            yield AttachPort(port.node, port.interface, BRIDGE)
        else:
            yield AddAddress(port.node, port.interface, port.address)
        if carrier == "netem":
            yield CutUnits(port.worker, WORKER_INTERFACE)


def _worker_addresses(topology: Topology) -> Iterator[Operation]:
    for worker in topology.workers:
        yield AddAddress(worker.name, worker.interface, f"{worker.address}/{worker.prefix}")


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
        if not isinstance(value, Impairment | HostSettings):
            values[field.name] = value
    values["text"] = operation.describe()
    return values
