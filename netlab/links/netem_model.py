"""What an Impairment asks of netem: Impairment -> Settings, or why netem cannot honour it. Pure.

Above netlab.links.netem_codec (the bytes) and below netlab.links.netem (the kernel).

What netem does with its settings (net/sched/sch_netem.c, netem_enqueue): a packet arriving at `now` is released at
max(now + delay, release of the packet before) + size/rate. That is the model of our relay too, a rate limiter with a
queue followed by a fixed delay: delay and rate commute as long as the delay is constant. What netem counts differs:

- *Packets, not bytes, and one limit for everything it holds*: packets that wait for the rate limiter, the one being
  sent, and those that have left it and only wait out the delay. So the limit is the model's queue in packets of full
  size, plus one, plus rate x delay in such packets. For full-size packets, those of a bulk transfer, the queue is then
  the model's to within two packets; smaller packets fill it with fewer bytes than the model allows.
- *Frames without preamble, checksum and gap*: made up for by netem's packet overhead. A smallest frame is not made up
  for: netem has no lower bound for a packet's size (it matters below 46 IP bytes only).
- *Whole bytes per second.*

Of the random effects netem has, those are used whose statistics are the model's: independent loss, Gilbert-Elliott and
four states (the kernel's chains are the model's, and a correlated loss is put as a Gilbert-Elliott chain, since netem's
own correlation changes the mean); independent duplication and overtaking; jitter that may reorder, from the model's
own table. `supported` names the rest: what netem distorts, and what it cannot combine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from netlab.chances import Chance, FourState, GilbertElliott, Loss
from netlab.errors import PlanError
from netlab.impairment import Impairment
from netlab.jitter import Jitter
from netlab.links import netem_codec as codec
from netlab.units import NS_PER_S, Fraction, Rate

ETHERNET_HEADER = 14  # what a qdisc counts beside the IP bytes on an Ethernet device, and nothing on a TUN device
SMALLEST_MTU = 68  # of IPv4; the most packets per byte
UNSHAPED_PACKETS_PER_S = 2_000_000  # more than one core can push through a veth: a link without a rate drops nothing
RATE_ERROR_PPM = 100  # at most this may rounding to whole bytes per second change a rate
_TABLE_TOP = 2**15 - 1

_RELAY_CAN = "; the relay carrier can"


def supported(impairment: Impairment, *, seeded: bool = True) -> str | None:
    """Why netem cannot honour `impairment`, and which carrier can; None when it can.

    netem can honour the statistics of some random effects, but not repeat them: it knows a seed only since Linux 6.6,
    and starts it again with every change. With `seeded` False that is accepted.
    """
    if seeded and impairment.random:
        return "netem cannot repeat random effects from a seed that outlives a change" + _RELAY_CAN
    for check in _CHECKS:
        reason = check(impairment)
        if reason is not None:
            return reason + _RELAY_CAN
    return None


def settings_for(
    impairment: Impairment, mtu: int, header: int = ETHERNET_HEADER, *, seeded: bool = True
) -> codec.Settings:
    """The netem settings that carry `impairment` on a device whose frames have `header` bytes before the IP packet.

    `mtu` is that of the device, in bytes. Raises PlanError when netem cannot honour the impairment.
    """
    reason = supported(impairment, seeded=seeded)
    if reason is not None:
        raise PlanError(reason)
    rate, reorder = impairment.rate, impairment.reorder
    settings = codec.Settings(
        latency_ns=impairment.delay.ns,
        limit=sum(limit_parts(impairment, mtu)),
        loss=_loss(impairment.loss) if impairment.up else codec.U32_MAX,
        duplicate=_chance(impairment.duplicate),
        gap=reorder.gap if reorder else 0,
        reorder=_chance(reorder.chance) if reorder else 0,
        rate=0 if rate is None else _bytes_per_s(rate),
        overhead=0 if rate is None else impairment.overhead - header,
    )
    if impairment.jitter is None:
        return settings
    jitter_ns, table = _table(impairment.jitter)
    return replace(settings, jitter_ns=jitter_ns, table=table)


def limit_parts(impairment: Impairment, mtu: int) -> tuple[int, int, int]:
    """Packets under way, being sent, and queued, whose sum is netem's limit."""
    rate, queue, delay_ns = impairment.rate, impairment.queue, impairment.delay.ns
    if rate is None or queue is None:
        longest_ns = delay_ns + (impairment.jitter.table()[-1] if impairment.jitter else 0)
        return _ceil(longest_ns * UNSHAPED_PACKETS_PER_S, NS_PER_S), 1, UNSHAPED_PACKETS_PER_S // 100
    frame = impairment.wire_bytes(mtu)
    in_flight = _ceil(delay_ns * rate.bps, frame * 8 * NS_PER_S)
    if queue.bytes is not None:
        return in_flight, 1, queue.bytes // frame
    assert queue.packets is not None
    return in_flight, 1, queue.packets


