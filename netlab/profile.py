"""YAML text -> Profile. First step of the flow: profile -> topology -> plan -> executor.

`parse_profile` is pure; `load_profile` reads a file or a shipped profile first. All faults of a file are
reported at once, each as "FILE:LINE: key: value, what is wrong, what is allowed". Keys that a later version
will support are refused, never ignored. The format is described in docs/reference/profile.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from netlab.attached import Attached, no_files
from netlab.chances import MAX_SEED
from netlab.document import Items, Node, Place, Scalar, parse_document
from netlab.errors import DocumentError, ProfileError
from netlab.fields import Fields, Problems, read_fields, read_unit
from netlab.hosts.settings import read_settings, read_site_settings
from netlab.link_fields import DIRECTION_KEYS, HINTS, ONE_WAY_HINTS
from netlab.network import Lan, Link, Profile, Site, Tcp, Uplink
from netlab.profile_links import MAX_MTU, MIN_MTU, NAME, NAME_RULE, Common, read_access, read_links
from netlab.schedule import check
from netlab.schedule_fields import read_schedule
from netlab.shipped import find_document, read_beside
from netlab.units import Delay, Rate, Size, quote

__all__ = ["Lan", "Link", "Profile", "Site", "Tcp", "Uplink", "load_profile", "parse_profile"]

DEFAULT_MTU = 1500
MAX_WORKERS_PER_SITE = 1000
MAX_LABEL = 63  # of a host name, RFC 1035
TCP_BUFFER_MIN = 4096
TCP_BUFFER_MAX = 2**31 - 1  # the kernel keeps them in a signed 32-bit integer
RMEM_DEFAULT, WMEM_DEFAULT = 131072, 16384  # Linux's own middle figures, for who states a maximum only

_PROFILE_KEYS = ("name", "source", "sites", "links", "tcp", "mtu", "seed", "schedule", "hosts")
_PROFILE_LATER = ("carrier", "dilation", "traces", "events")
_SITE_KEYS = ("workers", "lan", "uplink", "hosts", "access")
_SITE_LATER = ("seed", "schedule", "mtu", "tcp")
_TCP_KEYS = ("congestion_control", "slow_start_after_idle", "rmem", "wmem")
_LAN_LATER = (*(key for key in DIRECTION_KEYS if key not in ("delay", "rate")), "schedule")


def load_profile(path_or_name: str | Path) -> Profile:
    """Read a profile from a file, or a shipped one by its name ("lan"). Raises ProfileError."""
    try:
        path, text = find_document("networks", path_or_name)
    except DocumentError as error:
        raise ProfileError(error.problems) from None
    return parse_profile(text, path, lambda name: read_beside(path, name))


def parse_profile(text: str, path: str, read: Callable[[str], str] = no_files) -> Profile:
    """Validate a profile; `path` serves messages and a missing name. Raises ProfileError with all faults.

    `read` gives the text of a file that the profile names, or raises DocumentError.
    """
    problems = Problems()
    try:
        top = read_fields(parse_document(text, path), problems, _PROFILE_KEYS, _PROFILE_LATER, HINTS)
    except DocumentError as error:
        raise ProfileError(error.problems) from None
    profile = _profile(top, text, path, Attached(read)) if top else None
    problems.raise_as(ProfileError)
    assert profile is not None, "no profile, yet no problem noted"
    for clash in check(profile):
        problems.add(Place(path, clash.entry.line, clash.entry.label), str(clash))
    problems.raise_as(ProfileError)
    return profile


def _profile(top: Fields, text: str, path: str, attached: Attached) -> Profile:
    mtu = top.integer("mtu", MIN_MTU, MAX_MTU) or DEFAULT_MTU
    table = top.table("sites", required=True)
    sites = _sites(top, table or {})
    seed = top.integer("seed", 0, MAX_SEED) or 0
    common = Common(tuple(table or {}), mtu, seed, attached)
    links, traces = read_links(top, common)
    access, more_traces = read_access(top, {site.name: site.workers for site in sites}, links, common)
    if not top.problems.found:
        _check_connected(top, sites, links)
    # Entries name links, so where those are faulty, what their entries would say is noise.
    schedule = read_schedule(top, (*links, *access), common.sites, attached) if not top.problems.found else ()
    return Profile(
        name=top.string("name", pattern=NAME, allowed=NAME_RULE) or _stem(path),
        source=top.string("source") or "",
        sites=sites,
        links=links,
        tcp=_tcp(top),
        mtu=mtu,
        path=path,
        text=text,
        seed=seed,
        schedule=(*traces, *more_traces, *schedule),
        files=attached.all(),
        hosts=read_settings(top),
        access=access,
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
    fields = read_fields(node, problems, _SITE_KEYS, _SITE_LATER, {"image": "write it below hosts: {image: ...}"})
    workers = fields.integer("workers", 1, MAX_WORKERS_PER_SITE, required=True) if fields else None
    if fields is None:
        return None
    lan = fields.fields("lan", ("delay", "rate"), _LAN_LATER, ONE_WAY_HINTS)
    uplink = fields.fields("uplink", ("rate",), (*_LAN_LATER, "delay"), ONE_WAY_HINTS)
    uplink_rate = uplink.unit("rate", Rate, required=True) if uplink else None
    hosts, hosts_of = read_site_settings(fields, workers or 1)
    return Site(
        name=name,
        workers=workers or 1,
        lan=Lan(lan.unit("delay", Delay), lan.unit("rate", Rate)) if lan else Lan(),
        uplink=Uplink(uplink_rate) if uplink_rate else None,
        line=node.place.line,
        hosts=hosts,
        hosts_of=hosts_of,
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


# --- the whole ---------------------------------------------------------------------------------------------


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
