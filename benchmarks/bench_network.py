"""The emulated WAN against its profile: idle round trips of real pings, TCP goodput of real iperf3, up and down."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import threading
import time
from pathlib import Path

from benchmarks.result import Result
from netlab import Lab, parse_profile

PROFILE = "grid5000-nancy-sophia"
RTT_MS = 16.6


def run() -> Result:
    """Measure."""
    result = Result()
    with Lab.start(PROFILE) as lab:
        _pings(lab, result)
        _iperf(lab, result)
    _many(result)
    return result


def _pings(lab: Lab, result: Result) -> None:
    printed = lab.exec("nancy-0", ["ping", "-i", "0.02", "-c", "200", "sophia-0"], timeout=60).stdout.decode()
    # ping -D -O print three significant digits only: 16.6; its statistics are finer, so each is asked for by count.
    times = sorted(float(value) for value in re.findall(r"time=([\d.]+)", printed))
    how = "200 real pings, 20 ms apart, idle"
    result.add("RTT median", statistics.median(times), "ms", how, low=RTT_MS - 0.15, high=RTT_MS + 0.15)
    result.add("RTT p99", times[int(0.99 * len(times)) - 1], "ms", how, low=RTT_MS - 0.6, high=RTT_MS + 0.6)
    finer = re.search(r"= ([\d.]+)/([\d.]+)/([\d.]+)/([\d.]+) ms", printed)
    assert finer is not None, printed
    result.add("RTT mean", float(finer[2]), "ms", f"{how}; ping's own statistics", low=RTT_MS, high=RTT_MS + 0.2)


def _iperf(lab: Lab, result: Result) -> None:
    for source, target, sign in (("nancy-0", "sophia-0", ""), ("sophia-0", "nancy-0", "")):
        goodput = _iperf_once(lab, source, target)
        result.add(
            f"TCP goodput {source} > {target}{sign}",
            goodput,
            "Gbit/s",
            "iperf3, 6 s, first 2 s left out",
            low=0.92,
            high=0.96,
        )


def _iperf_once(lab: Lab, source: str, target: str) -> float:
    server = threading.Thread(target=lab.exec, args=(target, ["iperf3", "-s", "-1"]), kwargs={"timeout": 60})
    server.start()
    time.sleep(0.5)
    address = lab.worker(target).address
    printed = lab.exec(source, ["iperf3", "-c", address, "-t", "6", "-O", "2", "-J"], timeout=60).stdout
    server.join()
    return float(json.loads(printed)["end"]["sum_received"]["bits_per_second"]) / 1e9


def _many(result: Result) -> None:
    """64 workers on 8 sites in a ring: from nothing to ready, and back."""
    names = [f"site{number}" for number in range(8)]
    links = [
        f"{{between: [{name}, {names[(number + 1) % 8]}], rtt: {10 + number}ms, rate: 1gbit}}"
        for number, name in enumerate(names)
    ]
    sites = ", ".join(f"{name}: {{workers: 8}}" for name in names)
    profile = parse_profile(f"name: many\nsites: {{{sites}}}\nlinks: [{', '.join(links)}]\n", "many.yaml")
    times: dict[str, list[tuple[float, float]]] = {"lab": [], "mininet": []}
    for _ in range(5):
        start = time.perf_counter()
        lab = Lab.start(profile)
        up = time.perf_counter()
        lab.stop()
        times["lab"].append((up - start, time.perf_counter() - up))
        times["mininet"] += _mininet()
    how = "64 workers, 8 sites, 8 links; median of 5"
    up_s, down_s = (statistics.median(each) for each in zip(*times["lab"], strict=True))
    result.add("lab up", up_s, "s", how, high=1.0)
    result.add("lab down", down_s, "s", f"{how}; until its last process is gone", high=0.5)
    if not times["mininet"]:
        result.add("mininet", 0, "", "not measured: needs root, and mininet, which scripts/bench installs by apt")
        return
    peer_up_s, peer_down_s = (statistics.median(each) for each in zip(*times["mininet"], strict=True))
    how = "64 hosts on 8 Linux bridges in a ring, unshaped, in turn with the lab; median of 5"
    result.add("mininet up", peer_up_s, "s", how)
    result.add("mininet down", peer_down_s, "s", how)
    result.add("lab / mininet, up", up_s / peer_up_s, "", "medians above", high=1.0)
    result.add("lab / mininet, down", down_s / peer_down_s, "", "medians above", high=1.0)


def _mininet() -> list[tuple[float, float]]:
    """Seconds up and down of the same size of network by mininet; nothing where there is none, or we are not root."""
    program = str(Path(__file__).with_name("mininet_many.py"))
    python = "/usr/bin/python3"  # where Debian installs mininet
    if os.geteuid() or subprocess.run([python, "-c", "import mininet"], capture_output=True).returncode:
        return []
    own = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run([*own, python, program], check=True, capture_output=True, text=True, timeout=60)
    up_s, down_s = map(float, done.stdout.split())
    return [(up_s, down_s)]
