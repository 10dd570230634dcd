"""Gradient scaling (torch.amp.GradScaler) under every strategy: a step that the scaler skips is still a step.

A GradScaler does not call the optimizer when a gradient is not finite. With gradients that are averaged in every step
all workers skip together. In local steps only the worker skips whose gradient it is, no hook of its optimizer runs, and
from then on the workers count different steps and wait for each other in different collectives. So `ScaledSteps` makes
the optimizer one of those that handle scaled gradients themselves (torch's own contract for its fused optimizers): the
scaler then calls every step and says in `grad_scale` and `found_inf` what is to be done. Before such a step the
gradients are divided by their scale or, when one of them is not finite, hidden: an optimizer of torch.optim leaves
alone what has no gradient. A worker that skips therefore stands still for a step, and is counted.

`rescaled` is the other half, for strategies that average gradients in some steps only: by then the workers' scales may
differ, since each scaler goes down by its own skips, and a mean of gradients in different units means nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cpdp.collectives import Collectives

_SUPPORTS = "_step_supports_amp_scaling"


class ScaledSteps:
    """One optimizer whose steps a GradScaler may take. `before` and `after` belong around each step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the optimizer handle scaled gradients, unless it does already (torch's fused ones)."""
        self._optimizer = optimizer
        self._ours = not getattr(optimizer, _SUPPORTS, False)
        self._hidden: list[tuple[Tensor, Tensor]] = []
        if self._ours:
            setattr(optimizer, _SUPPORTS, True)

    @property
    def in_use(self) -> bool:
        """Whether the step under way is a scaler's."""
        return getattr(self._optimizer, "found_inf", None) is not None

    def before(self) -> None:
        """Hide the gradients of a step that must not be taken, or divide them by their scale."""
        if not (self._ours and self.in_use):
            return
        found: Tensor = self._optimizer.found_inf  # type: ignore[attr-defined]
        scale: Tensor | None = self._optimizer.grad_scale  # type: ignore[attr-defined]
        with_gradient = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        # taken care of here: torch's optimizers refuse both in a step that is not fused; the scaler removes them later
        self._optimizer.grad_scale = self._optimizer.found_inf = None  # type: ignore[attr-defined]
        if found.item():
            self._hidden = [(p, p.grad) for p in with_gradient]
            for p, _ in self._hidden:
                p.grad = None
        elif scale is not None:
            for p in with_gradient:
                p.grad.div_(scale.to(p.grad.device))

    def after(self) -> None:
        """Show the hidden gradients again."""
        for p, gradient in self._hidden:
            p.grad = gradient
        self._hidden = []

    def close(self) -> None:
        """Leave the optimizer as it was."""
        if self._ours and hasattr(self._optimizer, _SUPPORTS):
            delattr(self._optimizer, _SUPPORTS)


def scale_of(scaler: Any) -> Callable[[torch.device], Tensor]:
    """How to ask a GradScaler for its scale without waiting for a GPU; 1 for one that is disabled."""

    def scale(device: torch.device) -> Tensor:
        found: Tensor = scaler.scale(torch.ones(1, device=device))
        return found

    return scale


def rescaled(collectives: Collectives, scale: Callable[[torch.device], Tensor]) -> tuple[Any, Any]:
    """State and function of a DDP communication hook: the mean of unscaled gradients, in each worker's own scale."""
    # a lambda, because torch compares annotations and does not know postponed ones
    return (collectives, scale), lambda state, bucket: _rescaled_all_reduce(state, bucket)


def _rescaled_all_reduce(state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    collectives, scale = state
    tensor = bucket.buffer()
    own = scale(tensor.device)
    work = collectives.all_reduce(tensor.div_(own * collectives.world), "gradients")
    future: torch.futures.Future[Any] = work.get_future()
    return future.then(lambda done: done.value()[0].mul_(own))
