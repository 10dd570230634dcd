"""A run folder is found, kept and readable, whatever happened to the run."""

import errno
import os
import threading
from datetime import datetime
from pathlib import Path

import pytest

from cpdp import jsonfile, rundir
from cpdp.errors import RunFolderError
from tests.unit.fake_run import CPDP4, DDP, FakeRun

NOW = datetime(2026, 12, 1, 14, 5, 33)


def test_a_run_is_named_after_its_time_and_experiment_and_latest_leads_to_it(tmp_path):
    run = rundir.create(tmp_path / "runs", "nancy-sophia", NOW)
    assert run.path.name == "2026-12-01T14-05-33-nancy-sophia"
    assert (tmp_path / "runs" / "latest").resolve() == run.path.resolve()


def test_two_runs_of_the_same_second_get_two_folders(tmp_path):
    names = [rundir.create(tmp_path, "x", NOW).path.name for _ in range(3)]
    assert names == ["2026-12-01T14-05-33-x", "2026-12-01T14-05-33-x-2", "2026-12-01T14-05-33-x-3"]


def test_latest_always_leads_somewhere_while_it_is_replaced(tmp_path):
    rundir.create(tmp_path, "first", NOW)
    missing, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            if not (tmp_path / "latest").exists():
                missing.append(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(50):
        rundir.create(tmp_path, "next", NOW)
    stop.set()
    watcher.join()
    assert missing == []


def test_a_file_called_latest_is_not_overwritten(tmp_path):
    (tmp_path / "latest").write_text("mine")
    with pytest.raises(RunFolderError, match="not a link"):
        rundir.create(tmp_path, "x", NOW)
    assert (tmp_path / "latest").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot make a run folder in .*file/runs: Not a directory"):
        rundir.create(tmp_path / "file" / "runs", "x", NOW)


def test_out_must_be_new_or_empty(tmp_path):
    assert rundir.create_at(tmp_path / "a" / "b").path == (tmp_path / "a" / "b").resolve()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("do not lose me")
    with pytest.raises(RunFolderError, match="not empty"):
        rundir.create_at(tmp_path / "used")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p / "nothing", "there is no run at"),
        (lambda p: (p / "f").write_text("") or p / "f", "is a file: name the run's folder"),
        (lambda p: (p / "d").mkdir() or p / "d", "is not a run: it has no resolved.json"),
    ],
)
def test_a_wrong_path_says_what_is_there_instead(tmp_path, make, said):
    with pytest.raises(RunFolderError, match=said):
        rundir.find(make(tmp_path))


def test_a_wrong_path_beside_runs_names_the_newest(tmp_path):
    FakeRun(tmp_path / "2026-01-01-a").start()
    FakeRun(tmp_path / "2026-01-02-b").start()
    with pytest.raises(RunFolderError, match=r"the newest run in .* is .*2026-01-02-b"):
        rundir.find(tmp_path / "2026-01-03-c")


def test_without_a_name_the_newest_run_is_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match="no run was made here yet"):
        rundir.find(None)
    run = rundir.create(Path("runs"), "x", NOW)
    jsonfile.write(run.resolved, {})
    assert rundir.find(None).path == run.path.resolve()
    assert rundir.find(Path("runs")).path == run.path.resolve()


def test_a_run_killed_in_its_second_cell_is_read_up_to_its_last_whole_line(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP, CPDP4), repeats=1)
    run = fake.start()
    first, second = fake.cells()
    fake.write_cell(run, first)
    folder = fake.write_cell(run, second, steps=7)
    with folder.events(1).open("ab") as file:
        file.write(b'{"k":"step","n":8,"ep')
    with folder.traffic.open("ab") as file:
        file.write(b'{"t":12')
    data = rundir.read_run(run)
    assert [cell.done is not None for cell in data.cells] == [True, False]
    assert [len(log.steps) for log in data.cells[1].logs] == [7, 7]
    assert data.cells[1].problems[0].endswith("the last line is torn (21 bytes without a newline), not used")
    assert not data.complete


def test_event_files_are_read_in_rank_order_past_nine_ranks(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP,), repeats=1, steps=1, warmup=0, world=11)
    data = rundir.read_run(fake.write())
    assert [log.start.rank for log in data.cells[0].logs] == list(range(11))


def test_a_cell_that_is_run_again_keeps_its_earlier_attempts(tmp_path):
    run = FakeRun(tmp_path / "run").start()
    for attempt in range(3):
        folder = run.start_cell("01-ddp-r1")
        (folder.path / "note").write_text(str(attempt))
    kept = sorted(path.name for path in (run.path / "attempts").iterdir())
    assert kept == ["01-ddp-r1-1", "01-ddp-r1-2"]
    assert (run.path / "attempts" / "01-ddp-r1-1" / "note").read_text() == "0"
    assert (run.cell("01-ddp-r1").path / "note").read_text() == "2"


def test_a_damaged_resolved_json_is_named(tmp_path):
    run = FakeRun(tmp_path / "run").start()
    run.resolved.write_text("{}")
    with pytest.raises(RunFolderError, match=r"resolved\.json is not what a run writes"):
        rundir.read_run(run)
    run.resolved.write_text("{")
    with pytest.raises(RunFolderError, match=r"resolved\.json is not JSON"):
        rundir.read_run(run)


def test_json_holds_no_number_that_json_cannot_hold(tmp_path):
    path = tmp_path / "x.json"
    jsonfile.write(path, {"a": float("nan"), "b": (float("inf"), -1.5), "c": {"d": None}})
    assert jsonfile.read(path) == {"a": None, "b": [None, -1.5], "c": {"d": None}}
    assert "NaN" not in path.read_text()
    assert "Infinity" not in path.read_text()


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "done.json"
    jsonfile.write(path, {"ok": False})
    jsonfile.write(path, {"ok": True})
    assert [one.name for one in tmp_path.iterdir()] == ["done.json"]
    with pytest.raises(RunFolderError, match=r"cannot write .*nowhere/done\.json: No such file or directory"):
        jsonfile.write(tmp_path / "nowhere" / "done.json", {})


def test_a_full_disk_is_said_in_words_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "done.json"
    jsonfile.write(path, {"ok": True})

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"cannot write .*done\.json: No space left on device"):
        jsonfile.write(path, {"ok": False})
    assert [one.name for one in tmp_path.iterdir()] == ["done.json"]
    assert jsonfile.read(path) == {"ok": True}
