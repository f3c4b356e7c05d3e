"""Random numbers on a GPU: Philox-4x32-10 as one launch, and the quick hash and its halves inside other kernels.

Triton's own generator is the same function of key and counter as ours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.launch import launch
from gradwire.kernels.recording import key_numbers, recording

BLOCK = 512


@triton.jit(do_not_specialize=["key", "first", "blocks"])
def _words(out, key, first, blocks, size: tl.constexpr):
    place = tl.program_id(0) * size + tl.arange(0, size)
    inside = place < blocks
    a, b, c, d = tl.randint4x(key, first + place)
    start = out + 4 * place.to(tl.int64)
    tl.store(start, a.to(tl.uint32, bitcast=True).to(tl.int64), inside)
    tl.store(start + 1, b.to(tl.uint32, bitcast=True).to(tl.int64), inside)
    tl.store(start + 2, c.to(tl.uint32, bitcast=True).to(tl.int64), inside)
    tl.store(start + 3, d.to(tl.uint32, bitcast=True).to(tl.int64), inside)


def block_words(key: int, first: int, blocks: int, device: torch.device) -> Tensor:
    """The 4·`blocks` words of the blocks `first`, `first`+1, …, which must be below 2³¹."""
    out = torch.empty(4 * blocks, dtype=torch.int64, device=device)
    launch(_words, triton.cdiv(blocks, BLOCK), device, out, key, first, blocks, size=BLOCK)
    return out


@triton.jit
def word(key, place):
    """Word `place`, below 2³³, of the generator `reference.words`, uint32."""
    a, b, c, d = tl.randint4x(key, (place >> 2).to(tl.int32))
    lane = place & 3
    found = tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d)))
    return found.to(tl.uint32, bitcast=True)


@triton.jit
def four_words(key, block, words: tl.constexpr):
    """The words of blocks of four, `words` in all, uint32."""
    a, b, c, d = tl.randint4x(key, block.to(tl.int32))
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (words,)).to(tl.uint32, bitcast=True)


@triton.jit
def quick_word(key, place):
    """Word `place`, int64, of the quick hash, uint32."""
    low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    x = place.to(tl.uint32) + low + (place >> 32).to(tl.uint32) * 0x9E3779B9
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) ^ high
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def half(key, place):
    """Number `place`, int64, of the midpoints of 2¹⁶ cells of [0, 1)."""
    word = quick_word(key, place >> 1)
    return _midpoint(tl.where((place & 1) == 0, word & 0xFFFF, word >> 16))


@triton.jit
def _midpoint(bits):
    return (bits.to(tl.float32) + 0.5) * 1.52587890625e-05


@triton.jit
def halves(key, first, rows: tl.constexpr, columns: tl.constexpr):
    """The numbers from `first`, int64, on, as a tile: both of a word at once."""
    place = (first >> 1) + tl.arange(0, rows * columns // 2)
    low = quick_word(key, place)
    high = low
    if (first & 1) != 0:  # seldom
        high = quick_word(key, place + 1)
    shift = ((first & 1) << 4).to(tl.uint32)
    bits = tl.join((low >> shift) & 0xFFFF, (high >> (16 - shift)) & 0xFFFF)
    return _midpoint(tl.reshape(bits, (rows, columns)))


def keys_of(stream: Stream | None, rows: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """The key and the offset of each row, on the device without waiting for it."""
    if stream is None:
        return None, None
    assert stream.parts == rows, f"a key for each of {rows} rows"
    if (record := recording()) is not None:
        return record.keys(stream)
    numbers = torch.tensor(key_numbers(stream))
    if device.type == "cuda":
        numbers = numbers.pin_memory().to(device, non_blocking=True)
    return numbers, numbers[rows:]
