"""What one rank does in bench_training: ``python -m benchmarks.training_ranks averaging|wrapper``; prints JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpdp.collectives import Collectives
from cpdp.parallel import DataParallel
from cpdp.recorder import StepRecorder
from cpdp.transport import Transport, open_group

RESNET50_PARAMETERS = 23_705_252
PAUSE_S = 0.74  # four local steps of 185 ms


def averaging(rounds: int = 8) -> dict[str, list[float]]:
    """Seconds that an averaging of ResNet-50's parameters takes, each after the pause of a period of four."""
    collectives = Collectives()
    flat = torch.randn(RESNET50_PARAMETERS)
    seconds = []
    for _ in range(rounds):
        time.sleep(PAUSE_S)
        collectives.barrier()
        start = time.perf_counter()
        for _, piece in collectives.sum_in_chunks([(flat, "parameters")]):
            flat[piece].mul_(0.5)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[2:]}


def _model() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 48, 3, padding=1), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(48, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


def _stepper(build: Callable[[nn.Module, torch.optim.Optimizer], nn.Module]) -> Callable[[], float]:
    module = _model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    model = build(module, optimizer)
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        return time.perf_counter() - start

    return step


def wrapper(rounds: int = 60) -> dict[str, list[float]]:
    """Seconds per step of torch's DDP, of ours unrecorded, and of ours recorded, taken in turns."""
    kept: list[object] = []
    steps = {
        "plain": _stepper(lambda module, _: DistributedDataParallel(module)),
        "wrapped": _stepper(lambda module, optimizer: DataParallel(module, optimizer, "ddp")),
    }

    def recorded(module: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        model = DataParallel(module, optimizer, "ddp", recorder=StepRecorder(kept.append))
        model.collectives.close()
        return model

    holder: dict[str, DataParallel] = {}

    def keep(module: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        holder["model"] = recorded(module, optimizer)  # type: ignore[assignment]
        return holder["model"]

    steps["recorded"] = _stepper(keep)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name, step in steps.items():
            if name == "recorded":
                holder["model"].collectives._tap.attach()
            taken = step()
            if name == "recorded":
                holder["model"].collectives.close()
            if number >= 5:
                seconds[name].append(taken)
    assert len(kept) >= rounds - 1, "the recorder saw no steps"
    return seconds


def main() -> None:
    """Join the group, run, and let rank 0 print."""
    import os

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with ExitStack() as stack:
        stack.enter_context(open_group(Transport(), rank, world))
        found = {"averaging": averaging, "wrapper": wrapper}[sys.argv[1]]()
        if rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
