"""Short codes for runs of one byte: the zero-run coding of 3LC over packed trits.

Bytes of `kernels.trits` stay below 243, and 121 is five zeros. A run of r copies of 121, 2 <= r <= 14, becomes the
single byte 243 + (r − 2). Longer runs are cut from the left into pieces of 14; a rest of one stays 121. All other bytes
stay as they are, so that a row never grows.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.core.errors import CorruptPayload
from gradwire.kernels.backend import run
from gradwire.kernels.runs import reference


def encode(data: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, bytes) uint8 below 243 -> (rows, longest) uint8, zeros behind the end, and lengths, int64 on the CPU.

    The host waits for the lengths.
    """
    return run(reference.encode, data)


def decode(data: Tensor, lengths: Tensor, count: int) -> Tensor:
    """The inverse: (rows, count) uint8. A row that does not hold `count` bytes is a `CorruptPayload`."""
    if (lengths < 0).any():
        raise CorruptPayload("a row ends before its runs begin", int((lengths < 0).nonzero()[0]))
    return run(reference.decode, data, lengths, count)
