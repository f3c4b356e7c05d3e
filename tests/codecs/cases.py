"""What every codec is tried on. New codecs come from the registry: add nothing here."""

from __future__ import annotations

import torch
from torch import Tensor

import gradwire
from gradwire.collectives.choose import possible
from gradwire.core.codec import Combine, codecs
from gradwire.core.random import Random

CODECS = [
    codec
    for name in codecs.names()
    for codec in [gradwire.codec(name), *map(gradwire.codec, codecs.cls(name).variants)]
]
ONE_SHOT = [c for c in CODECS if c.traits.combine is not Combine.ROUNDS]
SHAPES = [(), (0,), (1,), (7,), (129,), (33, 17), (4, 3, 3, 3), (1, 50), (50, 1)]
STRATEGIES = [(c, s) for c in CODECS for s in (possible(c) or ["auto"])]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


NASTY = {
    "zeros": torch.zeros(40, 10),
    "constant": torch.full((40, 10), 0.25),
    "one_hot": torch.eye(20)[3].repeat(20, 1) * torch.eye(20)[:, 3:4],
    "negative": -normal(40, 10).abs(),
    "tiny": normal(40, 10) * 1e-30,
    "denormal": normal(40, 10) * 1e-41,
    "large": normal(40, 10) * 1e3,
    "heavy_tail": normal(40, 10) ** 5,
    "one_value": torch.tensor([[3.0]]),
}


def cluster(codec, workers=3, **options):
    return gradwire.VirtualCluster(workers, codec, **options)


def through(codec, x: Tensor, seed: int = 0) -> Tensor:
    """One worker, one step, no memory."""
    return cluster(codec, 1, memory="none", seed=seed).reduce({"w": [x]})["w"]


def rng(seed: int = 0) -> Random:
    return Random(seed=seed, unit="test")
