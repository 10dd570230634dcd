"""Scripts as users write them, profiled unmodified in real processes on loopback: what they did is what is told."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pandas as pd
import pytest

from cpdp.profiler import analysis
from cpdp.rundir import RunDir
from tests.conftest import ROOT

SCRIPTS = ROOT / "tests" / "scripts"
CPDP = [sys.executable, "-m", "cpdp.cli"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def profile(folder, *command, code=0, env=None):
    """The analysed run of a command."""
    argv = [*CPDP, "profile", "--out", str(folder / "run"), "--", *command]
    done = subprocess.run(argv, env={**ENVIRONMENT, **(env or {})}, capture_output=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr.decode() + done.stdout.decode()
    return analysis.open_run(RunDir(folder / "run"))


def torchrun(folder, script, **named):
    return profile(folder, *TORCHRUN, "--master-port", free_port(), str(SCRIPTS / script), **named)


def check_sums(found):
    """Columns sum to the step, and parts to the exposed time, for every rank and step."""
    for world in found.worlds:
        steps = world.steps
        whole = steps["computation_ms"] + steps["exposed_ms"] + steps["rest_ms"]
        assert (whole - steps["step_ms"]).abs().max() < 1e-3
        assert (steps["rest_ms"].abs() / steps["step_ms"]).max() < 0.01
        parts = steps[[name for name in steps if name.startswith("exposed_") and name != "exposed_ms"]].sum(axis=1)
        assert (parts - steps["exposed_ms"]).abs().max() < 1e-3
        assert (steps.filter(like="_ms").drop(columns="rtt_ms") >= -1e-6).all().all()


def only_world(found, ranks=2):
    assert len(found.worlds) == 1
    assert [log.rank for log in found.worlds[0].logs] == list(range(ranks))
    return found.worlds[0]


def kinds(world):
    return world.ops.groupby("kind").size().to_dict()


def test_the_ddp_tutorial_with_spawned_ranks(tmp_path):
    world = only_world(found := profile(tmp_path, sys.executable, str(SCRIPTS / "ddp_tutorial.py"), free_port()))
    check_sums(found)
    assert world.steps["n"].max() == 6
    # One bucket a step and rank: 10 * 10 + 10 + 10 * 5 + 5 = 165 parameters of 4 bytes.
    reduced = world.ops[(world.ops["kind"] == "all_reduce") & (world.ops["bytes"] == 660)]
    assert len(reduced) == 2 * 6
    assert kinds(world)["barrier"] == 2 * 2


def test_a_mingpt_like_script_with_accumulation(tmp_path):
    world = only_world(found := torchrun(tmp_path, "mingpt_like.py"))
    check_sums(found)
    assert world.steps["n"].max() == 6
    gradients = world.ops[world.ops["kind"] == "all_reduce"].groupby("rank")["bytes"].sum()
    assert (gradients == 6 * 120_320).all(), "gradients cross once per optimizer step, not per micro-batch"


def test_a_reference_like_script_with_loaders_and_evaluation(tmp_path):
    world = only_world(found := torchrun(tmp_path, "reference_like.py"))
    check_sums(found)
    assert world.steps["n"].max() == 12, "an evaluation is no step"
    assert (world.steps["data_ms"] > 0).all()
    assert found.worlds[0].logs[0].end["ok"]


def test_fsdp2(tmp_path):
    world = only_world(found := torchrun(tmp_path, "fsdp2.py"))
    check_sums(found)
    assert world.steps["n"].max() == 6
    assert {"all_gather", "reduce_scatter"} <= set(kinds(world))
    assert world.steps["exposed_ms"].mean() > 0


def test_a_raw_pipeline_waits_for_its_peer(tmp_path):
    world = only_world(found := torchrun(tmp_path, "pipeline.py"))
    check_sums(found)
    assert kinds(world) == {"send": 12, "recv": 12}
    steps = analysis.measured(world.steps)
    # Rank 1 sleeps 30 ms between its receive and its send; rank 0 waits for that, at least.
    assert 29 < steps[steps["rank"] == 0]["exposed_peer_ms"].median() < 60
    assert analysis.late(world)["rank"] == 1


def test_a_torch_without_hooks_is_profiled_through_its_functions(tmp_path):
    found = torchrun(tmp_path, "mingpt_like.py", env={"CPDP_PROFILE_NO_HOOKS": "1"})
    world = only_world(found)
    check_sums(found)
    gradients = world.ops[world.ops["kind"] == "all_reduce"].groupby("rank")["bytes"].sum()
    assert (gradients == 6 * 120_320).all()


LOOP = """
import os, sys, time, torch
w = torch.nn.Linear(4, 4)
o = torch.optim.SGD(w.parameters(), lr=0.1)
for i in range(STEPS):
    o.zero_grad()
    w(torch.ones(4)).sum().backward()
    o.step()
    time.sleep(0.01)
