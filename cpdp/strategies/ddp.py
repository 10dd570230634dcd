"""Synchronous data parallelism: torch's own DistributedDataParallel, unchanged.

Gradients are averaged in every backward pass, in buckets that leave as soon as they are complete. Buffers
follow torch's rule: before each forward pass rank 0's are broadcast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpdp.collectives import DEFAULT_BUCKET_MB
from cpdp.schedule import Position
from cpdp.strategies.base import Attachment, Parameter, Strategy

if TYPE_CHECKING:
    from torch import nn

BUCKETS = (
    Parameter(
        "bucket_mb",
        int,
        DEFAULT_BUCKET_MB,
        "size of a gradient bucket in MiB (DistributedDataParallel's; 25, its default: the first of 1)",
        low=1,
        high=4096,
    ),
    Parameter(
        "find_unused",
        bool,
        False,
        "look for parameters that took no part in the forward pass (find_unused_parameters)",
    ),
)


class Ddp(Strategy):
    """All workers apply the same averaged gradient in every step."""

    name = "ddp"
    summary = "gradients averaged in every step by torch's DistributedDataParallel"
    source = "Li et al., PyTorch Distributed, VLDB 2020 (arXiv 2006.15704)"
    parameters = BUCKETS

    def attach(self, to: Attachment) -> nn.Module:
        """Wrap the module in DistributedDataParallel; a lone worker keeps the bare module."""
        return to.collectives.data_parallel(
            to.module,
            bucket_mb=self.values["bucket_mb"],
            find_unused=self.values["find_unused"],
            forward_buffers=True,
        )

    def reduces_gradients(self, at: Position) -> bool:
        """Every step does."""
        return True

    def boundary(self, at: Position) -> bool:
        """Every step is one."""
        return True

    def synchronise(self, at: Position) -> None:
        """Nothing is left to do: equal gradients keep equal parameters equal."""
