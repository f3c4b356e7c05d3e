"""Casts whose sums are taken on the wire, in the type that travels, or in float32 by those who receive."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.codec import Combine
from gradwire.kernels import rows

FLOAT32 = "float32"


def summed_in(name: str) -> Combine:
    """How payloads come together if they are to be added in a type of this name."""
    return Combine.GATHER if name == FLOAT32 else Combine.SUM


def on_wire(cast: Tensor, name: str) -> Tensor:
    """What travels: bytes, where nobody adds on the way."""
    return cast.view(torch.uint8) if name == FLOAT32 else cast


def off_wire(data: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    """The same as numbers again, (rows, numel)."""
    return rows.take(data, 0, numel, dtype)[0] if data.dtype == torch.uint8 else data
