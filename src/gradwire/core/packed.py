r"""Numbers in 8 bits: what a memory keeps where room is scarce.

A block of 64 elements has one exponent e, and each element a whole number q of -127 to 127. It stands for q·2^e, the
smallest e for which the largest element fits:

.. math::  e = \lceil \log_2 (\max |x| / 127) \rceil, \qquad q = \lfloor x / 2^e + u \rfloor, \quad u \in [0, 1)

With u uniform the rounding is unbiased, E[q·2^e] = x, and off by less than 2^e, at most max|x|/63.5 of its block.
Nearest rounding, u = 1/2, would drop for ever what is small beside its block: an element that gains less than half a
step each time stays 0. To unpack is exact, and to pack again what was unpacked changes nothing, whatever u is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64  # elements with one exponent
MOST = 127
EXPONENTS = -126, 121  # what is smaller is rounded to multiples of 2^-126; 127·2^121 is nearly the largest float32


def packed_width(width: int) -> int:
    """Bytes of a row of so many elements.

    >>> packed_width(1000)
    1016
    """
    return width + _blocks(width)


def pack(x: Tensor, noise: Tensor | float, out: Tensor) -> Tensor:
    """Pack `x`, (rows, width), into `out`, (rows, packed_width(width)) of int8; returns it.

    Args:
        x: finite float32.
        noise: u above; of the shape of `x`, or a number.
        out: is overwritten.

    >>> x = torch.tensor([[0.0, 1.0, -127.0, 3.5]])
    >>> unpack(pack(x, 0.0, torch.empty(1, 5, dtype=torch.int8)), 4)
    tensor([[   0.,    1., -127.,    3.]])
    """
    width = x.shape[1]
    blocks = _in_blocks(x)
    mantissa, exponents = torch.frexp(blocks.abs().amax(2, keepdim=True) / MOST)
    exponents = (exponents - (mantissa == 0.5).int()).clamp(*EXPONENTS)
    scaled = (blocks * _power(-exponents)).flatten(1)[:, :width]
    out[:, :width].copy_((scaled + noise).floor_().clamp_(-MOST, MOST))
    out[:, width:].copy_(exponents[:, :, 0])
    return out


def unpack(packed: Tensor, width: int) -> Tensor:
    """What `pack` packed: (rows, width) of float32."""
    exponents = packed[:, width:, None].int()
    return (_in_blocks(packed[:, :width].float()) * _power(exponents)).flatten(1)[:, :width]


def _in_blocks(x: Tensor) -> Tensor:
    """(rows, blocks, 64), with zeros behind the end."""
    blocks = _blocks(x.shape[1])
    return pad(x, (0, blocks * BLOCK - x.shape[1])).view(len(x), blocks, BLOCK)


def _power(exponents: Tensor) -> Tensor:
    """Of 2, to the bit: the exponent of a float32 is written where it lies."""
    return ((exponents + 127) << 23).view(torch.float32)


def _blocks(width: int) -> int:
    return -(-width // BLOCK)
