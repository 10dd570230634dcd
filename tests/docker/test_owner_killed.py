"""SIGKILL of a lab's owner at any moment leaves nothing in the engine or here; clean removes what dead owners left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest

from netlab import registry
from tests.conftest import ROOT, Netlab

pytestmark = pytest.mark.docker

Left = Callable[[], list[str]]
KILLS = 10


def host_state() -> tuple[set[str], str]:
    """Interfaces and mounts as the host sees them."""
    interfaces = {line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()}
    return interfaces, Path("/proc/mounts").read_text()


def inits() -> list[int]:
    """Processes that are a container's netlab-init, anywhere on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"/.netlab-init\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def settles(condition: Callable[[], bool], within_s: float = 15.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def running(profile: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "netlab.cli", "run", str(profile), "--hosts", "docker", *arguments]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(240)
def test_sigkill_of_the_owner_at_any_moment_leaves_nothing(
    engine: docker.APIClient, plain_profile: Path, left: Left
) -> None:
    before, containers, others = host_state(), left(), set(inits())
    moments = random.Random(20261202)
    most = 0
    for number in range(KILLS):
        with running(plain_profile, "--no-verify", "--", "sh", "-c", "sleep 600 & sleep 600") as process:
            # Half of the kills while all comes up, half from when there are containers until the command runs in them.
            if number % 2:
                assert settles(lambda: len(left()) > len(containers), 30)
            time.sleep(moments.uniform(0.0, 1.0))
            most = max(most, len(left()) - len(containers))
            process.kill()
        assert settles(lambda: left() == containers), f"kill {number}: {left()}"
        assert settles(lambda: set(inits()) <= others), f"kill {number}: {inits()}"
        assert settles(lambda: host_state() == before), f"kill {number}: {host_state()}"
    assert most == 2, "no kill came late enough to hit a lab whose containers were up"


def steward_of(process: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (found,) = (int(pid) for pid in children if b"netlab.hosts.steward" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def test_containers_end_with_their_owner_even_without_their_steward(
    engine: docker.APIClient, plain_profile: Path, left: Left
) -> None:
    containers = left()
    with running(plain_profile, "--no-verify", "--", "sh", "-c", "echo up; sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        os.kill(steward_of(process), signal.SIGKILL)
        process.kill()
        assert settles(lambda: left() == containers), left()


def test_a_lab_that_stays_up_takes_its_containers_along_when_it_is_killed(
    engine: docker.APIClient, netlab: Netlab, plain_profile: Path, left: Left
) -> None:
    containers, name = left(), f"killed-{os.getpid()}"
    done = netlab("up", plain_profile, "--name", name, "--hosts", "docker")
    assert done.returncode == 0, done.stderr.decode()
    assert len(left()) == len(containers) + 2
    (lab,) = (entry for entry in registry.entries() if entry.name == name)
    os.kill(lab.pid, signal.SIGKILL)
    assert settles(lambda: left() == containers), left()
    assert f"removed the record of lab {name}".encode() in netlab("clean").stdout


def test_a_signal_to_end_removes_the_containers_before_the_command_ends(
    engine: docker.APIClient, plain_profile: Path, left: Left
) -> None:
    containers = left()
    with running(plain_profile, "--no-verify", "--", "sh", "-c", "echo up; sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 130, said.decode()
        assert left() == containers


def create(engine: docker.APIClient, tiny: str, owner: dict[str, str]) -> str:
    labels = {"netlab.lab": "0123", "netlab.profile": "p", "netlab.worker": "a-0"}
    labels |= {f"netlab.owner.{key}": value for key, value in owner.items()}
    return str(engine.create_container(tiny, ["sleep", "600"], labels=labels, network_disabled=True)["Id"])


def test_clean_removes_what_a_dead_owner_left_and_nothing_else(
    engine: docker.APIClient, tiny: str, netlab: Netlab, plain_profile: Path, left: Left
) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    here = str(Path("/proc/self/ns/pid").readlink())
    mine = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    ended = subprocess.Popen(["true"])
    ended.wait()
    alive = {"pid": str(os.getpid()), "start": mine, "boot": boot, "pidns": here}
    dead = {
        "gone": create(engine, tiny, alive | {"pid": str(ended.pid)}),
        "pid used again": create(engine, tiny, alive | {"start": str(int(mine) - 1)}),
        "before this boot": create(engine, tiny, alive | {"boot": "another"}),
    }
    kept = {
        "alive": create(engine, tiny, alive),
        "of another pid namespace": create(engine, tiny, alive | {"pid": str(ended.pid), "pidns": "pid:[1]"}),
        "without owner": create(engine, tiny, {}),
        "not a lab's": str(
            engine.create_container(tiny, ["true"], name="netlab-0123-a-9", network_disabled=True)["Id"]
        ),
    }
    try:
        with running(plain_profile, "--no-verify", "--", "sh", "-c", "echo up; sleep 600") as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            dry = netlab("clean", "--dry-run")
            assert dry.stdout.count(b"would remove container") == 3
            done = netlab("clean")
            assert done.returncode == 0, done.stderr.decode()
            assert process.poll() is None
        ids = {each["Id"] for each in engine.containers(all=True)}
        assert not ids & set(dead.values())
        assert set(kept.values()) <= ids
        assert done.stdout.count(b"removed container") == 3
        # two containers of the lab that runs, and the first three that are kept
        assert done.stderr.count(b"left alone") == 5
    finally:
        for container in (*dead.values(), *kept.values()):
            try:
                engine.remove_container(container, force=True)
            except docker.errors.NotFound:
                continue
