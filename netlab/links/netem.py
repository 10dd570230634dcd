"""Carries one direction of a link with the kernel's sch_netem: an Impairment is set on an interface and read back.

Called by the executor for each shaped interface of a site router, and by doctor for `probe`. What an Impairment asks of
netem is decided in netlab.links.netem_model, how that becomes netlink bytes in netlab.links.netem_codec.

A qdisc sees units as they were sent: a TCP unit of 64 KB is one packet to netem, for its limit and its losses alike,
and comes to it before it is cut. `apply` stops local senders from handing over such units; what a router forwards must
be cut before, by the interface it arrives from: see `send_single_packets`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_NEWQDISC, TC_H_ROOT

from netlab.errors import InvalidEmulation, NetlabError
from netlab.impairment import Impairment
from netlab.links import netem_codec as codec
from netlab.links import netem_model as model
from netlab.links.netem_model import ETHERNET_HEADER
from netlab.links.netem_model import settings_for as settings_for
from netlab.links.netem_model import supported as supported
from netlab.links.netem_probe import probe as probe
from netlab.links.relay_stats import DirectionStats
from netlab.units import Rate

HANDLE = 0x10000  # "1:", fixed, so that a second apply changes the qdisc in place and keeps the packets it holds
ARPHRD_ETHER = 1


@dataclass(frozen=True)
class Applied:
    """What a kernel has confirmed. `settings` were asked for, `report` is the kernel's own account of them.

    `queue_packets` of the limit are the model's queue, `in_flight_packets` what the delay holds at the full rate.
    `notes` name the differences from the model that cannot be avoided, for people.
    """

    ifindex: int
    settings: codec.Settings
    report: dict[str, int]
    queue_packets: int | None
    in_flight_packets: int
    notes: tuple[str, ...]

    @property
    def rate(self) -> Rate | None:
        """The rate in force; differs from the one asked for by less than 8 bit/s."""
        return Rate(self.settings.rate * 8) if self.settings.rate else None


@dataclass(frozen=True)
class Counters:
    """What a netem qdisc has done since it was made, and holds now. Bytes count frames with their Ethernet header."""

    packets: int
    bytes: int
    drops: int
    held_packets: int
    held_bytes: int


def apply(ipr: Any, ifindex: int, impairment: Impairment, mtu: int, *, seeded: bool = True) -> Applied:
    """Make the interface treat what leaves it as `impairment` says, and prove it by reading the qdisc back.

    `ipr` is a pyroute2 IPRoute of the interface's namespace, `mtu` that of the interface. Applied again, the qdisc is
    changed in place: packets it holds stay, and nothing of the earlier impairment does. `seeded` as for `supported`.

    Raises PlanError when netem cannot honour the impairment, NetlabError when the kernel refuses it, InvalidEmulation
    when the kernel took something else than was asked for.
    """
    link = ipr.link("get", index=ifindex)[0]
    header = ETHERNET_HEADER if link["ifi_type"] == ARPHRD_ETHER else 0
    settings = settings_for(impairment, mtu, header, seeded=seeded)
    name = link.get_attr("IFLA_IFNAME")
    send_single_packets(ipr, ifindex)
    set_qdisc(ipr, ifindex, settings, name)
    report = read(ipr, ifindex, name)
    problems = codec.differences(settings, report)
    if problems:
        raise InvalidEmulation(f"netem on {name} is not what was asked for: " + "; ".join(problems))
    in_flight, _, queue = model.limit_parts(impairment, mtu)
    return Applied(
        ifindex=ifindex,
        settings=settings,
        report=report,
        queue_packets=None if impairment.queue is None else queue,
        in_flight_packets=in_flight,
        notes=model.notes(impairment, mtu),
    )


def told(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Differences from the model in words, each with the directions that have it, of many the first two."""
    found = []
    for note, directions in notes.items():
        names = ", ".join(directions[:2]) + (f" and {len(directions) - 2} more" if len(directions) > 2 else "")
        found.append(f"netem: {note} ({names})")
    return found


