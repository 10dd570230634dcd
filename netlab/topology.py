"""Profile -> frozen Topology: which namespaces exist, how they are joined, who has which address and route. Pure.

A site is one LAN: a router namespace with a bridge, and a namespace per worker. WAN links join routers. A site's
``uplink`` is a bottleneck shared by all its links: a site with a single link has it folded into that link (two limiters
in a row are the slower one), a site with several gets an *edge* namespace behind its router, reached over a link that
carries the uplink's rate, so that all WAN traffic of the site crosses it.

Addresses: site ``s`` (counted from 1) owns 10.s.0.0/16, its router is 10.s.0.1, its workers follow from 10.s.0.2. Joint
``k`` (a link between routers or edges) owns the k-th /30 of 172.16.0.0/12.

A worker with an ``access`` of its own is not on the LAN: it has a *gateway* namespace to itself, as a home has a
router, from which a joint leads to its site's router. Worker ``i`` of site ``s`` and its gateway share the i-th /30 of
the s-th /18 of 100.64.0.0/10, the range of carriers' customers (RFC 6598).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from netlab.errors import PlanError
from netlab.impairment import OFFLOAD_RATE_BPS, Impairment, derive_queue
from netlab.profile import Link, Profile, Site
from netlab.routing import Graph, next_hops
from netlab.schedule import disturbed
from netlab.timeline import WAYS, Way
from netlab.units import Delay, Rate

MAX_SITES = 250
MAX_WORKERS_PER_SITE = 60_000
WORKER_INTERFACE = "eth0"
BRIDGE = "lan"

NodeKind = Literal["worker", "router", "edge", "gateway"]
JointKind = Literal["wan", "uplink", "access", "line"]
"""access: a worker's place on a shaped LAN; line: the access that a worker has for itself."""


@dataclass(frozen=True)
class Node:
    """One network namespace of the lab."""

    name: str
    kind: NodeKind
    site: str


@dataclass(frozen=True)
class Worker:
    """One rank: its name (``SITE-INDEX``), its place in the world and its address on its LAN."""

    name: str
    site: str
    rank: int
    address: str
    interface: str = WORKER_INTERFACE
    prefix: int = 16
    gateway: str = ""


@dataclass(frozen=True)
class End:
    """One end of a joint: a named interface of a node, with its address (``None`` on a bridge port)."""

    node: str
    interface: str
    address: str | None


@dataclass(frozen=True)
class Joint:
    """A shaped connection between two namespaces; ``forward`` is what happens to packets from ``a`` to ``b``.

    ``single_packets``: some day the schedule makes it slow, or lets it judge each packet, so that units of many packets
    must never cross it.
    """

    name: str
    kind: JointKind
    a: End
    b: End
    forward: Impairment
    backward: Impairment
    mtu: int
    single_packets: bool = False

    @property
    def directions(self) -> tuple[tuple[str, End, End, Impairment], ...]:
        """(name, from, to, impairment) of both directions; names read ``LINK:FROM>TO``."""
        return (
            (f"{self.name}:{self.a.node}>{self.b.node}", self.a, self.b, self.forward),
            (f"{self.name}:{self.b.node}>{self.a.node}", self.b, self.a, self.backward),
        )


@dataclass(frozen=True)
class Port:
    """A worker's unshaped place on its site's bridge, or at its own gateway, which then has the ``address`` (CIDR)."""

    worker: str
    node: str
    interface: str
    address: str | None = None


@dataclass(frozen=True)
class Route:
    """``destination`` (CIDR or ``default``) is reached from ``node`` through ``via`` on ``interface``."""

    node: str
    destination: str
    via: str
    interface: str


