"""Jitter: every distribution has the mean of the delay, the stated width, and an end."""

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.errors import UnitError
from netlab.impairment import Impairment, Jitter
from netlab.jitter import DISTRIBUTIONS, TABLE_SIZE, jitter_of
from netlab.units import Delay, Fraction

NAMED = [name for name in DISTRIBUTIONS if name != "table"]
MS = 1_000_000


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("amount_ns", [1, 7, 999, 1_000, 123_457, MS, 250 * MS])
def test_a_table_sums_to_zero_and_ascends(name, amount_ns):
    table = Jitter(Delay(amount_ns), name).table()
    assert len(table) == TABLE_SIZE
    assert sum(table) == 0
    assert list(table) == sorted(table)


@pytest.mark.parametrize("name", NAMED)
@given(amount=st.integers(1, 10**9))
def test_no_value_goes_further_below_the_mean_than_the_reach(name, amount):
    jitter = Jitter(Delay(amount), name)
    least = -jitter.table()[0]
    assert least <= jitter.reach.ns <= least + 3 + (amount // TABLE_SIZE if name == "uniform" else 0)


def test_a_uniform_jitter_is_evenly_spread_over_twice_its_amount():
    table = Jitter(Delay(2 * MS)).table()
    assert -2 * MS < table[0] < -2 * MS + 1000
    assert 2 * MS - 1000 < table[-1] < 2 * MS
    steps = {b - a for a, b in itertools.pairwise(table)}
    assert steps <= {976, 977}  # 4 ms / 4096 = 976.56 ns


@pytest.mark.parametrize("name", ["normal", "pareto", "paretonormal"])
def test_the_amount_is_the_standard_deviation(name):
    assert abs(statistics.pstdev(Jitter(Delay(MS), name).table()) / MS - 1) < 0.001


def test_a_normal_jitter_has_the_quantiles_of_the_normal_distribution():
    table = Jitter(Delay(MS), "normal").table()
    for share, deviations in [(0.5, 0.0), (0.8413, 1.0), (0.9772, 2.0), (0.1587, -1.0), (0.99865, 3.0)]:
        assert abs(table[int(share * TABLE_SIZE)] / MS - deviations) < 0.02


def test_a_pareto_jitter_has_the_quantiles_of_shape_3():
    # (1 - u)^(-1/3) has mean 1.5 and variance 0.75; up to u = 8191/8192, where the table ends, 1.499 and 0.663
    table = Jitter(Delay(MS), "pareto").table()
    for share in (0.1, 0.5, 0.9, 0.99):
        expected = ((1 - share) ** (-1 / 3) - 1.499) / 0.663**0.5
        assert abs(table[int(share * TABLE_SIZE)] / MS - expected) < 0.02 + 0.01 * abs(expected)
    assert 20 < table[-1] / MS < 25


def test_paretonormal_lies_between_its_parents():
    normal, pareto, mixed = (Jitter(Delay(MS), name).table() for name in ("normal", "pareto", "paretonormal"))
    assert normal[0] < mixed[0] < pareto[0]
    assert normal[-1] < mixed[-1] < pareto[-1]


def test_measured_delays_give_their_deviations_from_their_mean():
    jitter = jitter_of([12 * MS, 10 * MS, 11 * MS])
    assert jitter.samples == (-MS, 0, MS)
    assert jitter.amount.ns == 816_496  # the square root of 2/3, rounded down to ns
    table = jitter.table()
    assert sum(table) == 0
    assert {round(value / 1000) for value in table} == {-1000, 0, 1000}
    assert abs(table.count(table[0]) - TABLE_SIZE / 3) < 2


def test_measured_delays_can_be_scaled_to_another_width():
    jitter = jitter_of([10 * MS, 12 * MS], amount=Delay(5 * MS))
    assert jitter.samples == (-5 * MS, 5 * MS)
    assert jitter.amount == Delay(5 * MS)


def test_many_samples_are_represented_by_their_quantiles():
    jitter = jitter_of(range(0, 100_000_000, 1000))
    assert len(jitter.samples) == TABLE_SIZE
    table = jitter.table()
    assert abs(table[0] + 50_000_000) < 50_000
    assert abs(table[TABLE_SIZE // 4] + 25_000_000) < 50_000


@given(st.lists(st.integers(0, 600 * 10**9), min_size=2, max_size=50))
def test_any_samples_that_differ_become_a_jitter_around_zero(samples):
    try:
        jitter = jitter_of(samples)
    except UnitError:
        assert max(samples) - min(samples) < 10
        return
    table = jitter.table()
    assert sum(table) == 0
    assert list(table) == sorted(table)
    assert -table[0] <= jitter.reach.ns


@pytest.mark.parametrize("samples", [[], [5], [5, 5, 5]])
def test_samples_without_a_difference_are_no_jitter(samples):
    with pytest.raises(UnitError, match="differ"):
        jitter_of(samples)


@pytest.mark.parametrize("name", NAMED)
def test_scaling_keeps_the_distribution(name):
    jitter = Jitter(Delay(MS), name, Fraction(250_000_000), reorder=True)
    assert jitter.scaled(Delay(3 * MS)) == Jitter(Delay(3 * MS), name, Fraction(250_000_000), reorder=True)


def test_a_jitter_that_would_arrive_before_it_was_sent_is_a_bug_further_up():
    assert Impairment(Delay(MS), jitter=Jitter(Delay(MS)))
    with pytest.raises(AssertionError):
        Impairment(Delay(MS - 1), jitter=Jitter(Delay(MS)))


def test_jitter_reads_well():
    assert str(Jitter(Delay(2 * MS))) == "2ms uniform"
    text = str(Jitter(Delay(2 * MS), "normal", Fraction(250_000_000), reorder=True))
    assert text == "2ms normal, correlation 25%, may reorder"
