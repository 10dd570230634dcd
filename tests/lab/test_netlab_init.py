"""netlab-init alone, without an engine: pid 1 of bare namespaces, built with sanitizers, asked well and badly."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from netlab import namespaces as ns
from netlab.hosts import Program
from netlab.hosts.container import ABSTRACT_NAME, ContainerError, ContainerHost, read_greeting
from tests.conftest import ROOT

pytestmark = pytest.mark.lab

SOURCES = sorted((ROOT / "netlab" / "hosts" / "core").glob("*.c"))
FLAGS = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


@pytest.fixture(scope="module")
def init(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with address and undefined behaviour sanitizers."""
    compiler = shutil.which("cc")
    assert compiler is not None
    built = tmp_path_factory.mktemp("init") / "netlab-init"
    subprocess.run([compiler, *FLAGS, *SANITIZERS, "-o", str(built), *map(str, SOURCES)], check=True, timeout=100)
    return built


@contextmanager
def started(init: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """netlab-init as pid 1 of a new pid namespace with a network of its own; yields it and its network."""
    home = ns.open_current("net")
    ns.unshare(ns.CLONE_NEWNET, "make a network namespace")
    network = ns.open_current("net")
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", str(init), *arguments]
    # Leaks are for programs that end; this one is made to be ended at any moment.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0"}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    ns.setns(home, ns.CLONE_NEWNET, "return")
    try:
        yield process, network
    finally:
        process.kill()
        process.communicate()
        os.close(network)
        os.close(home)


def connect(network: int) -> socket.socket:
    home = ns.open_current("net")
    try:
        for attempt in itertools.count():
            with ns.inside_network(network, home):
                control = socket.socket(socket.AF_UNIX)
                try:
                    control.connect(ABSTRACT_NAME)
                    return control
                except OSError:
                    control.close()
                    assert attempt < 500
            time.sleep(0.01)
    finally:
        os.close(home)
    raise AssertionError


def run(
    host: ContainerHost, *argv: str, env: dict[str, str] | None = None, cwd: str = ""
) -> tuple[bytes, dict[str, object]]:
    out_read, out_write = os.pipe()
    report_read, report_write = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    host.start(Program(list(argv), env or {}, cwd, (null, out_write, out_write, report_write)))
    for fd in (out_write, report_write, null):
        os.close(fd)
    with os.fdopen(out_read, "rb") as out, os.fdopen(report_read, "rb") as report:
        printed = out.read()
        said = report.read().splitlines()
    return printed, json.loads(said[0]) if said else {}


def test_programs_are_started_reported_and_searched_for_as_a_shell_would(init: Path, tmp_path: Path) -> None:
    script = tmp_path / "no-interpreter"
    script.write_text("echo never\n")
    script.chmod(0o755)
    absent, text = "No such file or directory", "cannot start '{}': {}"
    with started(init, "listen", "30") as (process, network), connect(network) as control:
        assert read_greeting(control) == "-"
        whole = ContainerHost("w", control, whole=True)
        assert run(whole, "/bin/echo", "a", "", "c d") == (b"a  c d\n", {"code": 0})
        assert run(whole, "/usr/bin/env", env={"A": "1", "B": ""}) == (b"A=1\nB=\n", {"code": 0})
        assert run(whole, "sh", "-c", "pwd", cwd="/usr", env={"PATH": "/bin"}) == (b"/usr\n", {"code": 0})
        assert run(whole, "sh", "-c", "exit 7")[1] == {"code": 7}
        assert run(whole, "sh", "-c", "kill -SEGV $$")[1] == {"signal": 11}
        assert run(whole, "none-such")[1]["error"] == text.format("none-such", absent)
        assert run(whole, "/etc/passwd")[1]["error"] == text.format("/etc/passwd", "Permission denied")
        assert run(whole, str(script))[1]["error"] == text.format(script, "Exec format error")
        assert run(whole, 'a"b\\c\n\xff')[1]["error"] == text.format('a"b\\c???', absent)
        assert run(whole, "true", cwd="/none")[1]["error"] == f"cannot enter '/none': {absent}"
        assert run(whole, "x" * 5000)[1]["errno"] in (2, 36)
        assert process.poll() is None


def test_a_large_command_and_environment_pass_whole(init: Path) -> None:
    with started(init, "listen", "30") as (_, network), connect(network) as control:
        read_greeting(control)
        host = ContainerHost("w", control, whole=True)
        argument, value = "x" * 120_000, "y" * 100_000
        printed, end = run(host, "/bin/sh", "-c", "echo ${#1} ${#V}", "sh", argument, env={"V": value})
        assert (printed, end) == (b"120000 100000\n", {"code": 0})


def test_a_given_variable_comes_on_top_of_the_image_s(init: Path) -> None:
    with started(init, "listen", "30") as (_, network), connect(network) as control:
        read_greeting(control)
        printed, _ = run(ContainerHost("p", control, whole=False), "/usr/bin/env", env={"A": "1"})
        assert b"ASAN_OPTIONS=detect" in printed
        assert b"\nA=1\n" in printed


def test_it_ends_with_its_connection_and_takes_everything_along(init: Path) -> None:
    with started(init, "listen", "30") as (process, network):
        control = connect(network)
        read_greeting(control)
        host = ContainerHost("w", control, whole=True)
        null = os.open("/dev/null", os.O_RDWR)
        reading, writing = os.pipe()
        host.start(
            Program(["/bin/sh", "-c", "setsid sleep 600 & echo up; sleep 600"], {}, "", (null, writing, null, null))
        )
        os.close(writing)
        assert os.read(reading, 10) == b"up\n"
        del host
        control.close()
        assert os.read(reading, 10) == b""  # the last holder of the pipe is gone
        assert process.wait(timeout=10) == 0
        os.close(reading)
        os.close(null)


def test_it_ends_when_nobody_comes(init: Path) -> None:
    with started(init, "listen", "1") as (process, _):
        _, said = process.communicate(timeout=15)
        assert process.returncode == 1
        assert b"nobody came for 1 s" in said


def test_a_second_connection_is_refused(init: Path) -> None:
    with started(init, "listen", "30") as (_, network), connect(network) as control:
        read_greeting(control)
        home = ns.open_current("net")
        with (
            ns.inside_network(network, home),
            socket.socket(socket.AF_UNIX) as second,
            pytest.raises(ConnectionRefusedError),
        ):
            second.connect(ABSTRACT_NAME)
        os.close(home)


def test_garbage_never_breaks_its_memory(init: Path) -> None:
    chance = random.Random(20261203)
    for _ in range(25):
        with started(init, "listen", "30") as (process, network), connect(network) as control:
            read_greeting(control)
            kind, size = chance.choice([0, 1, 2, 3]), chance.choice([0, 1, 8, 100, 1 << 31, 0xFFFFFFFF])
            body = chance.randbytes(min(size, 4096))
            if kind == 1 and size == 100:
                body = struct.pack("=2I", chance.choice([0, 1, 1 << 30, 0xFFFFFFFF]), chance.choice([0, 5])) + body[8:]
            fds = [os.open("/dev/null", os.O_RDWR) for _ in range(chance.choice([0, 1, 4]))]
            header = struct.pack("=4I", size, kind, 1, chance.choice([0, 1, 2, 9]))
            socket.send_fds(control, [header], fds) if fds else control.sendall(header)
            for fd in fds:
                os.close(fd)
            try:
                control.sendall(body)
            except OSError:
                pass  # it has hung up already
            control.close()
            _, said = process.communicate(timeout=15)
            assert b"Sanitizer" not in said, said.decode()
            assert b"runtime error" not in said, said.decode()
            assert process.returncode in (0, 1)


def test_a_worker_of_a_compose_file_serves_one_lab_after_another(init: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "lab.sock")
    with started(init, "connect", path, "a-0") as (process, _):
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path)
                listening.listen()
                listening.settimeout(10)
                control, _ = listening.accept()
            assert read_greeting(control) == "a-0"
            host = ContainerHost("a-0", control, whole=True)
            null = os.open("/dev/null", os.O_RDWR)
            reading, writing = os.pipe()
            host.start(Program(["/bin/sleep", "600"], {}, "", (null, writing, null, null)))
            assert run(host, "/bin/echo", "hi")[0] == b"hi\n"
            os.close(writing)
            control.close()
            assert os.read(reading, 1) == b""  # what the lab started has ended with it
            os.close(reading)
            os.close(null)
            Path(path).unlink()
        assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), 15)
        assert process.wait(timeout=10) == 128 + 15


def test_greetings_of_others_are_refused() -> None:
    for said, why in ((b"", "ended before"), (b"hello\n", "answered"), (b"netlab-init 99 x\n", "version 99")):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(said)
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(ContainerError, match=why):
                read_greeting(ours)


def test_it_refuses_to_run_where_it_would_kill_others(init: Path) -> None:
    done = subprocess.run([str(init), "listen", "1"], capture_output=True, timeout=10, check=False)
    assert done.returncode == 2
    assert b"must be pid 1 of a container" in done.stderr