def send_single_packets(ipr: Any, ifindex: int) -> None:
    """Make the interface cut what it sends into packets of its MTU (generic segmentation with one segment a unit).

    A netem qdisc judges each unit as one packet and comes before the cutting, so this has to be done on the interface
    *before* it on the path: for a site router, the workers' ends of the veths that lead to it. `apply` does it on its
    own interface too, which covers packets made in that namespace. Idempotent. Raises NetlabError.
    """
    try:
        ipr.link("set", index=ifindex, gso_max_segs=1)
    except NetlinkError as error:
        raise NetlabError(f"interface {ifindex}: the kernel refuses gso_max_segs 1: {error}") from error
    segments = ipr.link("get", index=ifindex)[0].get_attr("IFLA_GSO_MAX_SEGS")
    if segments != 1:
        raise InvalidEmulation(f"interface {ifindex}: asked for gso_max_segs 1, the kernel has {segments}")


def set_qdisc(ipr: Any, ifindex: int, settings: codec.Settings, name: str = "") -> None:
    """Send the full state of the interface's root netem, made or changed in place. Raises NetlabError."""
    message = codec.NetemMessage()
    message["index"], message["handle"], message["parent"] = ifindex, HANDLE, TC_H_ROOT
    message["attrs"] = [("TCA_KIND", codec.KIND), ("TCA_OPTIONS", codec.encode(settings))]
    message["header"]["type"] = RTM_NEWQDISC
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
    try:
        ipr.nlm_request_batch([message])
    except NetlinkError as error:
        raise NetlabError(
            f"the kernel refuses a netem qdisc on {name or ifindex}: {error}; `netlab doctor` says what is missing"
        ) from error


def read(ipr: Any, ifindex: int, name: str = "") -> dict[str, int]:
    """The kernel's account of the interface's root netem, as `netem_codec.expected_report` names it.

    Raises InvalidEmulation when there is no such qdisc (any more).
    """
    return codec.read_report(_find(ipr, ifindex, name).get_attr("TCA_OPTIONS"))


def counters(ipr: Any, ifindex: int, name: str = "") -> Counters:
    """What the interface's root netem has passed and dropped, and holds. Raises InvalidEmulation when there is none."""
    stats = _find(ipr, ifindex, name).get_attr("TCA_STATS2")
    basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
    packets = stats.get_attr("TCA_STATS_PKT64") or basic["packets"]
    return Counters(packets, basic["bytes"], queue["drops"], queue["qlen"], queue["backlog"])


def statistics(ipr: Any, ifindex: int, name: str, impairment: Impairment) -> DirectionStats:
    """The counters of a direction in the relay's terms, as far as netem counts: lateness, peaks and causes stay empty.

    Its drops are those of the queue. What it holds is counted as queued, though packets that only wait out the delay
    are among it. `impairment` is the one in force, and the interface an Ethernet device.
    """
    seen = counters(ipr, ifindex, name)
    left = seen.bytes - seen.packets * ETHERNET_HEADER
    held = seen.held_bytes - seen.held_packets * ETHERNET_HEADER
    zero: dict[str, Any] = {
        field.name: () if field.name.startswith("lateness") else 0 for field in fields(DirectionStats)
    }
    zero |= {"lateness_max_ns": 0, "lateness_sum_ns": 0}
    known = {
        "name": name,
        "packets_in": seen.packets + seen.drops + seen.held_packets,
        "packets_out": seen.packets,
        "units_out": seen.packets,
        "bytes_in": left + held,
        "bytes_out": left,
        "wire_bytes_out": left + seen.packets * impairment.overhead,
        "drops_queue": seen.drops,
        "queue_bytes": held + seen.held_packets * impairment.overhead,
        "queue_packets": seen.held_packets,
        "updated_ns": time.monotonic_ns(),
    }
    return DirectionStats(**(zero | known))


def _find(ipr: Any, ifindex: int, name: str) -> Any:
    kinds = []
    for seen in ipr.tc("dump", index=ifindex):
        if seen["parent"] != TC_H_ROOT:
            continue
        kinds.append(seen.get_attr("TCA_KIND"))
        if kinds[-1] == codec.KIND:
            message = codec.NetemMessage(seen.data, offset=seen.offset)  # pyroute2's own class skips attributes
            message.decode()
            return message
    raise InvalidEmulation(f"{name or f'interface {ifindex}'} has no netem qdisc, its root is {kinds or 'empty'}")
