"""Half precision in one pass over the gradient, by the processor's own instructions."""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from gradwire.core.window import Window
from gradwire.kernels.backend import only
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split
from gradwire.kernels.window.cpu import Spans, find, spans_of

INFINITY = 0x7C00  # the bits of infinity in half precision; NaN is above


def _to_bits_typed(typing: Any, x: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


def _from_bits_typed(typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


_to_bits: Any = intrinsic(_to_bits_typed)
_from_bits: Any = intrinsic(_from_bits_typed)


@cache
def _native() -> bool:
    """Whether the processor converts half precision by itself; else LLVM would call a function that is not there."""
    return platform.machine() in ("aarch64", "arm64") or bool(get_host_cpu_features().get("f16c"))


def _convertible(*args: Any) -> bool:
    windows = [a for a in args if isinstance(a, Window)]
    return _native() and all(w.buffer.device.type == "cpu" and w.buffer.dtype == torch.float32 for w in windows)


@jit
def _half_from(x: np.ndarray, spans: Spans, share: Any, out: np.ndarray, start: int, stop: int) -> None:
    firsts, places = spans
    k = find(firsts, start)
    while start < stop:
        end, shift = min(stop, firsts[k + 1]), places[k] - firsts[k]
        source, target = x[shift + start : shift + end], out[start:end]
        for i in range(source.size):
            target[i] = _to_bits(np.float32(source[i] * share))
        start, k = end, k + 1


@jit
def _half_to(bits: np.ndarray, x: np.ndarray, spans: Spans, start: int, stop: int) -> Any:
    """The largest bits, without the sign, are returned: they tell infinity and NaN."""
    firsts, places = spans
    k, most = find(firsts, start), np.uint16(0)
    while start < stop:
        end, shift = min(stop, firsts[k + 1]), places[k] - firsts[k]
        source, target = bits[start:end], x[shift + start : shift + end]
        for i in range(source.size):
            target[i] = _from_bits(source[i])
            most = max(most, np.uint16(source[i] & np.uint16(0x7FFF)))
        start, k = end, k + 1
    return most


@only(_convertible)
def half_from(source: Window, share: float, out: Tensor) -> None:
    spans, halves = spans_of(source), out.view(torch.int16).numpy().view(np.uint16)
    for row in range(source.rows):
        common = source.buffer[row].numpy(), spans, np.float32(share), halves[row]
        split(lambda start, stop, common=common: _half_from(*common, start, stop), source.numel)  # type: ignore[misc]


@only(_convertible)
def half_to(half: Tensor, target: Window) -> Tensor:
    halves, most = half.view(torch.int16).numpy().view(np.uint16)[0], list[int]()
    common = halves, target.buffer[0].numpy(), spans_of(target)
    split(lambda start, stop: most.append(_half_to(*common, start, stop)), target.numel)
    return torch.tensor(float("nan") if max(most) >= INFINITY else 0.0)
