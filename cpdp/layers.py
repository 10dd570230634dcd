"""A model's layers as far as time is concerned: modules with arithmetic, and how much of it each one does.

Used by `padder`, which spreads a backward pass over them, and by `workloads.timelines`, which derives presets.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass
class Layer:
    """A module with a weight of two or more dimensions; `macs` are multiply-accumulates per sample, once it has run."""

    name: str
    module: nn.Module
    macs: int = 0

    def note(self, output: Tensor) -> None:
        """Count the multiply-accumulates from one output (samples first)."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        self.macs = output[0].numel() * (weight.numel() // weight.shape[0])


def arithmetic(model: nn.Module) -> list[Layer]:
    """The layers of a model in the order in which it names them."""
    return [Layer(name, module) for name, module in model.named_modules() if is_arithmetic(module)]


def is_arithmetic(module: nn.Module) -> bool:
    """Whether a module has a matrix to multiply by."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() >= 2
