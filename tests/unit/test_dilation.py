"""A slower clock: delays and computation longer, rates lower, everything else as it was, and times divided again."""

from dataclasses import replace

import pytest

from cpdp import experiment, explain, matrix, tables
from cpdp.compute import LayerTime, Timeline
from cpdp.errors import ExperimentError
from cpdp.rundir import CellData, read_run
from netlab import NetlabError, dilate, parse_profile
from tests.unit.fake_run import DDP, FakeRun

PROFILE = """
name: p
sites:
  a: {workers: 2, lan: {delay: 50us, rate: 10gbit}, uplink: {rate: 1gbit}}
  b: {workers: 1}
links:
  - {between: [a, b], rtt: 20ms, rate: 10gbit, queue: 2MB, jitter: {amount: 1ms, distribution: normal}, loss: 1%,
     backward: {queue: {limit: 100packets, discipline: codel}}}
"""

EXPERIMENT = """
name: e
network: lan
dilation: 4
strategies: ["pasgd:tau=1"]
phases:
  - {name: r, kind: replayed, workload: resnet50-cifar100, steps: 4}
  - {name: t, kind: training, workload: digits, duration: 10s, compute: {step: 20ms, times: shifted, shift: 5ms}}
"""


def profile():
    return parse_profile(PROFILE, "p.yaml")


def test_delays_grow_rates_shrink_and_queues_and_probabilities_stay():
    before, after = profile().links[0].forward, dilate(profile(), 10).links[0].forward
    assert after.delay.ns == 10 * before.delay.ns == 100_000_000
    assert after.rate.bps == before.rate.bps // 10 == 1_000_000_000
    assert after.jitter.amount.ns == 10_000_000
    assert (after.queue, after.loss, after.seed, after.overhead) == (
        before.queue, before.loss, before.seed, before.overhead,
    )  # fmt: skip
    back = dilate(profile(), 10).links[0].backward
    assert (back.codel.target.ns, back.codel.interval.ns) == (50_000_000, 1_000_000_000)
    site = dilate(profile(), 10).sites[0]
    assert (site.lan.delay.ns, site.lan.rate.bps, site.uplink.rate.bps) == (500_000, 10**9, 10**8)


def test_a_dilation_of_one_changes_nothing_and_fractions_are_exact():
    assert dilate(profile(), 1) == profile()
    assert dilate(profile(), 1.5).links[0].forward.delay.ns == 15_000_000


def test_what_cannot_be_dilated_is_refused():
    changing = parse_profile(PROFILE + "schedule: [{at: 1s, link: a-b, set: {rate: 1gbit}}]\n", "p.yaml")
    with pytest.raises(NetlabError, match="schedule: changes over time cannot be dilated"):
        dilate(changing, 2)
    with pytest.raises(ExperimentError, match="phase t: real computation cannot be stretched"):
        experiment.parse(EXPERIMENT.replace(", compute: {step: 20ms, times: shifted, shift: 5ms}", ""), "e.yaml")
    with pytest.raises(ExperimentError, match="dilation"):
        experiment.parse(EXPERIMENT.replace("dilation: 4", "dilation: 0.5"), "e.yaml")


def test_a_cell_is_told_times_on_the_slower_clock_and_bytes_as_they_are():
    replayed, padded = matrix.cells(experiment.parse(EXPERIMENT, "e.yaml"))
    assert replayed.spec()["dilation"] == padded.listed()["dilation"] == 4
    assert padded.spec()["duration_s"] == 40
    assert padded.spec()["timeout_s"] == 480
    assert (padded.spec()["compute"]["step_ns"], padded.spec()["compute"]["shift_ns"]) == (80_000_000, 20_000_000)
    plain = matrix.cells(experiment.parse(EXPERIMENT.replace("dilation: 4", ""), "e.yaml"))
    assert "dilation" not in plain[0].listed()


def test_a_replayed_timeline_takes_that_much_longer():
    made = Timeline("x", "y", 1, (LayerTime("a", 10, 20, ((2, 2),)),))
    assert (made.dilated(2.5).step_ns, made.dilated(2.5).parameters) == (75, 4)
    assert made.dilated(1) is made


def test_every_time_of_a_table_is_divided_and_no_byte_is(tmp_path):
    plain = read_run(FakeRun(tmp_path / "run", strategies=(DDP,)).write()).cells[0]
    slow = CellData({**plain.cell, "dilation": 4.0}, plain.done, plain.logs, plain.traffic, plain.problems)
    first, second = (tables.cell_row(cell, *tables.step_rows(cell)) for cell in (plain, slow))
    for key in ("step_ms", "computation_ms", "exposed_ms", "hidden_ms", "rest_ms", "train_s"):
        assert second[key] == pytest.approx(first[key] / 4)
    for key in ("payload_bytes_per_step", "wall_s", "lateness_p99_us"):
        assert second[key] == first[key]


def test_a_dilated_run_says_what_does_not_scale():
    asked = replace(experiment.parse(EXPERIMENT, "e.yaml"), phases=())
    (said,) = explain.cautions(asked.to_json())
    assert "4 times slower" in said
    assert "TCP's timers do not scale" in said
    assert explain.cautions(replace(asked, dilation=1.0).to_json()) == []
