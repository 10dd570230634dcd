"""A run that was interrupted goes on with the same bits, for every strategy, whole process or part of one."""

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from cpdp import strategies, worker
from cpdp.cell import parse_cell
from cpdp.checkpoint import FOLDER, Checkpoints, History
from cpdp.errors import CellError, ExperimentError
from cpdp.events import EvalEvent, EventWriter, StartEvent, StepEvent, read_events
from cpdp.experiment import parse
from cpdp.matrix import cells
from cpdp.rundir import CellData, RunDir
from cpdp.tables import eval_rows
from cpdp.workloads.base import Place
from tests.unit.ranks import run_ranks, start_workers
from tests.unit.test_contract import SPECS
from tests.unit.test_worker import finish, logs, quick_cell, wait_for_steps

DIGITS = {
    "id": "00-digits",
    "workload": {"name": "digits", "batch": 96, "width": 4},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "epochs": 2,
    "seed": 3,
    "checkpoint": 3,
}


class Interrupted(Exception):
    pass


class Writer:
    """Keeps what is compared; raises after step `until`, on every rank alike, as when the power fails."""

    def __init__(self, until=None):
        self.until = until
        self.losses, self.evals = {}, []

    def write(self, event):
        if isinstance(event, StepEvent):
            self.losses[event.n] = event.loss
            if event.n == self.until:
                raise Interrupted
        elif isinstance(event, EvalEvent):
            self.evals.append((event.n, event.accuracy, event.loss))


def once(rank, folder, strategy, world, until=None, checkpoint=3, **changes):
    spec = strategies.parse(strategy).to_json()
    cell = parse_cell({**DIGITS, "strategy": spec, "checkpoint": checkpoint, **changes}, "cell")
    writer = Writer(until)
    saved = worker.Saved.of(cell, rank, world, Path(folder))
    try:
        worker.train(cell, Place(rank, world, cell.seed), writer, saved)
    except Interrupted:
        pass
    return saved.step, writer.losses, writer.evals


def whole_and_resumed(rank, folder, strategy, world, until):
    os.environ["NETLAB_SITE"] = ["a", "b", "b"][rank]
    torch.manual_seed(rank)
    _, losses, evals = once(rank, folder, strategy, world, checkpoint=None)
    once(rank, folder, strategy, world, until)
    left = {int(path.stem.rpartition("-")[2]) for path in (Path(folder) / FOLDER).iterdir()}
    torch.manual_seed(1000 + rank)  # what a new process would bring along
    return (losses, evals), left, once(rank, folder, strategy, world)


# 1437 images, 2 x 96 a step: 7 steps an epoch. 3 and 6 are boundaries of a period of three, 9 and 12 need not be.
@pytest.mark.parametrize(("until", "saved"), [(5, 3), (8, 6), (13, 12)])
@pytest.mark.parametrize("strategy", SPECS)
def test_a_run_that_was_interrupted_goes_on_with_the_same_bits(tmp_path, strategy, until, saved):
    for (losses, evals), left, (step, again, more) in run_ranks(
        2, whole_and_resumed, str(tmp_path), strategy, 2, until
    ):
        assert max(left) == saved
        assert step == saved
        assert again == {n: loss for n, loss in losses.items() if n > saved}
        assert more == [row for row in evals if row[0] > saved]
        assert len(losses) == 14


@pytest.mark.parametrize("strategy", ["cpdp:k=3", "hierarchical:k=3", "cpdp-overlapped:k=3,delay=2,fused=false"])
def test_three_ranks_go_on_with_the_same_bits(tmp_path, strategy):
    for (losses, _), _, (step, again, _) in run_ranks(3, whole_and_resumed, str(tmp_path), strategy, 3, 7):
        assert step == 6
        assert again == {n: loss for n, loss in losses.items() if n > 6}


def evaluated(rank, folder):
    """Evaluated at the first boundary from every fourth step on: 6, 12; saved at 3, 6, 9, 12; cut off in step 11."""
    options = {"evaluate_every": 4}
    _, _, whole = once(rank, folder, "localsgd:k=3,epoch_end=false", 2, checkpoint=None, **options)
    once(rank, folder, "localsgd:k=3,epoch_end=false", 2, until=11, **options)
    return whole, once(rank, folder, "localsgd:k=3,epoch_end=false", 2, **options)


