"""A profile on a slower clock: every delay `factor` times longer, every rate that much lower. Pure.

What ran in a second takes `factor` seconds, so that a machine which cannot keep up with a network in real time can
still stand for it: whoever divides the measured times by the factor gets those of the network that was described.
Queues keep their bytes (rate times time does not change), probabilities and packet sizes stay.

What does NOT scale is in the kernels of the workers: TCP's timers (a retransmission timeout of at least 200 ms,
delayed acknowledgements of 40 ms, the idle time after which slow start begins anew) run on the machine's clock, so
on the slower clock they are `factor` times shorter. Socket buffers are bytes and fit as they are.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as Rational

from netlab.errors import PlanError
from netlab.impairment import Codel, Impairment, QueueRule
from netlab.jitter import Jitter
from netlab.network import Lan, Link, Profile, Site
from netlab.units import Delay, Rate


def dilate(profile: Profile, factor: float) -> Profile:
    """The same network on a clock that runs `factor` (at least 1) times slower.

    Raises PlanError for a profile with a schedule or a trace, whose times this version does not stretch, and where a
    rate would fall below 1 bit/s.
    """
    by = Rational(str(factor))
    assert by >= 1, factor
    if by == 1:
        return profile
    if profile.schedule:
        raise PlanError(f"{profile.path}: schedule: changes over time cannot be dilated; leave schedule and traces out")
    return replace(
        profile,
        sites=tuple(_site(site, by, profile.path) for site in profile.sites),
        links=tuple(_link(link, by, profile.path) for link in profile.links),
        access=tuple(_link(link, by, profile.path) for link in profile.access),
    )


def _site(site: Site, by: Rational, path: str) -> Site:
    lan = Lan(site.lan.delay and _later(site.lan.delay, by), site.lan.rate and _slower(site.lan.rate, by, path))
    uplink = site.uplink and replace(site.uplink, rate=_slower(site.uplink.rate, by, path))
    return replace(site, lan=lan, uplink=uplink)


def _link(link: Link, by: Rational, path: str) -> Link:
    return replace(link, forward=_impairment(link.forward, by, path), backward=_impairment(link.backward, by, path))


def _impairment(found: Impairment, by: Rational, path: str) -> Impairment:
    return replace(
        found,
        delay=_later(found.delay, by),
        rate=found.rate and _slower(found.rate, by, path),
        jitter=found.jitter and _jitter(found.jitter, by),
        codel=found.codel and _codel(found.codel, by),
        queue_rule=found.queue_rule and _rule(found.queue_rule, by),
    )


def _jitter(jitter: Jitter, by: Rational) -> Jitter:
    samples = tuple(round(one * by) for one in jitter.samples)
    return replace(jitter, amount=_later(jitter.amount, by), samples=samples)


def _codel(codel: Codel, by: Rational) -> Codel:
    return replace(codel, target=_later(codel.target, by), interval=_later(codel.interval, by))


def _rule(rule: QueueRule, by: Rational) -> QueueRule:
    return replace(rule, amount=round(rule.amount * by)) if rule.kind == "time" else rule


def _later(delay: Delay, by: Rational) -> Delay:
    return Delay(round(delay.ns * by))


def _slower(rate: Rate, by: Rational, path: str) -> Rate:
    bps = round(rate.bps / by)
    if bps < 1:
        raise PlanError(f"{path}: a rate of {rate} divided by the dilation {float(by):g} is less than 1 bit/s")
    return Rate(bps)