def notes(impairment: Impairment, mtu: int) -> tuple[str, ...]:
    """Differences from the model that netem cannot avoid and that are too small to refuse, for people."""
    found = []
    rate, queue = impairment.rate, impairment.queue
    if rate is not None and rate.bps % 8:
        found.append(f"rate {rate} is kept as {Rate(_bytes_per_s(rate) * 8)}: netem counts whole bytes per second")
    if queue is not None and queue.bytes is not None:
        packets = queue.bytes // impairment.wire_bytes(mtu)
        found.append(
            f"queue of {queue.bytes} B is kept as {packets} packets of full size: netem counts packets, so smaller"
            " ones fill it with fewer bytes"
        )
    if rate is not None and impairment.min_frame > impairment.overhead + 20:
        found.append(
            f"netem has no smallest frame: packets under {impairment.min_frame - impairment.overhead} IP bytes take"
            " their own size on the wire"
        )
    if impairment.random:
        found.append("netem draws random effects by itself: the seed has no part in them")
    return tuple(found)


def _bad_rate(impairment: Impairment) -> str | None:
    rate = impairment.rate
    if rate is None or abs(_bytes_per_s(rate) * 8 - rate.bps) * 1_000_000 <= rate.bps * RATE_ERROR_PPM:
        return None
    return f"netem counts whole bytes per second: {rate} would become {Rate(_bytes_per_s(rate) * 8)}"


def _bad_limit(impairment: Impairment) -> str | None:
    limit = sum(limit_parts(impairment, SMALLEST_MTU))
    if limit <= codec.U32_MAX:
        return None
    return (
        f"a delay of {impairment.delay} at {impairment.rate or 'no rate limit'} keeps up to {limit} packets under way,"
        f" netem holds at most {codec.U32_MAX}"
    )


def _bad_jitter(impairment: Impairment) -> str | None:
    jitter = impairment.jitter
    if jitter is None:
        return None
    if not jitter.reorder:
        return (
            "netem's jitter reorders packets, or beside a rate raises the mean delay; jitter in order it does not have"
        )
    if impairment.rate is not None:
        return "netem's jitter beside a rate raises the mean delay"
    if jitter.correlation.ppb:
        return "netem's correlation of jitter changes its distribution"
    if _table(jitter)[0] > codec.I32_MAX:
        return f"a jitter of {jitter} is beyond netem's 2.147 s"
    return None


def _bad_reorder(impairment: Impairment) -> str | None:
    reorder = impairment.reorder
    if reorder is None:
        return None
    if impairment.rate is not None:
        return "with netem, packets that overtake skip the rate limiter and its queue, too"
    return "netem's correlation of reordering changes its share" if reorder.chance.correlation.ppb else None


def _bad_duplicate(impairment: Impairment) -> str | None:
    duplicate = impairment.duplicate
    if duplicate is None:
        return None
    if impairment.loss is not None:
        return "netem undoes a duplication by a loss instead of judging both copies"
    return "netem's correlation of duplication changes its share" if duplicate.correlation.ppb else None


def _bad_corrupt(impairment: Impairment) -> str | None:
    return "netem corrupts the Ethernet header, too" if impairment.corrupt is not None else None


def _bad_codel(impairment: Impairment) -> str | None:
    return "netem's queue drops at its tail only, CoDel it does not have" if impairment.codel is not None else None


_CHECKS: tuple[Callable[[Impairment], str | None], ...] = (
    _bad_rate,
    _bad_limit,
    _bad_jitter,
    _bad_reorder,
    _bad_duplicate,
    _bad_corrupt,
    _bad_codel,
)


def _chance(chance: Chance | None) -> int:
    return 0 if chance is None else codec.probability(chance.probability.ppb)


def _loss(loss: Loss | None) -> int | codec.GilbertElliott | codec.FourState:
    if isinstance(loss, Chance) and loss.correlation.ppb:
        return _loss(loss.as_gilbert())
    if loss is None or isinstance(loss, Chance):
        return _chance(loss)
    if isinstance(loss, GilbertElliott):
        return codec.GilbertElliott(
            p=_p(loss.to_bad), r=_p(loss.to_good), h=codec.U32_MAX - _p(loss.loss_in_bad), k1=_p(loss.loss_in_good)
        )
    return _four_state(loss)


def _four_state(loss: FourState) -> codec.FourState:
    """The kernel adds p13 to p14, and p31 to p32, in 32 bits: the sums are rounded, so that they cannot wrap."""
    p14, p32 = _p(loss.p14), _p(loss.p32)
    return codec.FourState(
        p13=codec.probability(loss.p13.ppb + loss.p14.ppb) - p14,
        p31=codec.probability(loss.p31.ppb + loss.p32.ppb) - p32,
        p32=p32,
        p14=p14,
        p23=_p(loss.p23),
    )


def _p(fraction: Fraction) -> int:
    return codec.probability(fraction.ppb)


def _table(jitter: Jitter) -> tuple[int, tuple[int, ...]]:
    """netem's jitter and table for the model's deviations: the farthest one becomes the largest entry.

    netem adds jitter x entry / 8192 to the delay, so an entry is true to its deviation within 1/32767 of the farthest.
    """
    deviations = jitter.table()
    farthest = max(-deviations[0], deviations[-1])
    jitter_ns = max(1, _ceil(farthest * codec.TABLE_SCALE, _TABLE_TOP))
    entries = ((2 * value * codec.TABLE_SCALE + jitter_ns) // (2 * jitter_ns) for value in deviations)
    return jitter_ns, tuple(entries)


def _bytes_per_s(rate: Rate) -> int:
    return (rate.bps + 4) // 8


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
