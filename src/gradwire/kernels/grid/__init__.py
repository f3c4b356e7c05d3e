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

from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import compiled
from gradwire.kernels.grid import reference


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
    if _compiled(low, high, x, inverse):
        from gradwire.kernels.grid import cpu

        return cpu.encode(x, inverse, block, low, high, noise)
    return reference.encode(x, inverse, block, low, high, noise)


def encode_own(
    x: Tensor, inverse: Tensor, step: Tensor, block: int, low: int, high: int, noise: Stream | None
) -> tuple[Tensor, Tensor]:
    """`encode`, and what `decode` makes of it with these steps."""
    if _compiled(low, high, x, inverse, step):
        from gradwire.kernels.grid import cpu

        return cpu.encode_own(x, inverse, step, block, low, high, noise)
    return reference.encode_own(x, inverse, step, block, low, high, noise)


def decode(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    """The values: (rows, numel) float32."""
    if _compiled(low, high, data, step):
        from gradwire.kernels.grid import cpu

        return cpu.decode(data, step, block, low, high, numel)
    return reference.decode(data, step, block, low, high, numel)


def decode_sum(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    """The values summed over the rows, first to last: (1, numel) float32."""
    if _compiled(low, high, data, step):
        from gradwire.kernels.grid import cpu

        return cpu.decode_sum(data, step, block, low, high, numel)
    return reference.decode_sum(data, step, block, low, high, numel)


def reduce_and_encode(
    data: Tensor,
    step: Tensor,
    block: int,
    low: int,
    high: int,
    numel: int,
    carry: Tensor | None = None,
    noise: Stream | None = None,
    keep_lost: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`decode_sum` divided by the number of rows, plus `carry`, (1, numel), if given; and that encoded again.

    The scale of a block is its largest magnitude, made `usable`; the step scale/high, the inverse step (1/scale)·high.
    Returns codes and scales, of one row, and, if wanted, what the encoding loses: the mean less its decoded values.
    """
    if _compiled(low, high, data, step):
        from gradwire.kernels.grid import cpu

        return cpu.reduce_and_encode(data, step, block, low, high, numel, carry, noise, keep_lost)
    return reference.reduce_and_encode(data, step, block, low, high, numel, carry, noise, keep_lost)


def _compiled(low: int, high: int, *tensors: Tensor) -> bool:
    return low + high < 1 << 23 and compiled(*tensors)
