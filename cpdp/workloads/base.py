"""What a workload offers to the worker: a model, its batches, its loss, its optimizer and its evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = Any


@dataclass(frozen=True)
class Place:
    """Which worker this is and the seed that all of them share."""

    rank: int
    world: int
    seed: int


class Workload(ABC):
    """A model and its data on one worker. Every worker builds it from the same options and seed."""

    module: nn.Module
    steps_per_epoch: int | None = None
    """Optimizer steps in an epoch where the data set decides; None where the experiment does."""

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Batch]:
        """This worker's batches of one epoch, in an order that only the seed and the epoch decide."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of `model`, which wraps `module`, on a batch."""

    @abstractmethod
    def optimizer(self, options: Mapping[str, Any]) -> torch.optim.Optimizer:
        """The optimizer for the module's parameters."""

    def evaluate(self, module: nn.Module) -> tuple[float, float] | None:
        """Accuracy (0 to 1) and mean loss on the test set; None when there is nothing to evaluate."""
        return None

    def training_loss(self, module: nn.Module) -> tuple[float, int] | None:
        """Sum and number of the losses of this worker's part of the training set, as the test set is evaluated: all
        parts together are the whole set. None when there is none.
        """
        return None

    def reports_loss(self) -> bool:
        """Whether the loss means anything."""
        return True
