"""Bounds of verification follow from the model by arithmetic."""

from __future__ import annotations

import pytest

from netlab import verify_effects as effects
from netlab.profile import parse_profile

BASE = """\
name: v
sites: {a: {workers: 1}, b: {workers: 1}}
links: [{between: [a, b], delay: 10ms, rate: 100mbit, EXTRA}]
"""


def crossed(extra: str) -> tuple[effects.Impairment, ...]:
    (link,) = parse_profile(BASE.replace("EXTRA", extra), "v.yaml").links
    return (link.forward,)


def test_a_plain_link_judges_no_packet() -> None:
    assert not effects.judges_packets(crossed("queue: 100packets"))
    assert effects.judges_packets(crossed("loss: 1%"))


def test_loss_bounds_are_those_of_a_binomial() -> None:
    bounds = effects.loss_bounds(crossed("loss: 1%"), 10_000)
    # 1 % of 10,000: standard deviation sqrt(0.01 x 0.99 / 10,000) = 0.0995 %; 99.9 % is 3.29 of them, and one packet
    assert bounds.asked == pytest.approx(1.0)
    assert bounds.high - 1.0 == pytest.approx(3.2905 * 0.0995 + 0.01, abs=0.001)
    assert 1.0 - bounds.low == pytest.approx(bounds.high - 1.0, abs=1e-9)


def test_losses_in_bursts_widen_the_bounds() -> None:
    single = effects.loss_bounds(crossed("loss: 1%"), 10_000)
    bursts = effects.loss_bounds(crossed("loss: {probability: 1%, burst: 4}"), 10_000)
    # lag-1 correlation (1 - 1/4 - 0.01) / 0.99 = 0.7475: variance x (1.7475 / 0.2525) = 6.92, width x 2.63
    assert (bursts.high - 1.01) / (single.high - 1.01) == pytest.approx(2.63, rel=0.02)


def test_uniform_jitter_moves_the_quantiles_of_the_delay_by_its_share() -> None:
    bounds = {
        q: effects.delay_bounds(crossed("jitter: {amount: 4ms, distribution: uniform}"), q, 10**9, 0.0)
        for q in (0.05, 0.5, 0.95)
    }
    lone = 10 + 166 * 8 / 1e5  # 128 IP bytes are 166 on the wire, at 100 Mbit/s
    for q, expected in bounds.items():
        assert expected.asked == pytest.approx(lone + 4 * (2 * q - 1), abs=0.05)
        assert expected.low <= expected.asked <= expected.high


def test_a_path_of_two_lossy_links_loses_what_either_loses() -> None:
    (one,) = crossed("loss: 10%")
    assert effects.loss_share((one, one)) == pytest.approx(0.19)
