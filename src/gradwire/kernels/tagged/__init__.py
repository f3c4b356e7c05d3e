r"""Fixed point in as many bytes as each element needs: none, one, two, or its float32 in four.

.. math::  c = \mathrm{round}(x / E), \qquad \text{tag} = [c \neq 0] + [|c| > 127] + [|c| > 32767]

Rounding is to nearest, ties to even; E is a power of two from 2^-100 to 2^100, so that the division is exact. What is
not finite has tag 3, the float32 itself. A row is ceil(numel/4) bytes of tags, two bits each (see `bitpack`), then all
c of tag 1 as int8, all of tag 2 as int16, and all floats of tag 3.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import run
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.rows import check_bytes
from gradwire.kernels.tagged import reference


def encode(x: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """(rows, numel) float32 -> (rows, longest) uint8, zeros behind the end, and lengths, int64 on the CPU.

    The host waits for the lengths.
    """
    return run(reference.encode, x, bound)


def decode(data: Tensor, bound: float, numel: int) -> Tensor:
    """The values: (rows, numel) float32. Rows that hold less than their tags ask for are a `CorruptPayload`."""
    check_bytes(data, packed_bytes(numel, 2))
    return run(reference.decode, data, bound, numel)
