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
from gradwire.kernels.backend import compiled
from gradwire.kernels.random import reference


def words(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Uniform 32-bit words, as int64 in [0, 2³²)."""
    if _compiled(device):
        from gradwire.kernels.random import cpu

        return cpu.words(stream, math.prod(shape)).view(tuple(shape))
    return reference.stream_words(stream, shape, device)


def uniform(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Float32 numbers, uniform in [0, 1)."""
    if _compiled(device):
        from gradwire.kernels.random import cpu

        return cpu.uniform(stream, math.prod(shape)).view(tuple(shape))
    return reference.uniform(stream, shape, device)


def halves(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Float32 midpoints of 2¹⁶ cells of [0, 1): element i is half-word i mod 2, the lower first, of word i div 2."""
    if _compiled(device):
        from gradwire.kernels.random import cpu

        return cpu.halves(stream, math.prod(shape)).view(tuple(shape))
    return reference.halves(stream, shape, device)


def coins(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Fair booleans; element i is bit i mod 32 of word i div 32."""
    if _compiled(device):
        from gradwire.kernels.random import cpu

        return cpu.coins(stream, math.prod(shape)).view(tuple(shape))
    return reference.coins(stream, shape, device)


def normal(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Standard normal float32 numbers (Box and Muller), evaluated in float64 so that devices agree closely."""
    bits = words(stream, (2, *shape), device).double()
    radius = torch.sqrt(-2 * torch.log((bits[0] + 1) * 2.0**-32))
    return (radius * torch.cos(bits[1] * (2 * math.pi * 2.0**-32))).float()


def _compiled(device: torch.device) -> bool:
    return device.type == "cpu" and compiled()
