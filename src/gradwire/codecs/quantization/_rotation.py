"""Rows turned by a randomised Hadamard matrix, run by run: outliers are spread over their run.

The signs come from a stream that all workers share. See `gradwire.kernels.hadamard`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels import hadamard

RUN = 32  # elements that are rotated together where only outliers shall be spread


def rotated(x: Tensor, run: int, signs: Stream) -> Tensor:
    """(rows, numel) padded to whole runs and turned: (rows, coded)."""
    numel = x.shape[1]
    return _turned(hadamard.rotate, F.pad(x, (0, -numel % run)), run, numel, signs)


def rotated_back(y: Tensor, run: int, numel: int, signs: Stream) -> Tensor:
    """The inverse of `rotated`: (rows, numel)."""
    return _turned(hadamard.unrotate, y, run, numel, signs)[:, :numel].contiguous()


def _turned(transform: Callable[..., Tensor], x: Tensor, run: int, numel: int, signs: Stream) -> Tensor:
    """Row i takes the signs from i·`numel` on, padded or not, so that the owner of a shard finds them there."""
    if x.shape[0] == signs.parts or x.shape[1] == numel:
        return transform(x, run, signs)
    places = [
        (key, offset + i * numel) for part, key, offset in signs.each(x.shape[0]) for i in range(part.stop - part.start)
    ]
    keys, offsets = zip(*places, strict=True)
    return transform(x, run, Stream(keys, offsets))
