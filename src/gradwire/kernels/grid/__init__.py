r"""A uniform quantiser over blocks, packed: what QSGD, TernGrad, LPC, block integers and THC share.

Element x of a block with inverse step q becomes the code

.. math::  c = \mathrm{clamp}\big(\mathrm{sgn}(y) \lfloor |y| + u \rfloor,\ -\text{low},\ \text{high}\big) + \text{low},
           \qquad y = q\,x

u is 1/2 for rounding to nearest (ties away from zero), or, given a stream, uniform on the midpoints of 2¹⁶ cells of
[0, 1), which rounds without bias (to 2⁻¹⁷ of a step). Codes are packed in `width` bits, see `bitpack`; a NaN
becomes code 0, and has to be made visible by the step. Decoding gives (c − low)·step, row by row or summed over
the rows in their order.
"""

from __future__ import annotations

import math
from importlib import import_module

from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels import bitpack, rows, trits
from gradwire.kernels.backend import GPU, fast, kind_of, run
from gradwire.kernels.grid import reference
from gradwire.kernels.grid.reference import Rule as Rule
from gradwire.kernels.grid.reference import Turn as Turn
from gradwire.kernels.window import one_pass as window_in_one_pass


def code_width(low: int, high: int) -> int:
    """Bits of a code from −low to high."""
    return reference.code_width(low, high)


def usable(scales: Tensor, high: int) -> Tensor:
    """The scales, raised to the smallest whose step scale/high has an inverse; NaN stays NaN.

    A block of zeros has the codes of zero whatever its scale.
    """
    return reference.usable(scales, high)


def encode(x: Tensor, inverse: Tensor, block: int, low: int, high: int, noise: Stream | None) -> Tensor:
    """(rows, numel) float32 and (rows, blocks) inverse steps -> (rows, bytes) uint8.

    Element i of the flattened rows draws number i of the stream `noise`.
    """
    return run(reference.encode, x, inverse, block, low, high, noise)


def decode(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    """The values: (rows, numel) float32."""
    return run(reference.decode, data, step, block, low, high, numel)


def decode_sum(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int, groups: int = 1) -> Tensor:
    """The values summed over the rows of each of `groups` equal groups, first to last: (groups, numel) float32."""
    return run(reference.decode_sum, data, step, block, low, high, numel, groups)


def bound(rule: Rule) -> float:
    """The tight variance omega of stochastic rounding without clipping: E|Q(x) − x|² <= omega |x|².

    With L = `high` and blocks of B elements it is (√(1 + (B−1)/L²) − 1)/2, attained by blocks of one large element
    whose others lie 1/(1 + √(1 + (B−1)/L²)) of a step from zero.
    """
    return (math.sqrt(1 + (rule.block - 1) / rule.high**2) - 1) / 2


def encode_by(x: Tensor, rule: Rule, noise: Stream | None) -> tuple[Tensor, Tensor]:
    """Scales, (rows, blocks), and codes, (rows, bytes), of (rows, numel) float32."""
    scales = scale(x, rule)
    codes = encode(x, rule.high / scales, rule.block, rule.low, rule.high, noise)
    if rule.trits:
        codes = trits.pack(bitpack.unpack(codes, code_width(rule.low, rule.high), x.shape[1]))
    return scales, codes


def scale(x: Tensor, rule: Rule) -> Tensor:
    """The scale of each block: (rows, blocks)."""
    return reference.scale(x, rule)


def decode_by(data: Tensor, scales: Tensor, rule: Rule, numel: int) -> Tensor:
    """The values: (rows, numel) float32."""
    return decode(
        plain_codes(data, rule, numel), rows.divided(scales, rule.high), rule.block, rule.low, rule.high, numel
    )


def combine_by(data: Tensor, scales: Tensor, rule: Rule, numel: int, groups: int) -> Tensor:
    """The mean of the values over the rows of each of `groups` equal groups, first to last: (groups, numel)."""
    codes = plain_codes(data, rule, numel)
    steps = rows.divided(scales, rule.high)
    total = decode_sum(codes, steps, rule.block, rule.low, rule.high, numel, groups)
    return rows.divided(total, data.shape[0] // groups)


def plain_codes(data: Tensor, rule: Rule, numel: int) -> Tensor:
    """Codes side by side, in as many bits as they need."""
    return bitpack.pack(trits.unpack(data, numel), code_width(rule.low, rule.high)) if rule.trits else data


def split(data: Tensor, rule: Rule, numel: int) -> tuple[Tensor, Tensor]:
    """Scales and packed codes of rows as they travel: float32 scales, then the codes."""
    return reference.split(data, rule, numel)


def reduce_and_encode(
    data: Tensor,
    rule: Rule,
    numel: int,
    feedback: Feedback | None = None,
    noise: Stream | None = None,
    groups: int = 1,
    factor: float = 1.0,
    owner: str = "",
) -> Tensor:
    """`combine_by`, times `factor`, plus what `feedback` keeps; and that by `encode_by`. Rows are as they travel.

    There is one for each group. What the encoding loses, decoded values times `factor`, goes to ``feedback.out``.
    """
    return run(reference.reduce_and_encode, data, rule, numel, feedback, noise, groups, factor, owner)


def reduce_and_encode_turned(
    data: Tensor,
    rule: Rule,
    numel: int,
    feedback: Feedback | None,
    noise: Stream | None,
    groups: int,
    factor: float,
    owner: str,
    up: Turn,
    down: Turn,
) -> Tensor | None:
    """`reduce_and_encode` of rotated rows, which other signs turn on the way down; None where no kernel does that."""
    if kind_of(data) != GPU or not 0 < numel < 2**31:
        return None
    gpu = import_module(f"{__name__}.gpu")
    if not (gpu.serves(rule, up) and gpu.serves(rule, down)):
        return None
    found: Tensor = gpu.reduce_and_encode(data, rule, numel, feedback, noise, groups, factor, owner, up, down)
    return found


def in_one_pass(rule: Rule, window: Window, feedback: Feedback | None = None, turn: Turn | None = None) -> bool:
    """Whether the three functions below can treat a window; rotated ones on a GPU only."""
    if turn is not None and kind_of(window.buffer) != GPU:
        return False
    return window_in_one_pass(window, feedback, on_gpu=lambda: import_module(f"{__name__}.gpu").serves(rule, turn))


def encode_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    rule: Rule,
    noise: Stream | None,
    factor: float,
    owner: str,
    turn: Turn | None = None,
) -> Tensor:
    """`encode_by` of the compensated gradients in one pass, for `in_one_pass` windows: rows as they travel.

    Each worker has `shards` rows of `shard` elements. The new error goes to ``feedback.out``.
    """
    encode, turned = fast(__name__, "encode_from", source.buffer), () if turn is None else (turn,)
    found: Tensor = encode(source, feedback, shards, shard, rule, noise, factor, owner, *turned)
    return found


def decode_to(data: Tensor, rule: Rule, shard: int, target: Window, factor: float, turn: Turn | None = None) -> Flag:
    """`decode_by` of rows that are the shards of one vector, times `factor`, into an `in_one_pass` window."""
    turned = () if turn is None else (turn,)
    flag: Flag = fast(__name__, "decode_to", target.buffer)(data, rule, shard, target, factor, *turned)
    return flag


def combine_to(data: Tensor, rule: Rule, target: Window, factor: float, turn: Turn | None = None) -> Flag:
    """`combine_by` of one group, times `factor`, into an `in_one_pass` window."""
    turned = () if turn is None else (turn,)
    flag: Flag = fast(__name__, "combine_to", target.buffer)(data, rule, target, factor, *turned)
    return flag