@dataclass(frozen=True)
class Topology:
    """The whole laid-out network. Every tuple is ordered; the same profile gives the same topology."""

    profile: Profile
    nodes: tuple[Node, ...]
    workers: tuple[Worker, ...]
    ports: tuple[Port, ...]
    joints: tuple[Joint, ...]
    routes: tuple[Route, ...]
    notes: tuple[str, ...]

    @cached_property
    def node_by_name(self) -> dict[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def hosts_file(self) -> str:
        """The lab's /etc/hosts: every worker by name, nothing that leads out of the lab."""
        lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
        lines += [f"{worker.address}\t{worker.name}" for worker in self.workers]
        return "\n".join(lines) + "\n"

    def path(self, source: str, target: str) -> tuple[tuple[Joint, Impairment], ...]:
        """The joints that a packet from worker ``source`` to worker ``target`` crosses, with what each does to it."""
        return _walk(self, source, target)


def router_of(site: str) -> str:
    """Name of the site's router namespace."""
    return f"{site}.router"


def edge_of(site: str) -> str:
    """Name of the namespace behind the site's shared uplink."""
    return f"{site}.edge"


def gateway_of(worker: str) -> str:
    """Name of the namespace between a worker and its own access."""
    return f"{worker}.gateway"


def build(profile: Profile) -> Topology:
    """Lay out ``profile``. Raises PlanError for more sites or workers than there are addresses."""
    _check_sizes(profile)
    links_of = _links_of(profile)
    shared = _shared(profile)
    notes: list[str] = []
    workers = _workers(profile)
    nodes = [Node(worker.name, "worker", worker.site) for worker in workers]
    nodes += [Node(gateway_of(link.a), "gateway", link.b) for link in profile.access]
    for site in profile.sites:
        nodes.append(Node(router_of(site.name), "router", site.name))
        if site.name in shared:
            nodes.append(Node(edge_of(site.name), "edge", site.name))
    uplinks = [_uplink_joint(profile, site, links_of[site.name]) for site in profile.sites if site.name in shared]
    slowed = disturbed(profile, Rate(OFFLOAD_RATE_BPS))
    wans = [_wan_joint(profile, link, shared, notes) for link in profile.links]
    lines = [_line(number, link) for number, link in enumerate(profile.access)]
    named = [replace(joint, single_packets=joint.name in slowed) for joint in (*wans, *lines)]
    access, ports = _lans(profile, workers)
    joints = _addressed([*uplinks, *named]) + access
    routes = _routes(profile, workers, joints)
    return Topology(profile, tuple(nodes), workers, ports, tuple(joints), tuple(routes), tuple(notes))


def carried(topology: Topology, link: str, way: Way, impairment: Impairment) -> tuple[str, Impairment]:
    """(name of the direction, what its carrier is to do) for a new state of a link, its sites' uplinks folded in.

    For changes while a lab runs: `netlab.schedule` and `netlab.live` know links only.
    """
    (asked,) = (candidate for candidate in topology.profile.shaped if candidate.name == link)
    (joint,) = (each for each in topology.joints if each.kind in ("wan", "line") and each.name == link)
    if joint.kind == "line":
        return joint.directions[WAYS.index(way)][0], impairment
    for uplink, _ in _folded_uplinks(topology.profile, asked, _shared(topology.profile)):
        impairment = _fold(impairment, uplink, asked)
    return joint.directions[WAYS.index(way)][0], impairment


def _links_of(profile: Profile) -> dict[str, list[Link]]:
    return {site.name: [k for k in profile.links if site.name in (k.a, k.b)] for site in profile.sites}


def _shared(profile: Profile) -> set[str]:
    """Sites whose uplink serves several links."""
    links_of = _links_of(profile)
    return {site.name for site in profile.sites if site.uplink and len(links_of[site.name]) > 1}


def _check_sizes(profile: Profile) -> None:
    if len(profile.sites) > MAX_SITES:
        raise PlanError(f"{profile.path}: sites: {len(profile.sites)} sites, at most {MAX_SITES} are allowed")
    for site in profile.sites:
        if site.workers > MAX_WORKERS_PER_SITE:
            raise PlanError(
                f"{profile.path}:{site.line}: sites.{site.name}.workers: {site.workers} is too many,"
                f" at most {MAX_WORKERS_PER_SITE} fit on one LAN"
            )


def _workers(profile: Profile) -> tuple[Worker, ...]:
    at_home = {link.a for link in profile.access}
    found: list[Worker] = []
    for number, site in enumerate(profile.sites, start=1):
        for index in range(site.workers):
            name, rank = f"{site.name}-{index}", len(found)
            address, gateway, prefix = _lan_address(number, index + 2), _lan_address(number, 1), 16
            if name in at_home:
                address, gateway, prefix = _home_address(number, index, 2), _home_address(number, index, 1), 30
            found.append(Worker(name, site.name, rank, address, prefix=prefix, gateway=gateway))
    return tuple(found)


def _home_address(site_number: int, index: int, host: int) -> str:
    return str(ipaddress.IPv4Address("100.64.0.0") + (site_number << 14) + 4 * index + host)


def _home_block(site_number: int) -> str:
    return f"{_home_address(site_number, 0, 0)}/18"


def _line(number: int, link: Link) -> Joint:
    ends = End(gateway_of(link.a), "access", None), End(router_of(link.b), f"line-{number}", None)
    return Joint(link.name, "line", *ends, link.forward, link.backward, link.mtu)


def _lan_address(site_number: int, host: int) -> str:
    return str(ipaddress.IPv4Address(f"10.{site_number}.0.0") + host)


def _slower(*rates: Rate | None) -> Rate | None:
    known = [rate for rate in rates if rate is not None]
    return min(known) if known else None


def _uplink_joint(profile: Profile, site: Site, links: list[Link]) -> Joint:
    assert site.uplink is not None
    longest = max((link.rtt for link in links), default=Delay(0))
    queue = derive_queue(site.uplink.rate, longest, profile.mtu)
    shaped = Impairment(delay=Delay(0), rate=site.uplink.rate, queue=queue, queue_derived=True)
    ends = End(router_of(site.name), "uplink", None), End(edge_of(site.name), "uplink", None)
    return Joint(f"{site.name}.uplink", "uplink", *ends, shaped, shaped, profile.mtu)


def _wan_joint(profile: Profile, link: Link, shared: set[str], notes: list[str]) -> Joint:
    forward, backward = link.forward, link.backward
    for rate, name in _folded_uplinks(profile, link, shared):
        forward, backward = _fold(forward, rate, link), _fold(backward, rate, link)
        notes.append(f"uplink of {name} ({rate}) is folded into {link.name}, its only link")
    ends = [
        End(edge_of(name) if name in shared else router_of(name), f"wan-{_number(profile, link)}", None)
        for name in (link.a, link.b)
    ]
    return Joint(link.name, "wan", ends[0], ends[1], forward, backward, link.mtu)


def _folded_uplinks(profile: Profile, link: Link, shared: set[str]) -> list[tuple[Rate, str]]:
    """Rate and site of each uplink that serves this link alone."""
    sites = {site.name: site for site in profile.sites}
    ends = [(sites[name].uplink, name) for name in (link.a, link.b) if name not in shared]
    return [(uplink.rate, name) for uplink, name in ends if uplink is not None]


def _number(profile: Profile, link: Link) -> int:
    return profile.links.index(link)


def _fold(impairment: Impairment, uplink: Rate, link: Link) -> Impairment:
    """The link at the slower rate; its queue follows: derived anew, or by the rule that the profile states."""
    rate = _slower(impairment.rate, uplink)
    assert rate is not None
    if impairment.queue is None or impairment.queue_derived:
        return replace(
            impairment, rate=rate, queue=derive_queue(rate, link.rtt, link.mtu, impairment.framing), queue_derived=True
        )
    rule, queue = impairment.queue_rule, impairment.queue
    queue = rule.resolve(rate, link.rtt, link.mtu, impairment.framing) if rule else queue
    return replace(impairment, rate=rate, queue=queue)


def _addressed(joints: list[Joint]) -> list[Joint]:
    base = int(ipaddress.IPv4Address("172.16.0.0"))
    addressed = []
    for number, joint in enumerate(joints):
        first, second = (str(ipaddress.IPv4Address(base + 4 * number + host)) for host in (1, 2))
        addressed.append(replace(joint, a=replace(joint.a, address=first), b=replace(joint.b, address=second)))
    return addressed


def _lans(profile: Profile, workers: tuple[Worker, ...]) -> tuple[list[Joint], tuple[Port, ...]]:
    """A shaped LAN gives every worker an access joint with half of the host-to-host delay, a plain one a port, and an
    access of its own a port of its own gateway.
    """
    at_home = {link.a for link in profile.access}
    sites = {site.name: site for site in profile.sites}
    access: list[Joint] = []
    ports: list[Port] = []
    counters = dict.fromkeys(sites, 0)
    for worker in workers:
        site = sites[worker.site]
        if worker.name in at_home:
            ports.append(Port(worker.name, gateway_of(worker.name), "lan", f"{worker.gateway}/{worker.prefix}"))
            continue
        port = f"port-{counters[site.name]}"
        counters[site.name] += 1
        half = Delay((site.lan.delay.ns if site.lan.delay else 0) // 2)
        if not half.ns and site.lan.rate is None:
            ports.append(Port(worker.name, router_of(site.name), port))
            continue
        queue = None if site.lan.rate is None else derive_queue(site.lan.rate, Delay(4 * half.ns), profile.mtu)
        shaped = Impairment(delay=half, rate=site.lan.rate, queue=queue, queue_derived=True)
        ends = End(worker.name, WORKER_INTERFACE, None), End(router_of(site.name), port, None)
        access.append(Joint(f"{worker.name}.access", "access", *ends, shaped, shaped, profile.mtu))
    return access, tuple(ports)


def _routes(profile: Profile, workers: tuple[Worker, ...], joints: list[Joint]) -> list[Route]:
    """Default routes of the workers, and on every router and edge a route to each site by least delay."""
    numbers = {site.name: number for number, site in enumerate(profile.sites, start=1)}
    routes = [Route(w.name, "default", w.gateway, w.interface) for w in workers]
    routes += _home_routes(workers, joints)
    at_home = {link.b for link in profile.access}
    graph: Graph[tuple[End, End]] = {}
    for joint in joints:
        if joint.kind in ("access", "line"):
            continue
        cost = joint.forward.delay.ns + joint.backward.delay.ns
        graph.setdefault(joint.a.node, []).append((cost, joint.b.node, (joint.a, joint.b)))
        graph.setdefault(joint.b.node, []).append((cost, joint.a.node, (joint.b, joint.a)))
    for site in profile.sites:
        number = numbers[site.name]
        destinations = [f"10.{number}.0.0/16", *([_home_block(number)] if site.name in at_home else [])]
        for node, (far, near) in next_hops(graph, router_of(site.name)).items():
            assert far.address is not None
            routes += [Route(node, destination, far.address, near.interface) for destination in destinations]
    return routes


def _home_routes(workers: tuple[Worker, ...], joints: list[Joint]) -> list[Route]:
    """Between a worker's gateway and its site's router."""
    lines = {joint.name: joint for joint in joints if joint.kind == "line"}
    routes = []
    for worker in workers:
        line = lines.get(f"{worker.name}.access")
        if line is not None:
            assert line.a.address is not None
            assert line.b.address is not None
            network = ipaddress.ip_network(f"{worker.address}/{worker.prefix}", strict=False)
            routes.append(Route(line.a.node, "default", line.b.address, line.a.interface))
            routes.append(Route(line.b.node, str(network), line.a.address, line.b.interface))
    return routes


def _walk(topology: Topology, source: str, target: str) -> tuple[tuple[Joint, Impairment], ...]:
    by_worker = {worker.name: worker for worker in topology.workers}
    first, last = by_worker[source], by_worker[target]
    kinds = ("access", "line")
    access = {joint.name.removesuffix(".access"): joint for joint in topology.joints if joint.kind in kinds}
    crossed: list[tuple[Joint, Impairment]] = []
    if source in access:
        crossed.append((access[source], access[source].forward))
    if first.site != last.site:
        crossed += _cross_sites(topology, first.site, last.site)
    if target in access:
        crossed.append((access[target], access[target].backward))
    return tuple(crossed)


def _cross_sites(topology: Topology, first: str, last: str) -> list[tuple[Joint, Impairment]]:
    number = [site.name for site in topology.profile.sites].index(last) + 1
    hop = {r.node: r.interface for r in topology.routes if r.destination == f"10.{number}.0.0/16"}
    ends = {(j.a.node, j.a.interface): (j, j.forward, j.b.node) for j in topology.joints}
    ends |= {(j.b.node, j.b.interface): (j, j.backward, j.a.node) for j in topology.joints}
    crossed: list[tuple[Joint, Impairment]] = []
    node = router_of(first)
    while node != router_of(last):
        joint, impairment, node = ends[node, hop[node]]
        crossed.append((joint, impairment))
    return crossed
