"""What a task is: a model, its data, and the recipe by which it is trained. One file a task, one line in the list.

A `Task` is a description and costs nothing; `open` loads its data onto a device. The same task is trained on N virtual
workers in one process (`bench.virtual`) and by N ranks under DDP (`bench.distributed`): batches follow from seed,
epoch and worker alone, so that both see the same ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]
Carry = tuple[Tensor, ...]  # what one worker hands from a step to its next: the states of a recurrent net


@dataclass(frozen=True)
class Metric:
    """What quality means."""

    name: str
    unit: str
    higher_is_better: bool

    def better(self, one: float, other: float) -> bool:
        return one > other if self.higher_is_better else one < other


@dataclass(frozen=True)
class Published:
    """What a paper reports for this task without compression."""

    quality: float
    source: str


@dataclass(frozen=True)
class Recipe:
    """How the task is trained unless told otherwise."""

    batch: int  # examples a worker and step
    epochs: int
    optimizer: str  # "sgd", "adam", "adamw" or "rmsprop"
    learning_rate: float  # at its peak
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    warmup: float = 0.0  # epochs, or the share of all epochs if below 1, over which the rate rises linearly
    decay: str = "steps"  # "steps": divided by ten at `milestones`; "linear": to zero at the end; "constant"
    milestones: tuple[float, ...] = (0.5, 5 / 6)  # shares of all epochs
    clip: float = 0.0  # of the reduced gradient's norm; 0: never


class Data(ABC):
    """A task's data on one device."""

    origin: str  # the data set's name; what is made up says "synthetic: ..."

    @abstractmethod
    def steps(self, workers: int, batch: int) -> int:
        """Steps of an epoch: all workers' batches are full, what is left over is not used in that epoch."""

    @abstractmethod
    def epoch(self, seed: int, epoch: int, workers: int, batch: int) -> Iterator[list[Batch]]:
        """The steps of an epoch: for each worker its batch, tensors of the same shapes in all steps."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
        """The mean loss of a batch, and what the worker's next step takes over (detached)."""

    def carry(self, batch: int) -> Carry:
        """What the first step of an epoch takes over."""
        return ()

    @abstractmethod
    def evaluate(self, model: nn.Module) -> float:
        """Quality on held-out data, in the metric's unit; the model is in eval mode, without gradients."""


class Task(ABC):
    """A model, its data and its recipe."""

    name: ClassVar[str]
    model_name: str  # in `gradwire.models`, whose traces the performance model knows
    metric: Metric
    recipe: Recipe
    published: Published | None = None

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """The model on the CPU, with starting weights that follow from the seed alone."""

    @abstractmethod
    def open(self, directory: Path | None, device: torch.device) -> Data:
        """Load the data: from `directory`, or None for the cache, downloading what is missing."""

    @abstractmethod
    def synthetic(self, device: torch.device) -> Data:
        """Tiny made-up data of the same kind, to try things out."""
