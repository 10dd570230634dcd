"""YAML text -> Profile: a network as asked for, validated, with every default filled in.

First step of the flow: profile -> topology -> plan -> executor. `parse_profile` is pure; `load_profile` reads a file or
a shipped profile. Every fault is a line "FILE:LINE: key: value, what is wrong, what is allowed", and all faults of
a file are reported at once. The format is described in docs/reference/profile.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from netlab.document import (
    Fields,
    Items,
    Node,
    Problems,
    Scalar,
    describe,
    did_you_mean,
    parse_document,
    read_fields,
    read_text,
    read_unit,
)
from netlab.errors import DocumentError, ProfileError, UnitError
from netlab.impairment import Impairment, QueueRule, derive_queue
from netlab.shipped import find_document
from netlab.units import Delay, Rate, Size, quote

DEFAULT_MTU = 1500
MIN_MTU, MAX_MTU = 576, 9216  # what every IPv4 host must accept; the largest jumbo frame in common use
MAX_WORKERS_PER_SITE = 1000
MAX_LABEL = 63  # one DNS label, RFC 1035
TCP_BUFFER_MIN = 4096
TCP_BUFFER_MAX = 2**31 - 1  # the kernel keeps them in a signed 32-bit integer
RMEM_DEFAULT, WMEM_DEFAULT = 131072, 16384  # the middle figures of a Linux kernel nobody has tuned

_PROFILE_KEYS = ("name", "source", "sites", "links", "tcp", "mtu", "schedule")
_PROFILE_LATER = ("seed", "hosts", "carrier", "dilation", "traces", "events")
_SITE_KEYS = ("workers", "lan", "uplink")
_SITE_LATER = ("access", "hosts", "image", "seed", "schedule")
_LINK_KEYS = ("between", "name", "rtt", "delay", "rate", "queue", "mtu", "forward", "backward")
_DIRECTION_KEYS = ("delay", "rate", "queue")
_IMPAIRMENT_LATER = (
    "jitter", "distribution", "correlation", "loss", "duplicate", "reorder", "corrupt", "ecn", "discipline",
    "overhead", "seed", "state", "trace", "schedule",
)  # fmt: skip
_HINTS = {
    "latency": "write delay (one way) or rtt (both ways together)",
    "ping": "write rtt",
    "bandwidth": "write rate",
    "speed": "write rate",
    "limit": "write queue",
    "buffer": "write queue",
}
_ONE_WAY_HINTS = _HINTS | {
    "rtt": "here only delay (one way) has a meaning",
    "latency": "write delay (one way)",
}


@dataclass(frozen=True)
class Lan:
    """The network inside a site. None: nothing is added to what this machine does by itself."""

    delay: Delay | None = None  # one way between two hosts of the site
    rate: Rate | None = None  # of each host's port, both directions


@dataclass(frozen=True)
class Uplink:
    """The port through which a site reaches all its links; its workers share it. Both directions."""

    rate: Rate


@dataclass(frozen=True)
class Site:
    """Hosts on one LAN. Its workers are named NAME-0, NAME-1 ..."""

    name: str
    workers: int
    lan: Lan
    uplink: Uplink | None
    line: int


@dataclass(frozen=True)
class Link:
    """A WAN path between two sites: `forward` from a to b, `backward` from b to a."""

    name: str
    a: str
    b: str
    forward: Impairment
    backward: Impairment
    mtu: int
    line: int

    @property
    def rtt(self) -> Delay:
        """Propagation there and back, without serialisation."""
        return Delay(self.forward.delay.ns + self.backward.delay.ns)


@dataclass(frozen=True)
class Tcp:
    """Settings of the workers' TCP. None: as the kernel has it."""

    congestion_control: str | None = None
    slow_start_after_idle: bool | None = None
    rmem: tuple[int, int, int] | None = None  # bytes: min, default, max
    wmem: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Profile:
    """A network, as asked for. Sites and links are in the order of the file; ranks follow it."""

    name: str
    source: str
    sites: tuple[Site, ...]
    links: tuple[Link, ...]
    tcp: Tcp
    mtu: int
    path: str
    text: str


def load_profile(path_or_name: str) -> Profile:
    """Read a profile from a file, or a shipped one by its name ("grid5000-nancy-sophia"). Raises ProfileError."""
    try:
        path, text = find_document("networks", path_or_name)
    except DocumentError as error:
        raise ProfileError(error.problems) from None
    return parse_profile(text, path)


def parse_profile(text: str, path: str) -> Profile:
    """Validate a profile; `path` is used in messages and for a missing name. Raises ProfileError with all faults."""
    problems = Problems()
    try:
        top = read_fields(parse_document(text, path), problems, _PROFILE_KEYS, _PROFILE_LATER, _HINTS)
    except DocumentError as error:
        raise ProfileError(error.problems) from None
    profile = _profile(top, text, path) if top else None
    problems.raise_as(ProfileError)
    assert profile is not None, "no profile, yet no problem noted"
    return profile