def test_evaluations_between_epochs_come_where_they_would_have_come(tmp_path):
    for whole, (step, _, again) in run_ranks(2, evaluated, str(tmp_path)):
        assert step == 9
        assert again == [row for row in whole if row[0] > 9]
        assert whole[0][0] == 0


def test_a_finished_run_leaves_no_checkpoint(tmp_path):
    run_ranks(2, once, str(tmp_path), "localsgd:k=3", 2)
    assert not (tmp_path / FOLDER).exists()


def numbers(folder):
    return [[(s.n, s.loss) for s in log.steps] for log in logs(folder)]


def test_a_killed_job_is_started_again_and_ends_like_one_that_never_stopped(tmp_path):
    cell = {**DIGITS, "strategy": {"name": "cpdp-overlapped", "period": 3}, "epochs": 30, "checkpoint": 10}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert finish(start_workers(cell, whole)) == [("", "", 0)] * 2
    processes = start_workers(cell, killed)
    wait_for_steps(killed, 45)
    for process in processes:
        process.kill()
    finish(processes)
    first = numbers(killed)
    assert finish(start_workers(cell, killed)) == [("", "", 0)] * 2
    for rank, log in enumerate(logs(killed)):
        after = log.start.details["continued_after"]
        assert after >= 40
        assert after % 10 == 0
        assert [n for n, _ in numbers(killed)[rank]] == list(range(after + 1, 211))
        assert first[rank][:after] + numbers(killed)[rank] == numbers(whole)[rank]
        assert [row["n"] for row in log.start.before["evals"]] == list(range(7, after + 1, 7))
        walls = [row["wall_s"] for row in log.start.before["evals"]]
        assert all(a < b for a, b in pairwise(walls))


def test_a_rank_killed_amid_a_collective_ends_the_run_with_rank_step_operation_and_what_was_saved(tmp_path):
    strategy = {"name": "localsgd", "period": 1}
    cell = quick_cell(tmp_path, steps=100_000, strategy=strategy, timeout_s=20, checkpoint=10)
    processes = start_workers(cell, tmp_path)
    wait_for_steps(tmp_path, 25)
    os.kill(processes[1].pid, signal.SIGSTOP)  # rank 0 is now, or is soon, amid an averaging that cannot end
    time.sleep(1)
    began = time.monotonic()
    os.kill(processes[1].pid, signal.SIGKILL)
    said, code = processes[0].communicate(timeout=60)[1], processes[0].returncode
    assert time.monotonic() - began < 20  # the stated time; a peer that is gone is noticed sooner
    finish(processes[1:])
    assert code == 1
    last = len(read_events(tmp_path / "rank-0.events.jsonl").steps)
    assert said.startswith(
        f"cpdp.worker: rank 0, step {last + 1} (last complete step: {last}): all_reduce of parameters"
    )
    saved = last // 10 * 10
    assert said.rstrip().endswith(f"saved by all ranks: step {saved} (checkpoints), where a resumed run goes on")
    assert max(int(path.stem.rpartition("-")[2]) for path in (tmp_path / FOLDER).iterdir()) == saved


def store(folder, rank=0, world=2, **identity):
    return Checkpoints(folder / FOLDER, rank, world, {"seed": 1, **identity})


def test_a_step_that_one_rank_has_not_saved_does_not_count(tmp_path):
    for rank, step in ((0, 4), (1, 4), (0, 8)):
        store(tmp_path, rank).save(step, {})
    assert store(tmp_path).newest() == 4
    store(tmp_path, 1).save(8, {})
    assert store(tmp_path).newest() == 8
    store(tmp_path).drop_before(8)
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == [
        "rank-0.step-8.pt", "rank-1.step-4.pt", "rank-1.step-8.pt",
    ]  # fmt: skip


