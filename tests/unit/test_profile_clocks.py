"""Clocks of two machines: the offset that is injected is found, within the uncertainty that is told."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from cpdp.profiler import analysis, offset
from cpdp.rundir import RunDir
from tests.conftest import ROOT
from tests.unit.test_profile_scripts import ENVIRONMENT, free_port

AHEAD_NS = 123_456_789_000


def answering(ahead_ns, *, late_s=0.0, exchanges=offset.EXCHANGES):
    """Measure against a server whose clock is ahead, on a way that takes `late_s` longer towards it than back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def now():
            return time.monotonic_ns() + ahead_ns

        def serve():
            for _ in range(exchanges):
                if late_s:
                    server.recv(64, socket.MSG_PEEK)
                    time.sleep(late_s)
                offset.answer(server, now)

        thread = threading.Thread(target=serve)
        thread.start()
        found = offset.measure(server.getsockname(), exchanges=exchanges)
        thread.join()
        return found


@pytest.mark.parametrize("ahead_ns", [AHEAD_NS, -AHEAD_NS, 0])
def test_an_injected_offset_is_found_within_its_uncertainty(ahead_ns):
    found = answering(ahead_ns)
    assert abs(found.offset_ns - ahead_ns) <= found.uncertainty_ns
    assert 0 < found.uncertainty_ns < 5_000_000  # half of a round trip over loopback


def test_a_way_that_is_longer_in_one_direction_shows_in_the_uncertainty():
    """20 ms more towards the server: the offset is wrong by half of that, and the uncertainty says so."""
    found = answering(AHEAD_NS, late_s=0.02, exchanges=3)
    assert found.offset_ns - AHEAD_NS == pytest.approx(10_000_000, abs=5_000_000)
    assert found.offset_ns - AHEAD_NS <= found.uncertainty_ns


def test_a_server_that_never_answers_gives_no_offset():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        assert offset.measure(server.getsockname(), exchanges=1) is None


APART = ["unshare", "--user", "--map-root-user", "--time", "--monotonic", "1000", "--fork"]


@pytest.mark.skipif(
    subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0,
    reason="this kernel or container gives no time namespace",
)
def test_two_ranks_whose_clocks_are_a_thousand_seconds_apart_are_brought_together(tmp_path):
    """A raw pipeline in which rank 1 sleeps 30 ms and whose clock, in a time namespace, is 1000 s ahead."""
    script = str(ROOT / "tests" / "scripts" / "pipeline.py")
    port, run = free_port(), tmp_path / "run"
    command = [sys.executable, "-m", "cpdp.cli", "profile", "--out", str(run), "--"]
    ranks = []
    for rank, before in ((0, []), (1, APART)):
        env = {**ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
        env |= {"NETLAB_RUN": "apart", "NETLAB_WORKER": f"w-{rank}", "NETLAB_WORKERS": "2"}
        argv = [*before, *command, sys.executable, script]
        ranks.append(subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL))
    said = [rank.communicate(timeout=100)[1].decode() for rank in ranks]
    # Without a lab both sit on loopback, which in a lab makes a run not valid: 3. What is read here is what they wrote.
    assert all(rank.returncode in (0, 3) for rank in ranks), said
    (world,) = analysis.open_run(RunDir(run)).worlds
    assert world.logs[1].offset_ns == pytest.approx(-1e12, abs=world.logs[1].uncertainty_ns)
    assert 0 < world.uncertainty_ms < 5
    waited = analysis.measured(world.steps).query("rank == 0")["exposed_peer_ms"].median()
    assert 29 - world.uncertainty_ms < waited < 60 + world.uncertainty_ms
    told = json.dumps(analysis.late(world))
    assert json.loads(told)["uncertainty_ms"] == world.uncertainty_ms
    assert os.environ.get(offset.ADDRESS) is None


def test_ranks_of_one_boot_read_one_clock_and_need_no_exchange(tmp_path):
    assert offset.clock_identity() == offset.clock_identity()
    said = []

    class Store:
        def check(self, keys):
            return True

        def get(self, key):
            return json.dumps(["127.0.0.1", 9, offset.clock_identity()])

    offset._follow(Store(), offset.clock_identity(), said.append)
    assert said == []