def _profile(top: Fields, text: str, path: str) -> Profile:
    mtu = top.integer("mtu", MIN_MTU, MAX_MTU) or DEFAULT_MTU
    sites = tuple(_sites(top))
    links = tuple(_links(top, [site.name for site in sites], mtu))
    _check_links(top, sites, links)
    if top.items("schedule"):
        top.fault(
            "schedule", "schedules are not supported yet by this version of netlab; only [] is accepted"
        )
    return Profile(
        name=top.string("name", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", allowed=_NAME_RULE)
        or _stem(path),
        source=top.string("source") or "",
        sites=sites,
        links=links,
        tcp=_tcp(top),
        mtu=mtu,
        path=path,
        text=text,
    )


_NAME_RULE = "letters, digits, '.', '_' and '-', at most 100, the first a letter or digit"


def _stem(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem).lstrip("._-")[:100] or "profile"


# --- sites -----------------------------------------------------------------------------------------------------


def _sites(top: Fields) -> Iterator[Site]:
    table = top.table("sites", required=True)
    if table is not None and not table:
        top.fault("sites", "there must be at least one site")
    for name, node in (table or {}).items():
        site = _site(name, node, top.problems)
        if site is not None:
            yield site


def _site(name: str, node: Node, problems: Problems) -> Site | None:
    fields = read_fields(node, problems, _SITE_KEYS, _SITE_LATER)
    workers = fields.integer("workers", 1, MAX_WORKERS_PER_SITE, required=True) if fields else None
    _check_site_name(name, workers or 1, node, problems)
    if fields is None:
        return None
    lan = fields.fields("lan", ("delay", "rate"), _IMPAIRMENT_LATER, _ONE_WAY_HINTS)
    uplink = fields.fields("uplink", ("rate",), (*_IMPAIRMENT_LATER, "delay", "queue"), _ONE_WAY_HINTS)
    uplink_rate = uplink.unit("rate", Rate, required=True) if uplink else None
    return Site(
        name=name,
        workers=workers or 1,
        lan=Lan(lan.unit("delay", Delay), lan.unit("rate", Rate)) if lan else Lan(),
        uplink=Uplink(uplink_rate) if uplink_rate else None,
        line=node.place.line,
    )


def _check_site_name(name: str, workers: int, node: Node, problems: Problems) -> None:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        problems.add(
            node.place,
            f"{quote(name)} is not a site name: lower-case letters, digits and '-', not at either end",
        )
    longest = f"{name}-{workers - 1}"
    if len(longest) > MAX_LABEL:
        problems.add(
            node.place,
            f"the name of its last worker, {quote(longest)}, has {len(longest)} characters; a host name has at "
            f"most {MAX_LABEL}, so this site's name has at most {MAX_LABEL - len(longest) + len(name)}",
        )


# --- links -----------------------------------------------------------------------------------------------------


def _links(top: Fields, sites: Sequence[str], mtu: int) -> Iterator[Link]:
    for node in top.items("links") or ():
        fields = read_fields(node, top.problems, _LINK_KEYS, _IMPAIRMENT_LATER, _HINTS)
        link = _link(fields, sites, mtu) if fields else None
        if link is not None:
            yield link


def _link(fields: Fields, sites: Sequence[str], default_mtu: int) -> Link | None:
    ends = _between(fields, sites)
    name = fields.string("name", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", allowed=_NAME_RULE)
    mtu = fields.integer("mtu", MIN_MTU, MAX_MTU) or default_mtu
    ways = [fields.fields(way, _DIRECTION_KEYS, _IMPAIRMENT_LATER, _ONE_WAY_HINTS) for way in _WAYS]
    delays = _delays(fields, ways)
    if ends is None or delays is None:
        return None
    rtt = Delay(delays[0].ns + delays[1].ns)
    forward, backward = (
        _impairment(fields, way, delay, rtt, mtu) for way, delay in zip(ways, delays, strict=True)
    )
    return Link(name or f"{ends[0]}-{ends[1]}", *ends, forward, backward, mtu, fields.place.line)


_WAYS = ("forward", "backward")


def _between(fields: Fields, sites: Sequence[str]) -> tuple[str, str] | None:
    node = fields.node("between", required=True)
    if node is None:
        return None
    if not isinstance(node, Items) or len(node.items) != 2:
        fields.fault("between", f"{describe(node)} found where two sites are wanted, like [nancy, sophia]")
        return None
    names = [read_text(item, fields.problems) for item in node.items]
    for item, name in zip(node.items, names, strict=True):
        if name is not None and name not in sites:
            known = ", ".join(sites)
            fields.problems.add(
                item.place, f"{quote(name)} is not a site (sites: {known}){did_you_mean(name, sites)}"
            )
    a, b = names
    if a is None or b is None or a not in sites or b not in sites:
        return None
    if a == b:
        fields.fault("between", f"{quote(a)} twice: a link joins two sites (inside one, see the site's lan)")
        return None
    return a, b


def _delays(fields: Fields, ways: Sequence[Fields | None]) -> tuple[Delay, Delay] | None:
    """One-way delays, forward and backward. An RTT is split evenly; an odd nanosecond goes forward."""
    rtt, both = fields.unit("rtt", Delay), fields.unit("delay", Delay)
    own = [way.unit("delay", Delay) if way else None for way in ways]
    written = [key for key in ("delay",) if fields.has(key)]
    written += [f"{name}.delay" for name, way in zip(_WAYS, ways, strict=True) if way and way.has("delay")]
    if fields.has("rtt") and written:
        fields.fault(
            "rtt", f"rtt (both ways together) excludes delay (one way), but {written[0]} is written, too"
        )
        return None
    if rtt is not None:
        return Delay(rtt.ns - rtt.ns // 2), Delay(rtt.ns // 2)
    forward, backward = own[0] or both, own[1] or both
    if forward is not None and backward is not None:
        return forward, backward
    if not fields.has("rtt") and not fields.has("delay") and len(written) < 2:
        fields.fault("delay", "is missing: write rtt (both ways together) or delay (one way), 0ms for none")
    return None


def _impairment(link: Fields, way: Fields | None, delay: Delay, rtt: Delay, mtu: int) -> Impairment:
    """One direction: what `forward` or `backward` says, else what the link says."""
    rate = _own_or_common(link, way, "rate").unit("rate", Rate)
    asker = _own_or_common(link, way, "queue")
    rule = asker.unit("queue", QueueRule)
    if rate is None:
        if rule is not None and not link.has("rate"):
            asker.fault("queue", f"{quote(str(rule))}: a queue needs a rate, and this direction has none")
        return Impairment(delay)
    if rule is None:
        return Impairment(delay, rate, derive_queue(rate, rtt, mtu), queue_derived=True)
    try:
        return Impairment(delay, rate, rule.resolve(rate, rtt, mtu), queue_rule=rule)
    except UnitError as error:
        asker.fault("queue", str(error))
        return Impairment(delay)


def _own_or_common(link: Fields, way: Fields | None, key: str) -> Fields:
    return way if way is not None and way.has(key) else link


def _check_links(top: Fields, sites: Sequence[Site], links: Sequence[Link]) -> None:
    by_pair: dict[frozenset[str], Link] = {}
    by_name: dict[str, Link] = {}
    for link in links:
        place = top.place.child("links", link.line)
        first = by_pair.setdefault(frozenset((link.a, link.b)), link)
        if first is not link:
            top.problems.add(
                place, f"a second link between {link.a} and {link.b}, first in line {first.line}"
            )
        elif by_name.setdefault(link.name, link) is not link:
            top.problems.add(place, f"a second link named {quote(link.name)}: give one a name of its own")
    if not top.problems.found:
        _check_connected(top, sites, links)


def _check_connected(top: Fields, sites: Sequence[Site], links: Sequence[Link]) -> None:
    reached, frontier = {sites[0].name}, [sites[0].name]
    while frontier:
        here = frontier.pop()
        for link in links:
            there = link.b if link.a == here else link.a if link.b == here else None
            if there is not None and there not in reached:
                reached.add(there)
                frontier.append(there)
    lost = [site.name for site in sites if site.name not in reached]
    if lost:
        top.fault("links", f"no path of links leads from {sites[0].name} to {', '.join(lost)}")


# --- tcp -------------------------------------------------------------------------------------------------------


def _tcp(top: Fields) -> Tcp:
    keys = ("congestion_control", "slow_start_after_idle", "rmem", "wmem")
    fields = top.fields("tcp", keys)
    if fields is None:
        return Tcp()
    return Tcp(
        congestion_control=fields.string(
            "congestion_control",
            pattern=r"[a-z0-9_]{1,15}",
            allowed='a name the kernel knows, like "cubic", "reno" or "bbr"',
        ),
        slow_start_after_idle=fields.boolean("slow_start_after_idle"),
        rmem=_memory(fields, "rmem", RMEM_DEFAULT),
        wmem=_memory(fields, "wmem", WMEM_DEFAULT),
    )


def _memory(fields: Fields, key: str, default: int) -> tuple[int, int, int] | None:
    node = fields.node(key)
    if node is None:
        return None
    sizes = [read_unit(part, fields.problems, Size) for part in _parts(node)]
    values = [size.bytes for size in sizes if size is not None]
    if len(values) < len(sizes):
        return None
    if len(values) == 1:
        values = [TCP_BUFFER_MIN, min(default, values[0]), values[0]]
    if len(values) != 3 or not TCP_BUFFER_MIN <= values[0] <= values[1] <= values[2] <= TCP_BUFFER_MAX:
        fields.fault(
            key,
            f"{describe(node)} is not allowed: one size (the maximum) or three as [min, default, max], rising, "
            f"between {TCP_BUFFER_MIN}B and {TCP_BUFFER_MAX}B",
        )
        return None
    return values[0], values[1], values[2]


def _parts(node: Node) -> tuple[Node, ...]:
    """A list's entries, or the words of "4KiB 128KiB 6MiB"; a single size may have a blank before its unit."""
    if isinstance(node, Items):
        return node.items
    if isinstance(node, Scalar) and len(node.text.split()) == 3:
        return tuple(Scalar(node.place, word) for word in node.text.split())
    return (node,)
