"""The Hadamard rotation inside other kernels, of every `run` columns of a tile of (rows, columns)."""

from __future__ import annotations

import triton
import triton.language as tl

from gradwire.kernels.random.gpu import word


@triton.jit
def transformed(x, scale, rows: tl.constexpr, columns: tl.constexpr, run: tl.constexpr, levels: tl.constexpr):
    """Sums and differences, neighbours first, then runs of 2, 4, …, up to `run` = 2**levels; times `scale`."""
    for i in tl.static_range(levels):
        pairs = tl.reshape(x, (rows * columns // (2 << i), 2, 1 << i))
        low, high = tl.split(tl.permute(pairs, (0, 2, 1)))
        x = tl.permute(tl.join(low + high, low - high), (0, 2, 1))
    return tl.reshape(x, (rows, columns)) * scale


@triton.jit
def flipped(x, key, first, rows: tl.constexpr, columns: tl.constexpr):
    """The opposite where the coin is heads. The tile's elements have the coins from `first` on, a multiple of 32."""
    words: tl.constexpr = rows * columns // 32
    drawn = word(key, (first >> 5) + tl.arange(0, words))
    coins = (drawn[:, None] >> tl.arange(0, 32)[None, :].to(tl.uint32)) & 1
    return tl.where(tl.reshape(coins, (rows, columns)) != 0, x * -1.0, x)  # older Tritons take -x for 0 - x
