"""Real ranks over real gloo on loopback, kept alive between tests because importing torch costs seconds.

`run_ranks(world, function, *args)` calls `function(rank, *args)` in `world` processes that share a process group and
returns the results by rank. `function` must be importable (defined at the top of a test module).
"""

import atexit
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

_context = multiprocessing.get_context("spawn")
_pools = {}
TIMEOUT_S = 60


def start_workers(cell, folder, world=2, env=None):
    """Start `python -m cpdp.worker` once per rank on loopback; returns the processes."""
    path = Path(folder) / "cell.json"
    path.write_text(json.dumps(cell))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"GLOO_SOCKET_IFNAME": "lo", **(env or {})}
    command = [sys.executable, "-W", "error", "-m", "cpdp.worker", str(path), "--out", str(folder)]
    return [
        subprocess.Popen(
            command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]


def run_ranks(world, function, *args, contexts=1):
    """Call the function on every rank; a rank that raises makes the test fail with its traceback."""
    pool = _pools.get(world)
    if pool is None:
        pool = _pools[world] = _Pool(world)
    try:
        return pool.run(function, args, contexts)
    except BaseException:
        _pools.pop(world).kill()
        raise


class _Pool:
    def __init__(self, world):
        self.world = world
        pairs = [_context.Pipe() for _ in range(world)]
        self.pipes = [ours for ours, _ in pairs]
        self.processes = [
            _context.Process(target=_serve, args=(rank, world, pairs[rank][1]), daemon=True) for rank in range(world)
        ]
        for process in self.processes:
            process.start()

    def run(self, function, args, contexts):
        with tempfile.TemporaryDirectory() as folder:
            for pipe in self.pipes:
                pipe.send((function, args, f"file://{folder}/store", contexts))
            return self._collect(time.monotonic() + TIMEOUT_S)

    def _collect(self, deadline):
        results = [None] * self.world
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"rank {rank} did not answer in time")
            ok, value = pipe.recv()
            if not ok:
                raise AssertionError(f"rank {rank} failed:\n{value}")
            results[rank] = value
        return results

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()


@atexit.register
def _end_all():
    for pool in _pools.values():
        pool.kill()


def _serve(rank, world, pipe):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    while True:
        function, args, store, contexts = pipe.recv()
        os.environ["GLOO_SOCKET_IFNAME"] = ",".join(["lo"] * contexts)
        try:
            if world > 1:
                dist.init_process_group(
                    "gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=30)
                )
            result = (True, function(rank, *args))
            if world > 1:
                dist.barrier()
                dist.destroy_process_group()
        except BaseException:  # noqa: BLE001 - whatever it was, the test must see it
            pipe.send((False, traceback.format_exc()))
            os._exit(1)  # the group may be stuck: its destructor would wait for the others
        pipe.send(result)
