"""What a catalogue entry knows about its model, and the inputs the model takes.

An entry is data plus one factory; nothing is built until somebody calls the factory. The published
figures stay next to our own so that every difference is written down instead of rediscovered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradwire.core.errors import ConfigError

# One fixed seed: an example has the same values on every call and on every rank.
_EXAMPLE_SEED = 20_190_607


@dataclass(frozen=True)
class Input:
    """One input tensor: its shape without the batch, and for indices the bound they stay below."""

    shape: tuple[int, ...]
    below: int | None = None

    def make(self, batch: int, device: torch.device, generator: torch.Generator) -> Tensor:
        shape = (batch, *self.shape)
        dtype = torch.float32 if self.below is None else torch.int64
        if device.type == "meta":
            return torch.empty(shape, dtype=dtype, device=device)
        # Drawn on the CPU, so that a GPU example holds the same values as a CPU one.
        if self.below is None:
            return torch.randn(shape, generator=generator, device="cpu").to(device)
        return torch.randint(self.below, shape, generator=generator, device="cpu").to(device)


@dataclass(frozen=True)
class ModelInfo:
    """A model of the catalogue: where it comes from, how large it is, what it eats."""

    name: str
    description: str
    parameters: int
    """Published parameter count; ours where the source gives none."""
    tensors: int | None
    """Published number of gradient tensors, None where the source gives none."""
    source: str
    classes: int | None
    """Size of the score axis (axis 1 for one label per sample, the last axis for one per token);
    None where the output holds no class scores."""
    inputs: tuple[Input, ...]
    factory: Callable[[], nn.Module] = field(repr=False)
    note: str = ""
    """How the published figures and ours differ, in numbers, or empty."""

    def example(self, batch: int, device: str | torch.device = "cpu") -> tuple[Tensor, ...]:
        """Inputs for one forward pass. Leaves the global random state alone."""
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ConfigError(f"example of {self.name}: `batch` must be a whole number of at least 1, got {batch!r}")
        return seeded(self.inputs, batch, device)


def seeded(inputs: Iterable[Input], batch: int, device: str | torch.device) -> tuple[Tensor, ...]:
    """The tensors of one forward pass, the same on every call."""
    generator = torch.Generator(device="cpu").manual_seed(_EXAMPLE_SEED)
    return tuple(entry.make(batch, torch.device(device), generator) for entry in inputs)


def image(side: int, channels: int = 3) -> tuple[Input, ...]:
    """A square image."""
    return (Input((channels, side, side)),)


def tokens(length: int, vocabulary: int) -> tuple[Input, ...]:
    """A sequence of token numbers."""
    return (Input((length,), below=vocabulary),)
