"""The Hadamard rotation, compiled: in place on the result, first what fits into registers, then into the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split
from gradwire.kernels.random.cpu import GROUP, draw

CHUNK = 8192  # elements that go through all their stages in the first cache


def _in_registers(count: int) -> Any:
    """A function of an array and a place in it: all stages of the `count` elements there."""

    def typed(typing: Any, x: Any, start: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            vector = ir.VectorType(ir.FloatType(), count)
            address = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
            values, half = builder.load(address, align=4), 1
            while half < count:
                lower = [i for i in range(count) if not i & half]
                low = builder.shuffle_vector(values, values, _lanes(lower))
                high = builder.shuffle_vector(values, values, _lanes([i + half for i in lower]))
                back = [lower.index(i & ~half) + (count // 2 if i & half else 0) for i in range(count)]
                values = builder.shuffle_vector(builder.fadd(low, high), builder.fsub(low, high), _lanes(back))
                half *= 2
            builder.store(values, address, align=4)
            return context.get_dummy_value()

        return types.void(x, types.intp), generate

    return intrinsic(typed)


def _lanes(indices: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(indices)), indices)


_all_of_16, _all_of_32, _all_of_64 = _in_registers(16), _in_registers(32), _in_registers(64)


@jit
def _first_stages(x: np.ndarray, size: int) -> int:
    """As many stages as fit into the registers; returns the half of the next one."""
    if size >= 64:
        for start in range(0, x.size, 64):
            _all_of_64(x, start)
        return 64
    if size == 32:
        for start in range(0, x.size, 32):
            _all_of_32(x, start)
        return 32
    if size == 16:
        for start in range(0, x.size, 16):
            _all_of_16(x, start)
        return 16
    return 1


@jit
def _two_stages(x: np.ndarray, half: int) -> None:
    """The stages of runs of `half` and 2·`half`."""
    for start in range(0, x.size, 4 * half):
        a, b = x[start : start + half], x[start + half : start + 2 * half]
        c, d = x[start + 2 * half : start + 3 * half], x[start + 3 * half : start + 4 * half]
        for i in range(half):
            p, q, r, s = a[i] + b[i], a[i] - b[i], c[i] + d[i], c[i] - d[i]
            a[i], b[i], c[i], d[i] = p + r, q + s, p - r, q - s


@jit
def _one_stage(x: np.ndarray, half: int) -> None:
    for start in range(0, x.size, 2 * half):
        a, b = x[start : start + half], x[start + half : start + 2 * half]
        for i in range(half):
            a[i], b[i] = a[i] + b[i], a[i] - b[i]


@jit
def _stages(x: np.ndarray, half: int, size: int) -> None:
    """All stages from `half` to `size`/2 of every run of `size`."""
    if half == 1:
        half = _first_stages(x, size)
    while 4 * half <= size:
        _two_stages(x, half)
        half *= 4
    if 2 * half <= size:
        _one_stage(x, half)


def _flip_run_typed(typing: Any, bits: Any, start: Any, word: Any) -> Any:
    """Bit i of `word` changes the top bit of element `start` + i, 0 <= i < 32."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        vector = ir.VectorType(ir.IntType(32), 32)
        address = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), args[2], ir.Constant(ir.IntType(32), 0))
        coins = builder.lshr(builder.shuffle_vector(one, one, _lanes([0] * 32)), _lanes(list(range(32))))
        flipped = builder.xor(builder.load(address, align=4), builder.shl(coins, _lanes([31] * 32)))
        builder.store(flipped, address, align=4)
        return context.get_dummy_value()

    return types.void(bits, types.intp, types.uint32), generate


_flip_run: Any = intrinsic(_flip_run_typed)


@jit
def _flip(bits: np.ndarray, key: Any, position: int, words: np.ndarray) -> None:
    """Change the sign, the top bit, of the elements from `position` on whose coin is 1; at most CHUNK of them."""
    at = draw(key, position // 32, bits.size // 32 + 2, words)
    start = -(position % 32)
    while start < bits.size:
        if start >= 0 and start + 32 <= bits.size:
            _flip_run(bits, start, words[at])
        else:
            for i in range(max(start, 0), min(start + 32, bits.size)):
                bits[i] ^= words[at] >> np.uint32(i - start) << np.uint32(31)
        at, start = at + 1, start + 32


@jit
def _transform(
    x: np.ndarray, out: np.ndarray, size: int, scale: Any, before: bool, after: bool, key: Any, position: int
) -> None:
    """Whole runs of `size`; signs are flipped `before` or `after`, or not at all."""
    words = np.empty(CHUNK // 32 + 2 + 2 * GROUP, np.uint32)
    inner = min(size, CHUNK)
    for run in range(0, x.size, max(size, CHUNK)):
        stop = min(run + max(size, CHUNK), x.size)
        for start in range(run, stop, CHUNK):
            source, part = x[start : min(start + CHUNK, stop)], out[start : min(start + CHUNK, stop)]
            for i in range(source.size):
                part[i] = source[i]
            if before:
                _flip(part.view(np.uint32), key, position + start, words)
            _stages(part, 1, inner)
        if size > inner:
            _stages(out[run:stop], inner, size)
        for start in range(run, stop, CHUNK):
            part = out[start : min(start + CHUNK, stop)]
            for i in range(part.size):
                part[i] *= scale
            if after:
                _flip(part.view(np.uint32), key, position + start, words)


def rotate(x: Tensor, size: int, signs: Stream | None) -> Tensor:
    return _turned(x, size, signs, before=signs is not None, after=False)


def unrotate(y: Tensor, size: int, signs: Stream | None) -> Tensor:
    return _turned(y, size, signs, before=False, after=signs is not None)


def _turned(x: Tensor, size: int, signs: Stream | None, *, before: bool, after: bool) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.float32)
    source, result = x.detach().contiguous().view(-1).numpy(), out.view(-1).numpy()
    for part, key, offset in (signs or Stream((0,))).each(x.numel()):
        _turn_part(source[part], result[part], size, before, after, np.uint64(key), offset)
    return out


def _turn_part(
    source: np.ndarray, result: np.ndarray, size: int, before: bool, after: bool, key: np.uint64, offset: int
) -> None:
    scale = np.float32(torch.tensor(size, dtype=torch.float32).rsqrt().item())

    def work(start: int, stop: int) -> None:
        _transform(source[start:stop], result[start:stop], size, scale, before, after, key, offset + start)

    split(work, source.size, max(size, CHUNK))
