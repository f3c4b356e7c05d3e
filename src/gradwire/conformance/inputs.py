"""What every codec is tried on: gradients of many shapes and values, and workers to reduce them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import checkpoint
from gradwire.cluster import VirtualCluster
from gradwire.collectives.trace import echo
from gradwire.conformance import lockstep
from gradwire.core.codec import Codec
from gradwire.core.exchange import Sum, as_answer, as_batch
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.engine import Engine

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (129,), (33, 17), (4, 3, 3, 3), (1, 50), (50, 1)]
SEVERAL = ((40, 30), (17,), (25, 41))  # of three parameters
WORKERS = 3

Gradients = Mapping[str, Sequence[Tensor]]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Gaussian noise."""
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


def gradients(
    workers: int = WORKERS, shapes: Sequence[tuple[int, ...]] = SEVERAL, scale: float = 1.0, seed: int = 0
) -> dict[str, list[Tensor]]:
    """Of several parameters, by name: one of each worker."""
    return {
        f"p{i}": [scale * normal(*shape, seed=1000 * seed + 10 * i + w) for w in range(workers)]
        for i, shape in enumerate(shapes)
    }


def mean_of(tensors: Sequence[Tensor | None]) -> Tensor:
    """In float64."""
    return torch.stack([t.double() for t in tensors if t is not None]).mean(0)


def cluster(codec: str | Codec, workers: int = WORKERS, **options: Any) -> VirtualCluster:
    """Virtual workers. Codecs of large variance are scaled under error feedback; that they say so is no news here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*error feedback over an unbiased codec")
        return VirtualCluster(workers, codec, **options)


class Ranks:
    """The same as ranks of a distributed run: an engine of one row each, driven in lock step."""

    def __init__(self, codec: str | Codec, workers: int = WORKERS, tensors: str = "all", **options: Any) -> None:
        self.engines = lockstep.engines(workers, codec, tensors=tensors, **options)
        self.shapes: dict[str, torch.Size] = {}

    def reduce(self, gradients: Gradients) -> list[dict[str, Tensor]]:
        """One step over one unit: what each rank then holds, by name."""
        self.shapes = {name: tensors[0].shape for name, tensors in gradients.items()}
        layout = Layout.of(self.shapes.items())
        given = [torch.cat([ts[rank].reshape(-1) for ts in gradients.values()]) for rank in range(len(self.engines))]
        flats, _ = lockstep.step(self.engines, layout, given)
        return [
            {s.name: part.view(s.shape) for s, part in zip(layout.segments, layout.split(flat), strict=True)}
            for flat in flats
        ]

    def memory(self, name: str) -> list[Tensor | None]:
        """What each rank has left out so far."""
        return [checkpoint.owed(engine, name, self.shapes[name]) for engine in self.engines]


def agreed(ranks: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The first rank's results, which are those of all bit for bit."""
    first, *others = ranks
    assert all(same(first[name], other[name]) for other in others for name in first), "the ranks differ"
    return first


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Equal bit for bit, two zeros of different sign apart; NaN is as good as NaN."""
    if one is None or other is None:
        return one is other
    alike = (one == other) | (one.isnan() & other.isnan())
    return one.shape == other.shape and one.dtype == other.dtype and bool(alike.all())


def through(codec: str | Codec, x: Tensor, seed: int = 0) -> Tensor:
    """One worker, one step, no memory."""
    return cluster(codec, 1, memory="none", seed=seed).reduce({"w": [x]})["w"]


def rng(seed: int = 0) -> Random:
    """A source of random numbers for `encode` and `decode`."""
    return Random(seed=seed, unit="test")


def sums_in_half(codec: str | Codec, strategy: str) -> bool:
    """Whether the backend adds numbers of 16 bits up."""
    layout = Layout.of([("w", (64, 64))])
    program, answer = Engine(codec, strategy=strategy, tensors="all").reduce(normal(1, 4096), layout), None
    while True:
        try:
            request = program.send(answer)
        except StopIteration:
            return False
        batch = as_batch(request)
        if any(isinstance(e, Sum) and e.tensor.is_floating_point() and e.tensor.itemsize == 2 for e in batch):
            return True
        answer = as_answer(request, [echo(e, 1) for e in batch])
