"""The profiler's own cost: what it adds to a step and an operation, size of its events, time and memory to read them.

Overhead is measured on two ranks over loopback whose steps sleep through their computation, with the hooks taken on and
off within one process, in blocks of a few steps in random order. A third kind of block is off, too: its ratio to the
other is what the method sees where nothing is. Processes of the idle class keep the processors from sleeping, because
the time in which a virtual machine wakes up from a step's sleep varies by more than what is measured. Reading is
measured on synthetic event files of the promised size.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.result import Result

STEP_S = 0.05
BUCKETS = 30
BLOCK = 5
BLOCKS = 60


def run() -> Result:
    """Measure."""
    result = Result()
    with tempfile.TemporaryDirectory() as folder:
        _overhead(result, Path(folder))
        _size(result, Path(folder))
        _analysis(result, Path(folder))
    return result


def _overhead(result: Result, folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    awake = [context.Process(target=_spin, args=(core,), daemon=True) for core in os.sched_getaffinity(0)]
    ranks = [context.Process(target=_rank, args=(rank, str(folder), answers)) for rank in range(2)]
    for process in (*awake, *ranks):
        process.start()
    figures = answers.get(timeout=200)
    for rank in ranks:
        rank.join()
    for process in awake:
        process.kill()
    how = f"{BUCKETS} DDP buckets, {STEP_S * 1e3:.0f} ms steps, 2 ranks; median of {BLOCKS} on-off pairs of blocks"
    result.add("step with profiler / without", figures["ratio"], "", how, high=1.01)
    how = "the same of two kinds of blocks without profiler: what the method itself makes of nothing"
    result.add("step without / without", figures["control"], "", how)
    how = "processor time of a rank, the same pairs, over that of the step"
    result.add("processor time added to a step", figures["cpu_share"], "", how, high=0.01)
    how = "4 KiB all-reduce, world of one, hooks on less hooks off; least of 60 batches of 30"
    result.add("per operation", figures["per_op_us"], "us", how, high=20.0)


def _spin(core: int) -> None:
    """Runs where nothing else wants to, so that the processor never sleeps; ends with its parent."""
    parent = os.getppid()
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        sum(range(100_000))


def _rank(rank: int, folder: str, answers: Any) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from cpdp.profiler import install

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    state = install.install(Path(folder) / "run")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    layers = [nn.Linear(32, 32, bias=False) for _ in range(BUCKETS)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.004)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> tuple[float, float]:
        began, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        out = model(torch.ones(4, 32))
        time.sleep(STEP_S)
        out.sum().backward()
        optimizer.step()
        return time.perf_counter() - began, time.process_time() - cpu

    for _ in range(5):
        step()
    tracer, group = state.tracer, state.groups[0]
    assert tracer is not None
    kinds = ["on", "off", "control"]
    blocks: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    order = random.Random(5)
    for _ in range(BLOCKS):
        order.shuffle(kinds)
        for kind in kinds:
            _switch(state, group, tracer, on=kind == "on")
            steps = [step() for _ in range(BLOCK)][1:]
            blocks[kind].append((statistics.median(s for s, _ in steps), statistics.median(c for _, c in steps)))
    _switch(state, group, tracer, on=True)
    dist.barrier()
    if rank == 0:
        answers.put(_ratios(blocks) | {"per_op_us": _per_op(state)})
    dist.destroy_process_group()


def _ratios(blocks: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Medians over pairs of neighbouring blocks of (wall, processor) seconds per step."""
    on, off, control = (blocks[kind] for kind in ("on", "off", "control"))
    pairs = list(zip(on, off, control, strict=True))
    return {
        "ratio": statistics.median(a / b for (a, _), (b, _), _ in pairs),
        "control": statistics.median(c / b for _, (b, _), (c, _) in pairs),
        "cpu_share": statistics.median((a - b) / wall for (_, a), (wall, b), _ in pairs),
    }


def _switch(state: Any, group: Any, tracer: Any, *, on: bool) -> None:
    """Hooks and tracer on or off; what stays in place when off are wrappers that find no tracer and call through."""
    if on and not getattr(group, "is_on", True):
        group.attach()
    if not on and getattr(group, "is_on", True):
        group.detach()
    group.is_on = on
    state.tracer = tracer if on else None
    state.failed = not on  # keeps the wrappers from making another event file
    if not on:
        state.disarm_forward()


