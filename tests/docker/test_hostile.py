"""What a command in a container may try against this machine, the engine, its keeper and another lab; all in vain."""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest

from netlab import Lab, parse_profile
from tests.conftest import PLAIN

pytestmark = pytest.mark.docker

ATTEMPTS = r"""
import ctypes, json, os, socket, sys
given = json.loads(sys.argv[1])
tried = {}

def attempt(name, action):
    try:
        tried[name] = repr(action() or "done")
    except (OSError, ValueError) as error:
        tried[name] = type(error).__name__

def call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)

def unix(path):
    return socket.socket(socket.AF_UNIX).connect(path)

def tcp(host, port):
    return socket.create_connection((host, port), timeout=2).close()

attempt("engine socket", lambda: unix(given["engine"]))
attempt("a socket of the machine in the file system", lambda: unix(given["path"]))
attempt("an abstract socket of the machine", lambda: unix("\0" + given["abstract"]))
attempt("netlab-init's socket", lambda: unix("\0netlab"))
attempt("a server of the machine on its loopback", lambda: tcp("127.0.0.1", given["port"]))
for number, address in enumerate(given["addresses"]):
    attempt(f"a server of the machine on address {number}", lambda address=address: tcp(address, given["port"]))
attempt("beyond the machine", lambda: tcp("192.0.2.1", 9))
attempt("set pid 1's network", lambda: call("setns", os.open("/proc/1/ns/net", os.O_RDONLY), 0))
attempt("trace pid 1", lambda: call("ptrace", 16, 1, 0, 0))
attempt("pid 1's descriptors", lambda: os.readlink("/proc/1/fd/6"))
attempt("a new network", lambda: call("unshare", 0x40000000))
attempt("a new user namespace's network", lambda: call("unshare", 0x50000000))
attempt("mount", lambda: call("mount", b"proc", b"/tmp", b"proc", 0, None))
attempt("make / writable", lambda: call("mount", b"none", b"/usr", None, 32, None))
attempt("sysctl", lambda: open("/proc/sys/net/ipv4/ip_forward", "w"))
attempt("kernel memory", lambda: open("/proc/kcore", "rb").read(1) or None)
node = (0o060600, os.makedev(*given["disk"]))
attempt("the machine's disk", lambda: os.mknod("/tmp/disk", *node) or open("/tmp/disk", "rb"))
attempt("write to the machine's files", lambda: open("/etc/netlab-was-here", "w"))
groups = "/sys/fs/cgroup/memory" if os.path.isdir("/sys/fs/cgroup/memory") else "/sys/fs/cgroup"
attempt("another cgroup", lambda: os.mkdir(groups + "/netlab-was-here"))
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
print(json.dumps({"tried": tried, "processes": len(pids)}))
"""


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, object]]:
    """Things of the machine to reach for: a TCP server on every address, a Unix socket in a folder, an abstract one."""
    tcp = socket.create_server(("0.0.0.0", 0))
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    name = f"netlab-test-{os.getpid()}"
    unix.bind(str(folder / "socket"))
    abstract.bind("\0" + name)
    for listening in (unix, abstract):
        listening.listen()
    try:
        yield {"port": tcp.getsockname()[1], "path": str(folder / "socket"), "abstract": name}
    finally:
        for listening in (tcp, unix, abstract):
            listening.close()


def own_addresses() -> list[str]:
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    found = [line.split()[1] for line, below in itertools.pairwise(lines) if "host LOCAL" in below]
    return sorted({address for address in found if not address.startswith("127.")})


def test_a_hostile_command_reaches_neither_the_machine_nor_the_engine(engine: docker.APIClient) -> None:
    # Not in /tmp, of which a container has its own: where every container sees the machine's own files.
    with tempfile.TemporaryDirectory(dir="/var/lib") as folder, servers(Path(folder)) as there:
        given = there | {
            "engine": os.environ["DOCKER_HOST"].removeprefix("unix://"),
            "addresses": own_addresses(),
            "disk": [os.major(Path("/").stat().st_dev), os.minor(Path("/").stat().st_dev)],
        }
        with Lab.start(parse_profile(PLAIN, "plain.yaml"), hosts="docker") as lab:
            reachable = {name: lab.exec("a-0", ["ls", path]) for name, path in (("socket", str(there["path"])),)}
            done = lab.exec("a-0", [sys.executable, "-c", ATTEMPTS, json.dumps(given)], timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    successes = {name: what for name, what in found["tried"].items() if not what.endswith("Error")}
    assert not successes
    assert len(found["tried"]) >= 18
    assert found["processes"] <= 4  # netlab-init, its shepherd, this command
    assert reachable["socket"].returncode == 0  # it was there to be seen, and covered


def test_the_engine_s_files_are_covered_in_a_container(engine: docker.APIClient, lab: Lab) -> None:
    root = str(engine.info()["DockerRootDir"])
    assert lab.exec("a-0", ["ls", "-A", root]).stdout == b""


def test_two_labs_with_the_same_addresses_do_not_meet(engine: docker.APIClient) -> None:
    profile = parse_profile(PLAIN, "plain.yaml")
    serve = (
        "import socket as s; k = s.create_server(('', 7000)); print('up', flush=True); c, _ = k.accept(); print('met')"
    )
    ask = "import socket as s; s.create_connection(('10.1.0.2', 7000), timeout=2)"
    with Lab.start(profile, hosts="docker") as one, Lab.start(profile, hosts="docker") as two:
        heard: list[bytes] = []
        server = threading.Thread(target=lambda: heard.append(one.exec("a-0", [sys.executable, "-c", serve]).stdout))
        server.start()
        time.sleep(1.0)
        other = two.exec("b-0", [sys.executable, "-c", ask], timeout=30)
        same = one.exec("b-0", [sys.executable, "-c", ask], timeout=30)
        server.join()
    assert other.returncode != 0
    assert b"refused" in other.stderr
    assert same.returncode == 0, same.stderr.decode()
    assert heard == [b"up\nmet\n"]


def test_a_command_can_end_its_own_container_and_nothing_more(engine: docker.APIClient) -> None:
    with Lab.start(parse_profile(PLAIN, "plain.yaml"), hosts="docker") as lab:
        result = lab.run(["sh", "-c", "[ $RANK = 0 ] || exec sleep 60; kill -TERM 1; sleep 60"], timeout=30)
        assert result.failure is not None
        assert result.failure.worker == "a-0"
        assert "its container has ended" in result.failure.describe()
        assert lab.exec("b-0", ["echo", "alive"]).stdout == b"alive\n"


def test_what_multiplies_faster_than_it_is_killed_ends_all_the_same(engine: docker.APIClient, lab: Lab) -> None:
    # Every process becomes two each 10 ms, in sessions of their own, until its parent has had enough of it.
    bomb = "(setsid sh -c 'n() { sleep 0.01; n & n; }; n' &); sleep 0.15"
    lab.exec("a-0", ["sh", "-c", bomb], timeout=30)
    deadline = time.monotonic() + 10
    while int(lab.exec("a-0", ["sh", "-c", "ls -d /proc/[0-9]* | wc -l"]).stdout) > 6:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_killing_its_own_shepherd_frees_a_program_of_nothing(engine: docker.APIClient, lab: Lab) -> None:
    script = "setsid sleep 614 & kill -KILL $PPID; sleep 615"
    done = lab.exec("a-0", ["sh", "-c", script], timeout=10)
    assert done.returncode == 128 + 9
    listed = lab.exec("a-0", ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    assert b"sleep 61" not in listed.replace(script.encode(), b"")
