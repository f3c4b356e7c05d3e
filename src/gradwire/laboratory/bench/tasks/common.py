"""What the tasks share: starting weights, the order of an epoch, perplexity."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gradwire import models
from gradwire.core.errors import ConfigError
from gradwire.core.random import Random

_WORST = 20.0  # nats a word; beyond it perplexity says nothing but "diverged"


def build(name: str, seed: int) -> nn.Module:
    """A model of the catalogue on the CPU; its weights follow from the seed, the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return models.build(name, "cpu")


def generator(seed: int, epoch: int) -> torch.Generator:
    """The source of an epoch's randomness, on the CPU: all devices draw the same numbers."""
    return torch.Generator().manual_seed(Random(seed, epoch).common("task").keys[0])


def num_steps(count: int, workers: int, batch: int) -> int:
    """Steps that `count` examples last, all batches full."""
    if count < workers * batch:
        raise ConfigError(
            f"task: {workers} workers with {batch} examples each need {workers * batch} a step, and the data have "
            f"{count}; take fewer workers or a smaller batch"
        )
    return count // (workers * batch)


def shuffled(count: int, workers: int, batch: int, source: torch.Generator) -> Tensor:
    """A random order of `count` examples, as far as full steps go: indices of shape (steps, workers, batch)."""
    steps = num_steps(count, workers, batch)
    return torch.randperm(count, generator=source)[: steps * workers * batch].view(steps, workers, batch)


def perplexity(loss: Tensor) -> float:
    """exp of the mean loss in nats a word, at most e^20, which also stands for what is not finite."""
    value = float(loss)
    return math.exp(min(value, _WORST) if math.isfinite(value) else _WORST)