def _per_op(state: Any) -> float:
    """Microseconds that hooks add to one blocking all-reduce in a group of one."""
    import torch
    import torch.distributed as dist

    group = dist.new_group([0], use_local_synchronization=True)
    watched = state.groups[-1]
    tensor = torch.ones(1024)
    least = {True: 1e9, False: 1e9}
    for _ in range(60):
        for on in (True, False):
            if on and not getattr(watched, "is_on", True):
                watched.attach()
            if not on:
                watched.detach()
            watched.is_on = on
            began = time.perf_counter_ns()
            for _ in range(30):
                dist.all_reduce(tensor, group=group)
            least[on] = min(least[on], (time.perf_counter_ns() - began) / 30e3)
    return least[True] - least[False]


def _write(path: Path, rank: int, ranks: int, steps: int, buckets: int) -> None:
    """A rank's events with figures as a real run has them."""
    from cpdp.profiler.tracer import encode, start_line

    begin, line = 10**15, []
    first = {
        "rank": rank,
        "world": ranks,
        "clock": "monotonic",
        "boot": "x",
        "host": "h",
        "worker": None,
        "launch": "l",
    }
    line.append(encode(start_line(**first, strategy="profile", pid=1, torch="2", python="3", missing=[])))
    group = {"k": "group", "g": 0, "name": "0", "ranks": list(range(ranks)), "backend": "gloo", "threads": 2}
    line += [encode(group), encode({"k": "op", "h": 0, "g": 0, "kind": "all_reduce", "bytes": 1 << 20})]
    for n in range(steps):
        ops: list[int] = []
        for b in range(buckets):
            issued = 20_123_456 + b * 1_012_345 + rank * 1000
            ops += [0, n * buckets + b, issued, issued + 31_234, issued + 9_123_456, -1, -1]
        end = 20_123_456 + buckets * 1_012_345 + 9_000_000
        spans = [0, 0, 123_456, 1, 123_456, 10_123_456, 2, 10_123_456, end, 3, end, end + 1_234_567]
        waits = [1, 20_123_456 + buckets * 1_012_345, end]
        total = end + 1_234_567
        step = {"k": "step", "n": n + 1, "t": [begin, begin + total], "s": spans, "w": waits, "o": ops, "c": 345_678}
        line.append(encode(step))
        begin += total
    line.append(encode({"k": "end", "t": begin, "ok": True}))
    path.write_bytes(b"".join(line))


def _size(result: Result, folder: Path) -> None:
    path = folder / "rank-0.events.jsonl"
    _write(path, 0, 8, 1000, BUCKETS)
    how = f"8 ranks x 1,000 steps x {BUCKETS} buckets, clock of a host up for 11 days"
    result.add("events", 8 * path.stat().st_size / 1e6, "MB", how, high=20.0)


def _analysis(result: Result, folder: Path) -> None:
    cell = folder / "big" / "cells" / "profile"
    cell.mkdir(parents=True)
    for rank in range(8):
        _write(cell / f"rank-{rank}.events.jsonl", rank, 8, 10_000, BUCKETS)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=_analyse, args=(str(folder / "big"), answers))
    child.start()
    seconds, cpu_seconds, megabytes = answers.get(timeout=200)
    child.join()
    how = f"8 ranks x 10,000 steps x {BUCKETS} buckets, read, matched, split and averaged in one process"
    result.add("analysis", seconds, "s", how, high=5.0)
    result.add("analysis, processor time", cpu_seconds, "s", "the same, whatever else the machine does", high=5.0)
    result.add("analysis, peak memory", megabytes, "MB", how, high=1000.0)


def _analyse(folder: str, answers: Any) -> None:
    from cpdp.profiler import analysis, proof
    from cpdp.profiler.network import Network
    from cpdp.rundir import RunDir

    began, cpu = time.perf_counter(), time.process_time()
    worlds, _ = proof.read_worlds(RunDir(Path(folder)))
    for cell, logs in worlds.items():
        world = analysis.take_apart(cell, logs, Network({}, (), {}))
        steps = analysis.measured(world.steps)
        assert len(steps) == 8 * 9_999
        steps[["step_ms", "exposed_ms"]].mean()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    answers.put((seconds, cpu_seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3))


if __name__ == "__main__":
    found = run()
    found.show()
    sys.exit(0 if found.ok else 1)
