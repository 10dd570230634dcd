"""A model in parts that are exchanged at different times: which slices of the flat buffers belong to which fragment.

A layer is a module's own trained parameters; fragments hold whole layers, equally many as far as that goes.
*sequential* fragments hold neighbours; *strided* ones every P-th layer, so that each reaches through the whole depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cpdp.errors import StrategyError
from cpdp.flat import FlatBuffer

PATTERNS = ("sequential", "strided")


@dataclass(frozen=True)
class Fragment:
    """Slices of flat buffers: (buffer, slice), in the buffers' order. All tensors below are flat and in this order."""

    pieces: tuple[tuple[int, slice], ...]

    def gather(self, flats: Sequence[Tensor]) -> Tensor:
        """The fragment's part of one tensor per buffer, copied together."""
        return torch.cat([flats[which][piece] for which, piece in self.pieces])

    def parts(self, packed: Tensor, flats: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """(part of `packed`, the view of a flat tensor where it belongs) for each piece."""
        pairs, offset = [], 0
        for which, piece in self.pieces:
            target = flats[which][piece]
            pairs.append((packed[offset : offset + target.numel()], target))
            offset += target.numel()
        return pairs


def split(module: nn.Module, buffers: Sequence[FlatBuffer], count: int, pattern: str) -> tuple[Fragment, ...]:
    """Cut a model into `count` fragments. Raises StrategyError when it has fewer layers, or types that do not mix."""
    layers = _layers(module)
    if count > len(layers):
        raise StrategyError(f"fragments={count} needs as many layers with parameters; the model has {len(layers)}")
    if len(buffers) > 1:
        raise StrategyError("fragments need one type of parameters on one device; the model mixes several")
    places = {id(member): (which, piece) for which, b in enumerate(buffers) for member, piece in _places(b)}
    chosen: list[list[tuple[int, slice]]] = [[] for _ in range(count)]
    seen: set[tuple[int, int]] = set()
    for index, layer in enumerate(layers):
        mine = chosen[index % count if pattern == "strided" else index * count // len(layers)]
        for parameter in layer:
            which, piece = places[id(parameter)]
            if (which, piece.start) not in seen:  # tied weights lie in one place
                seen.add((which, piece.start))
                mine.append((which, piece))
    return tuple(Fragment(tuple(_joined(pieces))) for pieces in chosen)


def _layers(module: nn.Module) -> list[list[Tensor]]:
    seen: set[int] = set()
    layers = []
    for part in module.modules():
        own = [p for p in part.parameters(recurse=False) if p.requires_grad and id(p) not in seen]
        seen.update(id(p) for p in own)
        layers += [list[Tensor](own)] if own else []
    return layers


def _places(buffer: FlatBuffer) -> list[tuple[Tensor, slice]]:
    start, size = buffer.data.data_ptr(), buffer.data.element_size()
    offsets = [(address - start) // size for address in buffer.addresses]
    return [(m, slice(at, at + m.numel())) for m, at in zip(buffer.members, offsets, strict=True)]


def _joined(pieces: list[tuple[int, slice]]) -> list[tuple[int, slice]]:
    """In order, neighbours as one."""
    joined: list[tuple[int, slice]] = []
    for which, piece in sorted(pieces, key=lambda one: (one[0], one[1].start)):
        if joined and joined[-1][0] == which and joined[-1][1].stop == piece.start:
            joined[-1] = (which, slice(joined[-1][1].start, piece.stop))
        else:
            joined.append((which, piece))
    return joined
