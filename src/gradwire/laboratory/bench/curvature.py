"""Does the norm of the gradient tell the same critical regimes as the loss's curvature? A training that looks twice.

A task is trained without compression on virtual workers. After epochs 0, `every`, 2 `every`, ... two numbers are taken:

- the norm of the sum of the epoch's gradients, which Accordion compares;
- the Hessian's eigenvalue of largest size, of the mean loss over a fixed part of the training data, by power iteration:
  a product of the Hessian and a vector is the derivative of (gradient . vector). Normalisation layers use their running
  statistics, dropout is off, arithmetic is float32.

Accordion's own rule then says of either whether it has changed by more than `eta` since the last look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradwire.adaptive.accordion import regime
from gradwire.core.errors import ConfigError
from gradwire.core.layout import Layout
from gradwire.core.records import Record
from gradwire.core.registry import Check
from gradwire.laboratory.bench import training
from gradwire.laboratory.bench.looking import Looking
from gradwire.laboratory.bench.tasks.base import Batch, Data
from gradwire.laboratory.bench.virtual import Trainer

ETA = 0.5  # Accordion's
ENOUGH = 0.01  # relative change of an eigenvalue between two products, below which it has settled
PRODUCTS = 40  # of the Hessian and a vector, at most


@dataclass(frozen=True, kw_only=True)
class Plan(Looking):
    """What to train, and when to look.

    Args:
        epochs: of the whole schedule; None: the task's.
        every: so many epochs lie between two looks.
        examples: of the training data that the Hessian is of, in whole batches.
    """

    kind: ClassVar[str] = "curvature"
    epochs: int | None = None
    every: int = 10
    examples: int = 1024

    def __post_init__(self) -> None:
        check = Check("bench curvature")
        check.integer("every", self.every, 1, max(1, self.run.recipe.epochs - 1))  # two looks at least
        check.integer("examples", self.examples, 1)

    @property
    def schedule(self) -> int | None:
        return self.epochs

    @property
    def options(self) -> str:
        return f"--epochs {self.run.recipe.epochs} --every {self.every} --examples {self.examples}"

    @property
    def looks(self) -> int:
        """How many, if nothing falls apart."""
        return math.ceil(self.run.recipe.epochs / self.every)


@dataclass(frozen=True)
class Top:
    """The eigenvalue of largest size.

    Args:
        value: the eigenvalue.
        change: of its estimate by the last product, relative.
        products: of the Hessian and a vector that were made.
        vector: the direction, of length 1.
    """

    value: float
    change: float
    products: int
    vector: Tensor


def top_eigenvalue(product: Callable[[Tensor], Tensor], start: Tensor) -> Top:
    """Power iteration.

    Args:
        product: gives the matrix times a vector.
        start: any vector that is not orthogonal to the eigenvector.

    Example:
        >>> matrix = torch.diag(torch.tensor([1.0, -8.0, 3.0]))
        >>> round(top_eigenvalue(lambda v: matrix @ v, torch.ones(3)).value, 2)
        -8.0
    """
    vector, value, change, count = start / start.norm(), math.inf, math.inf, 0
    while count < PRODUCTS:
        found = product(vector)
        size, old, count = float(found.norm()), value, count + 1
        value = float(vector @ found)
        change = abs(value - old) / abs(value) if value else 0.0
        if change < ENOUGH or size == 0:
            break
        vector = found / size
    return Top(value, change, count, vector)


@dataclass(frozen=True)
class Look:
    """What was found after an epoch.

    Args:
        epoch: its number.
        norm: of the sum of its gradients.
        top: the eigenvalue.
    """

    epoch: int
    norm: float
    top: Top

    def critical(self, before: Look) -> dict[str, bool]:
        """What either number says of the epochs since an older look."""
        epochs = self.epoch - before.epoch
        return {
            "norm": regime(before.norm, self.norm, epochs, ETA).critical,
            "eigenvalue": regime(abs(before.top.value), abs(self.top.value), epochs, ETA).critical,
        }


class Curved(Trainer):
    """A training that sums its gradients and looks at the curvature."""

    def __init__(self, plan: Plan, data_dir: Path | None = None) -> None:
        super().__init__(plan.run, data_dir)
        batches = self.data.epoch(plan.seed, 0, 1, self.recipe.batch)
        steps = max(1, math.ceil(plan.examples / self.recipe.batch))
        self.sample = [batch for (batch,) in islice(batches, steps)]
        self.sum = torch.zeros(self.layout.numel, device=self.device)
        drawn = torch.randn(self.layout.numel, generator=torch.Generator().manual_seed(plan.seed))
        self.vector = drawn.to(self.device)  # the last look's, where the next one begins

    def _rows(self, group: Sequence[Sequence[Batch]]) -> tuple[Tensor, Tensor]:
        rows, loss = super()._rows(group)
        self.sum += rows.mean(0)
        return rows, loss

    def norm(self) -> float:
        """Of the sum of the gradients since the last call."""
        size = float(self.sum.norm())
        self.sum.zero_()
        return size

    def top(self) -> Top:
        """At the weights as they are."""
        found = top_eigenvalue(lambda v: hessian_product(self.model, self.data, self.sample, v), self.vector)
        self.vector = found.vector
        return found


def hessian_product(model: nn.Module, data: Data, sample: Sequence[Batch], vector: Tensor) -> Tensor:
    """The Hessian of the mean loss over some batches, times a vector; nothing of the model changes."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    layout = Layout.of((str(i), p.shape) for i, p in enumerate(parameters))
    pieces = [piece.view_as(p) for p, piece in zip(parameters, layout.split(vector), strict=True)]
    total = torch.zeros_like(vector)
    with _twice_differentiable(model):
        for batch in sample:
            loss, _ = data.loss(model, batch, data.carry(len(batch[0])))
            first = torch.autograd.grad(loss, parameters, create_graph=True)
            along = torch.stack([(g * v).sum() for g, v in zip(first, pieces, strict=True)]).sum()
            second = torch.autograd.grad(along, parameters, materialize_grads=True)
            total += torch.cat([g.flatten() for g in second])
    return total / len(sample)


