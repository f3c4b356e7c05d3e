r"""SketchML: the largest coordinates by the quantile bucket of their magnitude, the bucket kept in a min-max sketch.

The k = ⌈ratio·n⌉ coordinates of largest magnitude are split into negative and positive ones. Each side is cut at its
quantiles into q = `buckets` buckets that hold equally many (±1); where there are fewer than k non-zeros, the first
bucket is for zeros, and q − 1 are left. Bucket b, from magnitude l to magnitude h, stands for

.. math::  r_b = \min\Big(\frac{l + h}{2},\ 2l\Big)

The q buckets form `groups` groups of neighbours. Of each coordinate the sign and the group are sent. Its place i in the
group goes into `tables` hash tables, each of `columns`·k cells; a cell keeps the smallest i that was put into it, and
the reader takes the largest i that it finds over the tables:

.. math::  i \ \ge\ \max_j \min \{ i' : h_j(\text{key}') = h_j(\text{key}) \}

A collision can only lower a coordinate within its group: never raise it, never flip its sign. Every coordinate comes
out between 0 and twice its value, so delta = 0 holds for any collisions; runs with error feedback. With ``tables=0``
and ``ratio=1`` it is what GRACE measures under this name.
Wire: 8q bytes of r_b; the keys (none if k = n); 1 + ⌈log2 groups⌉ bits a key; ⌈log2(q/groups)⌉ bits a cell, of
groups·⌈columns·k/groups⌉ cells a table. Without tables, 1 + ⌈log2 q⌉ bits a key take the place of the last two.

Departs from the paper: quantiles are exact instead of sketched, signs and groups are bits beside one list of keys, so
that all sizes are fixed, and the bound 2l is new: it keeps a collision in a wide bucket from adding error.

Jiang et al., SketchML: Accelerating Distributed Machine Learning with Data Sketches, SIGMOD 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.hybrid._minmax_sketch import MinMaxSketch
from gradwire.codecs.hybrid._quantiles import quantiles
from gradwire.codecs.sparsification._entries import EntriesCodec
from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.kernels import indices, rows
from gradwire.kernels.bitpack import pack, packed_bytes, unpack
from gradwire.kernels.select import top


@register
@dataclass(frozen=True)
class SketchML(EntriesCodec):
    """Send the largest elements by the quantile bucket they fall into, with the bucket kept in a small sketch.

    Args:
        ratio: share of the elements to send, in (0, 1]. 0.1 sends a tenth.
        buckets: quantile buckets for each sign, 2 to 65536. 256 fit a byte.
        tables: hash tables of the sketch, 0 to 16. 0 sends the buckets as they are.
        groups: of neighbouring buckets; a collision moves an element within its group only. Must divide `buckets`.
        columns: cells of a table for each element sent, in (0, 1]. Fewer are smaller and collide more.

    Example:
        >>> gradwire.codec("sketchml(ratio=0.1)").payload_bytes(100000)
        16111
    """

    name: ClassVar[str] = "sketchml"
    family: ClassVar[str] = "hybrid"
    paper: ClassVar[str] = "Jiang et al., SketchML, SIGMOD 2018, doi:10.1145/3183713.3196894"
    plain_on_gpu: ClassVar[str] = "quantiles have no kernel yet; selection and indices have"
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
        check = checked(self)
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
        group, place = bucket // self._sketch.span, bucket % self._sketch.span
        parts.append(pack((group << 1) + negative, self._flag_width))
        if self.tables:
            parts.append(self._sketch.write(place, keys, group, rng))
        return Payload(rows.join(*parts))

    def entries(self, payload: Payload, numel: int, rng: Random) -> tuple[Tensor, Tensor]:
        k = kept(self.ratio, numel)
        means, listed, flags, tables = torch.split(payload.data, self._sizes(numel), dim=1)
        if k == numel:
            keys = torch.arange(k, device=listed.device).expand(payload.rows, k)
        else:
            keys = indices.decode(listed, numel, k)
        flag = unpack(flags, self._flag_width, k).long()
        last = self.buckets // self._sketch.span - 1
        negative, group = flag & 1, (flag >> 1).clamp(max=last)  # bytes that name no group, or no bucket, mean the last
        bucket = group * self._sketch.span + (1 - negative) * self.buckets
        if self.tables:
            bucket = bucket + self._sketch.read(tables, keys, group, rng)
        bucket = bucket.clamp(max=2 * self.buckets - 1)
        magnitude = rows.take(means, 0, 2 * self.buckets, torch.float32)[0].gather(1, bucket)
        return torch.where(negative > 0, -magnitude, magnitude), keys

    def payload_bytes(self, numel: int) -> int:
        return sum(self._sizes(numel))

    @property
    def _sketch(self) -> MinMaxSketch:
        """Of places within a group; without tables, each bucket is a group of its own."""
        return MinMaxSketch(self.tables, self.groups, self.columns, self.buckets // self.groups if self.tables else 1)

    @property
    def _flag_width(self) -> int:
        return 1 + (self.buckets // self._sketch.span - 1).bit_length()

    def _sizes(self, numel: int) -> list[int]:
        """Bytes of the means, keys, flags and tables."""
        k = kept(self.ratio, numel)
        keys = 0 if k == numel else indices.index_bytes(numel, k)
        return [8 * self.buckets, keys, packed_bytes(k, self._flag_width), self._sketch.size(k)]
