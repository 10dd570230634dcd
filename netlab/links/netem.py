"""Carries one direction of a link with the kernel's sch_netem: an Impairment is set on an interface and read back.

Called by the executor for each shaped interface of a site router, and by doctor for `probe`. How settings become
netlink bytes is in netlab.links.netem_codec.

What netem does with the settings (net/sched/sch_netem.c, netem_enqueue): a packet arriving at `now` is released at
max(now + delay, release of the packet before) + size/rate. That is the model of our relay too, a rate limiter with a
queue followed by a fixed delay: delay and rate commute as long as the delay is constant. What netem counts differs:

- *Packets, not bytes, and one limit for everything it holds*: packets that wait for the rate limiter, the one being
  sent, and those that have left it and only wait out the delay. So the limit is the model's queue in packets of full
  size, plus one, plus rate x delay in such packets. For full-size packets, those of a bulk transfer, the queue is then
  the model's to within two packets; smaller packets fill it with fewer bytes than the model allows.
- *Frames without preamble, checksum and gap*: made up for by netem's packet overhead. A smallest frame is not made up
  for: netem has no lower bound for a packet's size (it matters below 46 IP bytes only).
- *Units as they were sent*: a TCP unit of 64 KB is one packet to netem, for limit and loss alike, and a qdisc sees it
  before it is cut. `apply` stops local senders from handing over such units; what a router forwards must be cut
  before, by the interface it arrives from: see `send_single_packets`.
- *Whole bytes per second.*
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_NEWQDISC, TC_H_ROOT

from netlab.errors import InvalidEmulation, NetlabError, PlanError
from netlab.impairment import Impairment
from netlab.links import netem_codec as codec
from netlab.links.netem_probe import probe as probe
from netlab.links.relay_stats import DirectionStats
from netlab.units import NS_PER_S, Rate

HANDLE = 0x10000  # "1:", fixed, so that a second apply changes the qdisc in place and keeps the packets it holds
ETHERNET_HEADER = 14  # what a qdisc counts beside the IP bytes on an Ethernet device, and nothing on a TUN device
ARPHRD_ETHER = 1
SMALLEST_MTU = 68  # of IPv4; the most packets per byte
UNSHAPED_PACKETS_PER_S = 2_000_000  # more than one core can push through a veth: a link without a rate drops nothing
RATE_ERROR_PPM = 100  # at most this may rounding to whole bytes per second change a rate


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


def supported(impairment: Impairment) -> str | None:
    """Why netem cannot honour `impairment`, and which carrier can; None when it can."""
    rate = impairment.rate
    if rate is not None and abs(_bytes_per_s(rate) * 8 - rate.bps) * 1_000_000 > rate.bps * RATE_ERROR_PPM:
        return (
            f"netem counts whole bytes per second: {rate} would become {Rate(_bytes_per_s(rate) * 8)};"
            " the relay carrier keeps it exactly"
        )
    limit = sum(_limit_parts(impairment, SMALLEST_MTU))
    if limit > codec.U32_MAX:
        return (
            f"a delay of {impairment.delay} at {rate or 'no rate limit'} keeps up to {limit} packets under way,"
            f" netem holds at most {codec.U32_MAX}; the relay carrier counts bytes"
        )
    return None


def settings_for(impairment: Impairment, mtu: int, header: int = ETHERNET_HEADER) -> codec.Settings:
    """The netem settings that carry `impairment` on a device whose frames have `header` bytes before the IP packet.

    `mtu` is that of the device, in bytes. Raises PlanError when netem cannot honour the impairment.
    """
    reason = supported(impairment)
    if reason is not None:
        raise PlanError(reason)
    rate = impairment.rate
    return codec.Settings(
        latency_ns=impairment.delay.ns,
        limit=sum(_limit_parts(impairment, mtu)),
        rate=0 if rate is None else _bytes_per_s(rate),
        overhead=0 if rate is None else impairment.overhead - header,
    )


def apply(ipr: Any, ifindex: int, impairment: Impairment, mtu: int) -> Applied:
    """Make the interface delay and limit what leaves it, and prove it by reading the qdisc back.

    `ipr` is a pyroute2 IPRoute of the interface's namespace. Applied again, the qdisc is changed in place: packets it
    holds stay, and nothing of the earlier impairment does.

    Raises PlanError when netem cannot honour the impairment, NetlabError when the kernel refuses it, InvalidEmulation
    when the kernel took something else than was asked for.
    """
    link = ipr.link("get", index=ifindex)[0]
    header = ETHERNET_HEADER if link["ifi_type"] == ARPHRD_ETHER else 0
    settings = settings_for(impairment, mtu, header)
    name = link.get_attr("IFLA_IFNAME")
    send_single_packets(ipr, ifindex)
    set_qdisc(ipr, ifindex, settings, name)
    report = read(ipr, ifindex, name)
    problems = codec.differences(settings, report)
    if problems:
        raise InvalidEmulation(f"netem on {name} is not what was asked for: " + "; ".join(problems))
    in_flight, _, queue = _limit_parts(impairment, mtu)
    return Applied(
        ifindex=ifindex,
        settings=settings,
        report=report,
        queue_packets=None if impairment.queue is None else queue,
        in_flight_packets=in_flight,
        notes=_notes(impairment, mtu),
    )


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


def _bytes_per_s(rate: Rate) -> int:
    return (rate.bps + 4) // 8


def _limit_parts(impairment: Impairment, mtu: int) -> tuple[int, int, int]:
    """Packets under way, being sent, and queued, whose sum is netem's limit."""
    rate, queue, delay_ns = impairment.rate, impairment.queue, impairment.delay.ns
    if rate is None or queue is None:
        return _ceil(delay_ns * UNSHAPED_PACKETS_PER_S, NS_PER_S), 1, UNSHAPED_PACKETS_PER_S // 100
    frame = impairment.wire_bytes(mtu)
    in_flight = _ceil(delay_ns * rate.bps, frame * 8 * NS_PER_S)
    if queue.bytes is not None:
        return in_flight, 1, queue.bytes // frame
    assert queue.packets is not None
    return in_flight, 1, queue.packets


def _notes(impairment: Impairment, mtu: int) -> tuple[str, ...]:
    notes = []
    rate, queue = impairment.rate, impairment.queue
    if rate is not None and rate.bps % 8:
        notes.append(f"rate {rate} is kept as {Rate(_bytes_per_s(rate) * 8)}: netem counts whole bytes per second")
    if queue is not None and queue.bytes is not None:
        packets = queue.bytes // impairment.wire_bytes(mtu)
        notes.append(
            f"queue of {queue.bytes} B is kept as {packets} packets of full size: netem counts packets, so smaller"
            " ones fill it with fewer bytes"
        )
    if rate is not None and impairment.min_frame > impairment.overhead + 20:
        notes.append(
            f"netem has no smallest frame: packets under {impairment.min_frame - impairment.overhead} IP bytes take"
            " their own size on the wire"
        )
    return tuple(notes)


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
