"""A rank as a process: it writes what it did, ends by itself, and says who went missing when somebody did."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from cpdp.cell import parse_cell
from cpdp.errors import CellError, CpdpError
from cpdp.events import read_events
from cpdp.exposure import break_down
from cpdp.transport import first_line, interface_list, is_network_failure
from tests.unit.ranks import start_workers

CELL = {
    "id": "00-test",
    "strategy": {"name": "cpdp", "period": 2},
    "workload": {"name": "resnet50-cifar100", "compute": "replayed"},
    "steps": 4,
    "warmup_steps": 2,
    "steps_per_epoch": 6,
    "seed": 7,
    "gloo_contexts": 2,
}


def quick_cell(folder, **changes):
    """A cell with a small timeline: 4 layers, 12 ms a step, 4 x 10,100 parameters."""
    layers = [
        {
            "name": f"l{n}",
            "forward_ns": 1_000_000,
            "backward_ns": 2_000_000,
            "parameters": [[100, 100], [100]],
            "buffers": [],
        }
        for n in range(4)
    ]
    path = Path(folder) / "quick.json"
    path.write_text(json.dumps({"name": "quick", "source": "a test", "batch": 128, "layers": layers}))
    workload = {"name": "resnet50-cifar100", "compute": "replayed", "timeline": str(path), "batch": 128}
    return {**CELL, "workload": workload, **changes}


def finish(processes, timeout=60):
    return [(*process.communicate(timeout=timeout), process.returncode) for process in processes]


def logs(folder, world=2):
    return [read_events(Path(folder) / f"rank-{rank}.events.jsonl") for rank in range(world)]


def test_two_ranks_run_a_cell_from_rendezvous_to_last_event(tmp_path):
    ended = finish(start_workers(quick_cell(tmp_path), tmp_path))
    assert ended == [("", "", 0)] * 2
    for rank, log in enumerate(logs(tmp_path)):
        assert (log.start.rank, log.start.world, log.start.strategy) == (rank, 2, "cpdp:k=2,beta=0.3")
        assert log.start.details["gloo_contexts"] == 2
        assert [(s.n, s.warmup, s.boundary) for s in log.steps] == [(n, n <= 2, n % 2 == 0) for n in range(1, 7)]
        assert log.end.ok
        for step in log.steps:
            parts = break_down(step)
            assert parts.payload_bytes >= (2 * 4 * 40_400 if step.boundary else 0)
            assert parts.computation_ns > 11e6
            assert step.loss is None


def test_real_training_evaluates_after_each_epoch_and_all_ranks_see_the_same_model(tmp_path):
    cell = {
        "id": "01-digits",
        "strategy": {"name": "localsgd", "period": 4},
        "workload": {"name": "digits", "batch": 128, "width": 8},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "epochs": 2,
        "seed": 3,
    }
    assert finish(start_workers(cell, tmp_path)) == [("", "", 0)] * 2
    first, second = logs(tmp_path)
    assert [(e.n, e.epoch) for e in first.evals] == [(5, 0), (10, 1)]  # 1437 // 256 = 5 steps an epoch
    assert [(e.accuracy, e.loss) for e in first.evals] == [(e.accuracy, e.loss) for e in second.evals]
    assert [s.n for s in first.steps if s.boundary] == [4, 5, 9, 10]
    assert all(s.loss is not None for s in first.steps)
    for step, evaluation in zip((first.steps[4], first.steps[9]), first.evals, strict=True):
        assert step.end_ns < evaluation.t_ns
    assert first.steps[5].start_ns >= first.evals[0].t_ns  # evaluation belongs to no step


def test_replicas_that_differ_are_evaluated_as_their_mean(tmp_path):
    cell = {
        "id": "02-digits",
        "strategy": {"name": "localsgd", "period": 4, "epoch_end": False},
        "workload": {"name": "digits", "batch": 128, "width": 8},
        "optimizer": {"lr": 0.05},
        "epochs": 1,
    }
    assert finish(start_workers(cell, tmp_path)) == [("", "", 0)] * 2
    first, second = logs(tmp_path)
    assert [(e.accuracy, e.loss) for e in first.evals] == [(e.accuracy, e.loss) for e in second.evals]


def test_a_lone_worker_needs_no_peer(tmp_path):
    assert finish(start_workers(quick_cell(tmp_path), tmp_path, world=1)) == [("", "", 0)]
    (log,) = logs(tmp_path, world=1)
    assert [step.ops for step in log.steps] == [()] * 6
    assert log.end.ok


def test_a_loss_that_became_nan_is_null_in_the_events(tmp_path):
    cell = {
        "id": "03-nan",
        "strategy": {"name": "localsgd", "period": 1},
        "workload": {"name": "digits", "batch": 128, "width": 8},
        "optimizer": {"lr": 1e30},
        "epochs": 1,
    }
    assert finish(start_workers(cell, tmp_path, world=1)) == [("", "", 0)]
    text = (tmp_path / "rank-0.events.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    (log,) = logs(tmp_path, world=1)
    assert log.steps[-1].loss is None
    assert log.steps[-1].notes == ("loss is nan",)
    assert log.end.ok


def wait_for_steps(folder, steps, timeout=60):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        path = Path(folder) / "rank-0.events.jsonl"
        if path.exists() and len(read_events(path).steps) >= steps:
            return
        time.sleep(0.05)
    raise AssertionError(f"{steps} steps did not appear in {timeout} s")


@pytest.mark.parametrize("strategy", [{"name": "ddp"}, {"name": "localsgd", "period": 1}])
def test_a_killed_peer_ends_the_run_at_once_with_rank_step_and_operation(tmp_path, strategy):
    processes = start_workers(quick_cell(tmp_path, steps=100_000, strategy=strategy), tmp_path)
    wait_for_steps(tmp_path, 5)
    began = time.monotonic()
    os.kill(processes[1].pid, signal.SIGKILL)
    (_, said, code), _ = finish(processes)
    assert time.monotonic() - began < 20
    assert code == 1
    assert said.startswith("cpdp.worker: rank 0, step ")
    assert "last complete step: " in said
    assert "Traceback" not in said
    first, second = logs(tmp_path)
    assert not first.end.ok
    assert first.end.reason in said
    assert second.end is None
    assert len(second.steps) >= 4  # everything but what was under way


def test_a_peer_that_stands_still_ends_the_run_after_the_stated_time(tmp_path):
    cell = quick_cell(tmp_path, steps=100_000, strategy={"name": "localsgd", "period": 1}, timeout_s=3)
    processes = start_workers(cell, tmp_path)
    wait_for_steps(tmp_path, 5)
    began = time.monotonic()
    os.kill(processes[1].pid, signal.SIGSTOP)
    said, code = processes[0].communicate(timeout=60)[1], processes[0].returncode
    waited = time.monotonic() - began
    os.kill(processes[1].pid, signal.SIGKILL)
    finish(processes[1:])
    assert code == 1
    assert "all_reduce of parameters failed: Timed out waiting 3000ms" in said
    assert 2.5 < waited < 20


def test_a_rendezvous_nobody_comes_to_ends_in_time_and_says_where(tmp_path):
    cell = quick_cell(tmp_path, timeout_s=2)
    waiting, *others = start_workers(cell, tmp_path)
    for process in others:
        process.kill()
        process.communicate()
    said = waiting.communicate(timeout=60)[1]
    assert waiting.returncode == 1
    assert "rank 0: rendezvous of 2 ranks through 127.0.0.1:" in said
    assert "failed within 2 s" in said


def test_a_users_mistake_ends_with_2_and_no_traceback(tmp_path):
    for changes, expected in (
        ({"strategy": {"name": "cdpp"}}, "'cdpp' does not exist"),
        ({"steps": None}, "exactly one of steps, epochs and duration_s"),
        ({"steps_per_epoch": None}, "pass steps_per_epoch"),
    ):
        (said,) = finish(start_workers(quick_cell(tmp_path, **changes), tmp_path, world=1))
        assert said[2] == 2, said
        assert expected in said[1]
        assert "Traceback" not in said[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stepz": 4}, "unknown key 'stepz'"),
        ({"strategy": "ddp"}, "strategy: expected a mapping with a name, got 'ddp'"),
        ({"steps": -1}, "steps: -1 is not allowed; a whole number from 0"),
        ({"steps": True}, "steps: True is not allowed"),
        ({"epochs": 3}, "exactly one of steps, epochs and duration_s"),
        ({"timeout_s": 0}, "timeout_s: 0 is not allowed"),
        ({"gloo_contexts": 0}, "gloo_contexts: 0 is not allowed"),
        ({"optimizer": []}, None),
        ({"optimizer": [1]}, "optimizer: expected a mapping"),
        ({"workload": {"name": "digits", "compute": "padded"}}, "compute"),
    ],
)
def test_every_key_of_a_cell_is_checked(changes, message):
    if message is None:
        assert parse_cell({**CELL, **changes}, "cell.json").optimizer == {}
        return
    with pytest.raises(CpdpError, match=message):
        parse_cell({**CELL, **changes}, "cell.json")


def test_a_cell_knows_how_many_steps_it_has():
    assert parse_cell(CELL, "cell.json").total_steps(None) == 6
    by_epochs = parse_cell({**CELL, "steps": None, "epochs": 3}, "cell.json")
    assert by_epochs.total_steps(48) == 144
    with pytest.raises(CellError, match="epochs of a known length"):
        by_epochs.total_steps(None)


def test_an_interface_is_named_once_per_context():
    assert interface_list("eth0", 4) == "eth0,eth0,eth0,eth0"
    assert interface_list("eth0,eth0", 3) == "eth0,eth0,eth0"
    for wrong in ("", "eth0,eth1"):
        with pytest.raises(CellError, match="expected one interface"):
            interface_list(wrong, 4)


def test_what_gloo_says_is_told_from_a_mistake_in_a_program():
    gone = RuntimeError(
        "[/somewhere/gloo/transport/tcp/pair.cc:561] Connection closed by peer [192.0.2.7]:17058. "
        "This is typically caused by a remote worker crashing. Check the logs.\nand a stack trace"
    )
    assert is_network_failure(gone)
    assert first_line(gone) == "Connection closed by peer [192.0.2.7]."
    assert not is_network_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x6 and 5x3)"))
