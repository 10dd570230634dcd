"""Synchronous data parallelism: torch's own DistributedDataParallel, unchanged.

Gradients are averaged in every backward pass, in buckets that leave as soon as they are complete; with `hook`, through
one of torch's communication hooks, which compress them. Buffers follow torch's rule: before each forward pass rank 0's
are broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cpdp.errors import StrategyError
from cpdp.schedule import Position
from cpdp.strategies.base import Attachment, Parameter, Strategy

if TYPE_CHECKING:
    from torch import nn

BUCKETS = (
    Parameter(
        "bucket_mb",
        int,
        25,  # collectives.DEFAULT_BUCKET_MB, which this module does not import: torch comes with it
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


_HOOKS = ("none", "fp16", "bf16", "powersgd")


class Ddp(Strategy):
    """All workers apply the same averaged gradient in every step."""

    name = "ddp"
    summary = "gradients averaged in every step by torch's DistributedDataParallel, optionally compressed"
    source = "Li et al., PyTorch Distributed, VLDB 2020 (arXiv 2006.15704); PowerSGD: arXiv 1905.13727"
    parameters = (
        *BUCKETS,
        Parameter("hook", str, "none", "torch's communication hook: fp16, bf16 or powersgd", choices=_HOOKS),
        Parameter("rank", int, 1, "PowerSGD: rank of the approximation", low=1, high=1024),
        Parameter("start", int, 1000, "PowerSGD: steps with plain averages before it begins", low=2, high=10**9),
        Parameter("statistics", str, "broadcast", "floating-point buffers: broadcast (rank 0's, before each forward "
                  "pass) or local", choices=("broadcast", "local")),
    )  # fmt: skip

    def attach(self, to: Attachment) -> nn.Module:
        """Wrap the module in DistributedDataParallel; a lone worker keeps the bare module."""
        from cpdp.compression import hook  # torch: not for `cpdp strategies`

        values = self.values
        bucket_mb: int = values["bucket_mb"]
        if values["hook"] == "powersgd":
            if values["find_unused"]:
                raise StrategyError("ddp: torch's powersgd hook waits for ever where DDP looks for unused parameters")
            # each bucket's factors follow one another in the order in which they arrive, which under gloo is not the
            # same on every worker as soon as there are two buckets
            size = sum(p.numel() * p.element_size() for p in to.module.parameters())
            bucket_mb = max(bucket_mb + 1, (size >> 20) + 1)
        self._hook = hook(values["hook"], to.collectives, rank=values["rank"], start=values["start"])
        return to.collectives.data_parallel(
            to.module,
            bucket_mb=bucket_mb,
            find_unused=values["find_unused"],
            forward_buffers=values["statistics"] == "broadcast",
            hook=self._hook,
        )

    def reduces_gradients(self, at: Position) -> bool:
        """Every step does."""
        return True

    def boundary(self, at: Position) -> bool:
        """Every step is one."""
        return True

    def synchronise(self, at: Position) -> None:
        """Nothing is left to do: equal gradients keep equal parameters equal."""

    def state_dict(self) -> dict[str, Any]:
        """PowerSGD's memory; nothing otherwise."""
        from cpdp.compression import memory

        if self.values["hook"] != "powersgd" or self._hook is None:
            return {}
        return {"powersgd": memory(self._hook[0])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it. Raises StrategyError when it is another strategy's."""
        from cpdp.compression import restore_memory

        if list(state) != list(self.state_dict()):
            raise StrategyError(f"ddp: the saved state is another strategy's: {', '.join(state) or 'nothing'}")
        if self._hook is not None and state:
            restore_memory(self._hook[0], state["powersgd"])
