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
from gradwire.kernels.grid import reference


def code_width(low: int, high: int) -> int:
    """Bits of a code from −low to high."""
    return max(1, (low + high).bit_length())


def encode(x: Tensor, inverse: Tensor, block: int, low: int, high: int, noise: Stream | None) -> Tensor:
    """(rows, numel) float32 and (rows, blocks) inverse steps -> (rows, bytes) uint8.

    Element i of the flattened rows draws number i of the stream `noise`.
    """
    return reference.encode(x, inverse, block, low, high, noise)


def decode(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    """The values: (rows, numel) float32."""
    return reference.decode(data, step, block, low, high, numel)


def decode_sum(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    """The values summed over the rows, first to last: (1, numel) float32."""
    return reference.decode_sum(data, step, block, low, high, numel)
