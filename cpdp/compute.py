"""Replayed computation: each layer's forward and backward pass is a timed wait; gradients are real tensors.

Flow: `workloads.timelines` reads a preset into a `Timeline`; `ReplayedModel` is the module that a strategy
wraps. Its parameters have the shapes and the order of the model it stands for, its layers are autograd
functions whose backward passes run in reverse order and hand back gradients of the right size, so DDP's
buckets become ready when they would on the device that was timed, and what crosses the network is what would.
There is no arithmetic and the values mean nothing.

Waits end at absolute deadlines counted from the start of the step's forward pass, so time that the CPU spends
between and inside layers (autograd, copying gradients into buckets) is absorbed by the next wait, as it is on
a device that is fed asynchronously, and the sum is the timeline's. A wait sleeps; it never spins, the cores
belong to the network.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

SLACK_NS = 2_000_000
"""How late the backward pass may begin and still catch up with the forward pass's deadlines. Covers the CPU's
work on the loss; a longer gap is the caller's own and moves the deadlines.
"""


@dataclass(frozen=True)
class LayerTime:
    """One layer: the time of its two passes, the shapes of its parameters and the shape and dtype of its
    buffers.
    """

    name: str
    forward_ns: int
    backward_ns: int
    parameters: tuple[tuple[int, ...], ...]
    buffers: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Timeline:
    """A model's computation, layer by layer in forward order; `source` says where the figures come from."""

    name: str
    source: str
    batch: int
    layers: tuple[LayerTime, ...]

    @property
    def step_ns(self) -> int:
        """Computation of one step: all passes of all layers; the optimizer's time is inside them."""
        return sum(layer.forward_ns + layer.backward_ns for layer in self.layers)

    def dilated(self, factor: float) -> Timeline:
        """The same computation on a clock that runs `factor` times slower."""
        if factor == 1:
            return self
        scaled = tuple(
            replace(one, forward_ns=round(one.forward_ns * factor), backward_ns=round(one.backward_ns * factor))
            for one in self.layers
        )
        return replace(self, layers=scaled)

    @property
    def parameters(self) -> int:
        """Number of trained numbers."""
        return sum(numel(shape) for layer in self.layers for shape in layer.parameters)


def numel(shape: Iterable[int]) -> int:
    """Number of elements of a shape."""
    count = 1
    for length in shape:
        count *= length
    return count


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split a whole number in proportion to weights so that the parts sum to it exactly."""
    whole = sum(weights)
    edges = [total * edge // whole for edge in accumulate(weights)]
    return [after - before for before, after in zip([0, *edges], edges, strict=False)]


class Pace:
    """The deadlines of one step, and how far the waits missed them."""

    def __init__(self) -> None:
        """Not started: waits before `start` would end at once."""
        self._forward_ns = 0
        self._backward_ns: int | None = None
        self.worst_late_ns = 0

    def start(self) -> None:
        """A forward pass begins: deadlines count from here."""
        self._forward_ns = time.monotonic_ns()
        self._backward_ns = None

    def wait_forward(self, offset_ns: int) -> None:
        """Sleep until `offset_ns` after the start."""
        self._sleep_until(self._forward_ns + offset_ns)

    def wait_backward(self, forward_ns: int, offset_ns: int) -> None:
        """Sleep until `offset_ns` into the backward pass, which begins when the forward pass of `forward_ns`
        ends.
        """
        if self._backward_ns is None:
            self._backward_ns = max(self._forward_ns + forward_ns, time.monotonic_ns() - SLACK_NS)
        self._sleep_until(self._backward_ns + offset_ns)

    def _sleep_until(self, deadline_ns: int) -> None:
        left = deadline_ns - time.monotonic_ns()
        if left > 0:
            time.sleep(left * 1e-9)
        self.worst_late_ns = max(self.worst_late_ns, time.monotonic_ns() - deadline_ns)


class ReplayedLayer(nn.Module):
    """A layer that takes the time it took and hands back gradients of the right size."""

    def __init__(self, layer: LayerTime, forward_at: int, backward_at: int, forward_total: int, pace: Pace) -> None:
        """`forward_at` and `backward_at` are when its passes end, from the start of each pass of the model."""
        super().__init__()
        self.forward_at, self.backward_at, self.forward_total = forward_at, backward_at, forward_total
        self.pace = pace
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape) * 0.01) for shape in layer.parameters)
        for number, (dtype, shape) in enumerate(layer.buffers):
            self.register_buffer(f"buffer_{number}", torch.zeros(shape, dtype=getattr(torch, dtype)))
        self.gradients = [torch.randn(shape) * 0.001 for shape in layer.parameters]

    def forward(self, signal: Tensor) -> Tensor:
        """Pass the signal on when the layer's forward time is over."""
        passed: Tensor = _Replay.apply(self, signal, *self.weights)
        return passed


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: ReplayedLayer, signal: Tensor, *weights: Tensor) -> Tensor:
        ctx.layer = layer
        layer.pace.wait_forward(layer.forward_at)
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer: ReplayedLayer = ctx.layer
        layer.pace.wait_backward(layer.forward_total, layer.backward_at)
        # A fresh alias each time: autograd then takes it as the parameter's gradient without copying it.
        return None, gradients[0], *(gradient.detach() for gradient in layer.gradients)


class ReplayedModel(nn.Module):
    """A chain of replayed layers. Takes anything, returns one number that carries the gradient back."""

    def __init__(self, timeline: Timeline) -> None:
        """Allocate parameters, gradients and buffers of the timeline's shapes."""
        super().__init__()
        self.pace = Pace()
        forward_total = sum(layer.forward_ns for layer in timeline.layers)
        forward_ends = accumulate(layer.forward_ns for layer in timeline.layers)
        backward_ends = list(accumulate(layer.backward_ns for layer in reversed(timeline.layers)))[::-1]
        self.layers = nn.ModuleList(
            ReplayedLayer(layer, forward_at, backward_at, forward_total, self.pace)
            for layer, forward_at, backward_at in zip(timeline.layers, forward_ends, backward_ends, strict=True)
        )

    def forward(self, *inputs: object) -> Tensor:
        """Take as long as the timeline's forward passes."""
        self.pace.start()
        signal = torch.zeros(1)
        for layer in self.layers:
            signal = layer(signal)
        return signal


class InertOptimizer(torch.optim.Optimizer):
    """Takes the place of an optimizer whose time is part of the replayed computation: its step does nothing."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        """Hold the parameters, so that hooks, `zero_grad` and checks work as with any optimizer."""
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing: the gradients of a replayed model mean nothing."""
