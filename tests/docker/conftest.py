"""Labs in containers, on a real engine: the machine's own when it answers, else one that these tests start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from netlab import Lab, parse_profile
from tests.conftest import PLAIN
from tests.docker.engine import any_engine
from tests.docker.images import make_tiny


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.APIClient]:
    """A connected client; DOCKER_HOST names its engine for everything that these tests start."""
    if os.geteuid() != 0:
        pytest.skip("moving interfaces into containers needs root")
    if shutil.which("dockerd") is None and not Path("/var/run/docker.sock").exists():
        pytest.skip("no dockerd here (Debian: apt-get install docker.io)")
    before = os.environ.get("DOCKER_HOST")
    with any_engine() as url:
        os.environ["DOCKER_HOST"] = url
        client = docker.APIClient(base_url=url, version="auto", timeout=60)
        try:
            yield client
        finally:
            client.close()
            os.environ.pop("DOCKER_HOST")
            if before is not None:
                os.environ["DOCKER_HOST"] = before


@pytest.fixture(scope="session")
def tiny(engine: docker.APIClient) -> str:
    """The name of an image that holds a shell and little else."""
    return make_tiny(engine)


@pytest.fixture(scope="module")
def lab(engine: docker.APIClient) -> Iterator[Lab]:
    """A lab of two containers over this machine's files, shared by a module's tests."""
    with Lab.start(parse_profile(PLAIN, "plain.yaml"), hosts="docker") as running:
        yield running


@pytest.fixture
def left(engine: docker.APIClient) -> Callable[[], list[str]]:
    """Names of the containers of any lab that the engine has, running or not."""

    def names() -> list[str]:
        found = engine.containers(all=True, filters={"label": "netlab.lab"})
        return [each["Names"][0] for each in found]

    return names


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., Path]:
    """Write the plain profile with something more in its sites or at its top."""

    def write(hosts: str = "", a: str = "", b: str = "") -> Path:
        text = f"name: p\nsites: {{a: {{workers: 1{a}}}, b: {{workers: 1{b}}}}}\n"
        text += "links: [{between: [a, b], rtt: 20ms, rate: 100mbit}]\n" + hosts
        path = tmp_path / "p.yaml"
        path.write_text(text)
        return path

    return write
