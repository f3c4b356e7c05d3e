"""The six helpers in which GRACE describes its methods, on the same kernels as the codecs.

Each works on one tensor of any shape. The first of a pair returns a context, opaque to the caller, which
the second needs to restore shape and dtype:

>>> tensor = torch.tensor([[1.0, -0.5], [0.25, 0.0]])
>>> codes, ctx = quantize(tensor, bits=4)
>>> dequantize(unpack(pack(codes, 4), 4, codes.numel()), ctx)
tensor([[ 1.0000, -0.5714],
        [ 0.2857,  0.0000]])
>>> (values, indices), ctx = sparsify(tensor, ratio=0.5)
>>> desparsify((values, indices), ctx)
tensor([[ 1.0000, -0.5000],
        [ 0.0000,  0.0000]])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.core.errors import ConfigError
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import bitpack, blockwise, grid, scatter, select


class Quantized(NamedTuple):
    """What `dequantize` needs beside the codes."""

    steps: Tensor
    block: int
    levels: int
    shape: torch.Size
    dtype: torch.dtype


class Sparsified(NamedTuple):
    """What `desparsify` needs beside values and indices."""

    shape: torch.Size


def quantize(tensor: Tensor, bits: int = 8, *, block: int = 2048, seed: int | None = None) -> tuple[Tensor, Quantized]:
    """Codes 0 … 2^bits − 2 (uint8, flat) on a uniform grid between ± the largest magnitude of each block.

    Rounds to nearest; with a `seed`, without bias, by counter-based random numbers of that seed.
    """
    check = Check("quantize")
    check.integer("bits", bits, 2, 8)
    check.integer("block", block, 1)
    levels = 2 ** (bits - 1) - 1
    row = tensor.detach().reshape(1, -1).float()
    scales = blockwise.abs_max(row, block)
    noise = None if seed is None else Random(seed=seed).private("quantize")
    data = grid.encode(row, torch.where(scales > 0, levels / scales, 0.0), block, levels, levels, noise)
    codes = bitpack.unpack(data, grid.code_width(levels, levels), row.shape[1])[0]
    return codes, Quantized(scales / levels, block, levels, tensor.shape, tensor.dtype)


def dequantize(codes: Tensor, ctx: Quantized) -> Tensor:
    """The tensor again, in its shape and dtype."""
    width = grid.code_width(ctx.levels, ctx.levels)
    data = bitpack.pack(codes.reshape(1, -1), width)
    values = grid.decode(data, ctx.steps, ctx.block, ctx.levels, ctx.levels, codes.numel())
    return values.view(ctx.shape).to(ctx.dtype)


def sparsify(
    tensor: Tensor, *, ratio: float | None = None, threshold: float | None = None, indices: Tensor | None = None
) -> tuple[tuple[Tensor, Tensor], Sparsified]:
    """Values and ascending indices of the flattened tensor: its largest share, what exceeds a bound, or chosen ones."""
    if sum(choice is not None for choice in (ratio, threshold, indices)) != 1:
        raise ConfigError("sparsify: give one of `ratio` (the largest share), `threshold` (a bound) or `indices`")
    flat = tensor.detach().reshape(-1)
    if ratio is not None:
        Check("sparsify").share("ratio", ratio)
        kept = min(flat.numel(), max(1, math.ceil(ratio * flat.numel())))
        indices = select.top(flat[None].float(), kept)[0]
    elif threshold is not None:
        Check("sparsify").number("threshold", threshold, 0, math.inf, "a bound of at least 0")
        bound = torch.full((1,), float(threshold), device=tensor.device)
        indices = select.above(flat[None].float(), bound)[0][0]
    assert indices is not None
    return (flat[indices], indices), Sparsified(tensor.shape)


def desparsify(tensors: Sequence[Tensor], ctx: Sparsified) -> Tensor:
    """The tensor again, zeros where nothing was kept."""
    values, indices = tensors
    return scatter.scatter(values[None], indices[None].long(), math.prod(ctx.shape))[0].view(ctx.shape)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Unsigned codes below 2^bits side by side in bytes: ceil(numel·bits/8) uint8."""
    Check("pack").integer("bits", bits, 1, 32)
    return bitpack.pack(codes.reshape(1, -1), bits)[0]


def unpack(data: Tensor, bits: int, numel: int) -> Tensor:
    """The first `numel` codes again, flat."""
    Check("unpack").integer("bits", bits, 1, 32)
    return bitpack.unpack(data[None], bits, numel)[0]
