"""What netem is asked for, and what it is not trusted with."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.chances import Chance, FourState, GilbertElliott, Reorder
from netlab.impairment import Codel, Impairment, Queue
from netlab.jitter import DISTRIBUTIONS, Jitter
from netlab.links import netem_codec as codec
from netlab.links import netem_model as model
from netlab.units import Delay, Fraction, Rate

U32 = 2**32 - 1
PLAIN = Impairment(delay=Delay.parse("20ms"))
SHAPED = replace(PLAIN, rate=Rate.parse("100mbit"), queue=Queue(packets=100))
TENTH, QUARTER = Fraction.parse("10%"), Fraction.parse("25%")


def settings(impairment: Impairment) -> codec.Settings:
    return model.settings_for(impairment, mtu=1500, seeded=False)


@pytest.mark.parametrize(
    ("impairment", "reason"),
    [
        (replace(PLAIN, jitter=Jitter(Delay.parse("2ms"))), "jitter in order it does not have"),
        (replace(SHAPED, jitter=Jitter(Delay.parse("2ms"), reorder=True)), "raises the mean delay"),
        (replace(PLAIN, jitter=Jitter(Delay.parse("2ms"), correlation=QUARTER, reorder=True)), "changes its distr"),
        (replace(SHAPED, reorder=Reorder(Chance(TENTH))), "skip the rate limiter"),
        (replace(PLAIN, reorder=Reorder(Chance(TENTH, QUARTER))), "correlation of reordering"),
        (replace(PLAIN, duplicate=Chance(TENTH, QUARTER)), "correlation of duplication"),
        (replace(PLAIN, duplicate=Chance(TENTH), loss=Chance(TENTH)), "instead of judging both copies"),
        (replace(PLAIN, corrupt=Chance(TENTH)), "Ethernet header"),
        (replace(SHAPED, codel=Codel()), "CoDel"),
    ],
)
def test_what_netem_would_distort_is_refused_and_the_relay_named(impairment, reason):
    found = model.supported(impairment, seeded=False)
    assert found is not None
    assert reason in found
    assert found.endswith("the relay carrier can")


def test_random_effects_are_refused_where_the_seed_counts():
    lossy = replace(PLAIN, loss=Chance(TENTH))
    assert "seed" in (model.supported(lossy) or "")
    assert model.supported(lossy, seeded=False) is None
    assert model.supported(PLAIN) is None
    assert model.notes(lossy, 1500) == ("netem draws random effects by itself: the seed has no part in them",)


def test_a_link_that_is_down_drops_everything_that_arrives():
    assert settings(replace(SHAPED, up=False)).loss == U32
    assert model.supported(replace(SHAPED, up=False)) is None


def test_independent_loss_duplication_and_overtaking_are_plain_probabilities():
    assert settings(replace(PLAIN, loss=Chance(TENTH))).loss == 429_496_730
    assert settings(replace(PLAIN, duplicate=Chance(TENTH))).duplicate == 429_496_730
    overtaking = settings(replace(PLAIN, reorder=Reorder(Chance(QUARTER), gap=5)))
    assert (overtaking.gap, overtaking.reorder) == (5, 1_073_741_824)


def test_a_gilbert_elliott_loss_keeps_its_chain_in_the_kernels_conventions():
    """The kernel's h is the chance to survive in the bad state."""
    loss = GilbertElliott(TENTH, QUARTER, Fraction.parse("75%"), Fraction.parse("0.1%"))
    assert settings(replace(PLAIN, loss=loss)).loss == codec.GilbertElliott(
        p=429_496_730, r=1_073_741_824, h=1_073_741_824, k1=4_294_967
    )


def test_a_correlated_loss_becomes_the_chain_that_has_its_mean_and_correlation():
    """10 % with correlation 25 %: to bad with 0.1 x 0.75, to good with 0.9 x 0.75."""
    loss = settings(replace(PLAIN, loss=Chance(TENTH, QUARTER))).loss
    assert loss == codec.GilbertElliott(p=codec.probability(75_000_000), r=codec.probability(675_000_000), h=0, k1=0)


FRACTION = st.integers(0, 10**9)


@given(FRACTION, FRACTION, FRACTION, FRACTION, FRACTION)
def test_sums_that_the_kernel_forms_in_32_bits_never_wrap(a, b, c, d, e):
    p13, p14 = max(1, min(a, b)), abs(a - b)
    p31, p32 = max(1, min(c, d)), abs(c - d)
    if p13 + p14 > 10**9 or p31 + p32 > 10**9:
        return
    loss = FourState(*(Fraction(value) for value in (p13, p31, p32, max(1, e), p14)))
    found = settings(replace(PLAIN, loss=loss)).loss
    assert isinstance(found, codec.FourState)
    assert 0 <= found.p13 + found.p14 <= U32
    assert 0 <= found.p31 + found.p32 <= U32
    assert min(found.p13, found.p31) >= 0


def kernel_deviation(jitter_ns: int, entry: int) -> int:
    """tabledist() of net/sched/sch_netem.c, without the mean; C divides towards zero."""
    x = (jitter_ns % 8192) * entry
    x += 4096 if x >= 0 else -4096
    return (abs(x) // 8192) * (1 if x >= 0 else -1) + (jitter_ns // 8192) * entry


@pytest.mark.parametrize("distribution", [name for name in DISTRIBUTIONS if name != "table"])
@pytest.mark.parametrize("amount", ["1us", "1.5ms", "19ms"])
def test_the_kernels_jitter_takes_the_models_values(distribution, amount):
    jitter = Jitter(Delay.parse(amount), distribution, reorder=True)
    found = settings(Impairment(delay=Delay.parse("10s"), jitter=jitter))
    wanted = jitter.table()
    assert len(found.table) == len(wanted)
    assert all(abs(entry) <= 2**15 - 1 for entry in found.table)
    kernel = [kernel_deviation(found.jitter_ns, entry) for entry in found.table]
    farthest = max(map(abs, wanted))
    assert max(abs(k - w) for k, w in zip(kernel, wanted, strict=True)) <= farthest / 32767 + 1
    assert abs(sum(kernel)) / len(kernel) <= farthest / 32767 + 1


def test_a_jitter_beyond_the_kernels_reach_is_refused():
    jitter = Jitter(Delay.parse("8s"), "normal", reorder=True)
    reason = model.supported(Impairment(delay=Delay.parse("60s"), jitter=jitter), seeded=False)
    assert reason is not None
    assert "2.147 s" in reason
