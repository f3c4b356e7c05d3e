"""How a run is trained, whoever computes the gradients: its plan, its course, and what is written down.

`bench.virtual` trains on N workers in one process and `bench.distributed` on N ranks; both follow this file.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.adaptive import controllers
from gradwire.core import wire
from gradwire.core.codec import codecs
from gradwire.core.errors import ConfigError
from gradwire.core.layout import Layout
from gradwire.core.registry import Check, to_spec
from gradwire.engine import Engine
from gradwire.laboratory.bench.tasks import task as find_task
from gradwire.laboratory.bench.tasks.base import Batch, Data, Recipe, Task
from gradwire.memory.base import memories
from gradwire.planner.training import Curve, Point
from gradwire.unit import default_memory

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
    patience: int = 0  # epochs without a better evaluation after which the run stops; 0: never
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
        choices = [codecs.build(spec) for spec in (controller.levels if controller else [self.codec or ""])]
        memory = memories.build(default_memory(choices) if self.memory == "default" else self.memory)
        unusual = {name: getattr(self, name) for name in ("evaluate_every", "patience") if getattr(self, name)}
        return {
            "task": self.task,
            "model": task.model_name,
            "data": origin,
            "codec": choices[0].spec if controller is None else None,
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
            **unusual,
        }


def open_data(plan: Plan, directory: Path | None = None) -> Data:
    """What the plan trains on: from `directory`, or None for the cache."""
    task, device = find_task(plan.task), torch.device(plan.device)
    return task.synthetic(device) if plan.synthetic else task.open(directory, device)


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
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
    if kind == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=lr, momentum=recipe.momentum, weight_decay=decay)
    raise ConfigError(f"recipe: `optimizer` must be 'sgd', 'adam', 'adamw' or 'rmsprop', got {kind!r}")


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
        points = tuple(map(Point, self.seconds, self.rounds, self.epochs, self.quality))
        self.stopped_early = patience > 0 and Curve(points, task.metric.higher_is_better).end(patience) is not None
        return self.diverged or self.stopped_early


OnEvaluation = Callable[[History], None]


class Training(ABC):
    """One run from its first round to its last: epochs, learning rates, evaluations.

    How a round's gradient comes about, and what all workers together have seen, is left to those who inherit.
    """

    clock: str  # what the seconds are
    engine: Engine  # worker 0's, or this rank's

    def __init__(self, plan: Plan, data: Data) -> None:
        self.plan, self.task, self.recipe, self.data = plan, find_task(plan.task), plan.recipe, data
        self.device = torch.device(plan.device)
        self.model = self.task.model(plan.seed).to(self.device).train()
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.layout = Layout.of((name, p.shape) for name, p in named.items())
        self.parameters = list(named.values())
        self.optimizer = optimizer(self.recipe, self.parameters)
        self.history = History()
        self.steps = data.steps(plan.workers, self.recipe.batch)
        self._epoch = 0
        self._loss, self._rounds = torch.zeros((), device=self.device), 0  # since the last evaluation
        self._begun = 0.0  # when training went on after it

    # ---------------------------------------------------------------- what differs

    @abstractmethod
    def _begin_epoch(self) -> None:
        """Forget what workers hand from step to step."""

    @abstractmethod
    def _reduce(self, group: Sequence[Sequence[Batch]], rate_now: float) -> Tensor:
        """Leave the reduced gradient of some micro-batches in the parameters; returns the loss."""

    @abstractmethod
    def _end_epoch(self, rate_now: float, next_rate: float) -> None:
        """Let the controller decide on the next epoch."""

    @abstractmethod
    def _seen(self) -> dict[str, Any]:
        """What the history shall know of the rounds since the last evaluation, of all workers together."""

    # ---------------------------------------------------------------- the course

    def _train(self, on_evaluation: OnEvaluation, on_epoch: Callable[[], None]) -> History:
        while self._epoch < self.recipe.epochs and not self._over():
            self._train_epoch(on_evaluation)
            self._epoch += 1
            on_epoch()
        return self.history

    def _over(self) -> bool:
        return bool(self.history.rounds) and self.history.ends(self.task, self.plan.patience)

    def _train_epoch(self, on_evaluation: OnEvaluation) -> None:
        plan, every, steering = self.plan, self.plan.evaluate_every, self.engine.steering
        settings = self.engine.settings
        factor = settings.batch_factor
        self._begin_epoch()
        batches = self.data.epoch(plan.seed, self._epoch, plan.workers, self.recipe.batch)
        self._begun = time.perf_counter()
        for step, group in enumerate(_grouped(batches, factor)):
            rate_now = self._rate(step * factor) * settings.rate_factor
            self._step(group, rate_now)
            passed = min((step + 1) * factor / self.steps, 1.0)
            if passed == 1.0 or (every and self._total % every == 0):
                self._evaluate(self._epoch + passed, rate_now, factor)
                on_evaluation(self.history)
        if steering is not None:
            self._end_epoch(self._rate(self.steps - 1), rate(self.recipe, self._epoch + 1))

    def _rate(self, step: int) -> float:
        """The schedule's."""
        return rate(self.recipe, self._epoch + step / self.steps)

    def _step(self, group: Sequence[Sequence[Batch]], rate_now: float) -> None:
        """One round: the micro-batches' gradients, the exchange, the optimizer."""
        for choice in self.optimizer.param_groups:
            choice["lr"] = rate_now
        self._loss = self._loss + self._reduce(group, rate_now)
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimizer.step()
        self._rounds += 1

    @property
    def _measures(self) -> bool:
        """Whether the coming round's error is measured."""
        return self.plan.nmse_every > 0 and self.engine.step % self.plan.nmse_every == 0

    def _exact_bytes(self) -> tuple[int, int]:
        """Of the exact mean that travels where the error is measured, and counts for nobody: payload and sent."""
        exact = 4 * self.engine.picked(self.layout).numel
        return exact, math.ceil(wire.reduced(exact, self.plan.workers))

    # ---------------------------------------------------------------- evaluation

    @property
    def _total(self) -> int:
        """Rounds since the start."""
        return sum(self.history.rounds[-1:]) + self._rounds

    def _evaluate(self, epoch: float, rate_now: float, factor: int) -> None:
        """Write down where the run stands."""
        seen, steering = self._seen(), self.engine.steering  # the clock stops before the evaluation
        self.history.add(
            rounds=self._total,
            epochs=epoch,
            quality=self._quality(),
            nmse=finite(self.engine.nmse(forget=True)) if self.engine.codec.traits.is_mean else None,
            levels=None if steering is None else dict(Counter(steering.specs.values())),
            learning_rates=rate_now,
            batch_sizes=self.plan.workers * self.recipe.batch * factor,
            **seen,
        )
        self._loss, self._rounds = torch.zeros_like(self._loss), 0
        self._begun = time.perf_counter()

    def _quality(self) -> float:
        self.model.eval()
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.plan.autocast):
            quality = float(self.data.evaluate(self.model))
        self.model.train()
        return quality

    def outcome(self) -> dict[str, Any]:
        """What the record tells."""
        steering = self.engine.steering
        extra = {
            "clock": self.clock,
            "switches": [] if steering is None else [switch.to_json() for switch in steering.switches],
            "skipped_steps": self.engine.skipped_steps,
            "parameters": self.layout.numel,
            "tensors": len(self.parameters),
        }
        return self.history.outcome(self.task, extra)


def _grouped(steps: Iterator[list[Batch]], size: int) -> Iterator[list[list[Batch]]]:
    """Micro-batches of one round; the last may have fewer."""
    group: list[list[Batch]] = []
    for step in steps:
        group.append(step)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def finite(value: float | None) -> float | None:
    """None in the place of what is not a number."""
    return value if value is not None and math.isfinite(value) else None
