"""Random effects through real sch_netem, held to the model's statistics. Bounds are four standard errors, or stated."""

import statistics
from bisect import bisect
from dataclasses import replace
from itertools import pairwise

import pytest

from netlab.chances import Chance, FourState, Reorder
from netlab.impairment import Impairment
from netlab.jitter import Jitter
from netlab.links import netem
from netlab.units import Delay, Fraction
from tests.netem import chain as net
from tests.netem.chain import MTU, wan
from tests.netem.traffic import Arrival

pytestmark = pytest.mark.netem


def seen(chain: net.Chain, impairment: Impairment, count: int = 5000) -> list[Arrival]:
    """What arrives of `count` small packets, sent as fast as the machine can over an unlimited rate."""
    node = chain.nodes[0]
    netem.apply(node.netlink, node.index["down"], impairment, MTU, seeded=False)
    return net.flood(chain, (0, 1), count, 64).arrivals


def four_sigma(count: int, share: float) -> float:
    return 4 * (count * share * (1 - share)) ** 0.5


def runs_lost(arrivals: list[Arrival]) -> list[int]:
    return [b.number - a.number - 1 for a, b in pairwise(arrivals) if b.number - a.number > 1]


TENTH = Fraction.parse("10%")


def test_independent_loss_takes_its_share(pair):
    arrivals = seen(pair, replace(wan(5), loss=Chance(TENTH)))
    assert 5000 - len(arrivals) == pytest.approx(500, abs=four_sigma(5000, 0.1))
    assert statistics.mean(runs_lost(arrivals)) == pytest.approx(1 / 0.9, rel=0.1)


def test_a_correlated_loss_keeps_its_mean_and_gets_its_bursts(pair):
    """Correlation 60 %: lost again with 0.64, so runs of 1/0.36 = 2.78 packets; netem's own would change the mean."""
    arrivals = seen(pair, replace(wan(5), loss=Chance(TENTH, Fraction.parse("60%"))))
    assert 5000 - len(arrivals) == pytest.approx(500, abs=2 * four_sigma(5000, 0.1))  # (1+c)/(1-c) = 4 times variance
    assert statistics.mean(runs_lost(arrivals)) == pytest.approx(2.78, rel=0.25)


def test_four_state_loss_takes_its_share(pair):
    loss = FourState(*(Fraction.parse(text) for text in ("2%", "50%", "0%", "100%", "1%")))
    arrivals = seen(pair, replace(wan(5), loss=loss))
    share = float(loss.rate)
    assert share == pytest.approx(0.05 / 1.05)  # s3 = 0.04 s1, s4 = 0.01 s1
    assert 5000 - len(arrivals) == pytest.approx(5000 * share, abs=2 * four_sigma(5000, share))


def test_a_link_that_is_down_passes_nothing_and_keeps_what_is_under_way(pair):
    def before(number: int) -> None:
        if number == 100:
            net.apply(pair, 0, "down", replace(wan(30), up=False))

    net.apply(pair, 0, "down", wan(30))
    assert net.flood(pair, (0, 1), 120, 64, before=before).numbers == list(range(100))


def test_duplicates_come_in_their_share_right_behind_the_original(pair):
    arrivals = seen(pair, replace(wan(5), duplicate=Chance(TENTH)))
    numbers = [one.number for one in arrivals]
    assert sorted(set(numbers)) == list(range(5000))
    assert numbers == sorted(numbers)
    assert len(numbers) - 5000 == pytest.approx(500, abs=four_sigma(5000, 0.1))


def test_every_fifth_packet_overtakes_when_asked_to(pair):
    arrivals = seen(pair, replace(wan(20), reorder=Reorder(Chance(Fraction.parse("100%")), gap=5)), 500)
    early = sorted(one.number for one in arrivals if one.delay_ms < 10)
    assert early == list(range(4, 500, 5))
    assert len(arrivals) == 500


def delays_ms(chain: net.Chain, impairment: Impairment, count: int) -> list[float]:
    """Sorted delays of `count` packets at a gentle pace, all of which must arrive."""
    netem.apply(chain.nodes[0].netlink, chain.nodes[0].index["down"], impairment, MTU, seeded=False)
    arrivals = net.flood(chain, (0, 1), count, 64, gap_s=0.0005).arrivals
    assert len(arrivals) == count
    return sorted(one.delay_ms for one in arrivals)


def test_jitter_that_may_reorder_has_the_models_distribution(pair):
    """Expected: the model's table, plus the lateness that this kernel shows now without jitter (40 quantiles of it).

    The largest distance between two such distribution functions stays under 1.63 / sqrt(3000) in 99 of 100 cases.
    """
    count, jitter = 3000, Jitter(Delay.parse("8ms"), "pareto", reorder=True)
    plain = delays_ms(pair, wan(40), count)
    jittered = delays_ms(pair, replace(wan(40), jitter=jitter), count)
    expected = sorted(late + value / 1e6 for late in plain[count // 80 :: count // 40] for value in jitter.table())
    distance = max(abs(bisect(expected, delay) / len(expected) - (i + 0.5) / count) for i, delay in enumerate(jittered))
    assert distance <= 1.63 / count**0.5 + 0.02, "0.02 for a machine whose lateness has changed meanwhile"
    error_ms = 4 * 8 / count**0.5  # four standard errors
    assert statistics.mean(jittered) == pytest.approx(statistics.mean(plain), abs=error_ms + 0.1)
