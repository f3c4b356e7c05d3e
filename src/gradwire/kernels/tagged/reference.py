"""Tagged fixed point in plain torch, tag by tag."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gradwire.kernels.bitpack import pack, packed_bytes, unpack
from gradwire.kernels.rows import check_bytes

FORMS = {1: torch.int8, 2: torch.int16, 3: torch.float32}  # by tag


def encode(x: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    codes = (x / bound).round_()
    size = codes.abs()
    tags = (~(size <= 0)).to(torch.uint8) + ~(size <= 127) + ~(size <= 32767)  # NaN: 3
    data, counts = pack(tags, 2), _counts(tags)
    parts = [list(data)]
    for (tag, dtype), count in zip(FORMS.items(), counts, strict=True):
        values = (x if tag == 3 else codes)[tags == tag].to(dtype).view(torch.uint8)
        parts.append(list(torch.split(values, [dtype.itemsize * c for c in count])))
    full = [torch.cat(row) for row in zip(*parts, strict=True)]
    return pad_sequence(full, batch_first=True), torch.tensor([row.numel() for row in full])


def decode(data: Tensor, bound: float, numel: int) -> Tensor:
    start = packed_bytes(numel, 2)
    tags = unpack(data[:, :start], 2, numel)
    out = torch.zeros(tags.shape, device=tags.device)
    starts = [start] * data.shape[0]
    for (tag, dtype), count in zip(FORMS.items(), _counts(tags), strict=True):
        stops = [s + dtype.itemsize * c for s, c in zip(starts, count, strict=True)]
        check_bytes(data, max(stops, default=0))
        part = torch.cat([row[s:t] for row, s, t in zip(data, starts, stops, strict=True)])
        values = part.view(dtype).float()
        out.masked_scatter_(tags == tag, values if tag == 3 else values * bound)
        starts = stops
    return out


def _counts(tags: Tensor) -> list[list[int]]:
    """For tags 1, 2 and 3: how many there are in each row."""
    counts: list[list[int]] = torch.stack([(tags == tag).sum(1) for tag in FORMS]).tolist()
    return counts
