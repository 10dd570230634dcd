"""The `links` of a profile and the `access` of its sites -> Links, their directions resolved, and their traces. Pure.

Part of `netlab.profile`. What `forward` or `backward` says counts before what the link says; then the settings of each
direction are resolved together, and a combination that cannot be is a fault of the key to blame, where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netlab.attached import Attached
from netlab.chances import derive_seed
from netlab.document import Items, Node, Table, describe
from netlab.fields import Fields, Problems, did_you_mean, read_fields, read_text
from netlab.impairment import ETHERNET, Impairment, QueueRule, derive_queue
from netlab.link_fields import DIRECTION_KEYS, HINTS, ONE_WAY_HINTS, read_settings
from netlab.network import Link
from netlab.schedule_fields import read_trace
from netlab.settings import Conflict, QueueWish, resolve
from netlab.timeline import WAYS, Entry, Series, Target
from netlab.units import Delay, Duration, quote

MIN_MTU, MAX_MTU = 576, 9216  # what every IPv4 host must accept; the largest jumbo frame in common use
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
NAME_RULE = "letters, digits, '.', '_' and '-', at most 100, the first a letter or digit"
ACCESS_KEYS = ("rtt", *DIRECTION_KEYS, "mtu", "forward", "backward")
LINK_KEYS = ("between", "name", *ACCESS_KEYS)
_ACCESS_HINTS = HINTS | dict.fromkeys(("upload", "uplink", "up"), "write forward: {...}: it leads from the worker")
_ACCESS_HINTS |= dict.fromkeys(("download", "downlink", "down"), "write backward: {...}: it leads to the worker")


@dataclass(frozen=True)
class Common:
    """What all links share: the sites, the profile's MTU and seed, and its files."""

    sites: Sequence[str]
    mtu: int
    seed: int
    attached: Attached


@dataclass(frozen=True)
class _Asked:
    """What a link, or one direction of it, says for itself. A key that is written but faulty has no setting."""

    fields: Fields | None
    settings: Mapping[str, Any]

    def has(self, key: str) -> bool:
        return self.fields is not None and self.fields.has(key)


def read_links(top: Fields, common: Common) -> tuple[tuple[Link, ...], tuple[Entry, ...]]:
    """The links in the order of the file, and one entry of the schedule for each trace."""
    links: dict[str, Link] = {}
    traces: list[Entry] = []
    by_pair: dict[frozenset[str], Link] = {}
    for node in top.items("links") or ():
        fields = read_fields(node, top.problems, LINK_KEYS, ("schedule",), HINTS)
        read = _link(fields, common) if fields else None
        if fields is None or read is None:
            continue
        link, entries = read
        twin = by_pair.setdefault(frozenset((link.a, link.b)), link)
        if twin is not link:
            fields.fault("between", f"a second link of {link.a} and {link.b}, first in line {twin.line}")
        elif links.setdefault(link.name, link) is not link:
            fields.fault("name", f"{quote(link.name)} is taken by the link in line {links[link.name].line}")
        traces += entries
    return tuple(links.values()), tuple(traces)


def read_access(
    top: Fields, sites: Mapping[str, int], links: Sequence[Link], common: Common
) -> tuple[tuple[Link, ...], tuple[Entry, ...]]:
    """The access of single workers in the order of the file, and one entry of the schedule for each trace.

    `sites`: names of the sites with their number of workers. `links`: those between sites, whose names are taken.
    """
    found: list[Link] = []
    traces: list[Entry] = []
    for site, node in (top.table("sites") or {}).items():
        if not isinstance(node, Table) or site not in sites:
            continue
        table = Fields(node, top.problems).table("access") or {}
        for index, below in table.items():
            read = _access(site, index, below, sites[site], top.problems, common)
            if read is None:
                continue
            found.append(read[0])
            traces += read[1]
            for link in links:
                if link.name == read[0].name:
                    top.problems.add(
                        below.place, f"{quote(link.name)} is already the name of the link in line {link.line}"
                    )
    return tuple(found), tuple(traces)


def _access(
    site: str, index: str, node: Node, workers: int, problems: Problems, common: Common
) -> tuple[Link, list[Entry]] | None:
    if not index.isdecimal() or str(int(index)) != index or int(index) >= workers:
        problems.add(node.place, f"{quote(index)} is no worker of {site}: an index from 0 to {workers - 1} is wanted")
        return None
    fields = read_fields(node, problems, ACCESS_KEYS, ("schedule",), _ACCESS_HINTS)
    worker = f"{site}-{index}"
    return _read(fields, common, (worker, site), f"{worker}.access") if fields else None


def _link(fields: Fields, common: Common) -> tuple[Link, list[Entry]] | None:
    ends = _between(fields, common.sites)
    name = fields.string("name", pattern=NAME, allowed=NAME_RULE) or ("-".join(ends) if ends else "")
    return _read(fields, common, ends, name)


