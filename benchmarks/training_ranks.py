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


BATCH = 12
"""Images per step: some 100 ms on one slow core, so that a round's steps lie close together in time."""


class Stepper:
    """One model with its optimizer, and how to take one step of it."""

    def __init__(self, wrap: Callable[[nn.Module, torch.optim.Optimizer], nn.Module]) -> None:
        """Build; every stepper's model starts from the same parameters."""
        module = _model()
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        self.model = wrap(module, self.optimizer)
        self.images, self.labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))

    def step(self) -> float:
        """Train on the batch once; seconds that it took."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()
        return time.perf_counter() - start


class RecordedStepper(Stepper):
    """Its recorder listens to the process group during its own steps only: other steppers use the group, too."""

    def __init__(self) -> None:
        """Build with a recorder that keeps its events."""
        self.events: list[object] = []
        super().__init__(self._wrap)

    def _wrap(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        model = DataParallel(module, optimizer, "ddp", recorder=StepRecorder(self.events.append))
        self.collectives = model.collectives
        self.collectives.close()
        return model

    def step(self) -> float:
        """Train on the batch once, recorded; seconds that it took."""
        self.collectives._tap.attach()
        try:
            return super().step()
        finally:
            self.collectives.close()


def _plain(module: nn.Module, _: torch.optim.Optimizer) -> nn.Module:
    """torch's DDP with the one option that our wrapper sets: gradients are views into the buckets."""
    return DistributedDataParallel(module, gradient_as_bucket_view=True)


def wrapper(builds: int = 6, rounds: int = 25, unmeasured: int = 4) -> list[dict[str, list[float]]]:
    """Seconds per step of torch's DDP (twice: the second one shows the noise; and once with all its defaults), of ours
    unrecorded, and of ours recorded. Every round takes one step of each, beginning with another one each time. Where a
    model's tensors come to lie in memory changes its speed by a percent, so all are built anew several times, in
    another order.
    """
    return [_one_build(number, rounds, unmeasured) for number in range(builds)]


def _one_build(number: int, rounds: int, unmeasured: int) -> dict[str, list[float]]:
    builders: dict[str, Callable[[], Stepper]] = {
        "plain": lambda: Stepper(_plain),
        "wrapped": lambda: Stepper(lambda module, optimizer: DataParallel(module, optimizer, "ddp")),
        "control": lambda: Stepper(_plain),
        "defaults": lambda: Stepper(lambda module, _: DistributedDataParallel(module)),
        "recorded": RecordedStepper,
    }
    steppers = {name: builders[name]() for name in rotated(list(builders), number)}
    seconds: dict[str, list[float]] = {name: [] for name in builders}
    for round_number in range(unmeasured + rounds):
        for name in rotated(list(builders), round_number):
            seconds[name].append(steppers[name].step())
    recorded = steppers["recorded"]
    assert isinstance(recorded, RecordedStepper)
    assert len(recorded.events) >= rounds, "the recorder saw no steps"
    return {name: values[unmeasured:] for name, values in seconds.items()}


def rotated(names: list[str], number: int) -> list[str]:
    """The names, beginning with another one for each number."""
    first = number % len(names)
    return names[first:] + names[:first]


def main() -> None:
    """Join the group, run, and let rank 0 print."""
    import os

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with ExitStack() as stack:
        stack.enter_context(open_group(Transport(), rank, world))
        found = averaging() if sys.argv[1] == "averaging" else {"builds": wrapper()}
        if rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
