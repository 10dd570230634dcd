"""When a step is a boundary, counted by hand."""

import math

import pytest

from cpdp.errors import StrategyError
from cpdp.schedule import Periodic, Position, position


def test_the_kth_step_is_the_first_boundary():
    assert Periodic(4).boundaries(12, steps_per_epoch=48) == (4, 8, 12)


def test_counting_starts_anew_in_each_epoch_and_its_last_step_is_a_boundary():
    # Epochs of 10 steps: 4, 8 and 10; then 14, 18 and 20.
    assert Periodic(4).boundaries(20, steps_per_epoch=10) == (4, 8, 10, 14, 18, 20)


def test_without_epoch_ends_only_multiples_within_the_epoch_remain():
    assert Periodic(4, epoch_end=False).boundaries(20, steps_per_epoch=10) == (4, 8, 14, 18)


def test_warmup_epochs_synchronise_in_every_step():
    assert Periodic(4, warmup_epochs=1).boundaries(10, steps_per_epoch=5) == (1, 2, 3, 4, 5, 9, 10)


@pytest.mark.parametrize("period", [1, 2, 3, 4, 5, 7, 48, 100])
@pytest.mark.parametrize("steps", [1, 5, 47, 48, 49])
def test_an_epoch_of_t_steps_has_ceil_of_t_over_k_boundaries(period, steps):
    assert len(Periodic(period).boundaries(steps, steps_per_epoch=steps)) == math.ceil(steps / period)


def test_a_period_longer_than_the_run_never_synchronises():
    assert Periodic(100, epoch_end=False).boundaries(50) == ()


def test_positions_count_from_one_within_the_epoch():
    assert position(1, 3) == Position(1, 0, 1, last_of_epoch=False)
    assert position(3, 3) == Position(3, 0, 3, last_of_epoch=True)
    assert position(4, 3) == Position(4, 1, 1, last_of_epoch=False)
    assert position(1000, None) == Position(1000, 0, 1000, last_of_epoch=False)


@pytest.mark.parametrize("schedule", [Periodic(4), Periodic(4, warmup_epochs=1, epoch_end=False)])
def test_a_schedule_of_epochs_needs_their_length(schedule):
    with pytest.raises(StrategyError, match="steps_per_epoch"):
        schedule.check(None)
    schedule.check(48)


def test_a_schedule_without_epochs_needs_none():
    Periodic(4, epoch_end=False).check(None)
    Periodic(1).check(None)
    with pytest.raises(StrategyError, match="at least 1"):
        Periodic(1).check(0)
