"""One bit an element: signs, two-valued decoding, and votes. Bits are packed as in `bitpack`."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import compiled
from gradwire.kernels.signs import reference


def encode(x: Tensor) -> Tensor:
    """Bit 1 where x >= 0: (rows, numel) -> (rows, ceil(numel/8)) uint8."""
    if compiled(x):
        from gradwire.kernels.signs import cpu

        return cpu.encode(x)
    return reference.encode(x)


def encode_or_toss(x: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """Bit 1 where x > 0, a coin of the stream where x is zero; and, (rows, 1), which rows are not finite.

    Element j of row i has coin i·numel + j.
    """
    if compiled(x):
        from gradwire.kernels.signs import cpu

        return cpu.encode_or_toss(x, stream)
    return reference.encode_or_toss(x, stream)


def tosses(stream: Stream, numel: int, device: torch.device) -> Tensor:
    """Coins for one row, packed: (1, ceil(numel/8)) uint8."""
    if device.type == "cpu" and compiled(torch.empty(0)):
        from gradwire.kernels.signs import cpu

        return cpu.tosses(stream, numel)
    return reference.tosses(stream, numel, device)


def encode_scaled(x: Tensor, block: int, keep_own: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """The mean magnitude of each block, (rows, blocks), the bits of `encode`, and, if wanted, what they decode to.

    The decoded values are (rows, numel): plus the block's mean magnitude for bit 1, minus it for bit 0.
    """
    if compiled(x):
        from gradwire.kernels.signs import cpu

        return cpu.encode_scaled(x, block, keep_own)
    return reference.encode_scaled(x, block, keep_own)


def decode(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    """Bit 1 becomes its block's `plus`, bit 0 its `minus`, both (rows, blocks): (rows, numel) float32."""
    if compiled(data, minus, plus):
        from gradwire.kernels.signs import cpu

        return cpu.decode(data, minus, plus, block, numel)
    return reference.decode(data, minus, plus, block, numel)


def decode_sum(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    """The decoded values summed over the rows, first to last: (1, numel) float32."""
    if compiled(data, minus, plus):
        from gradwire.kernels.signs import cpu

        return cpu.decode_sum(data, minus, plus, block, numel)
    return reference.decode_sum(data, minus, plus, block, numel)


def reduce_and_encode(
    data: Tensor,
    minus: Tensor,
    plus: Tensor,
    block: int,
    numel: int,
    carry: Tensor | None = None,
    keep_lost: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`decode_sum` divided by the number of rows, plus `carry`, (1, numel), if given; and that by `encode_scaled`.

    Returns bits and scales, of one row, and, if wanted, what the encoding loses: the mean less its decoded values.
    """
    if compiled(data, minus, plus):
        from gradwire.kernels.signs import cpu

        return cpu.reduce_and_encode(data, minus, plus, block, numel, carry, keep_lost)
    return reference.reduce_and_encode(data, minus, plus, block, numel, carry, keep_lost)


def vote(data: Tensor, ties: Tensor) -> Tensor:
    """The majority of the rows, bit by bit; equal numbers take the bit of `ties`: both packed, -> (1, bytes)."""
    if compiled(data, ties):
        from gradwire.kernels.signs import cpu

        return cpu.vote(data, ties)
    return reference.vote(data, ties)