@contextmanager
def _twice_differentiable(model: nn.Module) -> Iterator[None]:
    """As when a model is evaluated, and without the fast paths that have no second derivative."""
    model.eval()
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        try:
            yield
        finally:
            model.train()


def measure(
    plan: Plan, data_dir: Path | None = None, on_look: Callable[[Record], None] = lambda record: None
) -> list[Record]:
    """Train, and look: one record a look. A training that falls apart is not looked at any more.

    Args:
        plan: what to measure.
        data_dir: where the data set lies; None: in the cache, downloaded if need be.
        on_look: is given each, as soon as it is there.
    """
    curved, looks, found = Curved(plan, data_dir), list[Look](), list[Record]()

    def look(history: training.History) -> None:
        epoch, norm = len(history.quality) - 1, curved.norm()
        if epoch % plan.every or not math.isfinite(norm):
            return
        looks.append(Look(epoch, norm, curved.top()))
        if not math.isfinite(looks[-1].top.value):
            raise ConfigError(
                f"bench curvature: the Hessian of {plan.task} has products that are not finite after epoch {epoch + 1}"
            )
        found.append(_record(plan, curved, looks, history.quality[-1]))
        on_look(found[-1])

    curved.run(look)
    return found


def _record(plan: Plan, curved: Curved, looks: Sequence[Look], quality: float) -> Record:
    now = looks[-1]
    return plan.record(
        curved,
        {"epoch": now.epoch, "every": plan.every, "examples": plan.examples, "eta": ETA},
        "the Hessian's eigenvalue of largest size",
        (now.top.value,),
        {
            "eigenvalue": now.top.value,
            "change": now.top.change,
            "products": now.top.products,
            "norm": now.norm,
            "critical": None if len(looks) == 1 else now.critical(looks[-2]),
            "quality": quality,
            "learning_rate": training.rate(curved.recipe, now.epoch),
        },
    )
