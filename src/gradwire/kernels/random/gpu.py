"""Philox-4x32-10 as one launch. Triton's own generator is the same function of key and counter."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512


@triton.jit(do_not_specialize=["key", "first", "blocks"])  # type: ignore[untyped-decorator]
def _words(out, key, first, blocks, size: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * size + tl.arange(0, size)
    inside = place < blocks
    a, b, c, d = tl.randint4x(key, first + place)
    start = out + 4 * place.to(tl.int64)
    tl.store(start, a.to(tl.uint32, bitcast=True).to(tl.int64), inside)
    tl.store(start + 1, b.to(tl.uint32, bitcast=True).to(tl.int64), inside)
    tl.store(start + 2, c.to(tl.uint32, bitcast=True).to(tl.int64), inside)
    tl.store(start + 3, d.to(tl.uint32, bitcast=True).to(tl.int64), inside)


def words(key: int, first: int, blocks: int, device: torch.device) -> Tensor:
    """The 4·`blocks` words of the blocks `first`, `first`+1, …, which must be below 2³¹."""
    out = torch.empty(4 * blocks, dtype=torch.int64, device=device)
    if blocks:
        with torch.cuda.device(device):
            _words[(triton.cdiv(blocks, BLOCK),)](out, key, first, blocks, BLOCK)
    return out
