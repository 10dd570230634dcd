"""SIGKILL of the command at any moment leaves no process, interface, namespace or mount; also for an ordinary user."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.lab

Mark = tuple[dict[str, str], Callable[[], list[int]]]
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]


def host_state() -> tuple[str, set[str], str]:
    """Interfaces, network namespaces that any process is in, and mounts, as the host sees them."""
    interfaces = "\n".join(sorted(line.split(":")[0] for line in Path("/proc/net/dev").read_text().splitlines()))
    namespaces = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                namespaces.add(str((entry / "ns" / "net").readlink()))
            except OSError:
                continue
    return interfaces, namespaces, Path("/proc/mounts").read_text()


def settles_to(expected: tuple[str, set[str], str], alive: Callable[[], list[int]], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        interfaces, namespaces, mounts = host_state()
        if not alive() and interfaces == expected[0] and namespaces <= expected[1] and mounts == expected[2]:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.timeout(300)
def test_sigkill_at_any_moment_leaves_nothing(plain_profile: Path, mark: Mark) -> None:
    environment, alive = mark
    before = host_state()
    argv = [sys.executable, "-m", "netlab.cli", "run", str(plain_profile), "--", "sh", "-c", "sleep 600 & sleep 600"]
    moments = random.Random(20261201)
    reached_the_job = 0
    for number in range(24):
        process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, **environment}
        )
        # Half of the kills while the lab is being built, half while it is verified or runs.
        time.sleep(moments.uniform(0.0, 0.6) if number % 2 else moments.uniform(0.4, 3.5))
        reached_the_job += len(alive()) > 5
        process.kill()
        process.wait()
        assert settles_to(before, alive), f"kill {number}: {alive()} {host_state()}"
    assert reached_the_job, "no kill came late enough to hit a lab with running workers"


@pytest.mark.parametrize("victim", ["sandbox", "keeper", "relay"])
def test_a_lab_that_loses_a_part_of_itself_ends_with_a_message(plain_profile: Path, mark: Mark, victim: str) -> None:
    environment, alive = mark
    argv = [
        sys.executable,
        "-m",
        "netlab.cli",
        "run",
        str(plain_profile),
        "--no-verify",
        "--",
        "sh",
        "-c",
        "echo up; sleep 2",
    ]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env={**os.environ, **environment}
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    chain = [process.pid]
    for _ in range(2):
        chain.append(int(Path(f"/proc/{chain[-1]}/task/{chain[-1]}/children").read_text().split()[0]))
    of_keeper = [int(pid) for pid in Path(f"/proc/{chain[2]}/task/{chain[2]}/children").read_text().split()]
    relay = [pid for pid in of_keeper if b"relay_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill({"sandbox": chain[1], "keeper": chain[2], "relay": relay[0]}[victim], signal.SIGKILL)
    _, said = process.communicate(timeout=20)
    assert process.returncode in (1, 3), said.decode()
    assert b"Traceback" not in said
    assert (b"relay has ended" if victim == "relay" else b"the lab has ended") in said
    assert not alive()


def unprivileged_argv(arguments: list[str]) -> list[str]:
    """Run netlab as the user nobody, with /dev/net/tun open to all, as most systems have it."""
    python = sys.executable
    readable = subprocess.run(
        [*AS_NOBODY, "env", python, "-c", ""],
        capture_output=True,
        check=False,
    )
    if readable.returncode:
        python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    nobody = " ".join(AS_NOBODY)
    script = (
        "mount --make-rprivate / && mount -t tmpfs none /mnt && mknod -m 666 /mnt/tun c 10 200 &&"
        " mount --bind /mnt/tun /dev/net/tun && umount -l /mnt &&"
        f' exec {nobody} "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh", python, "-m", "netlab.cli", *arguments]


def unprivileged_environment(tmp_path: Path, extra: dict[str, str]) -> dict[str, str]:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {**os.environ, **extra, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT), *packages])}


@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user: every other test here runs as one")
def test_an_ordinary_user_runs_a_lab_and_a_kill_leaves_nothing(tmp_path: Path, plain_profile: Path, mark: Mark) -> None:
    limit = Path("/proc/sys/user/max_user_namespaces")
    if not limit.exists() or int(limit.read_text()) == 0:
        pytest.skip("this kernel has no user namespaces")
    text = plain_profile.read_text()
    profile = Path("/tmp", f"netlab-test-{os.getpid()}.yaml")  # pytest's own folder is closed to other users
    profile.write_text(text)
    profile.chmod(0o644)
    try:
        environment, alive = mark
        environment = unprivileged_environment(tmp_path, environment)
        before = host_state()
        argv = unprivileged_argv(["run", str(profile), "--", "sh", "-c", "id -u; ping -c 3 -i 0.2 -q b-0"])
        done = subprocess.run(argv, capture_output=True, env=environment, cwd="/", timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert b"a-0 | 0\n" in done.stdout
        assert b"3 received" in done.stdout
        argv = unprivileged_argv(["run", str(profile), "--no-verify", "--", "sleep", "600"])
        for delay in (0.1, 0.3, 0.6, 1.5):
            process = subprocess.Popen(
                argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, cwd="/"
            )
            time.sleep(delay)
            process.kill()
            process.wait()
            assert settles_to(before, alive), f"killed after {delay} s"
    finally:
        profile.unlink()
