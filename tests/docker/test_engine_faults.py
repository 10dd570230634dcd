"""What goes wrong with engines and images ends with words that say what to do, and leaves nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from netlab import plan, topology
from netlab.hosts import creation, order
from netlab.hosts.container import ContainerError
from netlab.hosts.steward import Steward
from netlab.profile import load_profile
from tests.conftest import PLAIN, ROOT, Netlab
from tests.docker.engine import answers, private_engine

pytestmark = pytest.mark.docker

Profile = Callable[..., Path]
Left = Callable[[], list[str]]


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("image: no/such-image", "a-0: image no/such-image is not in the engine at unix://"),
        ("user: nobody-of-that-name", "user nobody-of-that-name: this machine has no such user or group"),
        ("cpuset: '4000'", "Requested CPUs are not available"),
        ("volumes: [/no/such/folder:/data]", "the engine does not see this machine's files"),
        ("gpus: all", "with image host GPUs go by index, and here are: none"),
    ],
)
def test_what_the_engine_cannot_make_is_refused_in_its_words_and_leaves_nothing(
    engine: docker.APIClient, netlab: Netlab, profile: Profile, left: Left, hosts: str, said: str
) -> None:
    if hosts.startswith("gpus") and list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has GPUs")
    before = left()
    done = netlab("run", profile(a=f", hosts: {{{hosts}}}"), "--hosts", "docker", "--", "true")
    assert done.returncode == 2, done.stderr.decode()
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert left() == before


def test_an_image_without_the_command_says_which(tiny: str, netlab: Netlab, profile: Profile) -> None:
    path = profile(f"hosts: {{image: {tiny}}}")
    done = netlab("run", path, "--hosts", "docker", "--no-verify", "--", "python3", "-c", "1")
    assert done.returncode == 1
    assert b"cannot start 'python3': No such file or directory" in done.stderr


def test_a_container_that_dies_at_start_is_shown_with_its_last_lines(
    engine: docker.APIClient, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: Left
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PLAIN + f"hosts: {{image: {tiny}}}\n")
    dying = tmp_path / "init"
    dying.write_text("#!/bin/sh\necho first words\necho last words\nexit 3\n")
    dying.chmod(0o755)
    monkeypatch.setattr(creation, "INIT", dying)
    made = plan.make(topology.build(load_profile(path)), "relay", "docker")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        steward = Steward(theirs)
        with pytest.raises(ContainerError, match=r"(?s)its container died at start: .*first words.*last words"):
            steward.open(order.place(made, order.owner_of(os.getpid()), (), ()))
        steward.remove()
    assert left() == []


def test_no_engine_at_all_says_how_to_get_one(netlab: Netlab, plain_profile: Path, tmp_path: Path) -> None:
    env = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    done = netlab("run", plain_profile, "--hosts", "docker", "--", "true", env=env)
    assert done.returncode == 2
    assert f"no Docker engine: {tmp_path}/none.sock does not exist; install one" in done.stderr.decode()
    assert b"--hosts process needs no engine" in done.stderr


def test_an_engine_that_does_not_run_says_so(netlab: Netlab, plain_profile: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "d.sock"))
    env = {"DOCKER_HOST": f"unix://{tmp_path}/d.sock"}
    done = netlab("run", plain_profile, "--hosts", "docker", "--", "true", env=env)
    assert done.returncode == 2
    assert b"it is not running (systemctl start docker)" in done.stderr


def test_a_remote_engine_is_refused_with_the_way_to_compose(netlab: Netlab, plain_profile: Path) -> None:
    env = {"DOCKER_HOST": "tcp://192.0.2.1:2375"}
    done = netlab("run", plain_profile, "--hosts", "docker", "--", "true", env=env)
    assert done.returncode == 2
    assert b"netlab compose PROFILE" in done.stderr


def test_a_user_without_root_is_told_what_to_do(engine: docker.APIClient, plain_profile: Path) -> None:
    drop = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    argv = [*drop, sys.executable, "-m", "netlab.cli", "run", str(plain_profile), "--hosts", "docker", "--", "true"]
    done = subprocess.run(argv, capture_output=True, timeout=60, cwd=ROOT, check=False)
    assert done.returncode == 2, done.stderr.decode()
    assert b"moving interfaces into containers needs root: run it with sudo, or use a compose file" in done.stderr


def test_an_engine_that_stops_half_way_ends_the_job_with_its_reason(plain_profile: Path) -> None:
    with private_engine() as url:
        environment = {**os.environ, "DOCKER_HOST": url}
        argv = [sys.executable, "-m", "netlab.cli", "run", str(plain_profile), "--hosts", "docker", "--no-verify"]
        argv += ["--", "sh", "-c", "echo up; sleep 60"]
        job = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=ROOT)
        assert job.stdout is not None
        assert job.stdout.readline()
        os.kill(int((Path(url.removeprefix("unix://")).parent / "pid").read_text()), signal.SIGTERM)
        started = time.monotonic()
        _, said = job.communicate(timeout=60)
    assert job.returncode == 1, said.decode()
    assert b"its container has ended" in said, said.decode()
    assert b"Traceback" not in said
    assert time.monotonic() - started < 30


def test_a_private_engine_leaves_nothing_behind() -> None:
    def state() -> tuple[str, set[str], set[str]]:
        programs = {entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_engine(entry)}
        return Path("/proc/mounts").read_text(), programs, {path.name for path in Path("/tmp").glob("netlab-engine-*")}

    before = state()
    with private_engine() as url:
        assert answers(url)
        assert state() != before
    mounts, programs, folders = state()
    assert (mounts, folders) == (before[0], before[2])
    assert programs <= before[1]


def _is_engine(entry: Path) -> bool:
    try:
        return (entry / "comm").read_text().strip() in ("dockerd", "containerd", "containerd-shim")
    except OSError:
        return False
