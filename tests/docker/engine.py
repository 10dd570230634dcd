"""A Docker Engine of our own for tests and benchmarks, on its own socket and data root, that leaves nothing behind.

It makes no bridge and touches no firewall rule: containers of a lab have no network but the one that netlab gives them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from netlab import namespaces

USUAL = "unix:///var/run/docker.sock"


def answers(url: str) -> bool:
    """Whether an engine answers at a Unix socket."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(10)
            probe.connect(url.removeprefix("unix://"))
            probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in probe.recv(64)
    except OSError:
        return False


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
        _stop(process, home)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{home}/"):
                namespaces.unmount(line.split()[1])
        shutil.rmtree(home)


def _stop(process: subprocess.Popen[bytes], home: Path) -> None:
    """End dockerd in order: it stops its containers and its containerd, whose shims follow."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 20
    while _named_in_commands(str(home)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _named_in_commands(text: str) -> list[str]:
    """Processes whose command line has the text in it: everything that an engine with that home has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


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
