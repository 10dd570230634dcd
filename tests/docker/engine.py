"""A Docker Engine of our own for tests and benchmarks, on its own socket and data root, that leaves nothing behind.

It makes no bridge and touches no firewall rule: containers of a lab have no network but the one that netlab gives them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

USUAL = "unix:///var/run/docker.sock"


def answers(url: str) -> bool:
    """Whether an engine answers at a Unix socket."""
    try:
        client = docker.APIClient(base_url=url, version="auto", timeout=10)
    except (docker.errors.DockerException, OSError):
        return False
    client.close()
    return True


@contextmanager
def private_engine(log_level: str = "warn") -> Iterator[str]:
    """Start dockerd; yields its address. Raises RuntimeError with its last words when it does not come up."""
    home = Path(tempfile.mkdtemp(prefix="netlab-engine-"))
    url = f"unix://{home}/docker.sock"
    argv = ["dockerd", "--host", url, "--data-root", str(home / "data"), "--exec-root", str(home / "exec")]
    argv += ["--pidfile", str(home / "pid"), "--bridge", "none", "--iptables=false", "--ip-forward=false"]
    argv += ["--ip-masq=false", "--log-level", log_level]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(url, process, home / "log")
        yield url
    finally:
        stop(process)
        shutil.rmtree(home)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End dockerd in order: it stops its containers and its containerd."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while not answers(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"dockerd does not come up:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


@contextmanager
def any_engine() -> Iterator[str]:
    """The engine that DOCKER_HOST names or that answers at the usual place, else one of our own."""
    for url in filter(None, (os.environ.get("DOCKER_HOST"), USUAL)):
        if url.startswith("unix://") and answers(url):
            yield url
            return
    with private_engine() as url:
        yield url
