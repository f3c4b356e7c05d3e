"""Small numbers by key in hash tables: a collision may lower a number, but never raises it.

A cell keeps the smallest number that was put into it, and the reader takes the largest that it finds over the tables.
Keys come in groups, which do not share cells. Hashes are drawn anew in each step, alike on all workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.core.random import Random
from gradwire.kernels.bitpack import pack, packed_bytes, unpack
from gradwire.kernels.random import words

PRIME = 2**31 - 1  # of the hashes: products of two numbers below it fit 63 bits


@dataclass(frozen=True)
class MinMaxSketch:
    """`tables` tables of about `columns` cells a key, for numbers below `span` of keys in `groups` groups."""

    tables: int
    groups: int
    columns: float
    span: int

    def write(self, numbers: Tensor, keys: Tensor, group: Tensor, rng: Random) -> Tensor:
        """The packed tables that hold the (rows, k) numbers."""
        cells = numbers.new_full((len(keys), self._cells(keys.shape[1])), self.span - 1)
        cells.scatter_reduce_(1, self._cell(keys, group, rng), numbers.repeat(1, self.tables), "amin")
        return pack(cells, self._width)

    def read(self, data: Tensor, keys: Tensor, group: Tensor, rng: Random) -> Tensor:
        """The numbers found, (rows, k): at most those that were written."""
        count, k = keys.shape
        cells = unpack(data, self._width, self._cells(k)).long()
        return cells.gather(1, self._cell(keys, group, rng)).view(count, self.tables, k).amax(1)

    def size(self, k: int) -> int:
        """Bytes of a row for k keys."""
        return packed_bytes(self._cells(k), self._width)

    @property
    def _width(self) -> int:
        return (self.span - 1).bit_length()

    def _columns(self, k: int) -> int:
        """Cells that a group has in one table."""
        return math.ceil(self.columns * k / self.groups)

    def _cells(self, k: int) -> int:
        return self.tables * self.groups * self._columns(k)

    def _cell(self, keys: Tensor, group: Tensor, rng: Random) -> Tensor:
        """Where each key is found, table after table: (rows, tables·k)."""
        draws = words(rng.common("hash"), (2, self.tables, 1), keys.device)
        hashes = (keys.unsqueeze(1) % PRIME * (draws[0] % (PRIME - 1) + 1) + draws[1]) % PRIME
        columns = self._columns(keys.shape[1])
        table = torch.arange(self.tables, device=keys.device).unsqueeze(1)
        return ((table * self.groups + group.unsqueeze(1)) * columns + hashes % columns).flatten(1)
