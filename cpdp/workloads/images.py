"""Real training on a set of images: any model of `models` on any set of `datasets`, sharded, augmented, evaluated.

Each epoch's order is a permutation drawn from the run's seed and the epoch; worker r of p takes every p-th image from
the r-th, in batches of equal size, and what does not fill a batch on every worker is left out. With `skew` s a share s
of the images is dealt by label instead (sorted, then cut into p parts), the rest at random, once for the whole run:
s = 1 leaves each worker with a few classes only. Augmentation (a random crop after padding by 4, and a flip) is drawn
from seed, epoch, worker and step, so a run can be repeated bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from cpdp.errors import WorkloadError
from cpdp.workloads import datasets, models, optimizers
from cpdp.workloads.base import Batch, Place, Workload

EVALUATED_AT_ONCE = 250


class ImageTraining(Workload):
    """A model and its share of a set of images."""

    def __init__(self, place: Place, name: str, options: Mapping[str, Any]) -> None:
        """`options` are those of `workloads.DEFAULTS`. Raises WorkloadError."""
        made_up = tuple(int(options.get(key, 0)) for key in ("images", "side", "classes"))
        self._set = datasets.load(name, str(options.get("root", "")), made_up)  # type: ignore[arg-type]
        self._place, self._batch = place, int(options["batch"])
        self._augment = bool(options["augment"])
        count = len(self._set.train[1])
        self.steps_per_epoch = count // (self._batch * place.world)
        if self.steps_per_epoch == 0:
            raise WorkloadError(
                f"{name}: batch {self._batch} on {place.world} workers needs {self._batch * place.world} images per"
                f" step; there are {count}"
            )
        self._mine = shard(self._set.train[1], place, float(options["skew"]))
        channels, side = self._set.shape
        torch.manual_seed(place.seed)
        self.module = models.make(options["model"], channels=channels, classes=self._set.classes, image=side)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """This worker's batches: images (batch, channels, side, side) in -1..1 and labels (batch,)."""
        place, (images, labels) = self._place, self._set.train
        generator = torch.Generator().manual_seed(place.seed * 1_000_003 + epoch)
        if self._mine is None:
            mine = torch.randperm(len(labels), generator=generator)[place.rank :: place.world]
        else:
            mine = self._mine[torch.randperm(len(self._mine), generator=generator)]
        drawn = torch.Generator().manual_seed((place.seed * 1_000_003 + epoch) * 10_007 + place.rank)
        for step in range(self.steps_per_epoch or 0):
            chosen = mine[step * self._batch : (step + 1) * self._batch]
            batch = datasets.floats(images[chosen])
            yield (augmented(batch, drawn) if self._augment else batch), labels[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy."""
        images, labels = batch
        return cross_entropy(model(images), labels)

    def optimizer(self, options: Mapping[str, Any]) -> torch.optim.Optimizer:
        """The experiment's."""
        return optimizers.make(self.module.parameters(), options)

    def evaluate(self, module: nn.Module) -> tuple[float, float]:
        """Accuracy and mean cross-entropy on the test set."""
        right, loss, count = self._measure(module, *self._set.test)
        return right / count, loss / count

    def training_loss(self, module: nn.Module) -> tuple[float, int]:
        """Of every world-th training image from the rank-th, not augmented."""
        mine = slice(self._place.rank, None, self._place.world)
        _, loss, count = self._measure(module, self._set.train[0][mine], self._set.train[1][mine])
        return loss, count

    @torch.no_grad()
    def _measure(self, module: nn.Module, images: Tensor, labels: Tensor) -> tuple[int, float, int]:
        training, right, loss = module.training, 0, 0.0
        module.eval()
        for start in range(0, len(labels), EVALUATED_AT_ONCE):
            part = slice(start, start + EVALUATED_AT_ONCE)
            logits = module(datasets.floats(images[part]))
            right += int((logits.argmax(dim=1) == labels[part]).sum())
            loss += float(cross_entropy(logits, labels[part], reduction="sum"))
        module.train(training)
        return right, loss, len(labels)


def shard(labels: Tensor, place: Place, skew: float) -> Tensor | None:
    """The images of one worker for the whole run; None without skew: then they are dealt anew in each epoch."""
    if skew == 0:
        return None
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(place.seed))
    cut = round(len(labels) * skew)
    by_label = order[:cut][torch.argsort(labels[order[:cut]], stable=True)]
    each = len(by_label) // place.world
    mine = by_label[place.rank * each : (place.rank + 1) * each]
    rest = torch.cat([by_label[each * place.world :], order[cut:]])[place.rank :: place.world]
    whole = len(labels) // place.world
    return torch.cat([mine, rest])[:whole]


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image padded by 4, cropped to its size at a random place, and half of them flipped."""
    count, side = len(images), images.shape[-1]
    padded = pad(images, (4, 4, 4, 4))
    places = torch.randint(0, 9, (count, 2), generator=generator)
    flips = torch.rand(count, generator=generator) < 0.5
    rows = torch.arange(side)
    down, across = places[:, :1] + rows, places[:, 1:] + rows
    across = torch.where(flips[:, None], across.flip(1), across)
    index = torch.arange(count)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2).contiguous()
