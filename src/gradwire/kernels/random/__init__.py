"""Random words by counter: a number depends on a key and its position alone.

It does not depend on the device, on how the work was cut, or on what was drawn before. There are two kinds:

- `words`: Philox-4x32-10. Element i of a stream is word i mod 4 of the block ``philox(counter = i div 4, key)``.
  `uniform` takes the upper 24 bits of a word, so its values are the multiples of 2⁻²⁴ in [0, 1).
- `quick_words`: a hash of the position, two multiplications a word, for stochastic rounding, where every element needs
  a number and only its independence of the data matters. With the lower and upper half k₀, k₁ of the key and all
  arithmetic modulo 2³², word i is

      x = i + k₀ + 0x9E3779B9·(i div 2³²);   x ^= x >> 16;   x = x·0x7FEB352D ^ k₁;   x ^= x >> 15
      x = x·0x846CA68B;   x ^= x >> 16

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3. SC 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import run
from gradwire.kernels.random import reference


def words(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Uniform 32-bit words, as int64 in [0, 2³²)."""
    return run(reference.words, stream, shape, device)


def uniform(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Float32 numbers, uniform in [0, 1).

    Args:
        stream: of a `Random`: ``rng.private("round")``, say.
        shape: of the tensor; its rows are dealt out to the stream's workers.
        device: where it shall lie.

    Example:
        >>> from gradwire.core.random import Random
        >>> noise = uniform(Random(seed=1).private("round"), (1, 1001), torch.device("cpu"))
        >>> tuple(noise.shape), bool((noise >= 0).all() and (noise < 1).all())
        ((1, 1001), True)
        >>> x = torch.full((1, 1001), 0.25)  # stochastic rounding: the mean stays
        >>> abs(float((x + noise).floor().mean()) - 0.25) < 0.05
        True
    """
    return run(reference.uniform, stream, shape, device)


def quick_words(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Uniform 32-bit words by the quick hash, as int64 in [0, 2³²)."""
    return run(reference.quick_words, stream, shape, device)


def halves(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Float32 midpoints of 2¹⁶ cells of [0, 1): element i is half i mod 2, the lower first, of quick word i div 2."""
    return run(reference.halves, stream, shape, device)


def coins(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Fair booleans; element i is bit i mod 32 of word i div 32.

    Args:
        stream: of a `Random`: ``rng.private("round")``, say.
        shape: of the tensor; its rows are dealt out to the stream's workers.
        device: where it shall lie.
    """
    return run(reference.coins, stream, shape, device)


def normal(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    """Standard normal float32 numbers (Box and Muller), evaluated in float64 so that devices agree closely.

    Args:
        stream: of a `Random`: ``rng.private("round")``, say.
        shape: of the tensor; its rows are dealt out to the stream's workers.
        device: where it shall lie.
    """
    bits = words(stream, (2, *shape), device).double()
    radius = torch.sqrt(-2 * torch.log((bits[0] + 1) * 2.0**-32))
    return (radius * torch.cos(bits[1] * (2 * math.pi * 2.0**-32))).float()
