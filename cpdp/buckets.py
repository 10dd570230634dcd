"""The layout of DDP's buckets, so that a restarted run sums gradients in the same order as one that never stopped.

DDP lays its buckets out anew after its first synchronised backward pass, in the order in which gradients arrived then.
A ring adds up each part of a bucket in an order of ranks that depends on where in the bucket it lies, so with three or
more workers another layout gives other last bits. A restarted DDP begins with its first layout again; `replay` leads it
to the second one with a backward pass in the order that was seen, whose gradients are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Arrivals:
    """Watches the first synchronised backward pass of a DDP module, and no other."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        """Watch from now on."""
        self._ddp = ddp
        self.order: list[int] = []
        """Indices of the trained parameters in the order in which their gradients arrived; empty before that."""
        self._handles = [_after_accumulation(p, self._note(i)) for i, p in enumerate(_trained(ddp))]

    def _note(self, index: int) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            if self._ddp.require_backward_grad_sync:
                self.order.append(index)

        return note

    def settle(self) -> None:
        """After an optimizer step: stop watching once there was something to see."""
        if self.order:
            self.close()

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def replay(self, order: Sequence[int]) -> None:
        """Lead a new DDP to the layout that follows from `order`. Collective; sends one set of gradients, all zero."""
        self.order = list(order)
        self.close()
        ddp = self._ddp
        if not self.order or ddp.find_unused_parameters:  # which keeps its first layout
            return
        module, ddp.module = ddp.module, _InOrder(_trained(ddp), self.order)
        try:
            ddp.require_backward_grad_sync, ddp.require_forward_param_sync = True, False
            with torch.enable_grad():
                ddp().backward()
        finally:
            ddp.module = module
        for p in _trained(ddp):
            p.grad = None


class _InOrder(nn.Module):
    """A number to which every parameter contributes nothing, and whose backward pass reaches them in an order."""

    def __init__(self, parameters: Sequence[Tensor], order: Sequence[int]) -> None:
        super().__init__()
        self._chain = [parameters[index] for index in reversed(order)]  # what is added last is reached first

    def forward(self) -> Tensor:
        total = torch.zeros((), device=self._chain[0].device)
        for parameter in self._chain:
            total = total + 0 * parameter.sum()
        return total


def _after_accumulation(parameter: Tensor, call: Callable[[Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]


def _trained(ddp: DistributedDataParallel) -> list[Tensor]:
    return [p for p in ddp.module.parameters() if p.requires_grad]