def test_a_torn_file_is_never_taken_for_a_checkpoint(tmp_path):
    for rank in range(2):
        store(tmp_path, rank).save(4, {"x": torch.ones(3)})
    (tmp_path / FOLDER / "rank-0.step-8.17.part").write_bytes(b"half")
    assert store(tmp_path).newest() == 4
    path = tmp_path / FOLDER / "rank-0.step-4.pt"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CellError, match=r"rank-0.step-4.pt: cannot be read as a checkpoint"):
        store(tmp_path).load(4)


def test_the_checkpoint_of_another_job_is_refused_with_what_differs(tmp_path):
    store(tmp_path).save(4, {})
    with pytest.raises(CellError, match=r"was saved with seed=1, and the job has 2"):
        store(tmp_path, seed=2).load(4)
    with pytest.raises(CellError, match=r"was saved with world=2, and the job has 3"):
        store(tmp_path, world=3).load(4)


def test_the_accounts_go_on_without_the_time_between(tmp_path):
    history = History()
    history.note(StepEvent(1, 0, False, True, 10, 30, (), ()))
    history.note(EvalEvent(1, 0, 50, 0.5, 1.0))
    again = History.from_json(json.loads(json.dumps(history.to_json())))
    again.note(StepEvent(2, 1, False, True, 1000, 1030, (), ()))
    again.note(EvalEvent(2, 1, 1040, 0.6, 0.9))
    assert (again.train_ns, again.wall_ns) == (50, 80)
    assert [(row["n"], row["train_s"], row["wall_s"]) for row in again.evals] == [(1, 20e-9, 40e-9), (2, 50e-9, 80e-9)]


def test_a_new_attempt_of_a_cell_takes_its_checkpoints_along(tmp_path):
    run = RunDir(tmp_path)
    first = run.start_cell("01-cpdp")
    first.checkpoints.mkdir()
    (first.checkpoints / "rank-0.step-3.pt").write_bytes(b"saved")
    second = run.start_cell("01-cpdp")
    assert [path.name for path in second.checkpoints.iterdir()] == ["rank-0.step-3.pt"]
    assert not (tmp_path / "attempts" / "01-cpdp-1" / FOLDER).exists()


EXPERIMENT = """
name: saved
network: lan
strategies: [ddp]
phases:
  - {kind: training, workload: digits, epochs: 2, checkpoint: CHECKPOINT}
"""


def test_a_phase_says_how_often_it_is_saved():
    for text, expected in (("25", 25), ("2.5e1", 25)):
        experiment = parse(EXPERIMENT.replace("CHECKPOINT", text), "saved.yaml")
        assert [cell.spec()["checkpoint"] for cell in cells(experiment)] == [expected]
    with pytest.raises(ExperimentError, match=r"saved.yaml:6: .*checkpoint"):
        parse(EXPERIMENT.replace("CHECKPOINT", "0"), "saved.yaml")
    without = parse(EXPERIMENT.replace(", checkpoint: CHECKPOINT", ""), "saved.yaml")
    assert [cell.spec()["checkpoint"] for cell in cells(without)] == [None]


def test_the_evaluations_of_a_continued_cell_are_all_of_them_on_one_clock(tmp_path):
    row = {"n": 7, "epoch": 0, "accuracy": 0.5, "loss": 1.0, "train_s": 2.0, "wall_s": 3.0}
    before = {"train_ns": 2_500_000_000, "wall_ns": 4_000_000_000, "evals": [row]}
    path = tmp_path / "rank-0.events.jsonl"
    second = 1_000_000_000
    with EventWriter(path) as writer:
        writer.write(StartEvent(0, 1, "ddp", 90 * second, "a", details={"continued_after": 9, "before": before}))
        writer.write(StepEvent(10, 1, False, True, 100 * second, 101 * second, (), ()))
        writer.write(EvalEvent(10, 1, 103 * second, 0.75, 0.5))
    listed = {"id": "x", "phase": "p", "label": "ddp", "strategy": {"name": "ddp"}, "repeat": 1}
    rows = eval_rows(CellData(listed, None, (read_events(path),), ()))
    found = [(r["n"], r["accuracy"], r["train_s"], r["wall_s"]) for r in rows]
    assert found == [(7, 0.5, 2.0, 3.0), (10, 0.75, 3.5, 7.0)]
