"""Tables and summaries say what the events say: every expected number follows from fake_run's constants."""

import io
import json
import math
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from cpdp import analysis, explain, rundir, screen, tables, timeline, wire
from cpdp.events import Operation
from cpdp.summary import Spread, spread
from tests.unit.fake_run import CPDP2, CPDP4, DDP, HEADERS, LOCAL2, LOCAL4, PAYLOAD, FakeRun, exposed_ms, make_step

COMPUTATION_MS, REST_MS = 185.0, 1.0


def analysed(fake: FakeRun) -> analysis.Analysis:
    return analysis.open_run(fake.write())


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    return analysed(FakeRun(tmp_path_factory.mktemp("paper") / "run"))


@pytest.mark.parametrize("strategy", [DDP, LOCAL2, LOCAL4, CPDP2, CPDP4], ids=lambda s: f"{s['name']}-{s['period']}")
@pytest.mark.parametrize("repeat", [1, 2, 3])
def test_a_cell_has_the_times_that_its_steps_were_made_of(paper, strategy, repeat):
    rows = paper.tables.cells
    key = (rows["strategy"] == strategy["name"]) & (rows["period"] == strategy["period"]) & (rows["repeat"] == repeat)
    (row,) = rows[key].to_dict("records")
    assert row["computation_ms"] == pytest.approx(COMPUTATION_MS)
    assert row["exposed_ms"] == pytest.approx(exposed_ms(strategy, repeat), abs=1e-4)
    assert row["rest_ms"] == pytest.approx(REST_MS)
    assert row["valid"]
    assert (row["steps"], row["ranks"]) == (12, 2)


def test_the_parts_of_every_step_sum_to_the_step(paper):
    steps = paper.tables.steps
    assert ((steps["computation_ms"] + steps["exposed_ms"] + steps["rest_ms"] - steps["step_ms"]).abs() < 1e-9).all()
    causes = steps[["exposed_gradients_ms", "exposed_parameters_ms", "exposed_update_ms"]].sum(axis=1)
    assert ((causes - steps["exposed_ms"]).abs() < 1e-9).all()


def test_warm_up_steps_are_in_the_table_of_steps_and_in_no_mean(paper):
    steps = paper.tables.steps
    first = steps[steps["cell"] == steps["cell"].iloc[0]]
    assert len(first) == 2 * 16
    assert first["warmup"].sum() == 2 * 4


def test_bytes_per_step_are_those_that_crossed_the_wan_in_measured_steps(paper):
    by_label = {line.label: line.mean("wire_bytes_per_step") for line in paper.summary.lines()}
    once = PAYLOAD * HEADERS
    assert by_label["ddp"] == pytest.approx(once, rel=1e-6)
    assert by_label["localsgd K=4"] == pytest.approx(once / 4, rel=1e-6)
    assert by_label["cpdp K=4"] == pytest.approx(2 * once / 4, rel=1e-6)


def test_shares_and_epochs_follow_from_the_means(paper):
    lines = {line.label: line for line in paper.summary.lines()}
    assert next(iter(lines)) == "ddp"
    assert lines["cpdp K=4"].share_of_ddp.mean == pytest.approx(380 / 720, abs=1e-6)
    assert lines["ddp"].epoch_s.mean == pytest.approx(720 * 48 / 1000, abs=1e-6)
    assert lines["cpdp K=4"].published.exposed_s == 20.5
    assert lines["cpdp K=4"].published_share == pytest.approx(20.5 / 40.0)
    assert lines["localsgd K=2"].published.exposed_s == 39.9
    assert lines["ddp"].values["exposed_ms"] == Spread(
        pytest.approx(720), pytest.approx(712.8), pytest.approx(727.2), 3
    )


def test_a_spread_of_nothing_is_unknown():
    assert spread([]) is None
    assert spread([None, math.nan]) is None
    assert spread([2.0, None, 4.0]) == Spread(3.0, 2.0, 4.0, 2)


def test_the_differences_speak_of_what_was_measured(paper):
    text = "\n".join(explain.differences(paper.summary, paper.run.network))
    # 200 ms exposed by Local SGD K=4 over 380 ms by CPDP K=4
    assert "at K=4 0.53 of its exposed time here, 1.00 published" in text
    assert "DDP hides 80 ms of each step's 800 ms of communication" in text
    assert "98.6 MB in 800 ms, 986 Mbit/s or 99% of the 998 Mbit/s that were verified" in text
    assert "cpdp K=4: 53% of DDP's exposed time here, 51% published: alike." in text


def test_without_cpdp_nothing_is_claimed_about_cpdp(tmp_path):
    found = analysed(FakeRun(tmp_path / "run", strategies=(DDP, LOCAL4), repeats=1))
    text = "\n".join(found.differences)
    assert "CPDP K=" not in text
    assert "against CPDP" not in text


def test_another_workload_or_network_has_no_published_figures(tmp_path):
    found = analysed(FakeRun(tmp_path / "run", strategies=(DDP,), repeats=1, workload="vgg16"))
    assert found.summary.published == {}
    assert found.differences == ()


