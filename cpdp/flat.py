"""A model's tensors laid out in one flat buffer per type and device, without changing the model.

Every parameter becomes a view into its buffer, so averaging needs no copy into or out of a message, and
`state_dict`, optimizers and autograd see the same Parameter objects as before. Tensors that share memory
(tied weights) become one view and cross the wire once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cpdp.errors import UsageError

_Place = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class FlatBuffer:
    """One contiguous buffer, the tensors that view it, and where each of them must still be for that to hold."""

    data: Tensor
    members: tuple[Tensor, ...]
    addresses: tuple[int, ...]

    def check(self) -> None:
        """Raise UsageError when a tensor no longer views the buffer (`.to()`, `.half()`, `param.data = ...`)."""
        for member, address in zip(self.members, self.addresses, strict=True):
            if member.data_ptr() != address:
                raise UsageError(
                    f"a tensor of shape {tuple(member.shape)} was moved after DataParallel took the model; "
                    "convert or move the model before wrapping it"
                )


def flatten(tensors: Iterable[Tensor]) -> tuple[FlatBuffer, ...]:
    """Move tensors into flat buffers, one per (dtype, device) in order of appearance, and make each a view.

    Raises UsageError for tensors that overlap in part, whose meaning in a sum would depend on the order.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return tuple(_flatten_alike(members) for members in kinds.values())


def _flatten_alike(members: Sequence[Tensor]) -> FlatBuffer:
    places: dict[_Place, int] = {}
    size = 0
    for member in members:
        if (place := _place(member)) not in places:
            places[place] = size
            size += member.numel()
    _refuse_overlap(members)
    flat = torch.empty(size, dtype=members[0].dtype, device=members[0].device)
    with torch.no_grad():
        for member, offset in [(m, places[_place(m)]) for m in members]:
            view = torch.as_strided(flat, member.shape, _dense_strides(member), offset)
            view.copy_(member)
            member.data = view
    return FlatBuffer(flat, tuple(members), tuple(member.data_ptr() for member in members))


def _place(tensor: Tensor) -> _Place:
    if tensor.numel() == 0:
        return (0, tuple(tensor.shape), ())
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's own strides where they leave no gaps (channels-last stays so), else contiguous ones."""
    for memory_format in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        if memory_format is not torch.contiguous_format and tensor.dim() != _RANK[memory_format]:
            continue
        if tensor.is_contiguous(memory_format=memory_format):
            return tensor.stride()
    return torch.empty(tensor.shape, device="meta").stride()


_RANK = {torch.channels_last: 4, torch.channels_last_3d: 5}


def _refuse_overlap(members: Sequence[Tensor]) -> None:
    extents = sorted({(m.data_ptr(), _end(m), _place(m)) for m in members if m.numel()})
    for (_, end, _), (start, _, place) in itertools.pairwise(extents):
        if start < end:
            raise UsageError(f"a tensor of shape {place[1]} shares only part of its memory with another one")


def _end(tensor: Tensor) -> int:
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def trained_parameters(module: nn.Module) -> list[Tensor]:
    """The parameters that training changes: those that require a gradient. Frozen ones stay as rank 0 had
    them.
    """
    return [p for p in module.parameters() if p.requires_grad]


def float_buffers(module: nn.Module) -> list[Tensor]:
    """Buffers that hold measurements (running mean and variance), not counters; only those that are saved."""
    return [buffer for buffer in module.buffers() if buffer.is_floating_point()]
