"""Random rounding to powers of two in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels import rows
from gradwire.kernels.bitpack import pack, unpack
from gradwire.kernels.random import quick_words

MANTISSA = 23  # bits of a float32's mantissa
INFINITE = 0x7F800000  # patterns from here on are not finite
NAN = 0x7FC00000
LOWEST = 18  # 8 bits: code c is the exponent field c + 18, so 1 is 2^-108


def encode(x: Tensor, bits: int, noise: Stream) -> Tensor:
    pattern = x.contiguous().view(torch.int32)
    magnitude, negative = pattern & 0x7FFFFFFF, pattern < 0
    drawn = (quick_words(noise, x.shape, x.device) >> (32 - MANTISSA)).to(torch.int32)
    if bits == 9:
        codes = ((magnitude + drawn) >> MANTISSA).clamp_(max=254)
        codes = torch.where(magnitude < INFINITE, codes, 255)
        return rows.join(codes.to(torch.uint8), pack(negative, 1))
    shifted = magnitude - (LOWEST << MANTISSA)
    codes = ((shifted + drawn) >> MANTISSA).clamp_(max=126).masked_fill_(shifted < 1 << MANTISSA, 0)
    codes = torch.where(magnitude < INFINITE, codes, 127)
    return (codes + 128 * negative).to(torch.uint8)


def decode(data: Tensor, bits: int, numel: int) -> Tensor:
    codes = data[:, :numel].int()
    if bits == 9:
        negative, exponents, last = unpack(data[:, numel:], 1, numel).int(), codes, 255
    else:
        negative, codes, last = codes >> 7, codes & 127, 127
        exponents = torch.where(codes > 0, codes + LOWEST, 0)
    magnitude = torch.where(codes < last, exponents << MANTISSA, NAN)
    return (magnitude | negative << 31).view(torch.float32)


def decode_sum(data: Tensor, bits: int, numel: int, groups: int) -> Tensor:
    return rows.added(decode(data, bits, numel), groups)