def test_a_strategy_without_a_valid_cell_is_shown_and_not_counted(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP,), repeats=1)
    row = {**fake.network["links"][0], "achieved": 20.0, "ok": False}
    fake.network = {**fake.network, "ok": False, "links": [row]}
    run = fake.start()
    reason = "the network was not the one asked for"
    fake.write_cell(run, fake.cells()[0], done={"valid": False, "reasons": [reason]})
    found = analysis.open_run(run)
    assert not found.valid
    assert found.cells[0]["reasons"] == reason
    assert "rtt round trip 20.0 (asked 16.6)" in found.differences[0]
    (line,) = found.summary.lines()
    assert not line.counted
    assert line.mean("exposed_ms") == pytest.approx(exposed_ms(DDP, 1), abs=1e-4)


def test_states_tell_failed_interrupted_and_missing_apart(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP, CPDP4), repeats=2)
    run = fake.start()
    done, failed, cut, _missing = fake.cells()
    fake.write_cell(run, done)
    fake.write_cell(run, failed, steps=9, done={"ok": False, "valid": False, "reasons": ["sophia-0 exited with 7"]})
    fake.write_cell(run, cut, steps=6)
    found = analysis.open_run(run)
    assert [cell["state"] for cell in found.cells] == ["done", "failed", "interrupted", "missing"]
    assert [cell["valid"] for cell in found.cells] == [True, False, False, False]
    assert [cell["steps"] for cell in found.cells] == [12, 5, 2, 0]
    assert found.cells[1]["reasons"] == "sophia-0 exited with 7"
    # The failed cell keeps what it measured; the mean of its strategy is taken from valid cells only.
    assert found.cells[1]["exposed_ms"] is not None


def test_a_cell_without_a_measured_step_says_so(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP,), repeats=1)
    run = fake.start()
    fake.write_cell(run, fake.cells()[0], steps=3, done={})
    (cell,) = analysis.open_run(run).cells
    assert cell["reasons"] == "no measured step"
    assert cell["step_ms"] is None
    assert not cell["valid"]


def test_a_single_worker_exposes_nothing_and_undefined_ratios_are_unknown(tmp_path):
    found = analysed(FakeRun(tmp_path / "run", strategies=(DDP, LOCAL4), repeats=1, world=1))
    text = json.dumps(analysis.to_json(found), allow_nan=False)
    assert "NaN" not in text
    (ddp, local) = json.loads(text)["cells"]
    for cell in (ddp, local):
        assert (cell["exposed_ms"], cell["hidden_ms"], cell["wire_bytes_per_step"]) == (0.0, 0.0, 0.0)
        assert cell["exposed_by_cause"] == {"gradients": 0.0, "parameters": 0.0, "update": 0.0}
    assert [line["share_of_ddp"] for line in json.loads(text)["strategies"]] == [None, None]


def test_a_run_before_its_first_step_has_tables_and_nulls(tmp_path):
    run = FakeRun(tmp_path / "run", network=None).start()
    found = analysis.open_run(run)
    tables.store(found.tables, run.tables)
    shown = json.loads(json.dumps(analysis.to_json(found), allow_nan=False))
    assert (shown["valid"], shown["complete"], shown["network"]) == (False, False, None)
    assert {cell["step_ms"] for cell in shown["cells"]} == {None}
    assert shown["cells"][0]["exposed_by_cause"] == {"gradients": None, "parameters": None, "update": None}
    assert len(pd.read_parquet(run.tables / "steps.parquet")) == 0


def test_the_contract_of_show_json_has_its_keys(paper):
    shown = analysis.to_json(paper)
    wanted = {"strategy", "period", "repeat", "valid", "step_ms", "computation_ms", "exposed_ms", "hidden_ms",
              "rest_ms", "wire_bytes_per_step", "exposed_by_cause"}  # fmt: skip
    assert wanted <= set(shown["cells"][0])
    assert shown["valid"] is True
    ddp = shown["cells"][0]
    assert (ddp["strategy"], ddp["period"], ddp["repeat"]) == ("ddp", 1, 1)
    assert set(ddp["wire_bytes_per_step_by_direction"]) == {"nancy>sophia", "sophia>nancy"}


def test_tables_are_the_same_in_parquet_and_csv(paper, tmp_path):
    tables.store(paper.tables, tmp_path / "tables")
    for name in ("steps", "cells", "network", "eval"):
        parquet = pd.read_parquet(tmp_path / "tables" / f"{name}.parquet")
        csv = pd.read_csv(tmp_path / "tables" / f"{name}.csv")
        assert list(parquet.columns) == list(csv.columns)
        assert len(parquet) == len(csv) == len(getattr(paper.tables, name))
    text = (tmp_path / "tables" / "cells.csv").read_text().lower()
    assert "nan" not in text.replace("nancy", "")


def test_an_unknown_span_is_a_reason_and_no_crash(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP,), repeats=1)
    run = fake.write()
    path = run.cell(fake.cells()[0]["id"]).events(0)
    path.write_text(path.read_text().replace('"forward"', '"daydream"', 1))
    (cell,) = analysis.open_run(run).cells
    assert "unknown span 'daydream'" in cell["reasons"]
    assert not cell["valid"]


