"""Stretches the steps of real training to drawn times: real gradients, and a clock of one's own choosing.

Flow: `worker` tells where a step and its forward pass begin; hooks on the module wait. As on a device that is that much
slower, a third of the time passes in the forward pass and two thirds in the backward pass, there layer by layer in
proportion to multiply-accumulates, so that DDP's buckets become ready over the length of the backward pass. Waits end
at absolute deadlines counted from the start of the step's computation, so real work is part of the time, not added to
it; what comes behind the last wait (the first layer's gradients, the optimizer) is estimated from the steps before and
taken off. A wait sleeps; it never spins, the cores belong to the network.

Where the real work alone takes longer than the drawn time, the step takes as long as it takes: it is counted, and
`padding.faults` says when that happened too often.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from cpdp.layers import Layer, arithmetic
from cpdp.padding import DRAWN, EXCESS
from cpdp.recorder import Recorder

FORWARD_SHARE = 1 / 3
TAILS = 15
"""How many of the last steps the estimate of what follows the last wait is taken from."""


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
        self._tails: deque[int] = deque([0], maxlen=TAILS)
        self._began = self._drawn = self._data = self._start = 0
        self._last_wait = self._tail = self._computed = self._optimizing = 0
        self._ran_over = False
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
        self._began, self._drawn = self._clock(), self._draw(n)

    def loaded(self) -> None:
        """The data are there; what follows until the module's forward pass (DDP's broadcasts) is no computation."""
        self._data = self._clock() - self._began

    def _forward_begins(self, module: nn.Module, inputs: Any) -> None:
        if module.training:
            self._start = self._clock() - self._data
            self._wait(self._reserved() * FORWARD_SHARE)

    def _forward_ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Divide the backward pass, once: the layers behind come first."""
        if module.training and not self._shares:
            counts = [layer.macs for layer in reversed(self._layers)]
            ends = accumulate(counts)
            whole = sum(counts) or 1
            self._shares = {layer.name: end / whole for layer, end in zip(reversed(self._layers), ends, strict=True)}

    def _layer_hook(self, layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not isinstance(output, Tensor):
                return
            layer.note(output)
            if module.training and output.requires_grad:
                output.register_hook(lambda _: self._before_backward_of(layer))  # type: ignore[no-untyped-call]

        return hook

    def _before_backward_of(self, layer: Layer) -> None:
        """The gradients of the layers behind are complete; this one's shall be when its share of the time is over."""
        share = self._shares.get(layer.name, 1.0)
        self._wait(self._reserved() * (FORWARD_SHARE + (1 - FORWARD_SHARE) * share))
        self._last_wait = self._clock()
        torch.autograd.Variable._execution_engine.queue_callback(self._gradients_computed)

    def _gradients_computed(self) -> None:
        """Runs at the end of the backward pass, before DDP waits for the network. Queued by every
        layer, it counts once.
        """
        if self._last_wait:
            self._tail, self._last_wait = self._clock() - self._last_wait, 0
            self._computed = self._clock()

    def _optimizer_begins(self, optimizer: Any, inputs: Any, named: Any) -> None:
        self._optimizing = self._clock()

    def _optimizer_ends(self, optimizer: Any, inputs: Any, named: Any) -> None:
        """The step's computation is over: what it took, beside what was drawn for it."""
        spent = self._clock() - self._optimizing
        took = self._computed - self._start + spent
        self._tails.append(self._tail + spent)
        late = took - self._drawn if self._ran_over else 0
        self._recorder.fact(DRAWN, self._drawn)
        self._recorder.fact(EXCESS, max(0, late))

    def _reserved(self) -> float:
        """The time that waits may fill: all but what usually follows the last of them."""
        return max(0.0, self._drawn - median(self._tails))

    def _wait(self, offset_ns: float) -> None:
        left = self._start + offset_ns - self._clock()
        self._ran_over = left <= 0
        if left > 0:
            time.sleep(left * 1e-9)
