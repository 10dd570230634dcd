"""Models by name, for small images as well as large ones. Used by the image workloads and by `cpdp record-compute`.

resnet18 and resnet50 are torchvision's with a CIFAR stem below 65 pixels (3x3 of stride 1, no max-pooling); resnet20
is He et al.'s for CIFAR (arXiv 1512.03385, section 4.2: three times three blocks of 16, 32 and 64 channels, shortcuts
without parameters, 0.27 M in all); vgg16 is torchvision's features with BatchNorm and one linear layer, as CIFAR
versions have it; vit-s is a ViT-S (384 wide, 12 layers, 6 heads) whose patches are an eighth of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from cpdp.errors import WorkloadError


def small_cnn(channels: int, classes: int, image: int) -> nn.Module:
    """Three convolutions with BatchNorm, two poolings and a linear classifier."""
    width, side = 32, image // 4
    return nn.Sequential(
        *_block(channels, width), *_block(width, 2 * width), nn.MaxPool2d(2), *_block(2 * width, 4 * width),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * width * side * side, classes),
    )  # fmt: skip


def _block(channels: int, out: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()


def _resnet(name: str) -> Callable[[int, int, int], nn.Module]:
    def make(channels: int, classes: int, image: int) -> nn.Module:
        import torchvision

        model: Any = getattr(torchvision.models, name)(num_classes=classes)
        if image <= 64:
            model.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
            model.maxpool = nn.Identity()
        elif channels != 3:
            model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        found: nn.Module = model
        return found

    return make


class _Basic(nn.Module):
    """Two convolutions and a shortcut without parameters."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.stride, self.more = stride, out - channels

    def forward(self, x: Tensor) -> Tensor:
        shortcut = pad(
            x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2)
        )
        return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))) + shortcut)


def resnet20(channels: int, classes: int, image: int) -> nn.Module:
    """He et al.'s ResNet-20."""
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for width in (16, 32, 64):
        for number in range(3):
            layers.append(_Basic(before, width, 2 if number == 0 and width > 16 else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def vgg16(channels: int, classes: int, image: int) -> nn.Module:
    """VGG-16 with BatchNorm; five poolings, so at least 32 pixels."""
    import torchvision

    features: Any = torchvision.models.vgg16_bn().features
    if channels != 3:
        features[0] = nn.Conv2d(channels, 64, 3, padding=1)
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class VisionTransformer(nn.Module):
    """Patches, a class token, learnt positions, pre-norm encoder layers, a linear head."""

    def __init__(
        self, channels: int, classes: int, image: int, *, width: int = 384, depth: int = 12, heads: int = 6
    ) -> None:
        """Patches of an eighth of the image, so 65 tokens whatever its size."""
        super().__init__()
        patch = image // 8
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], dim=1) + self.positions
        logits: Tensor = self.head(self.norm(self.encoder(tokens))[:, 0])
        return logits


MODELS: dict[str, tuple[Callable[[int, int, int], nn.Module], int]] = {
    "cnn": (small_cnn, 8),
    "resnet18": (_resnet("resnet18"), 16),
    "resnet20": (resnet20, 8),
    "resnet50": (_resnet("resnet50"), 16),
    "vgg16": (vgg16, 32),
    "vit-s": (VisionTransformer, 16),
}
"""Every model, and the smallest side of an image that it can take."""


def make(name: str, *, channels: int, classes: int, image: int) -> nn.Module:
    """A model for square images. Raises WorkloadError for one that does not exist or an image too small for it."""
    if name not in MODELS:
        raise WorkloadError(f"model: {name!r} does not exist; valid: {', '.join(MODELS)}")
    build, least = MODELS[name]
    if image < least:
        raise WorkloadError(f"model {name}: images of {image} pixels are too small; at least {least}")
    return build(channels, classes, image)
