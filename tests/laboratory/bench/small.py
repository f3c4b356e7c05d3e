"""The task "shapes" with a narrow net and few images, for tests: hundreds of rounds in a second or two."""

from __future__ import annotations

import torch
from torch import nn

from gradwire.laboratory.bench import distributed
from gradwire.laboratory.bench.tasks import drawn

TRAIN, TEST = 512, 256  # images


def shrink(put=setattr):
    """Change the task in this process; `put` may be monkeypatch's setattr."""
    put(drawn, "_TRAIN", TRAIN)
    put(drawn, "_TEST", TEST)
    put(drawn.Shapes, "model", lambda self, seed: narrow(seed))


def narrow(seed):
    """15,000 weights: filters and a matrix that are compressed, and a matrix and biases that are too small for it."""
    net = nn.Sequential(
        nn.Conv2d(1, 20, 8, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(320, 40), nn.ReLU(), nn.Linear(40, 10)
    )
    generator = torch.Generator().manual_seed(seed)
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
    return net


def train_small(rank, *arguments):
    """What ranks of another process do, with the task shrunk there, too."""
    shrink()
    return distributed.train(rank, *arguments)
