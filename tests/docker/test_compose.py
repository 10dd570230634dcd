"""The shipped compose files are what ``netlab compose`` renders, are valid for both composes, and really run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import docker
import pytest
import yaml

from netlab import parse_profile, plan, topology
from netlab.compose import Render, render
from netlab.hosts import machine
from netlab.hosts.containers import INIT
from tests.conftest import PLAIN, ROOT, Netlab

pytestmark = pytest.mark.docker

SHIPPED = sorted((ROOT / "compose").glob("*.yml"))
COMPOSE = shutil.which("docker-compose")
needs_compose = pytest.mark.skipif(
    COMPOSE is None, reason="no docker-compose here (Debian: apt-get install docker-compose)"
)


def rendered(text: str) -> plan.Plan:
    return plan.make(topology.build(parse_profile(text, "p.yaml")), "relay", "docker")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_compose_file_is_what_the_command_in_its_head_renders(path: Path) -> None:
    command = shlex.split(path.read_text().splitlines()[1].lstrip("# "))
    assert command[:2] == ["netlab", "compose"]
    argv = [sys.executable, "-m", "netlab.cli", *command[1:]]
    done = subprocess.run(argv, capture_output=True, cwd=path.parent, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == path.read_text()


def test_the_three_networks_that_were_promised_are_shipped() -> None:
    assert [path.stem for path in SHIPPED] == ["four-regions", "lossy-link", "nancy-sophia"]


def test_our_image_is_small_at_its_base_has_no_root_and_names_no_registry() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert re.fullmatch(r"ARG BASE=[a-z]+:[\w.]*-?slim[\w-]*", lines[0])
    assert [line for line in lines if line.startswith("USER")] == ["USER worker"]
    assert lines[-1].startswith("CMD")
    assert {'ARG TORCH_INDEX=""', 'ARG TORCH="torch torchvision"'} <= set(lines)
    assert not re.search(r"https?://|\b[\w-]+\.(io|com|org|net)\b", text)


@needs_compose
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_debian_s_compose_accepts_a_shipped_file(path: Path) -> None:
    done = subprocess.run([str(COMPOSE), "-f", str(path), "config", "-q"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()


def obeys_the_compose_specification(path: Path) -> bool:
    """What `docker compose` version 2 holds a file against, with the specification's schema."""
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_obeys_the_compose_specification_that_version_2_reads(path: Path, tmp_path: Path) -> None:
    assert obeys_the_compose_specification(path)
    document = yaml.safe_load(path.read_text())
    assert "version" not in document  # obsolete in compose 2, which warns of it
    document["services"]["netlab"]["imag"] = "x"
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(yaml.safe_dump(document))
    assert not obeys_the_compose_specification(wrong)


