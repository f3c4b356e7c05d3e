"""Workers agree on the scales of their blocks first. Their codes −s…s then add up as integers, exactly."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from gradwire.codecs.quantization._grid import GridCodec
from gradwire.core.codec import Context, Reduced
from gradwire.core.exchange import Max, Program, Sum
from gradwire.kernels import bitpack, fields, grid, rows
from gradwire.kernels.grid import Rule


class SharedScales(GridCodec):
    """A grid codec with two rounds of its own: the largest scales of all workers, then sums of codes."""

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        count, numel = x.shape
        rule, coded, rng = replace(self.rule(numel), trits=False), self.coded(numel), ctx.rng
        y = self.turned(x, rng)
        scales = yield from agree(self.scales(y, rule))
        everywhere = scales.expand(count, -1)
        codes = self.codes(y, everywhere, rule, rng)
        own = None
        if ctx.wants_own:
            own = self.turned_back(grid.decode_by(codes, everywhere, rule, coded), numel, rng)
        total = yield from self.added(codes, rule, coded, ctx)
        mean = values(total, scales / rule.high / ctx.workers, rule.block)
        return self.turned_back(mean, numel, rng.of((0,), (0,))), own

    def added(self, codes: Tensor, rule: Rule, coded: int, ctx: Context) -> Program[Tensor]:
        """The codes of all workers, added up: (1, coded)."""
        return add_up(codes, rule.high, coded, ctx.workers)


def agree(ranges: Tensor) -> Program[Tensor]:
    """The largest range over the workers, block by block, (1, blocks); NaN where one of them has NaN.

    Backends drop a NaN from a maximum or keep it, as the order falls. Infinity always wins, so it stands for NaN.
    """
    largest = yield Max(ranges.nan_to_num(nan=math.inf, posinf=math.inf))
    return torch.where(largest.isinf(), torch.nan, largest)


def add_up(data: Tensor, levels: int, numel: int, workers: int) -> Program[Tensor]:
    """The exact sum over the workers of their packed codes: (1, numel) int64 from −n·s to n·s.

    A field of 32-bit words holds ceil(log2(2·n·s + 1)) bits, so that no sum spills into its neighbour.
    """
    width = fields.field_width(2 * levels * workers)
    codes = bitpack.unpack(data, grid.code_width(levels, levels), numel)
    total = yield Sum(fields.pack(codes, width))
    return fields.unpack(total, width, numel) - workers * levels


def values(codes: Tensor, step: Tensor, block: int) -> Tensor:
    """Every code times its block's step: (rows, numel) integers -> float32."""
    return (rows.blocks(codes.float(), block) * step.unsqueeze(2)).flatten(1)[:, : codes.shape[1]]
