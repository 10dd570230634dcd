"""`cpdp record-compute`: times a real model, layer by layer, on this machine -> a preset that `replayed` reads.

Flow: a workload's name, or a `module:function` that returns a model -> steps on this device -> JSON like the shipped
presets (`timelines`). On a GPU the marks are CUDA events, on a CPU the monotonic clock. Layers are the modules with
arithmetic; what lies between two of them (normalisation, activations) is counted with the one before, the optimizer's
step and whatever else the step takes is spread over the backward pass in proportion. Each layer gets the median over
the measured steps, and all are then scaled so that they sum to the median step.
"""

from __future__ import annotations

import importlib
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cpdp import jsonfile
from cpdp.compute import apportion
from cpdp.errors import WorkloadError
from cpdp.layers import is_arithmetic
from cpdp.workloads.timelines import grouped

Mark = Any


class _Clock:
    """Marks in the order of the device's work, and the nanoseconds between two of them."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def mark(self) -> Mark:
        if not self.cuda:
            return time.monotonic_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def between(self, first: Mark, second: Mark) -> int:
        return round(first.elapsed_time(second) * 1e6) if self.cuda else int(second - first)


def record(
    model: nn.Module, batch: Tensor, labels: Tensor, *, steps: int, warmup: int, name: str, source: str
) -> dict[str, Any]:
    """A preset of this model and batch, timed on the device of the batch. Raises WorkloadError for a model without
    layers.
    """
    device = batch.device
    model = model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    taken = _Steps(model, optimizer, _Clock(device), batch, labels)
    rows = [taken.step() for _ in range(warmup + steps)][warmup:]
    order = rows[-1].order
    if not order:
        raise WorkloadError(f"record-compute: {name} has no layer with a weight that took part")
    total = round(median(row.total for row in rows))
    forward = [round(median(row.forward[layer] for row in rows)) for layer in order]
    backward = [round(median(row.backward[layer] for row in rows)) for layer in order]
    scaled = apportion(total, [max(1, one) for one in [*forward, *backward]])
    owned = grouped(model, order)
    layers = [
        {"name": layer, "forward_ns": f, "backward_ns": b, **owned[layer]}
        for layer, f, b in zip(order, scaled[: len(order)], scaled[len(order) :], strict=True)
    ]
    return {
        "name": name, "source": source, "derived": f"cpdp record-compute, median of {steps} steps after {warmup}",
        "device": describe(device), "batch": len(batch), "layers": layers,
    }  # fmt: skip


class _Row:
    """Times of one step."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.forward: dict[str, int] = {}
        self.backward: dict[str, int] = {}
        self.total = 0


class _Steps:
    """Takes steps with marks at every layer's beginning, in both passes."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, clock: _Clock, batch: Tensor, labels: Tensor
    ) -> None:
        self.model, self.optimizer, self.clock, self.batch, self.labels = model, optimizer, clock, batch, labels
        self.forward: list[tuple[str, Mark]] = []
        self.backward: list[tuple[str, Mark]] = []
        for name, module in model.named_modules():
            if is_arithmetic(module):
                module.register_forward_pre_hook(lambda *_, n=name: self.forward.append((n, self.clock.mark())))
                module.register_forward_hook(lambda _m, _i, output, n=name: self._watch(n, output))

    def _watch(self, name: str, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(lambda _: self.backward.append((name, self.clock.mark())))  # type: ignore[no-untyped-call]

    def step(self) -> _Row:
        """One step: a layer's time lasts until the next one begins, the last one's until the pass is over."""
        self.forward, self.backward = [], []
        began = self.clock.mark()
        self.optimizer.zero_grad()
        output = self.model(self.batch)
        loss = cross_entropy(output, self.labels) if output.dim() == 2 else output.float().mean()
        turned = self.clock.mark()
        loss.backward()
        done = self.clock.mark()
        self.optimizer.step()
        end = self.clock.mark()
        self.clock.settle()
        row = _Row()
        row.order = list(dict.fromkeys(name for name, _ in self.forward))
        row.forward = self._lengths(self.forward, began, turned, row.order)
        row.backward = self._lengths(self.backward, turned, done, row.order)
        row.total = self.clock.between(began, end)
        return row

    def _lengths(
        self, marks: Sequence[tuple[str, Mark]], start: Mark, end: Mark, order: Sequence[str]
    ) -> dict[str, int]:
        """What lies before the first mark belongs to the first layer; a layer used twice gets both times."""
        found = dict.fromkeys(order, 0)
        edges = [start, *(mark for _, mark in marks[1:]), end]
        for (name, _), first, second in zip(marks, edges, edges[1:], strict=False):
            found[name] = found.get(name, 0) + self.clock.between(first, second)
        return found


def describe(device: torch.device) -> str:
    """The device in words, with torch's version."""
    if device.type == "cuda":
        what = torch.cuda.get_device_name(device)
    else:
        what = f"CPU {platform.machine()}, {torch.get_num_threads()} threads"
    return f"{what}; torch {torch.__version__}"


def scale_payload(preset: dict[str, Any], factor: float) -> dict[str, Any]:
    """The same times with `factor` times the parameters: every layer gets one more vector (or loses in its first
    dimension), so that its number of elements is the scaled one.
    """
    for layer in preset["layers"]:
        counts = [max(1, round(factor * _numel(shape))) for shape in layer["parameters"]]
        layer["parameters"] = [[count] for count in counts]
    preset["derived"] += f"; payload scaled by {factor:g}, shapes flattened"
    return preset


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def load_model(name: str, classes: int, image: int) -> nn.Module:
    """A model by its name here (`workloads.models`), or `module:function` of one's own. Raises WorkloadError."""
    if ":" not in name:
        from cpdp.workloads import models

        return models.make(name, channels=3, classes=classes, image=image)
    module, _, function = name.partition(":")
    try:
        make: Callable[[], nn.Module] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise WorkloadError(f"record-compute: {name}: {error}; write module:function, which returns a model") from error
    return make()


def run(options: Any) -> dict[str, Any]:
    """Carry `cpdp record-compute` out: time the model, write the preset. Raises WorkloadError."""
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise WorkloadError(f"record-compute: --device {options.device}: torch sees no CUDA device here; allowed: cpu")
    model = load_model(options.model, options.classes, options.image)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(options.batch, 3, options.image, options.image, generator=generator).to(device)
    labels = torch.randint(options.classes, (options.batch,), generator=generator).to(device)
    name = options.name or Path(options.out).stem
    source = f"measured with cpdp record-compute: {options.model}, batch {options.batch}, {options.image} pixels, fp32"
    preset = record(model, batch, labels, steps=options.steps, warmup=options.warmup, name=name, source=source)
    if options.payload_scale != 1:
        preset = scale_payload(preset, options.payload_scale)
    jsonfile.write(Path(options.out), preset)
    return preset
