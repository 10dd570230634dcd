"""Labs in containers: 16 workers on 4 sites up and gone, Docker's own part of both, and kills that leave nothing.

Docker's own part is measured beside it, in the same run: as many containers of the same configuration, made and removed
through the engine alone, with the same number of requests at a time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker

from benchmarks.result import Result
from netlab import Lab, load_profile, parse_profile, plan, topology
from netlab.hosts import creation, machine, order
from netlab.hosts.engine import connect
from netlab.hosts.steward import MACHINE_IMAGE, containers_of, remove
from tests.docker.engine import any_engine

SITES = ("paris", "tokyo", "austin", "perth")
TEXT = (
    "name: sixteen\nsites: {" + ", ".join(f"{site}: {{workers: 4}}" for site in SITES) + "}\n"
    "links:\n" + "".join(f"  - {{between: [{SITES[0]}, {site}], rtt: 20ms, rate: 200mbit}}\n" for site in SITES[1:])
)
PAIR = "name: pair\nsites: {a: {workers: 1}, b: {workers: 1}}\nlinks: [{between: [a, b], rtt: 20ms, rate: 100mbit}]\n"
KILLS = 50
WORKERS_AT_ONCE = min(16, 2 * (os.cpu_count() or 1))


def run() -> Result:
    """Measure; needs root and an engine, or dockerd to start one."""
    result = Result()
    before = os.environ.get("DOCKER_HOST")
    with any_engine() as url:
        os.environ["DOCKER_HOST"] = url
        try:
            own_up, own_down = _engine_alone()
            _sixteen(result, own_up, own_down)
            _kills(result)
        finally:
            os.environ.pop("DOCKER_HOST")
            if before is not None:
                os.environ["DOCKER_HOST"] = before
    return result


def _sixteen(result: Result, own_up: float, own_down: float) -> None:
    started = time.monotonic()
    lab = Lab.start(parse_profile(TEXT, "sixteen.yaml"), hosts="docker")
    up = time.monotonic()
    job = lab.run(["true"])
    assert job.ok, job.describe()
    leaving = time.monotonic()
    lab.stop()
    gone = time.monotonic()
    how = "16 containers over this machine's files, 4 sites"
    result.add("16 containers up", up - started, "s", f"{how}, ready for commands", high=10.0)
    result.add("of which Docker's own", own_up, "s", "the same containers created and started through the engine alone")
    result.add("a command on all 16", leaving - up, "s", "true")
    result.add("16 containers gone", gone - leaving, "s", "Lab.stop until the engine lists none", high=10.0)
    result.add("of which Docker's own", own_down, "s", "the same containers removed through the engine alone")


def _engine_alone() -> tuple[float, float]:
    """Seconds to make, and to remove, the containers of the 16-worker lab without netlab."""
    engine = connect()
    made = plan.make(topology.build(parse_profile(TEXT, "sixteen.yaml")), "relay", "docker")
    with Lab.start(parse_profile(PAIR, "pair.yaml"), hosts="docker"):
        pass  # the image is there now, and the engine warm
    asked = order.place(made, order.owner_of(os.getpid()), (), ())
    seen = machine.look((), engine.root)
    image = f"{MACHINE_IMAGE}:{machine.digest(seen.image())}"

    def make(wanted: order.Wanted) -> None:
        config = engine.api.create_host_config(**creation.host_config(asked, wanted, seen, engine))
        settings = creation.container_config(asked, wanted, image)
        engine.api.start(engine.api.create_container(**settings, host_config=config)["Id"])

    started = time.monotonic()
    with ThreadPoolExecutor(WORKERS_AT_ONCE) as pool:
        list(pool.map(make, asked.containers))
    up = time.monotonic()
    with ThreadPoolExecutor(WORKERS_AT_ONCE) as pool:
        list(pool.map(lambda each: remove(engine, each), containers_of(engine, asked.lab)))
    while containers_of(engine, asked.lab):
        time.sleep(0.01)
    gone = time.monotonic()
    engine.api.close()
    return up - started, gone - up


def _kills(result: Result) -> None:
    """SIGKILL at random moments of a lab of two; what the engine and the process table still show a while after."""
    client = docker.APIClient(base_url=os.environ["DOCKER_HOST"], version="auto")
    moments = random.Random(20261204)
    others, other_inits = set(_of_labs(client)), set(_inits())
    left, reached, slowest = 0, 0, 0.0

    def remains() -> int:
        return len(set(_of_labs(client)) - others) + len(set(_inits()) - other_inits)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pair.yaml")
        path.write_text(PAIR)
        assert load_profile(path).name == "pair"
        argv = [sys.executable, "-m", "netlab.cli", "run", str(path), "--hosts", "docker", "--no-verify", "--"]
        for _ in range(KILLS):
            lab = subprocess.Popen([*argv, "sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(moments.uniform(0.0, 2.5))
            reached += remains() > 0
            lab.send_signal(signal.SIGKILL)
            lab.wait()
            killed = time.monotonic()
            while remains() and time.monotonic() < killed + 15:
                time.sleep(0.02)
            slowest = max(slowest, time.monotonic() - killed)
            left += remains()
    client.close()
    how = f"{KILLS} SIGKILLs of netlab run, {reached} of them while containers existed"
    result.add("left after kills", left, "things", f"{how}: containers in any state, and processes", low=0, high=0)
    result.add("longest until nothing was left", slowest, "s", how, high=15.0)


def _of_labs(client: docker.APIClient) -> list[str]:
    return [each["Id"] for each in client.containers(all=True, filters={"label": order.LABEL})]


def _inits() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"/.netlab-init\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
