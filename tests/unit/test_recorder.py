"""Phases become spans without gaps or overlaps; marks of a device are read only when it has passed them."""

import pytest

from cpdp.clock import CudaEventClock, MonotonicClock
from cpdp.events import Operation, Span
from cpdp.exposure import break_down
from cpdp.recorder import RECONCILE, Recorder, StepRecorder, split_reconcile


class HandClock:
    """A clock that a test moves; `reached` is how far the pretended device has come."""

    name = "hand"

    def __init__(self):
        self.now = 0
        self.reached = 10**9

    def mark(self):
        return self.now

    def resolve(self, mark):
        return mark if mark <= self.reached else None

    def settle(self):
        self.reached = 10**9


def recorded(clock=None, **options):
    clock = clock or HandClock()
    events = []
    return clock, StepRecorder(events.append, clock, **options), events


def at(clock, recorder, time, phase):
    clock.now = time
    recorder.switch(phase)


def test_phases_follow_each_other_and_what_is_in_none_is_rest():
    clock, recorder, events = recorded()
    for time, phase in ((10, "forward"), (60, "backward"), (160, "exposed.gradients"), (200, None), (205, "optimizer")):
        at(clock, recorder, time, phase)
    clock.now = 220
    recorder.end_step(1, 0, boundary=True)
    (event,) = events
    assert event.spans == (
        Span("forward", 10, 60),
        Span("backward", 60, 160),
        Span("exposed.gradients", 160, 200),
        Span("optimizer", 205, 220),
    )
    assert (event.start_ns, event.end_ns) == (0, 220)
    assert break_down(event).rest_ns == 10 + 5


def test_switching_to_the_open_phase_changes_nothing_and_renaming_renames_it():
    clock, recorder, events = recorded()
    at(clock, recorder, 0, "forward")
    at(clock, recorder, 5, "forward")
    clock.now = 7
    recorder.rename("exposed.buffers")
    at(clock, recorder, 9, "forward")
    clock.now = 20
    recorder.end_step(1, 0, boundary=False)
    assert events[0].spans == (Span("exposed.buffers", 0, 9), Span("forward", 9, 20))


def test_a_step_starts_where_the_one_before_ended_unless_the_time_between_was_paused():
    clock, recorder, events = recorded(warmup_steps=1)
    clock.now = 100
    recorder.end_step(1, 0, boundary=False)
    clock.now = 200
    recorder.end_step(2, 0, boundary=False)
    with recorder.paused():
        clock.now = 900
    clock.now = 950
    recorder.end_step(3, 1, boundary=True)
    assert [(e.n, e.start_ns, e.end_ns, e.warmup, e.boundary) for e in events] == [
        (1, 0, 100, True, False),
        (2, 100, 200, False, False),
        (3, 900, 950, False, True),
    ]


def test_operations_belong_to_the_step_in_which_they_were_issued():
    clock, recorder, events = recorded()
    clock.now = 10
    operation = recorder.operation("all_reduce", "gradients", 400)
    clock.now = 30
    recorder.finish(operation)
    recorder.end_step(1, 0, boundary=True)
    recorder.end_step(2, 0, boundary=True)
    assert events[0].ops == (Operation("all_reduce", "gradients", 400, 10, 30),)
    assert events[1].ops == ()


def test_a_reconciliation_is_communication_until_its_last_collective_and_update_after_it():
    clock, recorder, events = recorded()
    at(clock, recorder, 0, RECONCILE)
    operations = [recorder.operation("all_reduce", "parameters", 4) for _ in range(2)]
    for time, operation in zip((70, 80), operations, strict=True):
        clock.now = time
        recorder.finish(operation)
    at(clock, recorder, 95, None)
    recorder.end_step(1, 0, boundary=True)
    assert events[0].spans == (Span("exposed.parameters", 0, 80), Span("update", 80, 95))


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([], [("update", 10, 90)]),
        ([(20, 90)], [("exposed.parameters", 10, 90)]),
        ([(20, 120)], [("exposed.parameters", 10, 90)]),
        ([(20, None)], [("exposed.parameters", 10, 90)]),
        ([(5, 50)], [("update", 10, 90)]),
        ([(95, 99)], [("update", 10, 90)]),
        ([(20, 40), (20, 30)], [("exposed.parameters", 10, 40), ("update", 40, 90)]),
    ],
)
def test_where_a_reconciliation_is_cut(ops, expected):
    operations = tuple(Operation("all_reduce", "parameters", 4, a, b) for a, b in ops)
    assert split_reconcile(Span(RECONCILE, 10, 90), operations) == [Span(*span) for span in expected]


