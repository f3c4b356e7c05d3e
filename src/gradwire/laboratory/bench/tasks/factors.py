"""Recommendation again, by another model and another loss: matrix factorisation that learns to rank (BPR, 2009).

A user likes an item as much as their two vectors agree, and some items are liked by all: two tables, one bias an item,
no network above them. Every interaction is compared with one item that its user has not met, and the loss asks that it
scores higher. Data and quality are those of `recommendation`: the hit rate at 10 on MovieLens-1M.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.laboratory.bench.data import movielens
from gradwire.laboratory.bench.tasks.base import Batch, Carry, Recipe
from gradwire.laboratory.bench.tasks.common import generator, num_steps, shuffled
from gradwire.laboratory.bench.tasks.recommendation import InteractionData, NcfMovieLens1M, synthetic
from gradwire.models import ncf

WIDTH = 64


class Factors(nn.Module):
    """Scores how well an item fits a user."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        self.bias = nn.Embedding(items, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        score: Tensor = (self.user(users) * self.item(items)).sum(-1) + self.bias(items).squeeze(-1)
        return score


def model() -> Factors:
    """For the users and items of MovieLens-1M."""
    return Factors(ncf.SMALL_USERS, ncf.SMALL_ITEMS, width=WIDTH)


class PairData(InteractionData):
    """Triples of a user, an item of theirs and one they have not met."""

    def steps(self, workers: int, batch: int) -> int:
        return num_steps(len(self.users), workers, batch)

    def epoch(self, seed: int, epoch: int, workers: int, batch: int) -> Iterator[list[Batch]]:
        source = generator(seed, epoch)
        others = movielens.unseen(self.users, self.seen, self.items, source)
        order = shuffled(len(self.users), workers, batch, source).to(self.device)
        triples = (self.users[order], self.positives[order], others[order])
        for step in range(len(order)):
            yield [tuple(part[step, worker] for part in triples) for worker in range(workers)]

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
        users, liked, other = batch
        better, worse = model(users.repeat(2), torch.cat([liked, other])).chunk(2)
        return F.softplus(worse - better).mean(), ()


class BprMovieLens1M(NcfMovieLens1M):
    """Hit rate of a matrix factorisation."""

    name = "bpr-ml1m"
    model_name = f"{__name__}:model"
    recipe = Recipe(batch=2048, epochs=30, optimizer="adam", learning_rate=4e-3, decay="constant")  # of eight workers

    def open(self, directory: Path | None, device: torch.device) -> PairData:
        return PairData(self.interactions(directory), device)

    def synthetic(self, device: torch.device) -> PairData:
        return PairData(synthetic(), device)
