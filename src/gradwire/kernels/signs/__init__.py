"""One bit an element: signs, two-valued decoding, and votes. Bits are packed as in `bitpack`."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.signs import reference


def encode(x: Tensor) -> Tensor:
    """Bit 1 where x >= 0: (rows, numel) -> (rows, ceil(numel/8)) uint8."""
    return reference.encode(x)


def decode(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    """Bit 1 becomes its block's `plus`, bit 0 its `minus`, both (rows, blocks): (rows, numel) float32."""
    return reference.decode(data, minus, plus, block, numel)


def decode_sum(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    """The decoded values summed over the rows, first to last: (1, numel) float32."""
    return reference.decode_sum(data, minus, plus, block, numel)


def vote(data: Tensor, ties: Tensor) -> Tensor:
    """The majority of the rows, bit by bit; equal numbers take the bit of `ties`: both packed, -> (1, bytes)."""
    return reference.vote(data, ties)
