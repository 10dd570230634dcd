"""A training loop whose steps get longer by known amounts: segments of steps, each with one thing injected.

    python injected.py FOLDER SEGMENT ...       SEGMENT: NAME[:MS], "big" trains the larger model

Before each segment every rank writes FOLDER/at-I-RANK and waits for FOLDER/go-I, which holds the moment at which all go
on, so that whoever runs it can change the network in between.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 9
FORWARD_S = BACKWARD_S = 0.01
PERIOD_S = {"small": 0.11, "big": 0.3}


class Batches(Dataset):
    """One sample per step; `pause` makes it slow."""

    pause = 0.0

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        time.sleep(self.pause)
        return torch.ones(8)


class Slow(torch.autograd.Function):
    """Identity whose backward pass takes time."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(BACKWARD_S)
        return gradient


class Model(nn.Module):
    """Sleeps, then touches `size` parameters."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.extra = 0.0

    def forward(self, x):
        time.sleep(FORWARD_S + self.extra)
        return Slow.apply(self.weight * x.sum())


class SlowSGD(torch.optim.SGD):
    """An optimizer that takes its time."""

    pause = 0.0

    def step(self, closure=None):
        time.sleep(self.pause)
        return super().step(closure)


def main(folder, segments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    models = {name: DistributedDataParallel(Model(size)) for name, size in (("small", 512), ("big", 131_072))}
    optimizers = {name: SlowSGD(model.parameters(), lr=1e-9) for name, model in models.items()}
    batches = Batches()
    for number, segment in enumerate(segments):
        (folder / f"at-{number}-{rank}").touch()
        while not (folder / f"go-{number}").exists():
            time.sleep(0.01)
        start = float((folder / f"go-{number}").read_text())
        name, _, amount = segment.partition(":")
        seconds = float(amount or 0) / 1e3
        size = "big" if name.startswith("big") else "small"
        model, optimizer = models[size], optimizers[size]
        model.module.extra = seconds if name == "sleep" and rank == 1 else 0.0
        optimizer.pause = seconds if name == "optimizer" else 0.0
        batches.pause = seconds if name == "data" else 0.0
        every = PERIOD_S[size] + seconds + 0.1 * (name == "delay")
        for step, x in enumerate(DataLoader(batches, batch_size=1)):
            optimizer.zero_grad()
            # In step: an operation ends at different moments on the two ranks, and who is ahead would be kept waiting.
            time.sleep(max(0.0, start + step * every - time.monotonic()))
            model(x).sum().backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
