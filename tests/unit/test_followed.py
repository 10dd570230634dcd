"""Whether a schedule was followed."""

import pytest

from netlab.followed import unfollowed

MS = 1_000_000


def change(due_ms: float, late_ms: float) -> dict:
    return {"kind": "change", "due_ns": round(due_ms * MS), "held_ns": round((due_ms + late_ms) * MS)}


UP = {"kind": "up"}


def test_a_lab_in_which_nothing_changed_was_followed():
    assert unfollowed([], 0) == unfollowed([UP], 0) == ()


@pytest.mark.parametrize(("late", "count", "ok"), [(0, 5, True), (1, 100, True), (2, 100, False), (1, 99, False)])
def test_one_change_in_a_hundred_may_hold_more_than_20_ms_late(late: int, count: int, ok: bool):
    events = [UP, *[change(1000 * number, 30 if number < late else 20) for number in range(count)]]
    reasons = unfollowed(events, 0)
    expected = f"{late} of {count} changes of the links held more than 20 ms after they were due, the worst 30 ms"
    assert reasons == (() if ok else (expected,))


def test_a_late_change_before_the_run_does_not_count_but_a_fault_does():
    fault = {"kind": "fault", "reason": "the schedule stopped at 2s: no"}
    assert unfollowed([change(10, 500), fault, change(1000, 1)], 500 * MS) == ("the schedule stopped at 2s: no",)
