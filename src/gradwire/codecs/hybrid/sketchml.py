r"""SketchML: the largest coordinates by the quantile bucket of their magnitude, the bucket kept in a min-max sketch.

The k = ⌈ratio·n⌉ coordinates of largest magnitude are split into negative and positive ones. Each side is cut at its
quantiles into q = `buckets` buckets that hold equally many (±1); where there are fewer than k non-zeros, the first
bucket is for zeros, and q − 1 are left. Bucket b, from magnitude l to magnitude h, stands for

.. math::  r_b = \min\Big(\frac{l + h}{2},\ 2l\Big)

The q buckets form `groups` groups of neighbours. Of each coordinate the sign and the group are sent. Its place i in the
group goes into `tables` hash tables, each of `columns`·k cells; a cell keeps the smallest i that was put into it, and
the reader takes the largest i that it finds over the tables:

.. math::  i \ \ge\ \max_j \min \{ i' : h_j(\text{key}') = h_j(\text{key}) \}

A collision can thus only lower a coordinate within its group: never raise it, never flip its sign. Every coordinate
comes out between 0 and twice its value: an error of at most its own magnitude, so delta = 0 holds for any
collisions; runs with error feedback. Hashes are drawn anew in each step, alike on all workers. With ``tables=0`` the
buckets are sent as they are, and ``ratio=1`` takes the whole vector: what GRACE measures under this name.
Wire: 8q bytes of r_b; the keys (none if k = n); 1 + ⌈log2 groups⌉ bits a key; ⌈log2(q/groups)⌉ bits a cell, of
groups·⌈columns·k/groups⌉ cells a table. Without tables, 1 + ⌈log2 q⌉ bits a key take the place of the last two.

Departs from the paper: quantiles are exact instead of sketched. Signs and groups are bits beside one list of
keys, instead of one list for each sign and group, so that all sizes are fixed. The keys take the
smallest coding of `gradwire.kernels.indices`: for scattered keys less than the paper's differences in whole bytes
with two bits of length, which cost at least 10 bits. The bound 2l is new: without it a collision in a wide
bucket could leave more error than there was gradient. The paper's gradients are sparse by themselves; `ratio` makes
dense ones so.

Jiang et al., SketchML: Accelerating Distributed Machine Learning with Data Sketches, SIGMOD 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import indices, rows
from gradwire.kernels.bitpack import pack, packed_bytes, unpack
from gradwire.kernels.random import words
from gradwire.kernels.scatter import scatter, scatter_sum
from gradwire.kernels.select import top

PRIME = 2**31 - 1  # of the hashes: products of two numbers below it fit 63 bits


@register
@dataclass(frozen=True)
class SketchML(Codec):
    """Quantile buckets in a min-max sketch."""

    name: ClassVar[str] = "sketchml"
    family: ClassVar[str] = "hybrid"
    paper: ClassVar[str] = "Jiang et al., SketchML, SIGMOD 2018, doi:10.1145/3183713.3196894"
    variants: ClassVar[tuple[str, ...]] = (
        "sketchml(ratio=0.3, buckets=16, groups=4, columns=0.5)",
        "sketchml(ratio=1, buckets=24, tables=1, groups=3)",
        "sketchml(ratio=1, buckets=64, tables=0)",
    )
    ratio: float = 0.1
    buckets: int = 256
    tables: int = 2
    groups: int = 8
    columns: float = 0.2

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.share("ratio", self.ratio)
        check.integer("buckets", self.buckets, 2, 65536)
        check.integer("tables", self.tables, 0, 16)
        check.integer("groups", self.groups, 1)
        if self.tables and (self.buckets % self.groups or self.buckets == self.groups):
            check.fail("groups", f"a proper divisor of the {self.buckets} buckets", self.groups)
        check.share("columns", self.columns)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, memory="error_feedback", delta=0.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        k = kept(self.ratio, x.shape[1])
        keys = top(x, k)
        means, negative, bucket = quantiles(x.gather(1, keys), self.buckets)
        parts = [means] if k == x.shape[1] else [means, indices.encode(keys, x.shape[1])]
        group, place = bucket // self._span, bucket % self._span
        parts.append(pack((group << 1) + negative, self._flag_width))
        if self.tables:
            tables = place.new_full((x.shape[0], self._cells(k)), self._span - 1)
            places = place.repeat(1, self.tables)
            tables.scatter_reduce_(1, self._cell(keys, group, rng), places, "amin")
            parts.append(pack(tables, self._place_width))
        return Payload(rows.join(*parts))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return scatter(*self._read(payload, numel, rng), numel)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        return scatter_sum(*self._read(payload, numel, rng), numel, groups).div_(payload.rows // groups)

    def payload_bytes(self, numel: int) -> int:
        return sum(self._sizes(numel))

    def _read(self, payload: Payload, numel: int, rng: Random) -> tuple[Tensor, Tensor]:
        """The values, and where they stand."""
        k = kept(self.ratio, numel)
        means, listed, flags, tables = torch.split(payload.data, self._sizes(numel), dim=1)
        if k == numel:
            keys = torch.arange(k, device=listed.device).expand(payload.rows, k)
        else:
            keys = indices.decode(listed, numel, k)
        flag = unpack(flags, self._flag_width, k).long()
        negative, group = flag & 1, flag >> 1
        bucket = group * self._span
        if self.tables:
            places = unpack(tables, self._place_width, self._cells(k)).long()
            found = places.gather(1, self._cell(keys, group, rng))
            bucket = bucket + found.view(payload.rows, self.tables, k).amax(1)
        bucket = bucket + (1 - negative) * self.buckets
        magnitude = rows.take(means, 0, 2 * self.buckets, torch.float32)[0].gather(1, bucket)
        return torch.where(negative > 0, -magnitude, magnitude), keys

    @property
    def _span(self) -> int:
        """Buckets of a group; without tables, each is a group of its own."""
        return self.buckets // self.groups if self.tables else 1

    @property
    def _flag_width(self) -> int:
        return 1 + (self.buckets // self._span - 1).bit_length()

    @property
    def _place_width(self) -> int:
        return (self._span - 1).bit_length()

    def _columns(self, k: int) -> int:
        """Cells that a group has in one table."""
        return math.ceil(self.columns * k / self.groups)

    def _cells(self, k: int) -> int:
        return self.tables * self.groups * self._columns(k)

    def _sizes(self, numel: int) -> list[int]:
        """Bytes of the means, keys, flags and tables."""
        k = kept(self.ratio, numel)
        keys = 0 if k == numel else indices.index_bytes(numel, k)
        flags, tables = packed_bytes(k, self._flag_width), packed_bytes(self._cells(k), self._place_width)
        return [8 * self.buckets, keys, flags, tables]

    def _cell(self, keys: Tensor, group: Tensor, rng: Random) -> Tensor:
        """Where each key is found, table after table: (rows, tables·k)."""
        draws = words(rng.common("hash"), (2, self.tables, 1), keys.device)
        hashes = (keys.unsqueeze(1) % PRIME * (draws[0] % (PRIME - 1) + 1) + draws[1]) % PRIME
        columns = self._columns(keys.shape[1])
        table = torch.arange(self.tables, device=keys.device).unsqueeze(1)
        return ((table * self.groups + group.unsqueeze(1)) * columns + hashes % columns).flatten(1)


def quantiles(values: Tensor, buckets: int) -> tuple[Tensor, Tensor, Tensor]:
    """Equally filled buckets of each sign of (rows, k) values; the first one for zeros, in rows that have any.

    Returns what the buckets stand for, (rows, 2·buckets), negative values first; which values are negative; and the
    bucket of each within its side, both (rows, k).
    """
    count, k = values.shape
    negative, magnitude = values < 0, values.abs()
    # negative values come first; on each side magnitudes order as their bit patterns do
    bits, order = (magnitude.view(torch.int32).long() - (negative.long() << 32)).sort(dim=1, stable=True)
    ordered = (bits & 0x7FFFFFFF).int().view(torch.float32)
    place = torch.empty_like(order).scatter_(1, order, torch.arange(k, device=values.device).expand(count, k))
    below, zeros = negative.sum(1, keepdim=True), (magnitude == 0).sum(1, keepdim=True)
    skipped = zeros.clamp(max=1)  # buckets
    first = torch.cat((torch.zeros_like(below), below + zeros), 1)
    sizes = torch.cat((below, k - below - zeros), 1)
    side = negative.logical_not().long()
    rank = place - first.gather(1, side)
    bucket = skipped + rank * (buckets - skipped) // sizes.gather(1, side).clamp(min=1)

    steps = torch.arange(buckets + 1, device=values.device) - skipped
    edges = -((-steps.unsqueeze(1) * sizes.unsqueeze(2)) // (buckets - skipped).unsqueeze(2)).clamp(max=0)
    last = edges[..., 1:] - 1  # of an empty bucket: the last one before it
    ends = torch.stack((torch.minimum(edges[..., :-1], last), last)) + first.unsqueeze(2)
    low, high = ordered.expand(2, count, k).gather(2, ends.clamp(0, k - 1).flatten(2))
    means = torch.minimum(low + (high - low) / 2, 2 * low).where(last.flatten(1) >= 0, 0.0)
    return means, negative, torch.where(magnitude == 0, 0, bucket)
