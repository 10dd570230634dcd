"""Updates in few bits: what Streaming DiLoCo sends instead of full precision.

A flat tensor is cut into blocks of `BLOCK` numbers. Of each the largest magnitude gives the scale, and numbers become
the nearest whole multiples of it: -7..7 in four bits, -127..127 in eight. Half precision has no scales. Encoded,
everything is one tensor of bytes, and equal bytes give equal numbers everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
LEVELS = {"int4": 7, "int8": 127}
FORMATS = ("full", "float16", "int8", "int4")


def encode(values: Tensor, form: str) -> Tensor:
    """Numbers (n,) -> bytes: in half precision 2 n; in integers 4 a block for the scales and n, or n / 2, more."""
    if form == "float16":
        return values.to(torch.float16).view(torch.uint8)
    levels = LEVELS[form]
    blocks = _blocks(values)
    scales = (blocks.abs().amax(dim=1) / levels).to(torch.float32)
    divisor = torch.where(scales > 0, scales, 1.0).to(values.dtype)[:, None]
    whole = (blocks / divisor).round_().clamp_(-levels, levels).to(torch.int8).flatten()[: values.numel()]
    body = whole.view(torch.uint8) if form == "int8" else _pack(whole)
    return torch.cat([scales.view(torch.uint8), body])


def decode(data: Tensor, form: str, numel: int, dtype: torch.dtype) -> Tensor:
    """The numbers that `encode` made bytes of, `numel` of them."""
    if form == "float16":
        return data.view(torch.float16).to(dtype)
    count = -(-numel // BLOCK)
    scales = data[: 4 * count].clone().view(torch.float32).to(dtype)
    body = data[4 * count :]
    whole = body.view(torch.int8) if form == "int8" else _unpack(body)[:numel]
    return (_blocks(whole.to(dtype)) * scales[:, None]).flatten()[:numel]


def encoded_bytes(numel: int, form: str) -> int:
    """How many bytes `encode` makes of n numbers."""
    if form == "float16":
        return 2 * numel
    return 4 * -(-numel // BLOCK) + (numel if form == "int8" else -(-numel // 2))


def _blocks(values: Tensor) -> Tensor:
    """(n,) -> (blocks, BLOCK), the last one filled up with zeros."""
    return torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)


def _pack(whole: Tensor) -> Tensor:
    """Two numbers from -7 to 7 in each byte, the first in the lower half."""
    low, high = torch.nn.functional.pad(whole + 8, (0, whole.numel() % 2)).to(torch.uint8).view(-1, 2).unbind(dim=1)
    return low | (high << 4)


def _unpack(body: Tensor) -> Tensor:
    pairs = torch.stack([body & 0x0F, body >> 4], dim=1)
    return pairs.flatten().to(torch.int8) - 8