def test_steps_are_written_in_order_and_only_when_the_device_has_passed_them():
    clock, recorder, events = recorded()
    clock.reached = 50
    for n, time in ((1, 100), (2, 200), (3, 300)):
        clock.now = time
        recorder.end_step(n, 0, boundary=False)
    assert events == []
    clock.reached = 250
    clock.now = 400
    recorder.end_step(4, 0, boundary=False)
    assert [event.n for event in events] == [1, 2]
    recorder.close()
    assert [event.n for event in events] == [1, 2, 3, 4]


def test_a_loss_that_is_not_finite_is_written_as_null_and_said():
    _, recorder, events = recorded()
    recorder.set_loss(float("nan"))
    recorder.end_step(1, 0, boundary=False)
    recorder.set_loss(0.5)
    recorder.end_step(2, 0, boundary=False)
    recorder.end_step(3, 0, boundary=False)
    assert [(e.loss, e.notes) for e in events] == [(None, ("loss is nan",)), (0.5, ()), (None, ())]


def test_a_failure_names_the_step_and_the_oldest_collective_without_an_end():
    _, recorder, _ = recorded()
    recorder.end_step(1, 0, boundary=False)
    assert recorder.last_activity() == "step 2 (last complete step: 1), no collective pending"
    recorder.finish(recorder.operation("all_reduce", "gradients", 4))
    recorder.operation("all_reduce", "parameters", 800)
    assert recorder.last_activity() == "step 2 (last complete step: 1), all_reduce of parameters (800 bytes)"


def test_overhead_is_counted_in_the_step_that_paid_it():
    _, recorder, events = recorded()
    recorder.spend(7)
    recorder.spend(5)
    recorder.end_step(1, 0, boundary=False)
    assert events[0].overhead_ns == 12


def test_the_recorder_that_records_nothing_can_be_used_in_the_same_way():
    recorder = Recorder()
    recorder.switch("forward")
    recorder.finish(recorder.operation("all_reduce", "gradients", 4))
    recorder.end_step(1, 0, boundary=False)
    with recorder.paused():
        recorder.set_loss(1.0)
    recorder.close()
    assert not recorder.recording
    assert recorder.operations() == 0


def test_the_monotonic_clock_is_at_once_known_and_never_goes_back():
    clock = MonotonicClock()
    first, second = clock.mark(), clock.mark()
    clock.settle()
    assert clock.resolve(first) == first <= second


class PretendedEvent:
    """What torch.cuda.Event offers, on a device whose time a test sets, in milliseconds."""

    device_ms = 0.0
    passed_ms = 0.0

    def record(self):
        self.at = PretendedEvent.device_ms

    def query(self):
        return self.at <= PretendedEvent.passed_ms

    def elapsed_time(self, other):
        return other.at - self.at


def test_cuda_events_land_on_the_host_clock_and_move_their_reference():
    synchronised = []
    clock = CudaEventClock(PretendedEvent, lambda: synchronised.append(1))
    assert len(synchronised) == 2  # before and after the reference event; never again while training
    PretendedEvent.device_ms = 0.25
    first = clock.mark()
    assert clock.resolve(first) is None
    PretendedEvent.passed_ms = 5_000.0
    start = clock.resolve(first) - 250_000
    for device_ms in (1_500.0, 2_600.0, 2_600.125, 2_599.0):  # past one second the reference moves; then backwards
        PretendedEvent.device_ms = device_ms
        assert clock.resolve(clock.mark()) == start + round(device_ms * 1e6)
    assert len(synchronised) == 2
    clock.settle()
    assert len(synchronised) == 3
