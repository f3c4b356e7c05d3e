"""The uniform quantiser in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Window
from gradwire.kernels import rows
from gradwire.kernels.bitpack import reference as bitpack
from gradwire.kernels.blockwise import reference as blockwise
from gradwire.kernels.random.reference import halves
from gradwire.kernels.trits import reference as trits


@dataclass(frozen=True)
class Rule:
    """How blocks are quantised: codes −low … high, in steps of a scale over `high`.

    The scale of a block is its largest magnitude, times `clip`; with `sigma` > 0, at most `sigma` times the root mean
    square of its elements other than zero. With `trits`, codes of three values are packed five to a byte.
    """

    block: int
    low: int
    high: int
    clip: float = 1.0
    sigma: float = 0.0
    trits: bool = False

    def code_bytes(self, numel: int) -> int:
        """Bytes of the codes of a row."""
        return -(-numel // 5) if self.trits else -(-numel * code_width(self.low, self.high) // 8)


@dataclass(frozen=True)
class Turn:
    """Runs of `run` elements are rotated before they are quantised, by signs that all workers share; see `hadamard`."""

    run: int
    signs: Stream


SMALLEST = 2.0**-126  # step: its inverse must be finite, and smaller ones are flushed to zero on some devices


def code_width(low: int, high: int) -> int:
    return max(1, (low + high).bit_length())


def usable(scales: Tensor, high: int) -> Tensor:
    return scales.clamp(min=high * SMALLEST)


def encode(x: Tensor, inverse: Tensor, block: int, low: int, high: int, noise: Stream | None) -> Tensor:
    y = _by_block(x, inverse, block)
    u = 0.5 if noise is None else halves(noise, x.shape, x.device)
    codes = (y.abs() + u).floor_().copysign_(y).clamp_(-low, high).add_(low).nan_to_num_(0)
    return bitpack.pack(codes.to(torch.int32), code_width(low, high))


def decode(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    codes = bitpack.unpack(data, code_width(low, high), numel)
    return _by_block(codes.float().sub_(low), step, block)


def decode_sum(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int, groups: int) -> Tensor:
    return rows.added(decode(data, step, block, low, high, numel), groups)


def scale(x: Tensor, rule: Rule) -> Tensor:
    largest = usable(blockwise.abs_max(x, rule.block) * rule.clip, rule.high)
    if not rule.sigma:
        return largest
    shares = (rows.blocks(x, rule.block) / largest.unsqueeze(2)).flatten(1)  # squares of tiny values would underflow
    count = blockwise.abs_sum((x != 0).to(x.dtype), rule.block).clamp_(min=1)
    mean_square = blockwise.square_sum(shares, rule.block) / count
    # a root in float32 may be off by one bit, depending on where in a tensor a number stands
    root = mean_square.double().sqrt_().float()
    return usable(largest * root.mul_(rule.sigma).clamp_(max=1), rule.high)


def encode_by(x: Tensor, rule: Rule, noise: Stream | None) -> tuple[Tensor, Tensor]:
    scales = scale(x, rule)
    codes = encode(x, rule.high / scales, rule.block, rule.low, rule.high, noise)
    if rule.trits:
        codes = trits.pack(bitpack.unpack(codes, code_width(rule.low, rule.high), x.shape[1]))
    return scales, codes


def plain_codes(data: Tensor, rule: Rule, numel: int) -> Tensor:
    return bitpack.pack(trits.unpack(data, numel), code_width(rule.low, rule.high)) if rule.trits else data


def decode_by(data: Tensor, scales: Tensor, rule: Rule, numel: int) -> Tensor:
    codes = plain_codes(data, rule, numel)
    return decode(codes, rows.divided(scales, rule.high), rule.block, rule.low, rule.high, numel)


def combine_by(data: Tensor, scales: Tensor, rule: Rule, numel: int, groups: int) -> Tensor:
    return rows.divided(rows.added(decode_by(data, scales, rule, numel), groups), data.shape[0] // groups)


def split(data: Tensor, rule: Rule, numel: int) -> tuple[Tensor, Tensor]:
    scales, start = rows.take(data, 0, -(-numel // rule.block), torch.float32)
    return scales, data[:, start:]


def reduce_and_encode(
    data: Tensor,
    rule: Rule,
    numel: int,
    feedback: Feedback | None,
    noise: Stream | None,
    groups: int,
    factor: float,
    owner: str,
) -> Tensor:
    scales, packed = split(data, rule, numel)
    mean = combine_by(packed, scales, rule, numel, groups)
    if factor != 1:
        mean = mean * factor
    if feedback is not None:
        mean = feedback.compensated(Window.whole(mean))
    found, codes = encode_by(mean, rule, noise)
    if feedback is not None:
        own = decode_by(codes, found, rule, numel)
        feedback.keep(own if factor == 1 else own * factor)
    return rows.join(found, codes, owner=owner)


def _by_block(x: Tensor, factors: Tensor, block: int) -> Tensor:
    """Every element times its block's factor."""
    return (rows.blocks(x, block) * factors.unsqueeze(2)).flatten(1)[:, : x.shape[1]]
