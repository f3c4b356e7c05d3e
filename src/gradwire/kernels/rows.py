"""Rows of bytes: several typed parts side by side in one uint8 payload, and blocks of a row.

All payloads are little-endian, as every machine that torch runs on.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.kernels.workspace import room


def join(*parts: Tensor, owner: str = "") -> Tensor:
    """Put the (rows, …) parts side by side, byte by byte: (rows, bytes) uint8; in the room of an `owner` if named."""
    each = [p.contiguous().view(torch.uint8) if p.numel() else _no_bytes(p) for p in parts]
    if not owner or each[0].device.type != "cpu":
        return torch.cat(each, dim=1)
    shape = (each[0].shape[0], sum(p.shape[1] for p in each))
    return torch.cat(each, dim=1, out=room(owner, "payload", shape, torch.uint8))


def take(data: Tensor, start: int, count: int, dtype: torch.dtype) -> tuple[Tensor, int]:
    """Read `count` numbers a row from byte `start` on; returns them and where the next part begins."""
    stop = start + count * dtype.itemsize
    part = data[:, start:stop].clone(memory_format=torch.contiguous_format)  # aligned for `dtype`
    return (part.view(dtype) if part.numel() else part.new_empty(part.shape, dtype=dtype)), stop


def blocks(x: Tensor, block: int) -> Tensor:
    """(rows, numel) -> (rows, ceil(numel/block), block), zeros behind the end."""
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
