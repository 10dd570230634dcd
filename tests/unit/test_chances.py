"""Random events: the mean and the burst that a model states are those of the chain that it describes."""

import random
from fractions import Fraction as Rational

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.chances import ALWAYS, NEVER, Chance, FourState, GilbertElliott, Reorder, derive_seed, nearest
from netlab.errors import UnitError
from netlab.units import PPB, Fraction


def share(text):
    return Fraction.parse(text)


def simulate_gilbert(model, count, rng):
    """Losses of `count` packets as the docstring of GilbertElliott has it: judge, then move."""
    bad, lost = False, []
    for _ in range(count):
        lost.append(rng.random() < (model.loss_in_bad if bad else model.loss_in_good).value)
        bad = rng.random() >= model.to_good.value if bad else rng.random() < model.to_bad.value
    return lost


def simulate_four_state(model, count, rng):
    """Losses of `count` packets as the docstring of FourState has it: move, then judge."""
    state, lost = 1, []
    for _ in range(count):
        draw = rng.random()
        if state == 1:
            state = 3 if draw < model.p13.value else 4 if draw < model.p13.value + model.p14.value else 1
        elif state == 2:
            state = 3 if draw < model.p23.value else 2
        elif state == 3:
            state = 1 if draw < model.p31.value else 2 if draw < model.p31.value + model.p32.value else 3
        else:
            state = 1
        lost.append(state in (3, 4))
    return lost


def mean_and_burst(lost):
    """Share of losses, and mean length of the runs of losses."""
    runs = sum(now and not before for before, now in zip([False, *lost], lost, strict=False))
    return sum(lost) / len(lost), sum(lost) / runs


def test_a_chance_of_1_percent_with_correlation_25_percent_has_these_odds():
    chance = Chance(share("1%"), share("25%"))
    assert chance.after_event == Rational(1, 100) + Rational(25, 100) * Rational(99, 100)  # 25.75 %
    assert chance.after_none == Rational(75, 10_000)
    assert chance.burst == 1 / (1 - Rational(2575, 10_000))


@given(st.integers(1, PPB), st.integers(0, PPB - 1))
def test_the_chain_of_a_chance_has_its_probability_and_its_correlation(probability, correlation):
    chance = Chance(Fraction(probability), Fraction(correlation))
    p, c = Rational(probability, PPB), Rational(correlation, PPB)
    assert p * chance.after_event + (1 - p) * chance.after_none == p  # the share p reproduces itself
    assert chance.after_event - chance.after_none == c  # of a two-state chain, the correlation of neighbours
    assert 0 <= chance.after_none <= chance.after_event <= 1


def test_without_correlation_a_burst_is_geometric():
    assert Chance(share("20%")).burst == Rational(5, 4)
    assert Chance(ALWAYS).burst is None


@pytest.mark.parametrize(
    ("probability", "correlation"), [("1%", "25%"), ("50%", "0%"), ("0.1%", "90%"), ("99%", "99%")]
)
def test_a_chance_told_as_a_gilbert_model_has_the_same_mean_and_burst(probability, correlation):
    chance = Chance(share(probability), share(correlation))
    model = chance.as_gilbert()
    assert abs(model.rate - chance.rate) < Rational(1, 10**6)
    assert abs(model.burst / chance.burst - 1) < Rational(1, 10**5)


def test_certain_loss_told_as_a_gilbert_model_loses_everything():
    model = Chance(ALWAYS).as_gilbert()
    assert model.rate == 1
    assert model.burst is None


@pytest.mark.parametrize("correlation", ["100%", "99.9999999%"])
def test_a_chain_that_would_hardly_ever_change_is_refused(correlation):
    with pytest.raises(UnitError, match=r"100%|once in 1e9"):
        Chance.checked(Fraction(1), share(correlation))


@pytest.mark.parametrize(
    ("rate", "burst"), [("1%", 4), ("0.1%", 1), ("50%", 1), ("10%", 2.5), ("5%", 1000), ("90%", 9)]
)
def test_a_mean_and_a_burst_give_the_model_that_has_them(rate, burst):
    model = GilbertElliott.from_burst(share(rate), Rational(burst))
    assert abs(model.rate / Rational(share(rate).ppb, PPB) - 1) < Rational(1, 10**5)
    assert abs(model.burst / Rational(burst) - 1) < Rational(1, 10**5)


