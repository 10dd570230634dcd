"""One rank as a Kineto-style trace that Holistic Trace Analysis reads. Pure.

HTA looks at streams of a device and at kernels named like NCCL's. The main thread's phases become kernels of stream 7,
operations become `ncclDevKernel_...` kernels of streams from 20 on, each with the CPU event that launched it, and steps
become ProfilerStep annotations. What HTA calls GPU time is therefore this rank's main thread; names say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cpdp.profiler import split
from cpdp.profiler.analysis import World
from cpdp.profiler.lines import NEVER, PHASES

COMPUTE_STREAM, FIRST_COMM_STREAM = 7, 20
COMPUTING = ("forward", "backward", "optimizer")
NCCL_NAMES = {
    "all_reduce": "AllReduce", "broadcast": "Broadcast", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
    "send": "SendRecv", "recv": "SendRecv", "all_to_all": "SendRecv",
}  # fmt: skip


def trace(world: World, i: int) -> dict[str, Any]:
    """The trace's tree of one rank of a world."""
    log = world.logs[i]
    origin = int(log.steps.begin[0]) if len(log.steps) else 0
    ranks = int(log.start["world"])
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "main thread", "totalGlobalMem": 0, "numSms": 1}],
        "distributedInfo": {"backend": "gloo", "rank": log.rank, "world_size": ranks},
        "traceEvents": [*_steps(world, i, origin), *_kernels(world, i, origin)],
        "traceName": f"rank-{log.rank}.json",
    }


def _event(cat: str, name: str, tid: int, begin: int, end: int, args: dict[str, Any]) -> dict[str, Any]:
    device = cat == "kernel"
    return {"ph": "X", "cat": cat, "name": name, "pid": 0 if device else 1000, "tid": tid, "ts": begin / 1e3,
            "dur": max(end - begin, 1) / 1e3, "args": args}  # fmt: skip


def _steps(world: World, i: int, origin: int) -> Iterator[dict[str, Any]]:
    steps = world.logs[i].steps
    for n, begin, end in zip(steps.n.tolist(), steps.begin.tolist(), steps.end.tolist(), strict=True):
        yield _event("user_annotation", f"ProfilerStep#{n}", 1, begin - origin, end - origin, {})


def _kernels(world: World, i: int, origin: int) -> Iterator[dict[str, Any]]:
    log = world.logs[i]
    slices = [*_computation(world, i), *_communication(world, i)]
    for correlation, (begin, end, name, stream, args) in enumerate(slices, start=1):
        launch = {"correlation": correlation, "External id": correlation}
        yield _event("cuda_runtime", "cudaLaunchKernel", 1, begin - origin, begin - origin + 1000, launch)
        device = {"device": 0, "stream": stream, "context": 0, **launch, **args}
        yield _event("kernel", name, stream, begin - origin, end - origin, device)
    yield {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": f"rank {log.rank}"}}


def _computation(world: World, i: int) -> Iterator[tuple[int, int, str, int, dict[str, Any]]]:
    """Phases less the time in which the thread stood still."""
    log, seen = world.logs[i], world.exposures[i]
    for _, phase, begin, end in log.spans.tolist():
        if PHASES[phase] not in COMPUTING:
            continue
        low = int(np.searchsorted(seen.end, begin, side="right"))
        at = begin
        while low < len(seen.begin) and seen.begin[low] < end:
            if seen.begin[low] > at:
                yield at, int(seen.begin[low]), PHASES[phase], COMPUTE_STREAM, {}
            at = int(min(seen.end[low], end))
            low += 1
        if at < end:
            yield at, end, PHASES[phase], COMPUTE_STREAM, {}


def _communication(world: World, i: int) -> Iterator[tuple[int, int, str, int, dict[str, Any]]]:
    log = world.logs[i]
    begun = split.started(log)
    threads = max((group.get("threads") or 1 for group in log.groups.values()), default=1)
    for row in np.flatnonzero(log.ops.finished != NEVER).tolist():
        head = log.heads[int(log.ops.head[row])]
        name = NCCL_NAMES.get(head["kind"])
        if name is None:
            continue
        args = {"Collective name": head["kind"], "In msg nelems": head["bytes"] // 4, "dtype": "Float",
                "Group size": int(world.matched[i].world[row])}  # fmt: skip
        stream = FIRST_COMM_STREAM + row % threads
        yield int(begun[row]), int(log.ops.finished[row]), f"ncclDevKernel_{name}_RING_LL({head['kind']})", stream, args
