"""Supports in plain torch."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window, nonfinite_flag
from gradwire.kernels.random import words

if TYPE_CHECKING:
    from gradwire.kernels.support import Support


def any_index(draw: Stream, numel: int, device: torch.device) -> Tensor:
    """One index below `numel`, all equally likely to a part in 2⁶³/numel."""
    draws = words(draw, (2,), device)
    return ((draws[0] << 31) | (draws[1] >> 1)) % numel


@lru_cache(maxsize=16)  # encoder and decoder, and virtual workers, ask for the same one
def indices(support: Support, numel: int, device: torch.device) -> Tensor:
    k = support.k
    if support.draw is None:
        inside = torch.arange(k, device=device)
    else:
        edges = torch.arange(k + 1, device=device) * numel // k
        inside = edges[:-1] + (words(support.draw, (k,), device) * edges.diff() >> 32)
    return (inside + any_index(support.turn, numel, device)) % numel


def take_from(
    source: Window, feedback: Feedback | None, support: Support, share: float, gain: float, back: float
) -> Tensor:
    x = source.read() if feedback is None else feedback.compensated(source)
    where = support.indices(source.numel, x.device)
    spoilt = (x * 0).sum(1, keepdim=True).isnan()
    sent = (x[:, where] * share * gain).masked_fill(spoilt, math.nan)
    if feedback is not None:
        feedback.keep(_placed(sent * back, where, source.numel))
    return sent


def put_to(values: Tensor, support: Support, target: Window, factor: float) -> Flag:
    found = values * factor
    target.write_(_placed(found, support.indices(target.numel, values.device), target.numel))
    return nonfinite_flag(found)


def _placed(values: Tensor, where: Tensor, numel: int) -> Tensor:
    """The elements `where` of each row hold `values`, all others are zero."""
    out = values.new_zeros((len(values), numel))
    out[:, where] = values
    return out