def _read(fields: Fields, common: Common, ends: tuple[str, str] | None, name: str) -> tuple[Link, list[Entry]] | None:
    """What a link says beside its ends and its name."""
    mtu = fields.integer("mtu", MIN_MTU, MAX_MTU) or common.mtu
    rtt, asked = fields.unit("rtt", Delay), _Asked(fields, read_settings(fields, common.attached))
    parts = [fields.fields(way, DIRECTION_KEYS, ("schedule",), ONE_WAY_HINTS) for way in WAYS]
    ways = [_Asked(part, read_settings(part, common.attached)) for part in parts]
    delays = _delays(fields, rtt, asked, ways)
    if delays is None:
        return None
    rtt = Delay(delays[0].ns + delays[1].ns)
    impairments, entries = [], []
    for direction, way, delay in zip(WAYS, ways, delays, strict=True):
        seed = derive_seed(common.seed, name, direction)
        settings = {"seed": seed, **asked.settings, **way.settings, "delay": delay}
        trace = _trace(asked, way, settings, mtu, common)
        if trace is not None and ends is not None:
            settings = _beneath(trace[0], settings, rtt, mtu)
            entries.append(Entry(Duration(0), (Target(name, direction, trace[0]),), label=trace[1], line=trace[2]))
        impairments.append(_impairment(asked, way, settings, rtt, mtu))
    if ends is None:
        return None
    forward, backward = impairments
    return Link(name, *ends, forward, backward, mtu, fields.place.line), entries


def _between(fields: Fields, sites: Sequence[str]) -> tuple[str, str] | None:
    node = fields.node("between", required=True)
    if node is None:
        return None
    if not isinstance(node, Items) or len(node.items) != 2:
        what = f"a list of {len(node.items)}" if isinstance(node, Items) else describe(node)
        fields.fault("between", f"{what} found where two sites are wanted, like [nancy, sophia]")
        return None
    a, b = (known_site(item, sites, fields.problems) for item in node.items)
    if a is None or b is None:
        return None
    if a == b:
        fields.fault("between", f"{quote(a)} twice: a link joins two sites (inside one, see the site's lan)")
        return None
    return a, b


def known_site(node: Node, sites: Sequence[str], problems: Problems) -> str | None:
    """The name of a site that there is."""
    name = read_text(node, problems)
    if name is None or name in sites:
        return name
    known = ", ".join(sites) or "none"
    problems.add(node.place, f"{quote(name)} is not a site (sites: {known}){did_you_mean(name, sites)}")
    return None


def _delays(fields: Fields, rtt: Delay | None, common: _Asked, ways: Sequence[_Asked]) -> tuple[Delay, Delay] | None:
    """One-way delays, forward and backward. An RTT is split evenly; an odd nanosecond goes forward."""
    one_way = ["delay"] if common.has("delay") else []
    one_way += [f"{name}.delay" for name, way in zip(WAYS, ways, strict=True) if way.has("delay")]
    if fields.has("rtt"):
        if one_way:
            fields.fault("rtt", f"excludes {one_way[0]}: rtt is both ways together, delay is one way")
            return None
        return None if rtt is None else halves(rtt)
    missing = [name for name, way in zip(WAYS, ways, strict=True) if not way.has("delay")]
    if missing and not common.has("delay"):
        where = "delay" if len(missing) == 2 else missing[0]
        fields.fault(where, "no delay: write rtt (both ways together) or delay (one way); 0ms for none")
        return None
    forward, backward = ((way if way.has("delay") else common).settings.get("delay") for way in ways)
    return None if forward is None or backward is None else (forward, backward)


def halves(rtt: Delay) -> tuple[Delay, Delay]:
    """One-way delays, forward and backward, of a round trip; an odd nanosecond goes forward."""
    return Delay(rtt.ns - rtt.ns // 2), Delay(rtt.ns // 2)


def _trace(
    common: _Asked, way: _Asked, settings: Mapping[str, Any], mtu: int, shared: Common
) -> tuple[Series, str, int] | None:
    """The direction's trace, and where it is written."""
    fields = (way if way.has("trace") else common).fields
    node = fields.node("trace") if fields else None
    if fields is None or node is None:
        return None
    series = read_trace(node, fields.problems, shared.attached, settings.get("framing", ETHERNET))
    return None if series is None else (series, node.place.key, node.place.line)


def _beneath(trace: Series, settings: Mapping[str, Any], rtt: Delay, mtu: int) -> dict[str, Any]:
    """The settings beneath a trace, so that a link whose rate only its trace tells has one before it starts.

    A queue that nobody asks for is derived once, from that rate, and then stays: memory does not follow the signal.
    """
    rates = [values["rate"] for _, values in trace.points if "rate" in values]
    found = dict(settings)
    if not rates:
        return found
    rate = found.setdefault("rate", max(rates))
    wish = found.get("queue") or QueueWish()
    if wish.rule is None:
        limit = derive_queue(rate, rtt, mtu, found.get("framing", ETHERNET)).bytes
        assert limit is not None, "derived in bytes"
        found["queue"] = QueueWish(QueueRule("bytes", limit), wish.codel)
    return found


def _impairment(common: _Asked, way: _Asked, settings: Mapping[str, Any], rtt: Delay, mtu: int) -> Impairment:
    """One direction, resolved; a Conflict is a fault of the key to blame, where that is written."""
    if "rate" not in settings and (way.has("rate") or common.has("rate")):
        settings = {key: value for key, value in settings.items() if key not in ("queue", "framing")}
    try:
        return resolve(settings, rtt, mtu)
    except Conflict as conflict:
        source = way if way.has(conflict.key) else common
        if source.fields is not None:
            source.fields.fault(conflict.key, str(conflict))
        return Impairment(settings["delay"])
