"""Recommendation: neural collaborative filtering on MovieLens, scored by the hit rate at 10.

Each interaction is one positive example; every epoch draws four items that its user has not met as negatives. A user's
held-out item is ranked among 99 negatives: a hit is a place among the first ten. Equal scores share their places, and
a negative that happens to be the held-out item (156 times in the published list of MovieLens-1M) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.core.errors import ConfigError
from gradwire.laboratory.bench.data import movielens
from gradwire.laboratory.bench.tasks.base import Batch, Carry, Data, Metric, Published, Recipe, Task
from gradwire.laboratory.bench.tasks.common import build, generator, num_steps, shuffled
from gradwire.models import ncf

NEGATIVES = 4  # for each positive
FIRST = 10
_EVALUATE = 1 << 20  # pairs


class InteractionData(Data):
    """Pairs of users and items on one device, as int32."""

    def __init__(self, data: movielens.Interactions, device: torch.device) -> None:
        self.origin = data.title
        self.device = device
        self.items = data.items
        self.users, self.positives = data.train.to(device).unbind(1)
        test = data.test.to(device)
        self.test_users = test[:, 0]
        self.candidates = torch.cat([test[:, 1:], data.negatives.to(device)], dim=1)  # the first is the right one
        # The held-out items count as known: neither may be a negative.
        pairs = torch.cat([data.train.to(device), test]).long()
        self.seen = (pairs[:, 0] * data.items + pairs[:, 1]).sort().values

    def steps(self, workers: int, batch: int) -> int:
        return num_steps(len(self.users) * (1 + NEGATIVES), workers, batch)

    def epoch(self, seed: int, epoch: int, workers: int, batch: int) -> Iterator[list[Batch]]:
        source = generator(seed, epoch)
        count = len(self.users)
        users = self.users.repeat(NEGATIVES)
        items = torch.cat([self.positives, movielens.unseen(users, self.seen, self.items, source)])
        order = shuffled(count * (1 + NEGATIVES), workers, batch, source).to(self.device)
        everything = (self.users[order % count], items[order], (order < count).float())
        for step in range(len(order)):
            yield [tuple(part[step, worker] for part in everything) for worker in range(workers)]

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
        users, items, likes = batch
        return F.binary_cross_entropy_with_logits(model(users, items), likes), ()

    def evaluate(self, model: nn.Module) -> float:
        rows = max(1, _EVALUATE // self.candidates.shape[1])
        parts = (torch.split(part, rows) for part in (self.test_users, self.candidates))
        hits = torch.stack([_hits(model, users, items) for users, items in zip(*parts, strict=True)]).sum()
        return 100.0 * int(hits) / len(self.test_users)


def _hits(model: nn.Module, users: Tensor, items: Tensor) -> Tensor:
    """How many users find their item among the first ten."""
    pairs = users.repeat_interleave(items.shape[1]), items.flatten()
    scores: Tensor = model(*pairs).float().view(items.shape)
    right = scores[:, :1].nan_to_num(nan=-torch.inf)
    others = scores[:, 1:].nan_to_num(nan=torch.inf).masked_fill(items[:, 1:] == items[:, :1], -torch.inf)
    ahead = (others > right).sum(1) + (others == right).sum(1) / 2
    return (ahead < FIRST).sum()


def synthetic() -> movielens.Interactions:
    """256 users of four tastes: each likes 21 of the 50 items of one kind."""
    source = torch.Generator().manual_seed(0)
    users = torch.arange(256).repeat_interleave(21)
    picks = torch.rand(256, 50, generator=source).argsort(1)[:, :21].flatten()
    return movielens.split(
        "synthetic: users of four tastes", users.numpy(), (4 * picks + users % 4).numpy(), torch.arange(5376).numpy()
    )


class Ncf(Task):
    """Hit rate of NeuMF."""

    metric = Metric("hit rate at 10", "%", higher_is_better=True)
    ratings: ClassVar[str]
    limits: ClassVar[tuple[int, int]]  # users and items that the model has rows for

    def model(self, seed: int) -> nn.Module:
        return build(self.model_name, seed)

    def interactions(self, directory: Path | None) -> movielens.Interactions:
        """The data set, if the model has rows for all of it."""
        data = movielens.load(self.ratings, directory)
        if data.users > self.limits[0] or data.items > self.limits[1]:
            raise ConfigError(
                f"{self.name}: the model has rows for {self.limits[0]} users and {self.limits[1]} items, the data have "
                f"{data.users} and {data.items}; --data-dir must hold {data.title} itself"
            )
        return data

    def open(self, directory: Path | None, device: torch.device) -> InteractionData:
        return InteractionData(self.interactions(directory), device)

    def synthetic(self, device: torch.device) -> InteractionData:
        return InteractionData(synthetic(), device)


class NcfMovieLens1M(Ncf):
    name = "ncf-ml1m"
    model_name = "ncf-ml1m"
    ratings = "ml1m"
    limits = (ncf.SMALL_USERS, ncf.SMALL_ITEMS)
    recipe = Recipe(batch=2048, epochs=20, optimizer="adam", learning_rate=4e-3, decay="constant")  # of eight workers


class NcfMovieLens20M(Ncf):
    name = "ncf-ml20m"
    model_name = "ncf"
    ratings = "ml20m"
    limits = (ncf.USERS, ncf.ITEMS)
    # Batch and rate of GRACE's scripts for eight workers; their Adam averages over fewer steps than torch's default.
    recipe = Recipe(batch=131_072, epochs=30, optimizer="adam", learning_rate=4.5e-3, decay="constant")
    published = Published(95.98, "GRACE, Table II")
