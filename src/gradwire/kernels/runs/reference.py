"""Runs in plain torch, row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.errors import CorruptPayload

ZEROS, FIRST, LONGEST = 121, 243, 14  # the byte that is run-length coded, the first code of a run, the longest run


def encode(data: Tensor) -> tuple[Tensor, Tensor]:
    coded = [_encode_row(row) for row in data]
    lengths = torch.tensor([c.numel() for c in coded], dtype=torch.int64)
    out = data.new_zeros((data.shape[0], max(lengths.tolist(), default=0)))
    for line, code in zip(out, coded, strict=True):
        line[: code.numel()] = code
    return out, lengths


def decode(data: Tensor, lengths: Tensor, count: int) -> Tensor:
    out = data.new_empty((data.shape[0], count))
    for i, (line, row, length) in enumerate(zip(out, data, lengths.tolist(), strict=True)):
        coded = row[:length]
        repeats = torch.where(coded < FIRST, 1, coded.long() - (FIRST - 2))
        whole = torch.where(coded < FIRST, coded, ZEROS).repeat_interleave(repeats)
        if whole.numel() != count:
            raise CorruptPayload(f"its runs hold {whole.numel():,} bytes, not {count:,}", i)
        line.copy_(whole)
    return out


def _encode_row(row: Tensor) -> Tensor:
    place, zero = torch.arange(row.numel(), device=row.device), row == ZEROS
    before = torch.where(zero, -1, place).cummax(0).values  # the last other byte up to here
    after = torch.where(zero, row.numel(), place).flip(0).cummin(0).values.flip(0)  # the next one
    inside = (place - before - 1) % LONGEST  # how many of the same piece stand before this byte
    piece = torch.clamp(after - place, max=LONGEST)  # its length, counted where it begins
    coded = torch.where(zero & (piece > 1), piece + (FIRST - 2), row.long()).to(torch.uint8)
    return coded[~zero | (inside == 0)]
