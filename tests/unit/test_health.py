"""A run is valid when its packets were on time and only lost where that was asked for; the machine explains."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from netlab.health import Health, Mark, judge
from netlab.monitor import MAX_SAMPLES, Monitor, Sample, sample
from netlab.processors import Load, Processor, Processors, group_folders, load, parse_stat, parse_throttle
from tests.unit.test_relay_stats import ZERO

NAME = "alps:a.router>b.router"
MS, S = 1_000_000, 1_000_000_000
WAY = replace(ZERO, name=NAME)


def look(at_s: float, busy: int = 0, stolen: int = 0, throttled_ns: int | None = None, **counted) -> Mark:
    """Two processors, of which number 1 did all the work there was; 100 ticks a second each."""
    ticks = round(100 * at_s)
    each = (Processor(0, 0, 0, ticks), Processor(1, busy, stolen, ticks))
    lossless = counted.pop("lossless", frozenset())
    rate = counted.pop("rate", 1_000_000)
    stats = replace(WAY, **counted)
    return Mark(round(at_s * S), 1000 + at_s, (stats,), Processors(each, throttled_ns), {NAME: rate}, lossless)


def late(count: int, late_ns: int, on_time: int = 0) -> dict:
    return {"packets_out": count + on_time, "lateness": ((1000, on_time), (late_ns, count))}


def between(earlier: Mark, later: Mark, **more) -> Health:
    return judge(earlier, later, [sample(earlier, later, {NAME: (0, 0)})], **more)


@pytest.mark.parametrize(("share", "valid"), [(99, True), (101, False)])
def test_more_than_one_packet_in_a_hundred_over_a_millisecond_late_is_another_network(share, valid):
    health = between(look(0), look(10, **late(share, 2 * MS, on_time=10_000 - share)))
    assert health.valid is valid
    if not valid:
        assert NAME in health.reasons[0]
        assert "2000 us late, at most 1000 us" in health.reasons[0]


def test_busy_or_stolen_processors_alone_are_a_warning_and_not_a_reason():
    health = between(look(0), look(10, busy=900, stolen=100, throttled_ns=0, **late(0, 2 * MS, on_time=500)))
    assert health.valid
    (warning,) = health.warnings
    assert "CPU 1 was 100% busy" in warning
    assert "5% of the CPUs' time was stolen" in warning
    assert warning in health.describe()


def test_with_late_packets_the_reason_names_the_processor_and_the_theft_too():
    (reason,) = between(look(0), look(10, busy=900, stolen=100, **late(500, 5 * MS))).reasons[:1]
    assert reason.startswith(NAME)
    assert "CPU 1 was 100% busy, 5% of the CPUs' time was stolen by other virtual machines" in reason


def test_a_quota_that_held_the_group_back_is_told_with_its_time():
    (warning,) = between(look(0, throttled_ns=S), look(10, throttled_ns=3 * S)).warnings
    assert "held this group back for 2.00 s of 10.0 s" in warning


@pytest.mark.parametrize(("stolen", "valid"), [(190, True), (210, False)])
def test_netem_cannot_tell_its_lateness_so_a_tenth_of_stolen_time_decides(stolen, valid):
    assert between(look(0), look(10, stolen=stolen), carrier="netem").valid is valid


def test_a_stall_of_a_second_shows_though_99_percent_of_the_run_were_on_time():
    begin, middle, end = look(0), look(1, **late(200, 30 * MS)), look(100, **late(200, 30 * MS, on_time=100_000))
    samples = [sample(begin, middle, {NAME: (0, 0)}), sample(middle, end, {NAME: (0, 0)})]
    (reason,) = judge(begin, end, samples).reasons
    assert "for 1.0 s most packets were late" in reason
    assert "30000 us" in reason


def test_a_few_late_packets_in_a_quiet_second_are_no_stall():
    begin, middle, end = look(0), look(1, **late(5, 30 * MS)), look(100, **late(5, 30 * MS, on_time=100_000))
    samples = [sample(begin, middle, {NAME: (0, 0)}), sample(middle, end, {NAME: (0, 0)})]
    assert judge(begin, end, samples).valid


def test_drops_are_told_by_cause_and_only_those_that_nobody_asked_for_count_against_the_run():
    asked = between(look(0), look(10, drops_queue=5, drops_loss=6, drops_codel=7, drops_down=8))
    (way,) = asked.directions
    assert (way.drops_queue, way.drops_loss, way.drops_codel, way.drops_down, way.drops_other) == (5, 6, 7, 8, 0)
    assert asked.valid
    lost = between(look(0), look(10, drops_memory=3, drops_write_down=1))
    assert lost.directions[0].drops_other_causes == {"no memory": 3, "the receiving device was down": 1}
    assert (
        "4 packets were lost by the emulation itself (no memory 3, the receiving device was down 1)"
        in (lost.reasons[0])
    )


def test_a_link_that_may_lose_nothing_and_does_is_at_fault_whatever_the_carrier_calls_it():
    free = {"rate": None, "lossless": frozenset([NAME])}
    health = between(look(0, **free), look(10, drops_queue=2, **free), carrier="netem")
    assert health.directions[0].drops_other_causes == {"carrier": 2}
    assert health.directions[0].drops_queue == 0
    assert not health.valid


def test_unused_capacity_is_the_time_in_which_nothing_was_sent():
    (way,) = between(look(0), look(10, busy_ns=4 * S)).directions
    assert way.unused_share == pytest.approx(0.6)
    (of_netem,) = between(look(0), look(10, wire_bytes_out=250_000), carrier="netem").directions
    assert of_netem.unused_share == pytest.approx(1 - 250_000 * 8 / 10 / 1e6)
    (unlimited,) = between(look(0, rate=None), look(10, rate=None)).directions
    assert unlimited.unused_share is None


def test_the_peak_of_a_queue_is_that_of_the_interval_and_has_its_second():
    begin, middle, end = look(0, queue_bytes_peak=9000), look(1, queue_bytes_peak=9000), look(2, queue_bytes_peak=9000)
    samples = [sample(begin, middle, {NAME: (100, 0)}), sample(middle, end, {NAME: (700, 0)})]
    (way,) = judge(begin, end, samples).directions
    assert (way.queue_peak_bytes, way.queue_peak_s) == (700, 1.0)


def test_the_record_is_plain_json_with_one_entry_per_sample():
    begin, middle, end = look(0), look(1, busy=50), look(2, busy=150)
    samples = [sample(begin, middle, {}), sample(middle, end, {})]
    record = json.loads(json.dumps(judge(begin, end, samples).to_json(), allow_nan=False))
    timeline = record["timeline"]
    assert timeline["at_ns"] == [0, S]
    assert timeline["cpu_busy"] == [0.25, 0.5]
    assert len(timeline["directions"][NAME]["queue_peak_bytes"]) == 2
    assert record["machine"]["busiest"] == 1


def test_a_relay_that_has_ended_and_a_schedule_that_was_not_followed_are_reasons():
    assert between(look(0), look(1), relay_alive=False).reasons == ("the relay has ended",)
    assert between(look(0), look(1), faults=("x",)).reasons == ("x",)


# --- the monitor ----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def look(self) -> Mark:
        return look(self.now_s, packets_out=round(self.now_s))

    def monitor(self) -> Monitor:
        return Monitor(self.look, lambda: {NAME: (1, 1)}, lambda: round(self.now_s * S))


def test_a_lab_is_looked_at_once_a_second_from_the_first_mark_on():
    clock = Clock()
    monitor = clock.monitor()
    assert monitor.wait_s() is None
    monitor.begin()
    for _ in range(20):
        clock.now_s += 0.25
        monitor.tick()
    assert [each.seconds for each in monitor.samples] == [1.0] * 5
    assert monitor.wait_s() == 1.0


def test_what_a_monitor_keeps_is_bounded_and_nothing_is_lost_by_merging():
    clock = Clock()
    monitor = clock.monitor()
    mark = monitor.begin()
    for _ in range(2500):
        clock.now_s += 1
        monitor.tick()
    _, samples = monitor.since(mark.at_ns)
    assert MAX_SAMPLES / 2 <= len(samples) <= MAX_SAMPLES
    assert sum(each.ways[NAME].packets for each in samples) == 2500
    assert [(a.to_ns, b.from_ns) for a, b in pairwise(samples) if a.to_ns != b.from_ns] == []


def test_merging_keeps_the_worst_of_both():
    first = sample(look(0), look(1, busy=100, **late(300, 2 * MS)), {NAME: (500, 3 * MS)})
    second = sample(look(1, busy=100), look(3, busy=100, **late(300, MS)), {NAME: (50, MS)})
    both: Sample = first | second
    way = both.ways[NAME]
    assert (way.packets, way.queue_peak_bytes, way.lateness_max_ns, way.lateness_p50_ns) == (600, 500, 3 * MS, 2 * MS)
    assert both.machine.busy == pytest.approx(0.5 / 3)
    assert (both.machine.busiest, both.machine.busiest_busy) == (1, 1.0)


# --- the processors ---------------------------------------------------------------------------------------------

STAT = """\
cpu  30 1 20 400 5 2 3 7 9 0
cpu0 10 1 10 200 5 1 3 2 9 0
cpu1 20 0 10 200 0 1 0 5 0 0
intr 5 0 0
"""


def test_busy_time_is_all_but_idle_waiting_and_stolen_and_guests_are_not_counted_twice():
    assert parse_stat(STAT) == (Processor(0, 25, 2, 232), Processor(1, 31, 5, 236))


def test_stolen_time_counts_as_busy_because_somebody_wanted_to_run():
    earlier = Processors((Processor(0, 0, 0, 0), Processor(1, 0, 0, 0)))
    later = Processors((Processor(0, 10, 0, 100), Processor(1, 60, 20, 100)))
    assert load(earlier, later) == Load(busy=0.45, stolen=0.1, busiest=1, busiest_busy=0.8, throttled_s=0.0)


def test_throttling_is_read_in_both_versions_of_control_groups_and_without_a_quota_there_is_none():
    assert parse_throttle("nr_periods 5\nnr_throttled 2\nthrottled_usec 1500\n") == 1_500_000
    assert parse_throttle("nr_periods 5\nnr_throttled 2\nthrottled_time 1500\n") == 1500
    assert parse_throttle("usage_usec 7\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n") is None


def test_the_groups_above_ours_are_asked_too():
    found = [str(path) for path in group_folders("4:memory:/x\n3:cpu,cpuacct:/a/b\n0::/u/v\n")]
    assert found[:3] == [f"/sys/fs/cgroup/cpu,cpuacct{path}" for path in ("/a/b", "/a", "")]
    assert found[-3:] == [f"/sys/fs/cgroup{path}" for path in ("/u/v", "/u", "")]
    assert not [path for path in found if "/x" in path or path == "/sys/fs"]


def test_this_machine_has_processors():
    now = Processors.now()
    assert now.each
    assert all(cpu.total >= cpu.busy + cpu.stolen for cpu in now.each)
