"""Training on the emulated WAN: averaging against iperf3 on the same link, our wrapper and recorder against DDP."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.bench_network import PROFILE, _iperf_once
from benchmarks.result import Result
from benchmarks.training_ranks import RESNET50_PARAMETERS
from netlab import Lab


def run() -> Result:
    """Measure."""
    result = Result()
    _averaging(result)
    _wrapper(result)
    return result


def _averaging(result: Result) -> None:
    printed = bytearray()

    def collect(worker: str, data: bytes) -> None:
        if worker == "nancy-0":
            printed.extend(data)

    with Lab.start(PROFILE) as lab:
        goodput = _iperf_once(lab, "nancy-0", "sophia-0") * 1e9
        done = lab.run([sys.executable, "-m", "benchmarks.training_ranks", "averaging"], output=collect, timeout=120)
        assert done.ok, (done.describe(), bytes(printed[-2000:]))
    seconds = _last_json(printed)["seconds"]
    # With two ranks a ring all-reduce sends each rank's bytes once in each direction.
    reached = RESNET50_PARAMETERS * 4 * 8 / statistics.median(seconds)
    how = f"94.8 MB after 0.74 s of pause, median of {len(seconds)}; iperf3 in the same lab"
    result.add("averaging", reached / 1e6, "Mbit/s", how)
    result.add("iperf3", goodput / 1e6, "Mbit/s", "6 s, first 2 s left out")
    result.add("averaging / iperf3", reached / goodput, "", how, low=0.88, high=1.05)


def _wrapper(result: Result) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "benchmarks.training_ranks", "wrapper"]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, env={**shared, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"})
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), outputs
    builds = [_undisturbed(build) for build in _last_json(outputs[0])["builds"]]
    how = f"2 ranks over loopback, {len(builds)} builds of 25 rounds of one step each; faster half of the steps"
    result.add("step of plain torch DDP", statistics.mean(one["plain"] for one in builds) * 1e3, "ms", how)
    low, high = 0.97, 1.01
    noise = f"{how}: this bench's noise"
    result.add("plain DDP / plain DDP", _ratio(builds, "control", "plain"), "", noise, low=0.99, high=high)
    result.add("our wrapper / plain DDP", _ratio(builds, "wrapped", "plain", "control"), "", how, low=low, high=high)
    without = f"{how}: torch's DDP that copies its gradients out of the buckets"
    result.add("our wrapper / DDP with all defaults", _ratio(builds, "wrapped", "defaults"), "", without)
    result.add("recorded / unrecorded", _ratio(builds, "recorded", "wrapped"), "", how, low=low, high=high)


def _undisturbed(build: dict[str, list[float]]) -> dict[str, float]:
    """Mean of the faster half of each one's steps: another process on these cores slows some, and makes none faster."""
    return {name: statistics.mean(sorted(steps)[: len(steps) // 2]) for name, steps in build.items()}


def _ratio(builds: list[dict[str, float]], above: str, *below: str) -> float:
    """Median over the builds of one's time over the mean of the others'."""
    return statistics.median(build[above] / statistics.mean(build[name] for name in below) for build in builds)


def _last_json(printed: bytes | bytearray) -> dict[str, Any]:
    lines = [line for line in bytes(printed).splitlines() if line.startswith(b"{")]
    found: dict[str, Any] = json.loads(lines[-1])
    return found
