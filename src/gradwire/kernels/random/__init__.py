"""Random words by counter: Philox-4x32-10.

Element i of a stream is word i mod 4 of the block ``philox(counter = i div 4, key)``. A number thus depends on
the key and the element's position alone: not on the device, on how the work was cut, or on what was drawn before.
`uniform` takes the upper 24 bits of a word, so its values are the multiples of 2⁻²⁴ in [0, 1).

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3. SC 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.random import reference


def words(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Uniform 32-bit words, as int64 in [0, 2³²)."""
    numel = math.prod(shape)
    if device.type == "meta":
        return torch.empty(tuple(shape), dtype=torch.int64, device=device)
    first, skip = divmod(stream.offset, 4)
    blocks = -(-(skip + numel) // 4)
    return reference.words(stream.key, first, blocks, device)[skip : skip + numel].view(tuple(shape))


def uniform(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Float32 numbers, uniform in [0, 1)."""
    return (words(stream, shape, device) >> 8).float() * 2.0**-24


def halves(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Float32 midpoints of 2¹⁶ cells of [0, 1): element i is half-word i mod 2, the lower first, of word i div 2."""
    first, skip = divmod(stream.offset, 2)
    numel = math.prod(shape)
    draws = words(Stream(stream.key, first), (-(-(skip + numel) // 2), 1), device)
    parts = torch.cat((draws & 0xFFFF, draws >> 16), dim=1).view(-1)[skip : skip + numel]
    return ((parts.float() + 0.5) * 2.0**-16).view(tuple(shape))


def coins(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Fair booleans; element i is bit i mod 32 of word i div 32."""
    first, skip = divmod(stream.offset, 32)
    numel = math.prod(shape)
    draws = words(Stream(stream.key, first), (-(-(skip + numel) // 32), 1), device)
    bits = (draws >> torch.arange(32, device=device)) & 1
    return bits.view(-1)[skip : skip + numel].view(tuple(shape)) != 0


def normal(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Standard normal float32 numbers (Box and Muller), evaluated in float64 so that devices agree closely."""
    bits = words(stream, (2, *shape), device).double()
    radius = torch.sqrt(-2 * torch.log((bits[0] + 1) * 2.0**-32))
    return (radius * torch.cos(bits[1] * (2 * math.pi * 2.0**-32))).float()
