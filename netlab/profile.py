"""YAML text -> Profile. First step of the flow: profile -> topology -> plan -> executor.

`parse_profile` is pure; `load_profile` reads a file or a shipped profile first. All faults of a file are
reported at once, each as "FILE:LINE: key: value, what is wrong, what is allowed". Keys that a later version
will support are refused, never ignored. The format is described in docs/reference/profile.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from netlab.document import Items, Node, Scalar, describe, parse_document
from netlab.errors import DocumentError, ProfileError, UnitError
from netlab.fields import Fields, Problems, did_you_mean, read_fields, read_text, read_unit
from netlab.impairment import Impairment, QueueRule, derive_queue
from netlab.network import Lan, Link, Profile, Site, Tcp, Uplink
from netlab.shipped import find_document
from netlab.units import Delay, Rate, Size, quote

__all__ = ["Lan", "Link", "Profile", "Site", "Tcp", "Uplink", "load_profile", "parse_profile"]

DEFAULT_MTU = 1500
MIN_MTU, MAX_MTU = 576, 9216  # what every IPv4 host must accept; the largest jumbo frame in common use
MAX_WORKERS_PER_SITE = 1000
MAX_LABEL = 63  # of a host name, RFC 1035
TCP_BUFFER_MIN = 4096
TCP_BUFFER_MAX = 2**31 - 1  # the kernel keeps them in a signed 32-bit integer
RMEM_DEFAULT, WMEM_DEFAULT = 131072, 16384  # Linux's own middle figures, for who states a maximum only

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_NAME_RULE = "letters, digits, '.', '_' and '-', at most 100, the first a letter or digit"
_PROFILE_KEYS = ("name", "source", "sites", "links", "tcp", "mtu", "schedule")
_PROFILE_LATER = ("seed", "hosts", "carrier", "dilation", "traces", "events")
_SITE_KEYS = ("workers", "lan", "uplink")
_SITE_LATER = ("access", "hosts", "image", "seed", "schedule", "mtu", "tcp")
_LINK_KEYS = ("between", "name", "rtt", "delay", "rate", "queue", "mtu", "forward", "backward")
_WAYS = ("forward", "backward")
_DIRECTION_KEYS = ("delay", "rate", "queue")
_TCP_KEYS = ("congestion_control", "slow_start_after_idle", "rmem", "wmem")
_RANDOM_LATER = ("jitter", "distribution", "correlation", "loss", "duplicate", "reorder", "corrupt", "seed")
_IMPAIRMENT_LATER = (*_RANDOM_LATER, "ecn", "discipline", "overhead", "state", "trace", "schedule")
_HINTS = {
    "latency": "write delay (one way) or rtt (both ways together)",
    "ping": "write rtt",
    "bandwidth": "write rate",
    "speed": "write rate",
    "limit": "write queue",
    "buffer": "write queue",
}
_ONE_WAY_HINTS = _HINTS | {"rtt": "here only delay, one way, has a meaning", "latency": "write delay"}


def load_profile(path_or_name: str | Path) -> Profile:
    """Read a profile from a file, or a shipped one by its name ("lan"). Raises ProfileError."""
    try:
        path, text = find_document("networks", path_or_name)
    except DocumentError as error:
        raise ProfileError(error.problems) from None
    return parse_profile(text, path)


def parse_profile(text: str, path: str) -> Profile:
    """Validate a profile; `path` serves messages and a missing name. Raises ProfileError with all faults."""
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
    table = top.table("sites", required=True)
    sites = _sites(top, table or {})
    links = _links(top, tuple(table or {}), mtu)
    if not top.problems.found:
        _check_connected(top, sites, links)
    if top.items("schedule"):
        top.fault("schedule", "schedules are not supported yet by this version; only [] is accepted")
    return Profile(
        name=top.string("name", pattern=_NAME, allowed=_NAME_RULE) or _stem(path),
        source=top.string("source") or "",
        sites=sites,
        links=links,
        tcp=_tcp(top),
        mtu=mtu,
        path=path,
        text=text,
    )


def _stem(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem).lstrip("._-")[:100] or "profile"


# --- sites --------------------------------------------------------------------------------------------------


def _sites(top: Fields, table: Mapping[str, Node]) -> tuple[Site, ...]:
    if top.has("sites") and not table:
        top.fault("sites", "there must be at least one site")
    sites = [_site(name, node, top.problems) for name, node in table.items()]
    complete = tuple(site for site in sites if site is not None)
    _check_worker_names(complete, table, top.problems)
    return complete


def _site(name: str, node: Node, problems: Problems) -> Site | None:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        rule = "lower-case letters, digits and '-', which is neither first nor last"
        problems.add(node.place, f"{quote(name)} is not a site name: {rule}")
    fields = read_fields(node, problems, _SITE_KEYS, _SITE_LATER)
    workers = fields.integer("workers", 1, MAX_WORKERS_PER_SITE, required=True) if fields else None
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


def _check_worker_names(sites: Sequence[Site], nodes: Mapping[str, Node], problems: Problems) -> None:
    """A worker's name is one DNS label, and no site has the name of another site's worker."""
    counts = {site.name: site.workers for site in sites}
    for site in sites:
        last = f"{site.name}-{site.workers - 1}"
        if len(last) > MAX_LABEL:
            room = MAX_LABEL - (len(last) - len(site.name))
            problems.add(
                nodes[site.name].place,
                f"too long: its last worker, {quote(last)}, would have a name of {len(last)} characters; "
                f"a host name has at most {MAX_LABEL}, so this site's at most {room}",
            )
        stem, _, index = site.name.rpartition("-")
        if index.isdecimal() and str(int(index)) == index and int(index) < counts.get(stem, 0):
            problems.add(nodes[site.name].place, f"{quote(site.name)} is also the name of a worker of {stem}")


# --- links --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """What a link, or one direction of it, says for itself; None where it says nothing, or nothing valid."""

    fields: Fields | None
    delay: Delay | None
    rate: Rate | None
    queue: QueueRule | None

    def has(self, key: str) -> bool:
        return self.fields is not None and self.fields.has(key)


def _asked(fields: Fields | None) -> _Asked:
    if fields is None:
        return _Asked(None, None, None, None)
    delay, rate = fields.unit("delay", Delay), fields.unit("rate", Rate)
    return _Asked(fields, delay, rate, fields.unit("queue", QueueRule))


def _links(top: Fields, sites: Sequence[str], mtu: int) -> tuple[Link, ...]:
    links: dict[str, Link] = {}
    by_pair: dict[frozenset[str], Link] = {}
    for node in top.items("links") or ():
        fields = read_fields(node, top.problems, _LINK_KEYS, _IMPAIRMENT_LATER, _HINTS)
        link = _link(fields, sites, mtu) if fields else None
        if fields is None or link is None:
            continue
        twin = by_pair.setdefault(frozenset((link.a, link.b)), link)
        if twin is not link:
            fields.fault("between", f"a second link of {link.a} and {link.b}, first in line {twin.line}")
        elif links.setdefault(link.name, link) is not link:
            fields.fault("name", f"{quote(link.name)} is taken by the link in line {links[link.name].line}")
    return tuple(links.values())


def _link(fields: Fields, sites: Sequence[str], default_mtu: int) -> Link | None:
    ends = _between(fields, sites)
    name = fields.string("name", pattern=_NAME, allowed=_NAME_RULE)
    mtu = fields.integer("mtu", MIN_MTU, MAX_MTU) or default_mtu
    rtt, common = fields.unit("rtt", Delay), _asked(fields)
    ways = [_asked(fields.fields(way, _DIRECTION_KEYS, _IMPAIRMENT_LATER, _ONE_WAY_HINTS)) for way in _WAYS]
    delays = _delays(fields, rtt, common, ways)
    if delays is None:
        return None
    rtt = Delay(delays[0].ns + delays[1].ns)
    forward, backward = (_impairment(common, way, delay, rtt, mtu) for way, delay in zip(ways, delays, strict=True))
    if ends is None:
        return None
    return Link(name or f"{ends[0]}-{ends[1]}", *ends, forward, backward, mtu, fields.place.line)


def _between(fields: Fields, sites: Sequence[str]) -> tuple[str, str] | None:
    node = fields.node("between", required=True)
    if node is None:
        return None
    if not isinstance(node, Items) or len(node.items) != 2:
        what = f"a list of {len(node.items)}" if isinstance(node, Items) else describe(node)
        fields.fault("between", f"{what} found where two sites are wanted, like [nancy, sophia]")
        return None
    a, b = (_known_site(item, sites, fields.problems) for item in node.items)
    if a is None or b is None:
        return None
    if a == b:
        fields.fault("between", f"{quote(a)} twice: a link joins two sites (inside one, see the site's lan)")
        return None
    return a, b


def _known_site(node: Node, sites: Sequence[str], problems: Problems) -> str | None:
    name = read_text(node, problems)
    if name is None or name in sites:
        return name
    known = ", ".join(sites) or "none"
    problems.add(node.place, f"{quote(name)} is not a site (sites: {known}){did_you_mean(name, sites)}")
    return None


def _delays(fields: Fields, rtt: Delay | None, common: _Asked, ways: Sequence[_Asked]) -> tuple[Delay, Delay] | None:
    """One-way delays, forward and backward. An RTT is split evenly; an odd nanosecond goes forward."""
    one_way = ["delay"] if common.has("delay") else []
    one_way += [f"{name}.delay" for name, way in zip(_WAYS, ways, strict=True) if way.has("delay")]
    if fields.has("rtt"):
        if one_way:
            fields.fault("rtt", f"excludes {one_way[0]}: rtt is both ways together, delay is one way")
            return None
        return None if rtt is None else (Delay(rtt.ns - rtt.ns // 2), Delay(rtt.ns // 2))
    missing = [name for name, way in zip(_WAYS, ways, strict=True) if not way.has("delay")]
    if missing and not common.has("delay"):
        where = "delay" if len(missing) == 2 else missing[0]
        fields.fault(where, "no delay: write rtt (both ways together) or delay (one way); 0ms for none")
        return None
    forward, backward = (way.delay if way.has("delay") else common.delay for way in ways)
    return None if forward is None or backward is None else (forward, backward)


def _impairment(common: _Asked, way: _Asked, delay: Delay, rtt: Delay, mtu: int) -> Impairment:
    """One direction: what `forward` or `backward` says, else what the link says."""
    rate_from, queue_from = (way if way.has(key) else common for key in ("rate", "queue"))
    rate, rule = rate_from.rate, queue_from.queue
    if rate is None or rule is None:
        if rule is not None and not rate_from.has("rate") and queue_from.fields is not None:
            queue_from.fields.fault("queue", f"{quote(str(rule))}: a queue needs a rate, and there is none")
        queue = derive_queue(rate, rtt, mtu) if rate else None
        return Impairment(delay, rate, queue, queue_derived=rate is not None)
    try:
        return Impairment(delay, rate, rule.resolve(rate, rtt, mtu), queue_rule=rule)
    except UnitError as error:
        if queue_from.fields is not None:
            queue_from.fields.fault("queue", str(error))
        return Impairment(delay)


def _check_connected(top: Fields, sites: Sequence[Site], links: Iterable[Link]) -> None:
    """Every site must be reachable, over any number of links: workers have to meet."""
    groups = {site.name: {site.name} for site in sites}
    for link in links:
        joined = groups[link.a] | groups[link.b]
        groups.update(dict.fromkeys(joined, joined))
    lost = [site.name for site in sites if site.name not in groups[sites[0].name]]
    if lost:
        top.fault("links", f"no path of links leads from {sites[0].name} to {', '.join(lost)}")


# --- tcp ----------------------------------------------------------------------------------------------------


def _tcp(top: Fields) -> Tcp:
    fields = top.fields("tcp", _TCP_KEYS)
    if fields is None:
        return Tcp()
    known = 'a name the kernel knows, like "cubic", "reno" or "bbr"'
    return Tcp(
        congestion_control=fields.string("congestion_control", pattern=r"[a-z0-9_]{1,15}", allowed=known),
        slow_start_after_idle=fields.boolean("slow_start_after_idle"),
        rmem=_memory(fields, "rmem", RMEM_DEFAULT),
        wmem=_memory(fields, "wmem", WMEM_DEFAULT),
    )


def _memory(fields: Fields, key: str, default: int) -> tuple[int, int, int] | None:
    """Three sizes, or the largest alone, for which the kernel's own first two are filled in."""
    node = fields.node(key)
    sizes = [read_unit(part, fields.problems, Size) for part in _parts(node)] if node else []
    figures = [size.bytes for size in sizes if size is not None]
    if node is None or len(figures) < len(sizes):
        return None
    if len(figures) == 1:
        figures = [TCP_BUFFER_MIN, min(default, figures[0]), figures[0]]
    if len(figures) != 3 or not TCP_BUFFER_MIN <= figures[0] <= figures[1] <= figures[2] <= TCP_BUFFER_MAX:
        fields.fault(
            key,
            f"{', '.join(str(size) for size in sizes) or 'nothing'} is not allowed: one size, the maximum, "
            f"or three rising ones, [min, default, max], from {TCP_BUFFER_MIN}B to {TCP_BUFFER_MAX}B",
        )
        return None
    return figures[0], figures[1], figures[2]


def _parts(node: Node) -> tuple[Node, ...]:
    """A list's entries, or the words of "4KiB 128KiB 6MiB"; a single size may have a blank in it."""
    if isinstance(node, Items):
        return node.items
    if isinstance(node, Scalar) and len(node.text.split()) == 3:
        return tuple(Scalar(node.place, word) for word in node.text.split())
    return (node,)
