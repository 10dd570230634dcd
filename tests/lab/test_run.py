"""``netlab run``: exit codes, ends, output, as a script around it would see them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Netlab

pytestmark = pytest.mark.lab

Mark = tuple[dict[str, str], Callable[[], list[int]]]


def gone(alive: Callable[[], list[int]], within_s: float = 3.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not alive():
            return True
        time.sleep(0.05)
    return False


def test_a_job_that_ends_well_exits_0(netlab: Netlab, plain_profile: Path) -> None:
    done = netlab("run", plain_profile, "--no-verify", "--", "true")
    assert done.returncode == 0, done.stderr.decode()
    assert b"emulation kept up" in done.stderr


def test_the_first_failure_ends_the_others_with_all_they_started(
    netlab: Netlab, plain_profile: Path, mark: Mark
) -> None:
    environment, alive = mark
    start = time.monotonic()
    done = netlab(
        "run",
        plain_profile,
        "--no-verify",
        "--",
        "sh",
        "-c",
        "[ $RANK = 1 ] && exit 7; sleep 600 & wait",
        env=environment,
    )
    assert done.returncode == 1
    assert b"b-0 (rank 1) exited with status 7" in done.stderr
    assert b"Traceback" not in done.stderr
    assert time.monotonic() - start < 15
    assert gone(alive)


def test_a_daemon_does_not_outlive_the_job_that_started_it(netlab: Netlab, plain_profile: Path, mark: Mark) -> None:
    environment, alive = mark
    command = "setsid sh -c 'trap \"\" TERM HUP; sleep 600' >/dev/null 2>&1 & exit 0"
    done = netlab("run", plain_profile, "--no-verify", "--", "sh", "-c", command, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    assert gone(alive)


def test_a_worker_that_ignores_sigterm_is_killed(netlab: Netlab, plain_profile: Path, mark: Mark) -> None:
    environment, alive = mark
    command = "[ $RANK = 1 ] && { sleep 0.3; exit 3; }; trap '' TERM; while :; do sleep 1; done"
    done = netlab("run", plain_profile, "--no-verify", "--", "sh", "-c", command, env=environment)
    assert done.returncode == 1
    assert b"b-0 (rank 1) exited with status 3" in done.stderr
    assert gone(alive)


def test_a_signal_is_named(netlab: Netlab, plain_profile: Path) -> None:
    done = netlab("run", plain_profile, "--no-verify", "--", "sh", "-c", "[ $RANK = 1 ] && kill -SEGV $$; sleep 60")
    assert done.returncode == 1
    assert b"b-0 (rank 1) was ended by SIGSEGV" in done.stderr


@pytest.mark.parametrize(
    ("command", "reason"),
    [("no-such-command-here", "No such file or directory"), ("/etc/passwd", "Permission denied")],
)
def test_a_command_that_cannot_start_is_named(netlab: Netlab, plain_profile: Path, command: str, reason: str) -> None:
    done = netlab("run", plain_profile, "--no-verify", "--", command)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert command in said
    assert reason in said
    assert "Traceback" not in said


def test_output_comes_through_byte_for_byte(netlab: Netlab, plain_profile: Path, tmp_path: Path) -> None:
    script = tmp_path / "torture.py"
    script.write_text(
        "import os, sys, time\n"
        "def write(data):\n"
        "    view = memoryview(data)\n"
        "    while view: view = view[os.write(1, view):]\n"
        "if os.environ['RANK'] == '1': time.sleep(4); sys.exit(7)\n"
        "euro = '\\u20ac'.encode()\n"
        "write(b'\\xff\\xfe'); write(euro[:2]); time.sleep(0.1); write(euro[2:] + b'\\n')\n"
        "for i in range(50): write(b'progress %d\\r' % i)\n"
        "write(b'\\n' + b'x' * 10_000_000 + b'\\n')\n"
        "for i in range(20): write((b'y' * 99 + b'\\n') * 10_000)\n"
        "write(b'no newline at the end')\n"
    )
    done = netlab("run", plain_profile, "--no-verify", "--quiet", "--", sys.executable, script)
    assert done.returncode == 1
    assert b"b-0 (rank 1) exited with status 7" in done.stderr
    got = re.sub(rb"(^|(?<=\n)|(?<=\r))a-0 \| ", b"", done.stdout)
    progress = b"".join(b"progress %d\r" % i for i in range(50))
    lines = (b"y" * 99 + b"\n") * 200_000
    assert (
        got
        == b"\xff\xfe\xe2\x82\xac\n" + progress + b"\n" + b"x" * 10_000_000 + b"\n" + lines + b"no newline at the end"
    )


def test_output_appears_while_the_job_runs(plain_profile: Path) -> None:
    command = "printf 'working'; sleep 30"
    argv = [
        sys.executable,
        "-m",
        "netlab.cli",
        "run",
        str(plain_profile),
        "--no-verify",
        "--quiet",
        "--",
        "sh",
        "-c",
        command,
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        assert process.stdout is not None
        assert b"working" in process.stdout.read(len(b"a-0 | working"))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 130


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_everything(plain_profile: Path, mark: Mark, presses: int) -> None:
    environment, alive = mark
    command = "trap '' INT TERM; echo up; while :; do sleep 1; done" if presses == 2 else "echo up; sleep 600"
    argv = [
        sys.executable,
        "-m",
        "netlab.cli",
        "run",
        str(plain_profile),
        "--no-verify",
        "--quiet",
        "--",
        "sh",
        "-c",
        command,
    ]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env={**os.environ, **environment}
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, said = process.communicate(timeout=15)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert gone(alive)


def test_a_reader_that_goes_away_is_no_traceback(plain_profile: Path) -> None:
    argv = f"{sys.executable} -m netlab.cli run {plain_profile} --no-verify --quiet -- yes | head -n 1"
    done = subprocess.run(["bash", "-c", argv], capture_output=True, timeout=30, cwd=ROOT, check=False)
    assert done.stdout.startswith((b"a-0 | y", b"b-0 | y"))
    assert b"Traceback" not in done.stderr


def test_a_job_that_takes_too_long_is_ended_and_said_so(netlab: Netlab, plain_profile: Path) -> None:
    done = netlab("run", plain_profile, "--no-verify", "--timeout", "1", "--", "sleep", "60")
    assert done.returncode == 1
    assert b"ran out of time" in done.stderr


def test_the_record_holds_network_verification_health_and_exits(
    netlab: Netlab, plain_profile: Path, tmp_path: Path
) -> None:
    done = netlab("run", plain_profile, "--out", tmp_path / "run", "--", "true")
    assert done.returncode == 0, done.stderr.decode()
    record = json.loads((tmp_path / "run" / "network.json").read_text(), parse_constant=pytest.fail)
    assert record["verification"]["ok"] is True
    assert record["health"]["valid"] is True
    assert [end["code"] for end in record["exits"]] == [0, 0]
    assert record["network"]["plan"]["links"][0]["directions"][0]["delay_ns"] == 10_000_000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "PROFILE"], "no command"),
        (["run", "nowhere.yaml", "--", "true"], "nowhere.yaml"),
        (["run", "PROFILE", "--hosts", "vagrant", "--", "true"], "choose from 'process', 'docker'"),
        (["run", "PROFILE", "--timeout", "-1", "--", "true"], "--timeout"),
    ],
)
def test_a_user_s_mistake_exits_2_and_says_what_is_allowed(
    netlab: Netlab, plain_profile: Path, arguments: list[str], expected: str
) -> None:
    done = netlab(*[plain_profile if argument == "PROFILE" else argument for argument in arguments])
    assert done.returncode == 2
    assert expected in done.stderr.decode()
    assert b"Traceback" not in done.stderr