"""


def refuse(token):
    raise AssertionError(token)


def show(folder):
    done = subprocess.run(
        [*CPDP, "show", str(folder / "run"), "--json"], env=ENVIRONMENT, capture_output=True, check=True
    )
    return json.loads(done.stdout, parse_constant=refuse)


@pytest.mark.parametrize("steps", [1, 5])
def test_a_run_without_communication_has_nothing_exposed(tmp_path, steps):
    profile(tmp_path, sys.executable, "-c", LOOP.replace("STEPS", str(steps)))
    (cell,) = show(tmp_path)["cells"]
    assert cell["valid"]
    assert (cell["exposed_ms"], cell["hidden_ms"], cell["payload_bytes_per_step"]) == (0, 0, 0)
    assert cell["late"] is None
    assert cell["ceiling"] is None


def test_a_run_that_stops_before_its_first_step_is_told_as_such(tmp_path):
    profile(tmp_path, sys.executable, "-c", LOOP.replace("STEPS", "0"))
    told = show(tmp_path)
    assert not told["valid"]
    assert told["reasons"] == ["no whole training step was seen"]
    report = [*CPDP, "report", str(tmp_path / "run")]
    assert subprocess.run(report, env=ENVIRONMENT, capture_output=True, check=False).returncode == 0


def test_os_exit_and_exceptions_leave_the_last_step_and_the_reason(tmp_path):
    left = profile(tmp_path / "a", sys.executable, "-c", LOOP.replace("STEPS", "5") + "os._exit(0)\n")
    assert left.worlds[0].steps["n"].max() == 5
    failed = profile(tmp_path / "b", sys.executable, "-c", LOOP.replace("STEPS", "5") + "raise KeyError('x')\n", code=1)
    assert failed.worlds[0].steps["n"].max() == 5
    assert failed.worlds[0].logs[0].end["reason"] == "KeyError: 'x'"


FORKED = """
import os, sys, torch, torch.distributed as dist, multiprocessing as mp
def rank(r, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=r, world_size=2)
    pairs = [dist.new_group([0]), dist.new_group([0, 1])]
    w = torch.nn.Linear(4, 4); o = torch.optim.SGD(w.parameters(), lr=.1)
    for _ in range(5):
        o.zero_grad(); w(torch.ones(4)).sum().backward()
        for p in w.parameters(): dist.all_reduce(p.grad, group=pairs[1])
        o.step()
    dist.destroy_process_group()
