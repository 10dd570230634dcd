"""`netlab run PROFILE -- cpdp profile -- CMD`: one run folder for all workers, and loud words when nothing crossed."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import PLAIN, ROOT

pytestmark = pytest.mark.lab
SCRIPTS = ROOT / "tests" / "scripts"
CPDP = [sys.executable, "-m", "cpdp.cli"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture
def profiled(netlab, tmp_path):
    """Run a command under the profiler on every worker; gives the finished process and the run's folder."""
    profile = tmp_path / "p.yaml"
    profile.write_text(PLAIN)
    out = tmp_path / "run"

    def run(*command):
        done = netlab("run", "--no-verify", profile, "--", *CPDP, "profile", "--out", out, "--", *command, timeout=100)
        return done, out

    return run


def shown(run: Path):
    """What `cpdp show --json` says of it."""
    from cpdp.profiler import analysis
    from cpdp.rundir import RunDir

    return analysis.to_json(analysis.open_run(RunDir(run)))


def kept_up(done):
    """The job itself was well. A busy machine may still make the emulation late, which is not what is tested here."""
    said = done.stderr.decode()
    assert done.returncode == 0 or "emulation NOT valid" in said, said
    assert "this run is not valid" not in said.lower(), said


def test_all_workers_write_one_run_and_prove_that_bytes_crossed(profiled):
    done, run = profiled(sys.executable, str(SCRIPTS / "mingpt_like.py"))
    kept_up(done)
    found = shown(run)
    assert found["valid"], found["reasons"]
    (cell,) = found["cells"]
    assert (cell["ranks"], cell["world"]) == (2, 2)
    assert {row["place"] for row in cell["per_rank"]} == {"a-0", "b-0"}
    assert cell["floors_from"] == "the lab's profile"
    # 30,080 parameters of 4 bytes reach every worker once per step; headers and DDP's own messages come on top.
    assert 120_320 < cell["wire_bytes_per_step"] < 2 * 120_320
    # Two round trips of 20 ms; up to half a one is hidden beneath waiting for a peer when ranks are out of step.
    assert 28 <= cell["exposed_by_cause"]["latency"] <= 41
    launches = [json.loads(path.read_text()) for path in sorted((run / "launches").glob("*.json"))]
    assert all(launch["moved"]["eth0"][0] > launch["least_bytes"] > 0 for launch in launches)
    assert (run / "network.json").exists()


def test_two_worlds_that_met_themselves_on_loopback_are_not_valid(profiled):
    done, run = profiled(*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(SCRIPTS / "mingpt_like.py"))
    assert done.returncode == 3
    said = done.stderr.decode()
    assert "NOT VALID" in said
    assert "no byte of a collective crossed the WAN" in said
    assert not shown(run)["valid"]


def test_torchrun_that_meets_through_the_lab_is_one_world(profiled):
    meet = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "a-0:29400"]
    done, run = profiled(*TORCHRUN, *meet, str(SCRIPTS / "mingpt_like.py"))
    kept_up(done)
    found = shown(run)
    assert [cell["world"] for cell in found["cells"]] == [2]
    assert found["valid"]


def test_a_single_process_in_a_lab_of_two_trained_alone(profiled):
    loop = "import torch\nw=torch.nn.Linear(4,4)\no=torch.optim.SGD(w.parameters(),lr=.1)\n"
    loop += "for _ in range(5):\n o.zero_grad(); w(torch.ones(4)).sum().backward(); o.step()\n"
    done, _ = profiled(sys.executable, "-c", loop)
    assert done.returncode == 3
    assert "a world of one rank" in done.stderr.decode()
    assert os.environ.get("NETLAB_WORKER") is None
