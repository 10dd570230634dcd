"""What one rank does in bench_strategies: ``-m benchmarks.strategy_ranks averager|steps|memory ...``; prints JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from benchmarks.training_ranks import PAUSE_S
from cpdp import strategies
from cpdp.collectives import Collectives
from cpdp.compute import InertOptimizer, ReplayedModel
from cpdp.exposure import break_down
from cpdp.parallel import DataParallel
from cpdp.recorder import Recorder, StepRecorder
from cpdp.schedule import position
from cpdp.strategies import Attachment
from cpdp.transport import Transport, open_group
from cpdp.workloads import timelines

MODEL = "resnet50-cifar100"


def averager(rounds: int = 7) -> dict[str, list[float]]:
    """Seconds of one averaging of ResNet-50's parameters: torch's PeriodicModelAverager and our localsgd, in turns,
    each after the pause of a period of four.
    """
    timeline = timelines.load(MODEL)
    torchs, ours = ReplayedModel(timeline), ReplayedModel(timeline)
    for parameter in torchs.parameters():
        parameter.grad = parameter.detach()  # torch's averager leaves out what has no gradient
    periodic = PeriodicModelAverager(period=2, warmup_steps=0)
    strategy = strategies.build("localsgd:k=1,epoch_end=false")
    collectives = Collectives()
    strategy.attach(Attachment(ours, collectives, None, InertOptimizer(ours.parameters())))
    seconds: dict[str, list[float]] = {"torch": [], "ours": []}
    for number in range(rounds):
        for name in ("torch", "ours") if number % 2 else ("ours", "torch"):
            time.sleep(PAUSE_S)
            collectives.barrier()
            start = time.perf_counter()
            if name == "torch":
                periodic.average_parameters(torchs.parameters())
            else:
                strategy.synchronise(position(number + 1, None))
            seconds[name].append(time.perf_counter() - start)
            if name == "torch":
                periodic.average_parameters(torchs.parameters())  # counts, and averages nothing
    return {name: values[1:] for name, values in seconds.items()}


def steps(strategy: str, count: int) -> dict[str, list[float]]:
    """Milliseconds of each step that are neither computation nor a wait for a collective: the strategy's own arithmetic
    that nothing hid, and what no span accounts for.
    """
    events: list[Any] = []
    module = ReplayedModel(timelines.load(MODEL))
    optimizer = InertOptimizer(module.parameters())
    recorder = StepRecorder(events.append)
    model = DataParallel(module, optimizer, strategy, steps_per_epoch=10_000, recorder=recorder)
    model.collectives.barrier()
    with recorder.paused():
        model.collectives.barrier()
    for _ in range(count):
        recorder.switch("data")  # as cpdp.worker does: clearing gradients is the training loop's own
        optimizer.zero_grad()
        model(None).sum().backward()
        optimizer.step()
    model.close()
    parts = [break_down(event) for event in events]
    return {
        "update_ms": [part.exposed_by_cause.get("update", 0) / 1e6 for part in parts],
        "rest_ms": [part.rest_ns / 1e6 for part in parts],
        "step_ms": [part.step_ns / 1e6 for part in parts],
    }


class Wide(nn.Module):
    """24 M parameters in 8 layers whose passes cost next to nothing: one row in, one row out."""

    def __init__(self) -> None:
        """Allocate."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1732, 1732, bias=False) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through all layers."""
        for layer in self.layers:
            x = layer(x)
        return x


def memory(strategy: str, count: int) -> dict[str, float]:
    """Resident MiB of this process after `count` steps, and of what one copy of the parameters takes."""
    module = Wide()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    model = DataParallel(module, optimizer, strategy, steps_per_epoch=10_000, recorder=Recorder())
    x = torch.randn(1, 1732)
    for _ in range(count):
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        model.observe_loss(1.0)
        loss.backward()
        optimizer.step()
    resident = _resident_mib()
    model.close()
    return {"resident": resident, "copy": sum(p.numel() * 4 for p in module.parameters()) / 2**20}


def _resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def main() -> None:
    """Join the group, run, and let rank 0 print."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    what, *arguments = sys.argv[1:]
    with ExitStack() as stack:
        stack.enter_context(open_group(Transport(), rank, world))
        found: Any
        if what == "averager":
            found = averager()
        else:
            found = {"steps": steps, "memory": memory}[what](arguments[0], int(arguments[1]))
        if rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
