"""A lab in containers is the same lab: network, names, output, exit codes, and what a profile says about its hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from netlab import Lab, parse_profile
from tests.conftest import PLAIN, ROOT, Netlab

pytestmark = pytest.mark.docker

Profile = Callable[..., Path]
Left = Callable[[], list[str]]


def text_of(lab: Lab, worker: str, *argv: str) -> str:
    done = lab.exec(worker, argv, timeout=30)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_lab_of_containers_has_the_network_that_was_asked_for(lab: Lab) -> None:
    verification = lab.verify("quick")
    assert verification.ok, verification.describe()


def test_workers_reach_each_other_by_name_after_the_asked_round_trip(lab: Lab) -> None:
    printed = text_of(lab, "a-0", "ping", "-c", "20", "-i", "0.05", "-q", "b-0")
    found = re.search(r"= ([\d.]+)/([\d.]+)/", printed)
    assert found is not None, printed
    # 20 ms and twice the 9.76 us that 122 wire bytes take at 100 Mbit/s; never early, and not two milliseconds late.
    assert 20.0195 <= float(found[1]) <= float(found[2]) <= 22.0


def test_a_worker_s_own_names_lead_to_its_lab_address(lab: Lab) -> None:
    code = "import socket as s; print(s.gethostbyname(s.gethostname()), s.gethostbyname(s.getfqdn()))"
    assert text_of(lab, "a-0", sys.executable, "-c", code).split() == ["10.1.0.2"] * 2
    assert text_of(lab, "b-0", sys.executable, "-c", code).split() == ["10.2.0.2"] * 2


def test_a_container_has_its_own_devices_only(lab: Lab) -> None:
    assert set(text_of(lab, "a-0", "ls", "/sys/class/net").split()) == {"lo", "eth0"}


def test_this_machine_s_python_and_packages_are_there_at_the_same_paths(lab: Lab) -> None:
    code = "import netlab, numpy, sys; print(netlab.__file__, sys.executable)"
    assert text_of(lab, "a-0", sys.executable, "-c", code).split() == [str(ROOT / "netlab/__init__.py"), sys.executable]


def test_a_program_starts_where_netlab_was_started_and_cannot_write_there(lab: Lab) -> None:
    assert text_of(lab, "a-0", "pwd").strip() == str(Path.cwd())
    done = lab.exec("a-0", ["touch", "written-by-a-container"])
    assert done.returncode != 0
    assert b"Read-only file system" in done.stderr


def test_tmp_is_each_container_s_own_and_programs_can_be_run_there(lab: Lab) -> None:
    script = "printf '#!/bin/sh\\necho ran\\n' > /tmp/made && chmod +x /tmp/made && /tmp/made"
    assert text_of(lab, "a-0", "sh", "-c", script).strip() == "ran"
    assert lab.exec("b-0", ["ls", "/tmp/made"]).returncode != 0
    assert not Path("/tmp/made").exists()


def test_router_namespaces_are_as_without_containers(lab: Lab) -> None:
    assert "lan" in text_of(lab, "a.router", "ip", "-br", "link")


def test_a_writable_folder_is_shared_by_all_workers_and_this_machine(engine: docker.APIClient, tmp_path: Path) -> None:
    with Lab.start(parse_profile(PLAIN, "plain.yaml"), hosts="docker", writable=[tmp_path]) as lab:
        result = lab.run(["sh", "-c", f"echo $NETLAB_WORKER > {tmp_path}/$RANK"], timeout=30)
    assert result.ok, result.describe()
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["a-0\n", "b-0\n"]


def test_nothing_is_left_in_the_engine_when_a_lab_has_stopped(engine: docker.APIClient, left: Left) -> None:
    before = left()
    with Lab.start(parse_profile(PLAIN, "plain.yaml"), hosts="docker") as lab:
        assert len(left()) == len(before) + 2
        assert lab.hosts == "docker"
        assert any(choice.startswith("hosts docker: 2 containers") for choice in lab.choices)
    assert left() == before


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 600"], 1, "b-0 (rank 1) exited with status 7; a-0 ended with it"),
        (["sh", "-c", "[ $RANK = 1 ] && kill -SEGV $$; sleep 600"], 1, "b-0 (rank 1) was ended by SIGSEGV"),
        (["no-such-command"], 1, "cannot start 'no-such-command': No such file or directory"),
        (["/etc/hostname"], 1, "cannot start '/etc/hostname': Permission denied"),
        (["true"], 0, "emulation kept up"),
    ],
)
def test_a_job_ends_with_the_same_words_and_codes_as_on_bare_processes(
    engine: docker.APIClient, netlab: Netlab, plain_profile: Path, command: list[str], code: int, said: str
) -> None:
    started = time.monotonic()
    done = netlab("run", plain_profile, "--hosts", "docker", "--no-verify", "--", *command)
    assert done.returncode == code, done.stderr.decode()
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert time.monotonic() - started < 15


def test_output_arrives_whole_whatever_its_bytes(lab: Lab) -> None:
    code = "import os; [os.write(1, bytes(range(256)) * 4000) for _ in range(5)]; os.write(2, b'beside')"
    printed, beside = {"a-0": b"", "b-0": b""}, {"a-0": b"", "b-0": b""}
    result = lab.run(
        [sys.executable, "-c", f"import sys; sys.stdout.flush(); {code}"],
        output=lambda worker, data: printed.update({worker: printed[worker] + data}),
        errors=lambda worker, data: beside.update({worker: beside[worker] + data}),
        timeout=30,
    )
    assert result.ok, result.describe()
    assert set(printed.values()) == {bytes(range(256)) * 20_000}
    assert set(beside.values()) == {b"beside"}


def test_what_a_program_leaves_running_ends_with_it(lab: Lab) -> None:
    lab.exec("a-0", ["sh", "-c", "setsid sleep 611 & setsid sh -c 'trap \"\" TERM HUP; sleep 612; sleep 613' & exit 0"])
    deadline = time.monotonic() + 5
    while "sleep 61" in text_of(lab, "a-0", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ending_one_program_leaves_another_of_the_same_container_alone(lab: Lab) -> None:
    reading, writing = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    handle = lab.launch(
        "a-0", ["sh", "-c", "echo up; sleep 2"], lab.environment("a-0"), "", (null, writing, null, null)
    )
    os.close(writing)
    assert os.read(reading, 10) == b"up\n"
    assert text_of(lab, "a-0", "echo", "other") == "other\n"
    started = time.monotonic()
    assert os.read(reading, 10) == b""  # ended by itself, after its two seconds
    assert 0.5 < time.monotonic() - started < 3
    assert lab.send_signal(handle, 9)
    os.close(reading)
    os.close(null)


def test_what_a_profile_says_about_hosts_holds_in_the_containers(
    engine: docker.APIClient, netlab: Netlab, profile: Profile, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("seen\n")
    path = profile(
        "hosts: {memory: 300MiB, environment: {COLOUR: red, SHAPE: round}, volumes: ['./data:/tmp/data:ro']}\n",
        a=", hosts: {cpuset: '1', shm_size: 8MiB, environment: {COLOUR: blue}}",
        b=", hosts: {user: nobody, workdir: /usr, workers: {0: {cpus: 0.5}}}",
    )
    script = (
        "cat /tmp/data/file; touch /tmp/data/x; echo $COLOUR $SHAPE; id -u; pwd;"
        " grep Cpus_allowed_list /proc/self/status; df -k /dev/shm | tail -1;"
        " cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes;"
        " cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
    )
    done = netlab("run", path, "--hosts", "docker", "--no-verify", "--quiet", "--", "sh", "-c", script + "; true")
    assert done.returncode == 0, done.stderr.decode()
    printed = done.stdout.decode()
    a = [line.removeprefix("a-0 | ") for line in printed.splitlines() if line.startswith("a-0")]
    b = [line.removeprefix("b-0 | ") for line in printed.splitlines() if line.startswith("b-0")]
    assert a[:4] == ["seen", "blue round", "0", str(ROOT)]
    assert b[:4] == ["seen", "red round", "65534", "/usr"]
    assert a[4].split()[-1] == "1"
    assert a[5].split()[1] == str(8 << 10)
    assert str(300 << 20) in a
    assert "50000" in " ".join(b).split()
    assert done.stderr.count(b"Read-only file system") == 2
    assert not (tmp_path / "data" / "x").exists()


def test_an_image_needs_neither_python_nor_ip_nor_netlab(tiny: str, netlab: Netlab, profile: Profile) -> None:
    path = profile(a=f", hosts: {{image: {tiny}, user: worker}}", b=f", hosts: {{image: '{tiny}:latest'}}")
    script = "echo $OF_IMAGE $NETLAB_WORKER $HOME; id -u; ls -d /lab /usr/bin/python3; cat /etc/hosts"
    # With the network measured first: from outside, since there is nothing in there to measure with.
    done = netlab("run", path, "--hosts", "docker", "--", "sh", "-c", script + "; true")
    assert done.returncode == 0, done.stderr.decode()
    assert b"a-0 | yes a-0" in done.stdout
    assert b"a-0 | 1234\n" in done.stdout
    assert b"b-0 | 0\n" in done.stdout
    assert b"10.2.0.2\tb-0" in done.stdout
    assert done.stderr.count(b"No such file or directory") >= 4
    assert b"round trip: rtt 20." in done.stderr


def test_a_profile_about_containers_is_refused_on_bare_processes(netlab: Netlab, profile: Profile) -> None:
    done = netlab("run", profile(a=", hosts: {memory: 1GiB}"), "--", "true")
    assert done.returncode == 2
    assert b"sites.a.hosts.memory: bare processes are not confined to such settings; --hosts docker is" in done.stderr


def test_a_plan_shows_the_containers_it_would_make(netlab: Netlab, profile: Profile) -> None:
    done = netlab("plan", profile(a=", hosts: {image: i, memory: 1GiB}"), "--hosts", "docker")
    assert done.returncode == 0, done.stderr.decode()
    assert b"docker run --detach --rm --network none --hostname a-0 --memory 1073741824b i netlab-init" in done.stdout


def test_a_worker_that_is_killed_for_memory_is_told_so(
    engine: docker.APIClient, netlab: Netlab, profile: Profile
) -> None:
    path = profile(b=", hosts: {memory: 64MiB}")
    code = "import os, time; x = bytearray(os.environ['RANK'] == '1' and 300 << 20); time.sleep(5)"
    done = netlab("run", path, "--hosts", "docker", "--no-verify", "--", sys.executable, "-c", code)
    assert done.returncode == 1
    assert b"b-0 (rank 1): the kernel killed it: its container came to its memory limit" in done.stderr


def test_shared_lan_access_is_shaped_into_a_container(engine: docker.APIClient) -> None:
    text = (
        "name: access\nsites: {a: {workers: 2, lan: {delay: 4ms, rate: 50mbit}}, b: {workers: 1}}\n"
        "links: [{between: [a, b], rtt: 10ms, rate: 100mbit}]\n"
    )
    with Lab.start(parse_profile(text, "access.yaml"), hosts="docker", carrier="relay") as lab:
        printed = text_of(lab, "a-0", "ping", "-c", "10", "-i", "0.05", "-q", "a-1")
        found = re.search(r"= ([\d.]+)/([\d.]+)/", printed)
        assert found is not None, printed
        # Four crossings of 2 ms, and four times the 19.5 us of 122 wire bytes at 50 Mbit/s.
        assert 8.07 <= float(found[1]) <= float(found[2]) <= 9.5


def test_a_container_may_sit_behind_an_access_line_of_its_own(engine: docker.APIClient) -> None:
    text = "name: home\nsites: {a: {workers: 2, access: {1: {delay: 8ms, backward: {delay: 4ms, rate: 50mbit}}}}}\n"
    with Lab.start(parse_profile(text, "home.yaml"), hosts="docker", carrier="relay") as lab:
        printed = text_of(lab, "a-1", "ping", "-c", "10", "-i", "0.05", "-q", "a-0")
        found = re.search(r"= ([\d.]+)/([\d.]+)/", printed)
        assert found is not None, printed
        # 8 ms up, 4 ms and the 19.5 us of 122 wire bytes at 50 Mbit/s down.
        assert 12.02 <= float(found[1]) <= float(found[2]) <= 13.5


def test_a_lab_that_stays_up_is_entered_changed_and_ended_as_any_other(
    engine: docker.APIClient, netlab: Netlab, plain_profile: Path, left: Left
) -> None:
    before, name = left(), f"docker-{os.getpid()}"
    done = netlab("up", plain_profile, "--name", name, "--hosts", "docker")
    assert done.returncode == 0, done.stderr.decode()
    try:
        assert len(left()) == len(before) + 2
        done = netlab("exec", name, "b-0", "--", "sh", "-c", "hostname; exit 5")
        assert (done.returncode, done.stdout) == (5, b"b-0\n")
        assert f"{name}  p  ".encode() in netlab("list").stdout
        script = ["script", "-qec", f"{sys.executable} -m netlab.cli shell {name} a-0", "/dev/null"]
        typed = b"echo in-$(hostname) $(tty >/dev/null && echo tty)\nexit 3\n"
        shell = subprocess.run(script, input=typed, capture_output=True, timeout=30, cwd=ROOT, check=False)
        assert b"in-a-0" in shell.stdout
    finally:
        done = netlab("down", name)
    assert done.returncode == 0, done.stderr.decode()
    assert left() == before


def test_a_command_in_containers_can_say_that_its_run_is_not_valid(
    engine: docker.APIClient, netlab: Netlab, profile: Profile
) -> None:
    path = profile("hosts: {user: nobody}\n")
    script = 'echo "{\\"record\\": \\"/none\\", \\"invalid\\": [\\"said $NETLAB_WORKER\\"]}" > $NETLAB_NOTES/$RANK.json'
    done = netlab("run", path, "--hosts", "docker", "--no-verify", "--", "sh", "-c", script)
    assert done.returncode == 3, done.stderr.decode()
    assert b"said a-0" in done.stderr
    assert b"said b-0" in done.stderr
