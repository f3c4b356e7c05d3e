"""How a run is trained, whoever computes the gradients: its plan, its learning rates, and what is written down.

`bench.virtual` trains on N workers in one process and `bench.distributed` on N ranks; both follow this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gradwire.adaptive.controller import controllers
from gradwire.bench.tasks import task as find_task
from gradwire.bench.tasks.task import Recipe, Task
from gradwire.core.codec import codecs
from gradwire.core.errors import ConfigError
from gradwire.core.registry import Check, to_spec
from gradwire.memory.base import memories

TURNS = "one device computes all workers in turn: no time of a cluster"
PRECISIONS = ("auto", "float32", "bf16")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run: a task, how its gradients are compressed, and what differs from the task's recipe (None: nothing)."""

    task: str
    codec: str | None = None  # None under a controller
    memory: str = "default"
    strategy: str = "auto"
    controller: str | None = None
    workers: int = 8
    batch: int | None = None  # a worker
    epochs: int | None = None
    seed: int = 0
    learning_rate: float | None = None
    momentum: float | None = None
    compress: str = "matrices"
    device: str = "cpu"
    precision: str = "auto"
    nmse_every: int = 0
    evaluate_every: int = 0  # rounds; 0: each epoch
    patience: int = 0  # evaluations without a better one after which the run stops; 0: never
    synthetic: bool = False

    def __post_init__(self) -> None:
        check = Check("bench accuracy")
        check.integer("workers", self.workers, 1)
        for name in ("batch", "epochs"):
            if getattr(self, name) is not None:
                check.integer(name, getattr(self, name), 1)
        for name in ("nmse_every", "evaluate_every", "patience"):
            check.integer(name, getattr(self, name), 0)
        check.one_of("precision", self.precision, PRECISIONS)
        if (self.codec is None) == (self.controller is None):
            raise ConfigError("bench accuracy: name a codec or a controller, and not both")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError("bench accuracy: there is no CUDA device here; leave --device away for the CPU")

    @property
    def recipe(self) -> Recipe:
        """The task's, with what this plan changes."""
        found = find_task(self.task).recipe
        given = {"batch": self.batch, "epochs": self.epochs, "learning_rate": self.learning_rate}
        given["momentum"] = self.momentum
        changed = {name: value for name, value in given.items() if value is not None}
        if changed.get("momentum") == 0:
            changed["nesterov"] = False
        return replace(found, **changed)  # type: ignore[arg-type]

    @property
    def autocast(self) -> bool:
        return self.precision == "bf16" or (self.precision == "auto" and self.device.startswith("cuda"))

    def what(self, origin: str) -> dict[str, Any]:
        """The parameters of the run's record; `origin` is the data's."""
        task, recipe = find_task(self.task), self.recipe
        controller = None if self.controller is None else controllers.build(self.controller)
        codec = codecs.build(self.codec or (controller.levels[0] if controller else ""))
        memory = memories.build(codec.traits.memory if self.memory == "default" else self.memory)
        return {
            "task": self.task,
            "model": task.model_name,
            "data": origin,
            "codec": codec.spec if controller is None else None,
            "memory": to_spec(memory),
            "strategy": self.strategy,
            "controller": None if controller is None else to_spec(controller),
            "workers": self.workers,
            "batch": recipe.batch,
            "epochs": recipe.epochs,
            "seed": self.seed,
            "learning_rate": recipe.learning_rate,
            "momentum": recipe.momentum,
            "precision": "bf16 autocast" if self.autocast else "float32",
            "compress": self.compress,
        }


def rate(recipe: Recipe, epoch: float) -> float:
    """The learning rate after so many epochs, a fraction included.

    >>> recipe = Recipe(batch=1, epochs=10, optimizer="sgd", learning_rate=1.0, warmup=2, decay="linear")
    >>> [round(rate(recipe, e), 3) for e in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    total = recipe.epochs
    warmup = recipe.warmup * total if recipe.warmup < 1 else recipe.warmup
    if epoch < warmup:
        return recipe.learning_rate * epoch / warmup
    if recipe.decay == "linear":
        return recipe.learning_rate * max(0.0, (total - epoch) / (total - warmup))
    if recipe.decay == "steps":
        passed = sum(epoch >= share * total for share in recipe.milestones)
        return recipe.learning_rate * 10.0**-passed
    if recipe.decay == "constant":
        return recipe.learning_rate
    raise ConfigError(f"recipe: `decay` must be 'linear', 'steps' or 'constant', got {recipe.decay!r}")


def optimizer(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The recipe's; its rate is set before each step."""
    kind, lr, decay = recipe.optimizer, recipe.learning_rate, recipe.weight_decay
    if kind == "sgd":
        return torch.optim.SGD(
            parameters, lr=lr, momentum=recipe.momentum, nesterov=recipe.nesterov, weight_decay=decay
        )
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=decay)
    if kind == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=lr, momentum=recipe.momentum, weight_decay=decay)
    raise ConfigError(f"recipe: `optimizer` must be 'sgd', 'adam' or 'rmsprop', got {kind!r}")


@dataclass
class History:
    """What is known at each evaluation, from the start of the run."""

    rounds: list[int] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    quality: list[float] = field(default_factory=list)
    train_loss: list[float | None] = field(default_factory=list)  # mean since the evaluation before
    nmse: list[float | None] = field(default_factory=list)
    nmse_gradient: list[float | None] = field(default_factory=list)
    payload_bytes: list[int] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)
    residual_norm: list[float | None] = field(default_factory=list)
    levels: list[dict[str, int] | None] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    stopped_early: bool = False
    diverged: bool = False

    def add(self, **values: Any) -> None:
        """One evaluation."""
        for name, value in values.items():
            getattr(self, name).append(value)

    def outcome(self, task: Task, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The record's outcome."""
        metric = task.metric
        lists = {name: value for name, value in vars(self).items() if isinstance(value, list) and name != "quality"}
        return {
            "metric": metric.name,
            "higher_is_better": metric.higher_is_better,
            "best": (max if metric.higher_is_better else min)(self.quality),
            "final": self.quality[-1],
            **lists,
            "floats_sent": [count / 4 for count in self.payload_bytes],
            "levels": self.levels if any(self.levels) else None,
            "stopped_early": self.stopped_early,
            "diverged": self.diverged,
            "published": None if task.published is None else vars(task.published),
            **extra,
        }

    def ends(self, task: Task, patience: int) -> bool:
        """Whether the run is over before its time; says so in the history."""
        self.diverged = self.train_loss[-1] is None
        if patience and len(self.quality) > patience:
            best = (max if task.metric.higher_is_better else min)(self.quality[:-patience])
            self.stopped_early = not any(task.metric.better(q, best) for q in self.quality[-patience:])
        return self.diverged or self.stopped_early
