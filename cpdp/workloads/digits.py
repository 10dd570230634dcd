"""Real training that needs no download: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, and a small CNN.

A quarter-sized test set is drawn once with a fixed seed, so every run and every worker holds the same images back. Each
epoch's order is a permutation drawn from the run's seed and the epoch; worker r of p takes every p-th image from the
r-th, in batches of equal size, and what does not fill a batch on every worker is left out, as in the CPDP paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cpdp.errors import WorkloadError
from cpdp.workloads import optimizers
from cpdp.workloads.base import Batch, Place, Workload

TEST_IMAGES = 360
SPLIT_SEED = 0


class Digits(Workload):
    """Digits, split and sharded, with a convolutional network that has BatchNorm."""

    def __init__(self, place: Place, *, batch: int, width: int) -> None:
        """`batch` images per worker and step; `width` channels after the first convolution."""
        images, labels = load_images()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SPLIT_SEED))
        test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
        self._train = (images[train], labels[train])
        self._test = (images[test], labels[test])
        self._place, self._batch = place, batch
        self.steps_per_epoch = len(train) // (batch * place.world)
        if self.steps_per_epoch == 0:
            raise WorkloadError(
                f"digits: batch {batch} on {place.world} workers needs {batch * place.world} images per step; "
                f"there are {len(train)}"
            )
        torch.manual_seed(place.seed)
        self.module = network(width)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """This worker's batches: images (batch, 1, 8, 8) in -1..1 and labels (batch,)."""
        place, (images, labels) = self._place, self._train
        generator = torch.Generator().manual_seed(place.seed * 1_000_003 + epoch)
        mine = torch.randperm(len(images), generator=generator)[place.rank :: place.world]
        for step in range(self.steps_per_epoch or 0):
            chosen = mine[step * self._batch : (step + 1) * self._batch]
            yield images[chosen], labels[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy."""
        images, labels = batch
        return cross_entropy(model(images), labels)

    def optimizer(self, options: Mapping[str, Any]) -> torch.optim.Optimizer:
        """The experiment's."""
        return optimizers.make(self.module.parameters(), options)

    @torch.no_grad()
    def training_loss(self, module: nn.Module) -> tuple[float, int]:
        """Sum of the cross-entropies of every world-th training image from the rank-th, and their number."""
        mine = slice(self._place.rank, None, self._place.world)
        images, labels = self._train[0][mine], self._train[1][mine]
        training = module.training
        loss = cross_entropy(module.eval()(images), labels, reduction="sum")
        module.train(training)
        return float(loss), len(labels)

    @torch.no_grad()
    def evaluate(self, module: nn.Module) -> tuple[float, float]:
        """Accuracy and mean cross-entropy on the held-back images."""
        images, labels = self._test
        training = module.training
        logits = module.eval()(images)
        module.train(training)
        accuracy = (logits.argmax(dim=1) == labels).double().mean()
        return float(accuracy), float(cross_entropy(logits, labels))


def load_images() -> tuple[Tensor, Tensor]:
    """All images (1797, 1, 8, 8), scaled from 0..16 to -1..1, and their labels."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    return images, torch.tensor(raw.target, dtype=torch.int64)


def network(width: int) -> nn.Module:
    """Three convolutions with BatchNorm, 8 x 8 to 2 x 2 pixels, and a linear classifier."""
    return nn.Sequential(
        *_block(1, width),
        *_block(width, 2 * width),
        nn.MaxPool2d(2),
        *_block(2 * width, 4 * width),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width * 2 * 2, 10),
    )


def _block(channels: int, out: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