def test_one_percent_in_bursts_of_4_is_the_model_of_this_arithmetic():
    # to_good = 1/4; to_bad = 1/4 x 0.01 / 0.99 = 0.252525...%
    assert GilbertElliott.from_burst(share("1%"), Rational(4)) == GilbertElliott(Fraction(2_525_253), share("25%"))


@pytest.mark.parametrize(
    ("rate", "burst", "message"),
    [
        ("51%", 1, "bursts of 1 packets lose at most 50% of all packets, not 51%"),
        ("100%", 10, "lose at most 90.9090909%"),
        ("1%", 0.5, "a mean burst has 1 to 1000000 packets, not 0.5"),
        ("1%", 2_000_000, "a mean burst has 1 to 1000000 packets"),
        ("0.0000001%", 100, "would begin less than once in 1e9"),
    ],
)
def test_a_mean_that_a_burst_cannot_have_is_refused(rate, burst, message):
    with pytest.raises(UnitError, match=message):
        GilbertElliott.from_burst(share(rate), Rational(burst))


MODELS = [
    GilbertElliott(share("1%"), share("25%")),
    GilbertElliott(share("5%"), share("20%"), share("70%"), share("1%")),
    GilbertElliott(share("60%"), share("80%"), share("90%"), share("20%")),
]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_gilbert_elliott_chain_loses_what_its_formulas_say(model):
    mean, burst = mean_and_burst(simulate_gilbert(model, 400_000, random.Random(1)))
    assert abs(mean / float(model.rate) - 1) < 0.03
    assert abs(burst / float(model.burst) - 1) < 0.02


@pytest.mark.parametrize(
    "model",
    [
        FourState(share("1%"), share("99%")),
        FourState(share("2%"), share("30%"), share("40%"), share("50%"), share("1%")),
        FourState(share("10%"), share("20%"), share("10%"), share("80%"), share("30%")),
    ],
    ids=str,
)
def test_a_four_state_chain_loses_what_its_formulas_say(model):
    assert sum(model.shares) == 1
    mean, burst = mean_and_burst(simulate_four_state(model, 400_000, random.Random(2)))
    assert abs(mean / float(model.rate) - 1) < 0.03
    assert abs(burst / float(model.burst) - 1) < 0.02


def test_four_states_with_two_in_use_are_the_simple_gilbert_model():
    # p13 in, p31 out, everything lost in state 3: mean p / (p + r), burst 1 / r
    four = FourState(share("2%"), share("20%"))
    assert four.rate == Rational(2, 22)
    assert four.burst == 5


def test_a_share_of_packets_overtakes_as_the_gap_allows():
    assert Reorder(Chance(ALWAYS), gap=5).rate == Rational(1, 5)  # every fifth packet
    assert Reorder(Chance(share("25%"))).rate == Rational(1, 4)
    assert Reorder(Chance(share("50%")), gap=3).rate == Rational(1, 4)  # two wait, then two tries on average
    assert Reorder(Chance(share("25%"), share("50%"))).rate == Rational(1, 4)  # gap 1: the chain itself


def test_a_seed_depends_on_profile_link_and_direction_and_never_changes():
    assert derive_seed(0, "a-b", "forward") == 6_704_860_366_230_330
    seeds = {derive_seed(s, link, way) for s in (0, 1) for link in ("a-b", "a-c") for way in ("forward", "backward")}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**53 for seed in seeds)


@given(st.fractions(0, 1))
def test_the_nearest_fraction_is_within_half_a_billionth(value):
    assert abs(Rational(nearest(value).ppb, PPB) - value) <= Rational(1, 2 * PPB)


def test_models_read_well():
    assert str(Chance(share("1%"))) == "1%"
    assert str(Chance(share("1%"), share("25%"))) == "1% (correlation 25%)"
    assert str(Reorder(Chance(share("5%")), gap=5)) == "5% (gap 5)"
    assert NEVER < ALWAYS