def test_what_a_profile_says_about_hosts_is_in_the_file() -> None:
    text = (
        "name: p\nhosts: {memory: 1GiB, environment: {PRICE: 5$}}\n"
        "sites:\n"
        "  a: {workers: 1, hosts: {image: mine, gpus: ['0', '1'], volumes: ['./d:/d:ro'], cpuset: 0-1, cpus: 1.5}}\n"
        "  b: {workers: 1, hosts: {user: '1000', workdir: /w, shm_size: 2GiB, gpus: all}}\n"
        "links: [{between: [a, b], rtt: 1ms}]\n"
    )
    document = yaml.safe_load(render(Render(rendered(text), ("true",), "said")))
    a, b = document["services"]["a-0"], document["services"]["b-0"]
    assert a["image"] == "mine"
    assert a["entrypoint"] == ["/run/netlab-control/netlab-init"]
    assert a["volumes"][-1] == "./d:/d:ro"
    assert (a["cpuset"], a["cpus"], a["mem_limit"], a["memswap_limit"]) == ("0-1", 1.5, 1 << 30, 1 << 30)
    assert a["environment"] == {"PRICE": "5$$"}
    assert a["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == ["0", "1"]
    assert b["entrypoint"] == ["netlab-init"]
    assert (b["user"], b["working_dir"], b["shm_size"]) == ("1000", "/w", 2 << 30)
    assert b["deploy"]["resources"]["reservations"]["devices"][0]["count"] == "all"
    assert a["extra_hosts"] == ["a-0:10.1.0.2", "b-0:10.2.0.2"]


def test_a_profile_of_one_s_own_is_mounted_where_the_command_looks_for_it(netlab: Netlab, plain_profile: Path) -> None:
    output = plain_profile.parent / "compose" / "p.yml"
    output.parent.mkdir()
    done = netlab("compose", plain_profile, "--output", output)
    assert done.returncode == 0, done.stderr.decode()
    service = yaml.safe_load(output.read_text())["services"]["netlab"]
    assert "../p.yaml:/lab/profile.yaml:ro" in service["volumes"]
    assert service["command"] == ["netlab", "verify", "/lab/profile.yaml", "--hosts", "docker"]


@pytest.fixture(scope="module")
def machine_image(engine: docker.APIClient) -> str:
    """An image of empty folders; with the machine's files bound into it, it stands for ours, which holds torch."""
    layer = machine.look((), str(engine.info()["DockerRootDir"])).image()
    engine.import_image_from_data(layer, repository="netlab-test/machine", tag="latest")
    return "netlab-test/machine:latest"


def with_machine_files(services: list[str], folder: Path) -> Path:
    """A second compose file that gives every service this machine's files, and finds our programs among them."""
    taken = {"work", "run", "tmp", *machine.OWN}
    tops = [str(path) for path in sorted(Path("/").iterdir()) if path.is_dir() and not path.is_symlink()]
    binds = [path for path in tops if path.lstrip("/") not in taken]
    binds += [path for path in (str(ROOT), sys.base_prefix, sys.prefix) if not path.startswith(tuple(binds))]
    path = ":".join([str(INIT.parent), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    service = {"volumes": [f"{bind}:{bind}:ro" for bind in dict.fromkeys(binds)], "environment": {"PATH": path}}
    override = folder / "override.yml"
    override.write_text(yaml.safe_dump({"services": dict.fromkeys(services, service)}))
    return override


def up(folder: Path, text: str, image: str) -> subprocess.CompletedProcess[bytes]:
    path = folder / "compose.yml"
    path.write_text(text)
    override = with_machine_files(list(yaml.safe_load(text)["services"]), folder)
    base = [str(COMPOSE), "-p", f"netlab-test-{os.getpid()}", "-f", str(path), "-f", str(override)]
    env = {**os.environ, "NETLAB_IMAGE": image, "COMPOSE_HTTP_TIMEOUT": "100"}
    try:
        argv = [*base, "--ansi", "never", "up", "--no-build", "--exit-code-from", "netlab"]
        return subprocess.run(argv, capture_output=True, timeout=110, env=env, cwd=folder, check=False)
    finally:
        subprocess.run([*base, "down", "--volumes", "-t", "1"], capture_output=True, timeout=60, env=env, check=False)


NETLAB_RUN = ("netlab", "run", "/lab/profile.yaml", "--hosts", "docker")


@needs_compose
def test_a_rendered_file_builds_the_network_runs_the_job_and_stores_the_results(
    machine_image: str, tmp_path: Path
) -> None:
    code = "import os, socket; open('runs/' + os.environ['RANK'], 'w'); print('I', socket.gethostname(), os.getcwd())"
    command = (*NETLAB_RUN, "--out", "runs/job", "--", "python", "-c", code)
    (tmp_path / "p.yaml").write_text(PLAIN)
    done = up(tmp_path, render(Render(rendered(PLAIN), command, "said", "p.yaml")), machine_image)
    printed = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, printed
    assert "attached to 2 containers that came to /run/netlab-control/lab.sock" in printed
    for worker in ("a-0", "b-0"):
        assert f"{worker} | I {worker} /lab" in printed, printed
    record = json.loads((tmp_path / "runs" / "job" / "network.json").read_text())
    assert record["ok"] is True
    assert record["verification"]["ok"] is True
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"0", "1", "job"}


@needs_compose
def test_a_job_that_fails_is_the_exit_code_of_compose(machine_image: str, tmp_path: Path) -> None:
    command = (*NETLAB_RUN, "--no-verify", "--", "sh", "-c", "[ $RANK = 0 ] || exit 7")
    (tmp_path / "p.yaml").write_text(PLAIN)
    done = up(tmp_path, render(Render(rendered(PLAIN), command, "said", "p.yaml")), machine_image)
    printed = (done.stdout + done.stderr).decode()
    assert done.returncode == 1, printed
    assert "b-0 (rank 1) exited with status 7" in printed