children = [mp.get_context("fork").Process(target=rank, args=(r, sys.argv[1])) for r in range(2)]
[c.start() for c in children]; [c.join() for c in children]
sys.exit(max(c.exitcode for c in children))
"""


def test_forked_ranks_and_sub_groups(tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    world = only_world(found := profile(tmp_path, sys.executable, str(script), free_port()))
    check_sums(found)
    reduced = world.ops[world.ops["kind"] == "all_reduce"]
    assert len(reduced) == 2 * 5 * 2
    assert reduced["group"].nunique() == 1
    assert sorted(reduced[reduced["rank"] == 0]["seq"]) == list(range(10))
    assert reduced["all_issued_ns"].notna().all(), "operations of sub-groups are matched across ranks"


def test_a_killed_run_is_readable_up_to_its_last_second(tmp_path):
    loop = LOOP.replace("STEPS", "10**9")
    argv = [*CPDP, "profile", "--out", str(tmp_path / "run"), "--", sys.executable, "-c", loop]
    process = subprocess.Popen(argv, env=ENVIRONMENT, stderr=subprocess.DEVNULL, start_new_session=True)
    events = tmp_path / "run" / "cells" / "profile" / "rank-0.events.jsonl"
    deadline = time.monotonic() + 60
    while not (events.exists() and events.read_bytes().count(b'"k":"step"') > 50):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed = time.monotonic_ns()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    world = only_world(found := analysis.open_run(RunDir(tmp_path / "run")), ranks=1)
    assert abs(killed - int(world.logs[0].steps.end[-1])) < 1e9
    assert analysis.to_json(found)["cells"][0]["state"] == "interrupted"


def test_a_sitecustomize_that_was_there_before_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.THERE = 'yes'\n")
    loop = LOOP.replace("STEPS", "3") + "assert THERE == 'yes'\n"
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    assert profile(tmp_path, sys.executable, "-c", loop, env=env).worlds[0].steps["n"].max() == 3


def test_exports_are_what_their_readers_expect(tmp_path):
    torchrun(tmp_path, "mingpt_like.py")
    subprocess.run([*CPDP, "export", str(tmp_path / "run")], env=ENVIRONMENT, capture_output=True, check=True)
    trace = json.loads((tmp_path / "run" / "trace.json").read_text(), parse_constant=refuse)
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X", "C"}
    assert all(event["dur"] >= 0 for event in trace["traceEvents"] if event["ph"] == "X")
    kineto = json.loads((tmp_path / "run" / "kineto" / "rank-0.json").read_text(), parse_constant=refuse)
    assert kineto["distributedInfo"]["rank"] == 0
    assert sum(event.get("cat") == "kernel" and event["name"].startswith("nccl") for event in kineto["traceEvents"]) > 5
    ops = pd.read_parquet(tmp_path / "run" / "tables" / "ops.parquet")
    assert {"group", "seq", "kind", "bytes", "issued_ns", "started_ns", "finished_ns", "wait_from_ns"} <= set(ops)


@pytest.mark.measures
def test_exposed_time_agrees_with_ddps_own_logger_within_a_millisecond(tmp_path):
    """The logger tells of the step before; rank 0 waits for rank 1, 10 ms longer each step."""
    command = [*TORCHRUN, "--master-port", free_port(), str(SCRIPTS / "ddp_logger.py"), str(tmp_path)]
    world = only_world(profile(tmp_path, *command))
    told = json.loads((tmp_path / "logger-0.json").read_text())
    mine = world.steps[world.steps["rank"] == 0].set_index("n")["exposed_ms"]
    differences = sorted(abs(told[n] - mine[n]) for n in range(4, 14))
    assert mine[13] > 100
    assert differences[len(differences) // 2] < 0.5
    assert differences[-2] < 1.0, differences


LIBRARY = """
import sys, torch
from cpdp.profiler import Profile
w = torch.nn.Linear(4, 4); o = torch.optim.SGD(w.parameters(), lr=.1)
seen = []
with Profile(sys.argv[1], on_step=seen.append):
    for _ in range(5):
        o.zero_grad(); w(torch.ones(4)).sum().backward(); o.step()
assert [s["n"] for s in seen] == [1, 2, 3, 4, 5], seen
assert all(s["step_ns"] > 0 for s in seen)
"""


def test_as_a_library_it_calls_back_after_every_step_and_leaves_a_run(tmp_path):
    argv = [sys.executable, "-c", LIBRARY, str(tmp_path / "run")]
    subprocess.run(argv, env=ENVIRONMENT, check=True, timeout=60)
    (cell,) = show(tmp_path)["cells"]
    assert (cell["steps"], cell["state"]) == (4, "done")
