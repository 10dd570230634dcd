"""When a step is a boundary, counted by hand."""

import math

import pytest

from cpdp.errors import StrategyError
from cpdp.schedule import (
    Every,
    Periodic,
    Position,
    adacomm_next,
    adacomm_period,
    adpsgd_period,
    best_period,
    linear_period,
    lupa_period,
    lupa_slope,
    position,
    qsr_period,
    step_period,
)


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


def test_a_period_of_the_whole_run_passes_over_the_ends_of_epochs():
    # Epochs of 5 steps, K = 7: 7 and 14, where a count that starts anew in each epoch would never reach 7.
    assert Every(7).boundaries(15, steps_per_epoch=5) == (7, 14)
    assert Every(7, epoch_end=True).boundaries(15, steps_per_epoch=5) == (5, 7, 10, 14, 15)


def test_post_local_counts_its_period_from_the_end_of_the_warm_up():
    assert Every(4, warmup=3).boundaries(16) == (1, 2, 3, 7, 11, 15)
    assert [n for n in range(1, 9) if Every(4, warmup=3).warm(position(n, None))] == [1, 2, 3]


def test_the_ends_of_epochs_need_their_length():
    Every(4).check(None)
    with pytest.raises(StrategyError, match="steps_per_epoch"):
        Every(4, epoch_end=True).check(None)


@pytest.mark.parametrize(
    ("loss", "period"),
    [(2.0, 20), (0.5, 10), (0.125, 5), (0.08, 4), (0.02, 2), (0.001, 1), (0.0, 1), (0.1, 5), (8.0, 40)],
)
def test_adacomm_scales_its_period_by_the_root_of_the_loss(loss, period):
    # tau_0 = 20, F_0 = 2: sqrt(F / 2) 20, raised to a whole number; for 0.1 that is 4.47.
    assert adacomm_period(loss, 2.0, 20) == period


@pytest.mark.parametrize(("power", "period"), [(0.5, 16), (1.5, 159), (0.0, 5)])
def test_adacomm_raises_its_period_when_the_learning_rate_falls_tenfold(power, period):
    # A quarter of the first loss and tau_0 = 10: 5 sqrt(10) = 15.8; 5 x 10^1.5 = 158.1; 5.
    assert adacomm_period(0.5, 2.0, 10, lr_ratio=10.0, lr_power=power) == period


@pytest.mark.parametrize(("loss", "first"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, 0.0)])
def test_adacomm_has_no_period_for_losses_that_say_nothing(loss, first):
    with pytest.raises(StrategyError, match="no period follows"):
        adacomm_period(loss, first, 10)


@pytest.mark.parametrize(
    ("previous", "proposed", "gamma", "longest", "chosen"),
    [
        (20, 12, 0.5, None, 12),  # the rule falls: it is followed
        (20, 20, 0.5, None, 10),  # it stands still: halved
        (20, 35, 0.5, None, 10),  # it rises: halved
        (5, 5, 0.5, None, 2),
        (1, 1, 0.5, None, 1),
        (5, 9, 0.9, None, 4),
        (5, 9, 1.0, None, 5),
        (100, 60, 0.5, 16, 16),  # Paddle's cap
        (5, 9, None, 16, 9),  # without saturation a period may grow
        (5, 40, None, 16, 16),
    ],
)
def test_adacomm_halves_its_period_where_the_rule_no_longer_falls(previous, proposed, gamma, longest, chosen):
    assert adacomm_next(previous, proposed, gamma=gamma, longest=longest) == chosen


def test_saturation_brings_twenty_to_one_in_four_halvings():
    periods = [20]
    while periods[-1] > 1:
        periods.append(adacomm_next(periods[-1], 20))
    assert periods == [20, 10, 5, 2, 1]


def test_paddles_variant_with_the_period_inside_the_root_is_the_same_rule_with_its_square_root():
    # clip(ceil(sqrt(lr0 loss / (lr loss0) k0)), 1, 16): ours with tau_0 = sqrt(k0).
    k0, lr_ratio = 16, 4.0
    for loss in (0.3, 0.6, 1.0):
        paddle = min(max(math.ceil(math.sqrt(lr_ratio * loss / 2.0 * k0) - 1e-9), 1), 16)
        assert adacomm_period(loss, 2.0, 4, lr_ratio=lr_ratio) == paddle


def bound(period, gap, delay, lr, smoothness, variance, duration, compute=1.0):
    """AdaComm's bound on the mean squared gradient after `duration`, one worker."""
    noise = lr * smoothness * variance + lr**2 * smoothness**2 * variance * (period - 1)
    return 2 * gap * (compute + delay / period) / (lr * duration) + noise


def test_the_best_period_is_where_the_bound_is_least():
    values = {"gap": 2.0, "delay": 4.0, "lr": 0.1, "smoothness": 1.0, "variance": 0.5, "duration": 1000.0}
    best = best_period(**values)
    assert best == pytest.approx(math.sqrt(2 * 2 * 4 / (0.001 * 0.5 * 1000)), rel=1e-12)  # 5.657
    assert bound(best, **values) < bound(best * 0.99, **values)
    assert bound(best, **values) < bound(best * 1.01, **values)


@pytest.mark.parametrize(("lr", "period"), [(0.1, 4), (0.01, 4), (0.005, 16), (0.004, 25), (0.001, 400)])
def test_qsr_grows_with_the_inverse_square_of_the_learning_rate(lr, period):
    # alpha = 0.02, base 4: (0.02 / 0.005)^2 = 16, (0.02 / 0.004)^2 = 25, (0.02 / 0.001)^2 = 400.
    assert qsr_period(lr, 0.02, 4) == period


def test_qsr_is_capped_by_the_steps_that_remain_and_by_nothing_else():
    assert qsr_period(0.001, 0.02, 4, remaining=37) == 37
    assert qsr_period(0.001, 0.02, 4, remaining=1) == 1
    assert qsr_period(0.005, 0.02, 4, power=1) == 4
    assert qsr_period(0.0, 0.02, 4, remaining=9) == 9
    with pytest.raises(StrategyError, match="endless"):
        qsr_period(0.0, 0.02, 4)


def test_lupa_lengthens_each_round_by_the_same_amount():
    # T = 1000 steps, C = 9 rounds, tau_0 = 10: a = 2/10 x 1000/90 = 2.2222, so 22.22 steps more each round.
    slope = lupa_slope(1000, 9, 10)
    assert slope == pytest.approx(20 / 9)
    assert [lupa_period(i, 10, slope) for i in range(4)] == [10, 32, 54, 76]


def test_linear_and_stepwise_periods():
    assert [linear_period(done, 2, 10) for done in (0, 0.25, 0.5, 1.0, 2.0)] == [2, 4, 6, 10, 10]
    assert linear_period(0.5, 10, 1) == 6  # 5.5, rounded half up
    stages = ((1, 1), (100, 4), (200, 16))
    assert [step_period(n, stages) for n in (1, 99, 100, 199, 200, 5000)] == [1, 1, 4, 4, 16, 16]
    with pytest.raises(StrategyError, match="step 1"):
        step_period(1, ((2, 4),))


@pytest.mark.parametrize(("variance", "period"), [(0.06, 5), (0.07, 4), (0.13, 4), (0.14, 3)])
def test_adpsgd_moves_by_one_when_the_workers_are_too_close_or_too_far(variance, period):
    # lr 0.1 and scale 1: longer below 0.07, shorter above 0.13.
    assert adpsgd_period(4, variance, 0.1, 1.0) == period


def test_adpsgd_never_falls_below_one():
    assert adpsgd_period(1, 1.0, 0.1, 1.0) == 1
