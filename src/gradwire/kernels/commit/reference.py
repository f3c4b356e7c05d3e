"""The end of a step in plain torch: three passes over what was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradwire.core.window import total

Written: TypeAlias = tuple[Tensor, Tensor | None]


def settle(flags: Sequence[Tensor], written: Sequence[Written], skipped: Tensor, kept: Tensor, scale: float) -> Tensor:
    finite = total(flags, kept) == 0
    for new, old in written:
        new.copy_(torch.where(finite, new, new.new_zeros(()) if old is None else old))
    skipped.add_(finite.logical_not())
    kept.copy_(torch.where(finite, scale, kept))
    return finite