def test_a_damaged_event_line_is_a_reason_with_file_and_line(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP,), repeats=1)
    run = fake.write()
    path = run.cell(fake.cells()[0]["id"]).events(1)
    path.write_text("not json\n" + path.read_text())
    (cell,) = analysis.open_run(run).cells
    assert "rank-1.events.jsonl:1: " in cell["reasons"]
    assert cell["ranks"] == 1


def test_training_reaches_its_target_at_the_first_evaluation_above_it(tmp_path):
    found = analysed(FakeRun(tmp_path / "run", strategies=(DDP,), repeats=1, training=(DDP,)))
    (training,) = found.trainings["accuracy"]
    # Accuracy is 0.5 + 0.12 per 4 steps: 0.62, 0.74, 0.86, 0.98; the target of 0.9 is reached at step 16.
    assert training.final.mean == pytest.approx(0.98)
    assert training.reached == 1
    step_s = (COMPUTATION_MS + REST_MS + exposed_ms(DDP, 1)) / 1000
    assert training.to_target_s.mean == pytest.approx(16 * step_s, abs=1e-6)


def test_a_target_nobody_reaches_has_no_time(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP,), repeats=1, training=(DDP,), steps=4, warmup=0)
    (training,) = analysed(fake).trainings["accuracy"]
    assert training.to_target_s is None
    assert (training.reached, training.repeats) == (0, 1)


def test_a_strip_holds_whole_periods_of_as_many_steps_as_the_longest(paper):
    strips = {strip.label: strip for strip in timeline.strips(paper.run, "exposure", ["ddp", "cpdp K=4"])}
    assert {strip.steps for strip in strips.values()} == {4}
    cpdp = strips["cpdp K=4"]
    slower = 0.99  # the first repeat
    assert cpdp.length_ms == pytest.approx(4 * 186 + 720 * slower + 800 * slower, abs=1e-3)
    assert sum(length for _, length in cpdp.exposed) == pytest.approx(1520 * slower, abs=1e-3)
    assert cpdp.edges[0] == 0.0
    assert len(cpdp.edges) == 5


def test_counters_are_interpolated_between_samples():
    samples = [{"t": 0, "a>b": 0}, {"t": 100, "a>b": 1000}, {"t": 300, "a>b": 1000}]
    assert wire.bytes_between(samples, 50, 200) == {"a>b": 500.0}
    assert wire.bytes_between(samples, 0, 300) == {"a>b": 1000.0}
    assert wire.bytes_between(samples, 0, 301) is None
    assert wire.bytes_between([], 0, 1) is None
    assert wire.bytes_around(samples, 50, 90) == {"a>b": 1000}
    assert wire.bytes_around(samples, 110, 200) == {"a>b": 0}
    assert wire.bytes_around(samples, 50, 301) is None


def test_a_cell_whose_bytes_took_another_way_is_found_out():
    expected = wire.least_crossing([Operation("all_reduce", "gradients", 1_000_000, 0, 1)])
    assert wire.crossing(expected, {"a>b": 1_040_000, "b>a": 1_040_000}, ("a", "b")) == []
    faults = wire.crossing(expected, {"a>b": 1_040_000, "b>a": 900}, ("a", "b"))
    assert faults == [
        "only 0.0 MB reached a over the WAN, but the collectives need at least 1.0 MB there",
        "only 0.0 MB left b over the WAN, but the collectives need at least 1.0 MB there",
    ]
    assert wire.crossing(expected, {}, ("a",)) == []


def test_bytes_of_a_three_site_ring_are_summed_per_site():
    moved = {"a>b": 600, "b>c": 600, "c>a": 600, "b>a": 500, "c>b": 500, "a>c": 500}
    assert wire.crossing(1000, moved, ("a", "b", "c")) == []


def test_the_fake_steps_are_what_the_constants_say():
    step = make_step(CPDP4, 4, 0)
    assert (step.end_ns - step.start_ns) / 1e6 == 186 + 720 + 800
    assert step.boundary
    assert not make_step(CPDP4, 3, 0).boundary


def test_reading_a_run_twice_gives_the_same_answer(paper):
    again = analysis.analyse(rundir.read_run(rundir.RunDir(paper.run.path)))
    assert analysis.to_json(again) == analysis.to_json(paper)


@pytest.mark.parametrize(("width", "kept", "lost"), [(80, "step hid- MB/ published", ""), (60, "exposed", "MB/ comp.")])
def test_a_narrow_terminal_loses_columns_and_never_digits(paper, width, kept, lost):
    # Times of over a second with a spread are the widest that this network gives.
    lines = [replace(line, values={**line.values, "exposed_ms": Spread(1180.0, 1157.0, 1219.0, 3)})
             for line in paper.summary.lines()]  # fmt: skip
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(screen.strategies_table(lines, width, published=True))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert text.count("1180 (1157-1219)") == 5
    assert all(head in text for head in kept.split())
    assert not any(head in text for head in lost.split())
