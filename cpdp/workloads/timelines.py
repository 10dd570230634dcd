"""Presets of replayed computation: JSON file -> `compute.Timeline`, and how the shipped one was derived.

A preset lists a model's layers in forward order with the time of both passes and the shapes of parameters and buffers.
`derive` makes one from a torchvision model and a published time per step: forward and backward share it 1 : 2, and
layers share each pass in proportion to their multiply-accumulates. Normalisation and activations, bound by
memory rather than arithmetic, are counted with the convolution before them.
"""

from __future__ import annotations

import json
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from cpdp.compute import LayerTime, Timeline, apportion
from cpdp.errors import WorkloadError
from cpdp.layers import is_arithmetic


def shipped() -> tuple[str, ...]:
    """Names of the presets that come with the package."""
    return tuple(sorted(f.name.removesuffix(".json") for f in _folder().iterdir() if f.name.endswith(".json")))


def load(name: str) -> Timeline:
    """Read a preset by name, or any file by a path that ends in .json. Raises WorkloadError."""
    file: Traversable | Path = Path(name) if name.endswith(".json") else _folder() / f"{name}.json"
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkloadError(f"timeline {name!r} does not exist; shipped: {', '.join(shipped())}") from error
    except ValueError as error:
        raise WorkloadError(f"timeline {name}: not JSON: {error}") from error
    return parse(raw, name)


def _folder() -> Traversable:
    return resources.files("cpdp.workloads") / "presets"


def parse(raw: Any, name: str) -> Timeline:
    """Check the contents of a preset. Raises WorkloadError naming the file and what is wrong."""
    try:
        layers = tuple(_layer(layer) for layer in raw["layers"])
        timeline = Timeline(raw["name"], raw["source"], raw["batch"], layers)
    except (KeyError, TypeError, ValueError) as error:
        raise WorkloadError(f"timeline {name}: {type(error).__name__}: {error}") from error
    if not layers or any(layer.forward_ns < 0 or layer.backward_ns < 0 for layer in layers):
        raise WorkloadError(f"timeline {name}: needs layers, with times of at least 0")
    return timeline


def _layer(raw: dict[str, Any]) -> LayerTime:
    return LayerTime(
        name=raw["name"],
        forward_ns=int(raw["forward_ns"]),
        backward_ns=int(raw["backward_ns"]),
        parameters=tuple(tuple(int(n) for n in shape) for shape in raw["parameters"]),
        buffers=tuple((dtype, tuple(int(n) for n in shape)) for dtype, shape in raw["buffers"]),
    )


def derive(model: Any, image: Any, *, step_ns: int) -> list[dict[str, Any]]:
    """Layers of a torch model, timed by their share of one step; `image` is one input (channels, height, width).

    The layer list follows the order of execution; a module without parameters is not a layer.
    """
    macs = _multiply_accumulates(model, image)
    owned = grouped(model, list(macs))
    forward = apportion(step_ns // 3, list(macs.values()))
    backward = apportion(step_ns - step_ns // 3, list(macs.values()))
    return [
        {"name": name, "forward_ns": f, "backward_ns": b, **owned[name]}
        for name, f, b in zip(macs, forward, backward, strict=True)
    ]


def _multiply_accumulates(model: Any, image: Any) -> dict[str, int]:
    """Multiply-accumulates per image of each convolution and linear layer, in order of execution."""
    counts: dict[str, int] = {}

    def note(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            outputs_per_channel = output[0].numel() // output.shape[1]
            counts[name] = outputs_per_channel * module.weight.numel()

        return hook

    named = [(name, module) for name, module in model.named_modules() if is_arithmetic(module)]
    hooks = [module.register_forward_hook(note(name)) for name, module in named]
    model.eval()(image[None])
    for hook in hooks:
        hook.remove()
    return counts


def grouped(model: Any, arithmetic: list[str]) -> dict[str, dict[str, Any]]:
    """Shapes of parameters and buffers per arithmetic layer; a normalisation goes with the layer before it."""
    groups: dict[str, dict[str, Any]] = {name: {"parameters": [], "buffers": []} for name in arithmetic}
    current = arithmetic[0]
    for name, module in model.named_modules():
        current = name if name in groups else current
        groups[current]["parameters"] += [list(p.shape) for p in module.parameters(recurse=False)]
        groups[current]["buffers"] += [
            [str(b.dtype).removeprefix("torch."), list(b.shape)] for b in module.buffers(recurse=False)
        ]
    return groups
