"""Stretches the steps of real training to drawn times: real gradients, and a clock of one's own choosing.

Flow: `worker` tells where a step and its forward pass begin; hooks on the module wait. As on a device that is that much
slower, a third of the time passes in the forward pass and two thirds in the backward pass, there layer by layer in
proportion to multiply-accumulates, so that DDP's buckets become ready over the length of the backward pass. Waits end
at absolute deadlines counted from the start of the step's computation, so real work is part of the time, not added to
it; no deadline is later than leaves room for the real work behind it, which is estimated from the steps before. A wait
sleeps; it never spins, the cores belong to the network.

Where the real work alone takes longer than the drawn time, the step takes as long as it takes: by how much is written
into its event, and `padding.faults` says when that happened too often.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from cpdp.layers import Layer, arithmetic
from cpdp.padding import DRAWN, EXCESS
from cpdp.recorder import Recorder

FORWARD_SHARE = 1 / 3
REMEMBERED = 15
"""How many of the last steps the estimate of the work behind a wait is taken from."""

FORWARD = "forward"
"""Name of the wait before the forward pass; the others have their layers' names."""


@dataclass
class _Step:
    """One step under way: when its computation began (less what was no computation), and its waits so far."""

    drawn: int
    began: int
    data: int = 0
    start: int = 0
    slept: int = 0
    waits: list[tuple[str, int, int]] = field(default_factory=list)
    """(name, when it was over, time slept up to then)"""
    computed: int = 0
    optimizing: int = 0


class Padder:
    """The waits of one rank. Make it before the strategy wraps the module, `attach` it afterwards.

    The optimizer's hooks must come before the wrapper's, which synchronises in its own; the module's after the
    wrapper's, which closes the phase of DDP's broadcasts in its own.
    """

    def __init__(
        self,
        draw: Callable[[int], int],
        optimizer: torch.optim.Optimizer,
        recorder: Recorder,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`draw` gives the time of a step in nanoseconds."""
        self._draw, self._recorder, self._clock = draw, recorder, clock
        self._layers: list[Layer] = []
        self._shares: dict[str, float] = {}
        self._behind: dict[str, deque[int]] = {}
        self._step = _Step(0, 0)
        optimizer.register_step_pre_hook(self._optimizer_begins)
        optimizer.register_step_post_hook(self._optimizer_ends)

    def attach(self, module: nn.Module) -> None:
        """Hook the module that the wrapper holds."""
        self._layers = arithmetic(module)
        module.register_forward_pre_hook(self._forward_begins)
        module.register_forward_hook(self._forward_ends)
        for layer in self._layers:
            layer.module.register_forward_hook(self._layer_hook(layer))

    def begin(self, n: int) -> None:
        """Step `n` begins, with loading its data."""
        self._step = _Step(self._draw(n), self._clock())

    def loaded(self) -> None:
        """The data are there; what follows until the module's forward pass (DDP's broadcasts) is no computation."""
        self._step.data = self._clock() - self._step.began

    def _forward_begins(self, module: nn.Module, inputs: Any) -> None:
        if module.training:
            self._step.start = self._clock() - self._step.data
            self._wait(FORWARD, FORWARD_SHARE)

    def _forward_ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Divide the backward pass, once: the layers behind come first."""
        if module.training and not self._shares:
            layers = list(reversed(self._layers))
            whole = sum(layer.macs for layer in layers) or 1
            ends = accumulate(layer.macs for layer in layers)
            self._shares = {layer.name: end / whole for layer, end in zip(layers, ends, strict=True)}

    def _layer_hook(self, layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not isinstance(output, Tensor):
                return
            layer.note(output)
            if module.training and output.requires_grad:
                output.register_hook(lambda _: self._before_backward_of(layer))  # type: ignore[no-untyped-call]

        return hook

    def _before_backward_of(self, layer: Layer) -> None:
        """The gradients of the layers behind are there; this one's shall be when its share of the time is over."""
        self._wait(layer.name, FORWARD_SHARE + (1 - FORWARD_SHARE) * self._shares.get(layer.name, 1.0))
        self._step.computed = 0
        torch.autograd.Variable._execution_engine.queue_callback(self._gradients_computed)

    def _gradients_computed(self) -> None:
        """The backward pass is over, and DDP has not begun to wait for the network. Every layer queues it, the first
        to run counts.
        """
        self._step.computed = self._step.computed or self._clock()

    def _optimizer_begins(self, optimizer: Any, inputs: Any, named: Any) -> None:
        self._step.optimizing = self._clock()

    def _optimizer_ends(self, optimizer: Any, inputs: Any, named: Any) -> None:
        """The step's computation is over: note what it took beside what was drawn, and the work behind each wait."""
        step = self._step
        end = step.computed + self._clock() - step.optimizing  # as if nothing had been waited for in between
        for name, over, slept in step.waits:
            behind = end - over - (step.slept - slept)
            self._behind.setdefault(name, deque(maxlen=REMEMBERED)).append(behind)
        self._recorder.fact(DRAWN, step.drawn)
        self._recorder.fact(EXCESS, max(0, end - step.start - step.drawn))

    def _wait(self, name: str, share: float) -> None:
        """Sleep until a share of the drawn time is over, or less where more work is left than would then fit in."""
        step, behind = self._step, self._behind.get(name)
        offset = min(share * step.drawn, step.drawn - (fmean(behind) if behind else 0))
        before = self._clock()
        left = step.start + offset - before
        if left > 0:
            time.sleep(left * 1e-9)
        after = self._clock()
        step.slept += after - before if left > 0 else 0
        step.waits.append((name, after, step.slept))
