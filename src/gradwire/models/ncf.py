"""Neural collaborative filtering (He et al. 2017) for MovieLens-20M: 31,832,577 parameters.

A product of user and item vectors of 64 beside a network 256-256-128-64 over concatenated vectors of
128; one linear layer joins them. Each side keeps its two vectors in one table of width 192, which makes
GRACE's 10 tensors. The tables are 99.7 % of the model, and a batch touches few of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from gradwire.models.catalogue import Input, ModelInfo

USERS = 138_493
ITEMS = 26_744
SMALL_USERS = 6_040  # of MovieLens-1M
SMALL_ITEMS = 3_706


class NeuMF(nn.Module):
    """Scores (as a logit) whether a user likes an item."""

    def __init__(self, users: int, items: int, factors: int, widths: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.sections = [factors, widths[0] // 2]
        self.user = nn.Embedding(users, sum(self.sections))
        self.item = nn.Embedding(items, sum(self.sections))
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
        self.mlp = nn.Sequential(*layers)
        self.head = nn.Linear(factors + widths[-1], 1)
        self._start()

    def _start(self) -> None:
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.01)
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        user_factors, user_rest = self.user(users).split(self.sections, dim=-1)
        item_factors, item_rest = self.item(items).split(self.sections, dim=-1)
        deep = self.mlp(torch.cat([user_rest, item_rest], dim=-1))
        score: Tensor = self.head(torch.cat([user_factors * item_factors, deep], dim=-1))
        return score.squeeze(-1)


def ncf() -> NeuMF:
    return NeuMF(USERS, ITEMS, factors=64, widths=(256, 256, 128, 64), dropout=0.5)


def ncf_small() -> NeuMF:
    return NeuMF(SMALL_USERS, SMALL_ITEMS, factors=64, widths=(256, 256, 128, 64), dropout=0.5)


MODELS = (
    ModelInfo(
        name="ncf",
        description="Neural collaborative filtering (NeuMF) for MovieLens-20M",
        parameters=31_832_577,
        tensors=10,
        source="GRACE, Table II",
        classes=None,
        inputs=(Input((), below=USERS), Input((), below=ITEMS)),
        factory=ncf,
        note="Exact. User and item each keep both their vectors in one table; with separate tables the "
        "count is the same and there are 12 tensors.",
    ),
    ModelInfo(
        name="ncf-ml1m",
        description="Neural collaborative filtering (NeuMF) for MovieLens-1M",
        parameters=1_978_305,
        tensors=10,
        source="ours: GRACE's model with the users and items of MovieLens-1M",
        classes=None,
        inputs=(Input((), below=SMALL_USERS), Input((), below=SMALL_ITEMS)),
        factory=ncf_small,
    ),
)
