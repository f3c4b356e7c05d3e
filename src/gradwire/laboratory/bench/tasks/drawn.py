"""Shapes as a task: ten drawn outlines told apart by a small net, in seconds on one core. See `shapes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.laboratory.bench.tasks import shapes
from gradwire.laboratory.bench.tasks.base import Batch, Carry, Data, Metric, Recipe, Task
from gradwire.laboratory.bench.tasks.common import generator, num_steps, shuffled

_TRAIN, _TEST = 4_096, 1_024  # images


class ShapeData(Data):
    """Images and labels on one device."""

    origin = "synthetic: drawn shapes"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.images, self.labels = (part.to(device) for part in shapes.data(_TRAIN, seed=0))
        self.test, self.test_labels = (part.to(device) for part in shapes.data(_TEST, seed=1))

    def steps(self, workers: int, batch: int) -> int:
        return num_steps(_TRAIN, workers, batch)

    def epoch(self, seed: int, epoch: int, workers: int, batch: int) -> Iterator[list[Batch]]:
        order = shuffled(_TRAIN, workers, batch, generator(seed, epoch)).to(self.device)
        for step in order:
            yield [(self.images[chosen], self.labels[chosen]) for chosen in step]

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
        images, labels = batch
        return F.cross_entropy(model(images), labels), ()

    def evaluate(self, model: nn.Module) -> float:
        right = (model(self.test).argmax(1) == self.test_labels).sum()
        return 100.0 * int(right) / _TEST


def net() -> nn.Module:
    """The net for whoever counts its bytes or traces it."""
    return shapes.model(0)


class Shapes(Task):
    """Accuracy on drawn shapes. All its data are made up, so `open` and `synthetic` give the same."""

    name = "shapes"
    model_name = f"{__name__}:net"
    metric = Metric("top-1 accuracy", "%", higher_is_better=True)
    recipe = Recipe(batch=32, epochs=5, optimizer="sgd", learning_rate=0.05, momentum=0.9, decay="linear")

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):  # torch draws its own start before ours
            return shapes.model(seed)

    def open(self, directory: Path | None, device: torch.device) -> ShapeData:
        return ShapeData(device)

    def synthetic(self, device: torch.device) -> ShapeData:
        return ShapeData(device)
