"""A model whose computation is replayed from a timeline: for measuring synchronisation on a machine without GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cpdp.compute import InertOptimizer, ReplayedModel
from cpdp.workloads import timelines
from cpdp.workloads.base import Batch, Workload


class Replayed(Workload):
    """Endless batches of nothing for a `ReplayedModel`; the experiment says how many steps make an epoch."""

    def __init__(self, timeline: str, dilation: float = 1.0) -> None:
        """Load a shipped preset by name, or a file by a path ending in .json; `dilation` stretches its times."""
        self.timeline = timelines.load(timeline).dilated(dilation)
        self.module = ReplayedModel(self.timeline)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The same empty batch for ever: the time to load data is part of the timeline."""
        while True:
            yield None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's single number."""
        value: Tensor = model(batch).sum()
        return value

    def optimizer(self, options: Mapping[str, Any]) -> torch.optim.Optimizer:
        """One that costs nothing, whatever was asked for: its time is inside the timeline."""
        return InertOptimizer(self.module.parameters())

    def reports_loss(self) -> bool:
        """A number without a meaning."""
        return False
