r"""Sets of k indices below n, in fewer bits than ceil(log2 n) each.

| coding | bits | good for |
|---|---|---|
| packed | k·ceil(log2 n) | a handful of indices |
| bitmap | n | more than about a third of all |
| elias_fano | k·(l + 1) + ceil(n/2^l) − 1, l = floor(log2(n/k)) | everything between: at most k·(3 + log2(n/k)) |
| blocks | 16·k + 32·ceil(n/2^16) | speed: no bits to shift, about twice the size of elias_fano at k = n/100 |

All have a size that follows from n and k alone; `best` takes the smallest. Elias-Fano keeps the lower l bits of each
index packed, and the upper parts as a string in which index i of the sorted set sets bit (upper part + i). Blocks keep
how many indices each block of 65,536 has, in 4 bytes, and then the offset of each index in its block, in 2 bytes.
"""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor

from gradwire.core.errors import CorruptPayload
from gradwire.kernels.backend import fast, fused, run
from gradwire.kernels.indices import reference
from gradwire.kernels.rows import check_bytes

CODINGS = ("elias_fano", "bitmap", "packed", "blocks")


def index_bytes(numel: int, count: int, coding: str = "best") -> int:
    """Bytes of `count` distinct indices below `numel`."""
    return reference.index_bytes(numel, count, resolve(numel, count, coding))


@lru_cache(maxsize=4096)  # asked several times for each unit
def resolve(numel: int, count: int, coding: str = "best") -> str:
    """The coding that "best" stands for: the smallest."""
    if coding != "best":
        return coding
    return min(CODINGS, key=lambda c: reference.index_bytes(numel, count, c))


def encode(indices: Tensor, numel: int, coding: str = "best", steady: bool = True) -> Tensor:
    """(rows, k) int64, distinct and ascending in each row -> (rows, bytes) uint8.

    A GPU's kernels are compiled for k: they are for those who send the same number in each step, `steady`.
    """
    coding = resolve(numel, indices.shape[1], coding)
    if fused(indices.device) and not steady:
        return reference.encode(indices, numel, coding)
    return run(reference.encode, indices, numel, coding)


def decode(data: Tensor, numel: int, count: int, coding: str = "best", steady: bool = True) -> Tensor:
    """The inverse: (rows, count) int64, ascending.

    Bytes that hold other indices are a `CorruptPayload`, but for those that are `steady` on a GPU, for which no host
    waits: kernels that take them leave out what lies outside of a row.
    """
    if not 0 <= count <= numel:
        raise CorruptPayload(f"{count:,} indices of a row of {numel:,} elements are announced")
    coding = resolve(numel, count, coding)
    check_bytes(data, reference.index_bytes(numel, count, coding))
    on_gpu, form = fused(data.device), (data, numel, count, coding)
    found = reference.decode(*form) if on_gpu and not steady else run(reference.decode, *form)
    on_host = data.device.type == "cpu" and not on_gpu
    return inside(found, numel) if on_host or not steady else found


def inside(where: Tensor, numel: int) -> Tensor:
    """The same indices, (rows, count), if they all lie in their row; else a `CorruptPayload`. The host waits."""
    if where.numel() and not 0 <= int(where.min()) <= int(where.max()) < numel:
        row = int(((where < 0) | (where >= numel)).any(1).nonzero()[0])
        raise CorruptPayload(f"an index lies outside of a row of {numel:,} elements", row)
    return where


def together(numel: int, count: int) -> bool:
    """Whether `write` and `read` can treat so many indices; they are there on a GPU only."""
    from gradwire.kernels.indices import gpu

    return gpu.serves(numel, count)


def write(values: Tensor, indices: Tensor, numel: int, coding: str = "best", value_bits: int = 32) -> Tensor:
    """(rows, k) float32 values, in 32 or 16 bits, and then the indices, in one launch: (rows, bytes) uint8."""
    coding = resolve(numel, indices.shape[1], coding)
    found: Tensor = fast(__name__, "write", values)(values, indices, numel, coding, value_bits)
    return found


def read(data: Tensor, numel: int, count: int, coding: str = "best", value_bits: int = 32) -> tuple[Tensor, Tensor]:
    """The inverse: (rows, count) float32 values and int64 indices."""
    coding = resolve(numel, count, coding)
    found: tuple[Tensor, Tensor] = fast(__name__, "read", data)(data, numel, count, coding, value_bits)
    return found
