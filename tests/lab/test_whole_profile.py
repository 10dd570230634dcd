"""A profile with every effect at once, through the public commands and the relay: verified, run, and changed live."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from netlab import Lab
from tests.conftest import Netlab

pytestmark = pytest.mark.lab

WHOLE = """\
name: whole
seed: 7
sites: {a: {workers: 1, uplink: {rate: 80mbit}}, b: {workers: 2}, c: {workers: 1}}
links:
  - between: [a, b]
    delay: 20ms
    rate: 50mbit
    queue: {limit: 2bdp, discipline: codel}
    jitter: {amount: 3ms, distribution: normal}
    loss: {probability: 2%, burst: 3}
    duplicate: 1%
    reorder: {probability: 1%, gap: 5}
    corrupt: 0.5%
    backward: {delay: 25ms, rate: 20mbit, loss: 0.5%, jitter: {amount: 2ms, distribution: pareto}}
  - between: [b, c]
    delay: 5ms
    rate: 1gbit
"""

CHATTER = """
import os, socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ["RANK"] == "0":
    import time
    time.sleep(0.5)
    for number in range(4000):
        sock.sendto(number.to_bytes(8, "big") + bytes(92), ("b-0", 7000))
        time.sleep(0.0005)
elif os.environ["RANK"] == "1":
    sock.bind(("", 7000)); sock.settimeout(2.5)
    seen = []
    try:
        while True:
            seen.append(int.from_bytes(sock.recv(2000)[:8], "big"))
    except TimeoutError:
        pass
    print("arrived", len(seen), "distinct", len(set(seen)), "late", sum(a > b for a, b in zip(seen, seen[1:])))
"""


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.yaml"
    path.write_text(WHOLE)
    return path


def test_verify_holds_every_effect_to_its_model(whole: Path, netlab: Netlab) -> None:
    done = netlab("verify", whole, "--carrier", "relay", "--json", timeout=110)
    found = json.loads(done.stdout)
    assert done.returncode == 0, [row for row in found["links"] if not row["ok"]]
    assert found["carrier"] == "relay"
    measured = {(row["link"], row["direction"], row["quantity"]) for row in found["links"]}
    for way in ("a-0>b-0", "b-0>a-0"):
        for quantity in ("rate", "loss", "duplicates", "delay p5", "delay p50", "delay p95"):
            assert ("a-b", way, quantity) in measured
    rates = {row["direction"]: row["asked"] for row in found["links"] if row["quantity"] == "rate"}
    assert (rates["a-0>b-0"], rates["b-0>a-0"]) == (50, 20)


def test_a_run_meets_loss_duplicates_and_overtaking_and_stays_valid(
    whole: Path, netlab: Netlab, tmp_path: Path
) -> None:
    """4000 packets: 2.5 % lost or damaged, in bursts of 3; 1 % twice; 1 in 104 overtakes. Bounds: 4 deviations."""
    out = tmp_path / "out"
    argv = [sys.executable, "-c", CHATTER]
    done = netlab("run", whole, "--carrier", "relay", "--no-verify", "--out", out, "--", *argv, timeout=60)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.decode().splitlines() if "arrived" in line).split()
    arrived, distinct, late = (int(line[line.index(word) + 1]) for word in ("arrived", "distinct", "late"))
    assert 3790 <= distinct <= 3970, "3900 expected; losses in bursts have 2.2 times a binomial's deviation, 10"
    assert 15 <= arrived - distinct <= 65, "38 expected"
    assert 15 <= late <= 65, "38 expected"
    record = json.loads((out / "network.json").read_text())
    assert record["health"]["valid"], record["health"]["reasons"]
    forward = next(each for each in record["health"]["directions"] if each["name"].startswith("a-b:a"))
    assert forward["drops_other"] == 0


def test_a_loss_set_on_a_fast_link_switches_its_units_off_and_loses_nothing_else(whole: Path, netlab: Netlab) -> None:
    """TCP at 1 Gbit/s crosses in units until `netlab set b-c loss=1%`, in packets of one MTU from then on."""
    name = f"offload-{time.monotonic_ns()}"
    up = netlab("up", whole, "--name", name, "--carrier", "relay")
    assert up.returncode == 0, up.stderr
    lab = Lab.attach(name)
    try:
        before = _units(lab)
        assert _share_of_units(lab, before) > 4, "packets a unit"
        flood = threading.Thread(target=_tcp, args=(lab, 3.0))
        flood.start()
        time.sleep(1)
        changed = netlab("set", name, "b-c", "forward.loss=1%")
        assert changed.returncode == 0, changed.stderr
        time.sleep(0.3)  # what had been handed over in units has been read by then
        before = _units(lab)
        flood.join()
        assert _share_of_units(lab, before, seconds=1.0) == 1
        forward = next(stats for stats in lab.statistics() if stats.name.startswith("b-c:b"))
        assert forward.drops_loss > 0
        assert sum(stats.drops_other for stats in lab.statistics()) == 0
        assert netlab("set", name, "b-c", "forward.loss=0%").returncode == 0
        assert _share_of_units(lab, _units(lab)) > 4
    finally:
        lab.stop()
        netlab("down", name)


def _units(lab: Lab) -> tuple[int, int]:
    forward = next(stats for stats in lab.statistics() if stats.name.startswith("b-c:b"))
    return forward.packets_in, forward.units_in


def _share_of_units(lab: Lab, before: tuple[int, int], seconds: float = 1.0) -> float:
    """Packets a unit from b to c since ``before``, of which a second is full of TCP."""
    _tcp(lab, seconds)
    packets, units = (now - then for now, then in zip(_units(lab), before, strict=True))
    return packets / units


def _tcp(lab: Lab, seconds: float) -> None:
    """iperf3 from b-1 to c-0."""
    port = str(20_000 + time.monotonic_ns() // 1000 % 10_000)
    server = threading.Thread(target=lab.exec, args=("c-0", ["iperf3", "-s", "-1", "-p", port]), kwargs={"timeout": 60})
    server.start()
    client = ["iperf3", "-c", lab.worker("c-0").address, "-p", port, "-t", str(seconds)]
    for _ in range(50):
        done: subprocess.CompletedProcess[bytes] = lab.exec("b-1", client, timeout=60)
        if done.returncode == 0:
            break
        time.sleep(0.05)  # the server is not there yet
    server.join()
    assert done.returncode == 0, done.stderr


def test_a_schedule_that_comes_to_a_fault_makes_the_run_invalid_and_says_why(netlab: Netlab, tmp_path: Path) -> None:
    """Jitter of 5 ms at 2 s does not fit a delay that was set to 2 ms by hand at 1 s."""
    path = tmp_path / "faulty.yaml"
    path.write_text(
        "sites: {a: {workers: 1}, b: {workers: 1}}\nlinks: [{between: [a, b], delay: 20ms, rate: 100mbit}]\n"
        "schedule: [{at: 1.5s, link: a-b, set: {jitter: 5ms}}]\n"
    )
    with Lab.start(path, carrier="relay") as lab:
        mark = lab.mark()
        lab.begin_schedule()
        lab.set("a-b", "delay=2ms")
        assert lab.health(mark).valid
        time.sleep(1.7)
        health = lab.health(mark)
        kinds = [event["kind"] for event in lab.events()]
    assert not health.valid
    (reason,) = health.reasons
    assert reason.startswith(
        "the schedule stopped at 1.5s: a-b forward: jitter: '5ms uniform' goes 5ms below the delay"
    )
    assert kinds[-1] == "fault"
