"""Strategies: averaging against torch's own averager, what a strategy adds to a step, and the memory that it needs."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys

from benchmarks.bench_network import PROFILE
from benchmarks.bench_training import _last_json
from benchmarks.result import Result
from netlab import Lab

STEP_MS = 100.0
"""The step of which a strategy's bookkeeping may take one hundredth, with 24 M parameters."""

HIDING = {
    "ddp": 4,
    "localsgd:k=4": 8,
    "cpdp:k=4": 8,
    "cpdp-fused:k=4": 8,
    "slowmo:k=4,buffers=keep": 8,
    "diloco:k=4": 8,
}
"""Strategies whose arithmetic runs beneath the traffic that they wait for, and steps to take."""

LATE = {"cpdp-overlapped:k=4": 16, "cocod:k=4": 16}
"""Strategies that do not wait: nothing hides their arithmetic. No bound is claimed for it."""

COPIES = {
    "localsgd:k=2": 0,
    "cpdp:k=2": 2,
    "cpdp-fused:k=2": 2,
    "cpdp-overlapped:k=2": 4,
    "slowmo:k=2": 2,
    "diloco:k=2": 2,
    "cocod:k=2": 2,
    "eager:k=2": 4,
    "streaming:k=8,p=8": 2.125,
}
"""Copies of the parameters beyond DDP's need, as docs/reference/strategies.md states them."""


def run() -> Result:
    """Measure."""
    result = Result()
    with Lab.start(PROFILE) as lab:
        _averaging(result, lab)
        for strategy, count in {**HIDING, **LATE}.items():
            _bookkeeping(result, lab, strategy, count, claimed=strategy in HIDING)
    _memory(result)
    return result


def _in_lab(lab: Lab, *arguments: str) -> dict[str, list[float]]:
    printed = bytearray()

    def collect(worker: str, data: bytes) -> None:
        if worker == "nancy-0":
            printed.extend(data)

    done = lab.run([sys.executable, "-m", "benchmarks.strategy_ranks", *arguments], output=collect, timeout=120)
    assert done.ok, (done.describe(), bytes(printed[-2000:]))
    return _last_json(printed)


def _averaging(result: Result, lab: Lab) -> None:
    seconds = _in_lab(lab, "averager")
    how = f"94.8 MB on {PROFILE}, median of {len(seconds['ours'])}, in turns, each after 0.74 s of pause"
    result.add("PeriodicModelAverager", statistics.median(seconds["torch"]), "s", how)
    result.add("localsgd", statistics.median(seconds["ours"]), "s", how)
    ratios = [torch / ours for torch, ours in zip(seconds["torch"], seconds["ours"], strict=True)]
    result.add("PeriodicModelAverager / localsgd", statistics.median(ratios), "", how, low=1.7, high=4)


def _bookkeeping(result: Result, lab: Lab, strategy: str, count: int, *, claimed: bool) -> None:
    measured = _in_lab(lab, "steps", strategy, str(count))
    warm = len(measured["update_ms"]) // 2  # a whole number of periods
    own = [u + r for u, r in zip(measured["update_ms"][warm:], measured["rest_ms"][warm:], strict=True)]
    how = f"mean of {len(own)} steps on {PROFILE}, 23.7 M parameters: in no computation and in no collective"
    share = statistics.mean(own) / STEP_MS
    result.add(f"{strategy}: share of {STEP_MS:g} ms", share, "", how, low=0.0, high=0.01 if claimed else None)


def _memory(result: Result) -> None:
    baseline = _resident("ddp")
    copy = baseline["copy"]
    for strategy, copies in COPIES.items():
        extra = (_resident(strategy)["resident"] - baseline["resident"]) / copy
        how = f"resident memory beyond ddp's in copies of {copy:.0f} MiB, 2 ranks on loopback; stated: {copies:g}"
        # DDP itself holds one set of gradients in its buckets, as the others do beside the parameters
        margin = 0.1 * max(copies, 1)
        result.add(f"{strategy}: copies", extra, "", how, low=copies - margin, high=copies + margin)


def _resident(strategy: str) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "MALLOC_MMAP_THRESHOLD_": "65536"}  # large tensors go back when freed
    argv = [sys.executable, "-m", "benchmarks.strategy_ranks", "memory", strategy, "9"]
    ranks = [subprocess.Popen(argv, stdout=subprocess.PIPE, env={**shared, "RANK": str(rank)}) for rank in range(2)]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), outputs
    return {key: float(value) for key, value in _last_json(outputs[0]).items()}
