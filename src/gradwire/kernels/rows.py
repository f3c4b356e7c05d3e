"""Rows of bytes: several typed parts side by side in one uint8 payload, and blocks of a row.

All payloads are little-endian, as every machine that torch runs on.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.core.errors import CorruptPayload
from gradwire.kernels.workspace import room


def join(*parts: Tensor, owner: str = "") -> Tensor:
    """Put the (rows, …) parts side by side, byte by byte: (rows, bytes) uint8; in the room of an `owner` if named.

    Args:
        parts: tensors of any dtype, all with as many rows.
        owner: of room that is used again in each step; a codec can do without.

    Example:
        >>> join(torch.tensor([[1.0]]), torch.tensor([[7, -1]], dtype=torch.int8))
        tensor([[  0,   0, 128,  63,   7, 255]], dtype=torch.uint8)
    """
    each = [p.contiguous().view(torch.uint8) if p.numel() else _no_bytes(p) for p in parts]
    if not owner or each[0].device.type != "cpu":
        return torch.cat(each, dim=1)
    shape = (each[0].shape[0], sum(p.shape[1] for p in each))
    return torch.cat(each, dim=1, out=room(owner, "payload", shape, torch.uint8))


def check_bytes(data: Tensor, wanted: int) -> None:
    """Refuse rows that are shorter than what is read from them; `wanted` is negative where a count is.

    Args:
        data: (rows, bytes) uint8, from a peer.
        wanted: bytes.
    """
    if wanted < 0:
        raise CorruptPayload("a count below zero is announced")
    if wanted > data.shape[1]:
        raise CorruptPayload(f"{wanted:,} bytes are to be read from a row of {data.shape[1]:,}")


def take(data: Tensor, start: int, count: int, dtype: torch.dtype) -> tuple[Tensor, int]:
    """Read `count` numbers a row from byte `start` on; returns them and where the next part begins.

    It copies: bytes in the middle of a row lie where no float32 may.

    Args:
        data: (rows, bytes) uint8, as `join` made it.
        start: the first byte.
        count: how many numbers.
        dtype: of the numbers.

    Example:
        >>> data = join(torch.tensor([[1.5]]), torch.tensor([[7, -1]], dtype=torch.int8))
        >>> scale, start = take(data, 0, 1, torch.float32)
        >>> scale, start, take(data, start, 2, torch.int8)[0]
        (tensor([[1.5000]]), 4, tensor([[ 7, -1]], dtype=torch.int8))
    """
    stop = start + count * dtype.itemsize
    check_bytes(data, stop if count >= 0 else -1)
    part = data[:, start:stop].clone(memory_format=torch.contiguous_format)  # aligned for `dtype`
    return (part.view(dtype) if part.numel() else part.new_empty(part.shape, dtype=dtype)), stop


def blocks(x: Tensor, block: int) -> Tensor:
    """(rows, numel) -> (rows, ceil(numel/block), block), zeros behind the end.

    Args:
        x: of shape (rows, numel).
        block: elements of a block.

    Example:
        >>> blocks(torch.tensor([[1.0, 2.0, 3.0]]), 2)
        tensor([[[1., 2.],
                 [3., 0.]]])
    """
    rows, numel = x.shape
    return F.pad(x, (0, -numel % block)).view(rows, -(-numel // block), block)


def added(x: Tensor, groups: int = 1) -> Tensor:
    """The sum of the rows of each of `groups` equal groups, one after the other: (groups, numel).

    The order is defined, so that all back ends agree.
    """
    rows = x.view(groups, x.shape[0] // groups, x.shape[1])
    total = x.new_zeros((groups, x.shape[1]))
    for i in range(rows.shape[1]):
        total += rows[:, i]
    return total


def divided(x: Tensor, number: float) -> Tensor:
    """x / number, rounded once: torch multiplies by the inverse of a plain number on a GPU."""
    return x / number if x.device.type == "cpu" else x / x.new_full((), number)


def divide_(x: Tensor, number: float) -> Tensor:
    """`divided`, in place."""
    return x.div_(number if x.device.type == "cpu" else x.new_full((), number))


def _no_bytes(part: Tensor) -> Tensor:
    return torch.empty((part.shape[0], 0), dtype=torch.uint8, device=part.device)
