"""netlab up, list, exec, shell, top, events, down: labs that outlive the command which made them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Netlab

pytestmark = pytest.mark.lab

Mark = tuple[dict[str, str], Callable[[], list[int]]]
LAB = "an-experiment-with-a-long-name-2026"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """A registry of the test's own."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(folder)}


@pytest.fixture
def standing(netlab: Netlab, plain_profile: Path, home: dict[str, str], mark: Mark) -> Iterator[dict[str, str]]:
    """A lab that is up; the environment in which to reach it."""
    environment = {**home, **mark[0]}
    done = netlab("up", plain_profile, "--name", LAB, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    yield environment
    netlab("down", LAB, env=environment)


def test_a_lab_is_listed_while_it_is_up_and_gone_when_it_is_down(
    netlab: Netlab, plain_profile: Path, home: dict[str, str], mark: Mark
) -> None:
    environment, alive = {**home, **mark[0]}, mark[1]
    assert netlab("up", plain_profile, "--name", LAB, env=environment).returncode == 0
    (entry,) = json.loads(netlab("list", "--json", env=environment).stdout)
    assert (entry["name"], entry["profile"], entry["workers"]) == (LAB, "p", 2)
    assert alive()
    assert netlab("down", LAB, env=environment).returncode == 0
    assert alive() == []
    assert json.loads(netlab("list", "--json", env=environment).stdout) == []
    assert list(Path(home["XDG_RUNTIME_DIR"], "netlab").iterdir()) == []


def test_exec_passes_input_output_and_the_exit_status(standing: dict[str, str]) -> None:
    argv = [sys.executable, "-m", "netlab.cli", "exec", LAB, "b-0", "--", "sh", "-c", "read x; echo $RANK $x; exit 5"]
    done = subprocess.run(
        argv, input=b"hello\n", capture_output=True, env={**os.environ, **standing}, cwd=ROOT, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (5, b"1 hello\n")


def test_a_program_ends_with_the_exec_that_started_it(standing: dict[str, str], mark: Mark) -> None:
    argv = [sys.executable, "-m", "netlab.cli", "exec", LAB, "a-0", "--", "sh", "-c", "echo up; sleep 600"]
    before = len(mark[1]())
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **standing}, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    assert len(mark[1]()) > before
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 3
    while len(mark[1]()) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(mark[1]()) == before


def test_a_shell_has_job_control_and_a_terminal(standing: dict[str, str]) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, **standing, "SHELL": "/bin/bash"}
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-m", "netlab.cli", "shell", LAB, "a-0"], environment)
    os.write(terminal, b"tty; set -o | grep monitor; hostname; exit 3\n")
    printed = b""
    try:
        while data := os.read(terminal, 4096):
            printed += data
    except OSError:
        pass  # the last user of the terminal has gone
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 3
    assert re.search(rb"/dev/pts/\d+", printed)
    assert re.search(rb"monitor\s+on", printed)
    assert b"a-0" in printed


def test_a_lab_killed_from_outside_is_not_listed_and_its_name_is_free(
    netlab: Netlab, plain_profile: Path, standing: dict[str, str], mark: Mark
) -> None:
    (entry,) = json.loads(netlab("list", "--json", env=standing).stdout)
    os.kill(entry["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 5
    while mark[1]() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mark[1]() == []
    assert json.loads(netlab("list", "--json", env=standing).stdout) == []
    refused = netlab("exec", LAB, "a-0", "--", "true", env=standing)
    assert refused.returncode == 2
    assert b"no lab named" in refused.stderr
    assert netlab("up", plain_profile, "--name", LAB, env=standing).returncode == 0


def test_a_name_in_use_is_refused_and_the_lab_stays(
    netlab: Netlab, plain_profile: Path, standing: dict[str, str]
) -> None:
    refused = netlab("up", plain_profile, "--name", LAB, env=standing)
    assert refused.returncode == 2
    assert b"is up already" in refused.stderr
    assert netlab("exec", LAB, "a-0", "--", "ping", "-c", "1", "b-0", env=standing).returncode == 0


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 64, ".hidden", "a b"])
def test_a_name_that_is_none_is_refused(netlab: Netlab, plain_profile: Path, home: dict[str, str], name: str) -> None:
    refused = netlab("up", plain_profile, "--name", name, env=home)
    assert refused.returncode == 2
    assert b"cannot name a lab" in refused.stderr


def test_two_labs_of_one_profile_stand_side_by_side(
    netlab: Netlab, plain_profile: Path, standing: dict[str, str]
) -> None:
    assert netlab("up", plain_profile, "--name", "second", env=standing).returncode == 0
    try:
        for name in (LAB, "second"):
            done = netlab("exec", name, "a-0", "--", "ping", "-c", "2", "-i", "0.1", "-q", "b-0", env=standing)
            assert b"2 received" in done.stdout
    finally:
        assert netlab("down", "second", env=standing).returncode == 0
    assert netlab("exec", LAB, "a-0", "--", "ping", "-c", "1", "b-0", env=standing).returncode == 0


def test_top_shows_every_direction_at_80_columns(netlab: Netlab, standing: dict[str, str]) -> None:
    done = netlab("top", LAB, "--interval", "0.2", "--count", "2", env={**standing, "COLUMNS": "80"})
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().splitlines()
    assert sum("a>b" in line for line in lines) == 2
    assert sum("b>a" in line for line in lines) == 2
    assert max(map(len, lines)) <= 80


def test_a_link_is_captured_for_some_seconds_or_until_interrupted(
    netlab: Netlab, standing: dict[str, str], tmp_path: Path
) -> None:
    argv = [sys.executable, "-m", "netlab.cli", "capture", LAB, "a-b", str(tmp_path / "x.pcapng")]
    env = {**os.environ, **standing}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, env=env, cwd=ROOT) as capturing:
        deadline = time.monotonic() + 20
        while not (tmp_path / "x.pcapng").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        assert netlab("exec", LAB, "a-0", "--", "ping", "-c", "3", "-i", "0.1", "b-0", env=standing).returncode == 0
        capturing.send_signal(signal.SIGINT)
        _, said = capturing.communicate(timeout=20)
    assert capturing.returncode == 0
    assert b"12 packets in" in said  # three echoes and three answers, each at both ends
    done = netlab("capture", LAB, "a-b", tmp_path / "y", "--seconds", "0.2", env=standing)
    assert (done.returncode, b"0 packets in" in done.stderr) == (0, True), done.stderr
    done = netlab("capture", LAB, "a-c", tmp_path / "z", env=standing)
    assert done.returncode == 2
    assert b"is not a link of p (links: a-b)" in done.stderr


def test_a_lab_that_stays_completes_its_log_of_packets_when_it_goes_down(
    netlab: Netlab, plain_profile: Path, home: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert netlab("up", plain_profile, "--name", LAB, "--packet-log", log, env=home).returncode == 0
    try:
        ping = ("ping", "-c", "3", "-i", "0.1", "b-0")
        assert netlab("exec", LAB, "a-0", "--", *ping, env=home).returncode == 0
    finally:
        assert netlab("down", LAB, env=home).returncode == 0
    found = json.loads(netlab("packets", log, "--json").stdout)
    assert (found["records"], found["left_out"]) == (6, 0)
    assert [way["fates"] for way in found["directions"]] == [{"passed": 3}, {"passed": 3}]


def test_events_begin_with_the_lab_coming_up(netlab: Netlab, standing: dict[str, str]) -> None:
    events = json.loads(netlab("events", LAB, "--json", env=standing).stdout)
    assert [event["kind"] for event in events] == ["up"]
    assert abs(events[0]["time"] - time.time()) < 60
