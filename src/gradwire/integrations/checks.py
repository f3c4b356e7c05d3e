"""`attach(..., check=True)`: from time to time, look whether compression still does what it should.

In a checked step

1. parameters are compared over the ranks, by the sums of each (`kernels.checksum`): replicas must be equal to the last
   bit;
2. of a lossless codec, every unit is compared with what torch computes, bit for bit;
3. of any other, the error of the result against the exact mean is measured, as `nmse_every` does;
4. of a memory, the norm of what is owed is compared with that of the gradient.

What is wrong is told once for each kind, with what was seen and what to do. Nothing is changed: training goes on as
without, to the last bit. A checked step sends the gradient uncompressed, too, and waits for what it looks at.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.core.exchange import Gather, Payload, Program
from gradwire.core.layout import Layout
from gradwire.core.registry import Check
from gradwire.core.traits import Traits
from gradwire.engine import Engine
from gradwire.kernels.checksum import sums
from gradwire.memory.base import Memory
from gradwire.session import Session

EVERY = 100  # steps
REPLICAS, LOSSLESS, ERROR, RESIDUAL = "replicas", "lossless", "error", "residual"
FIRST = 3  # measurements that say what is usual
WORSE = 10.0  # times the usual error
AS_LARGE = 0.5  # of the gradient's square: an error about as large as the gradient
MARGIN = 2.0  # bounds hold in the mean
LEAST_BOUND, UNCLAIMED_BOUND = 3.0, 100.0  # gradients that may be owed: at least, and where no contraction is claimed
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element


def steps_between(check: bool | int) -> int:
    """Two checks, of what `attach` was told; 0: there are none."""
    if isinstance(check, bool):
        return EVERY if check else 0
    Check("attach").integer("check", check, 1)
    return check


class Checks:
    """Looks at the work of one rank's session.

    Args:
        session: of one codec.
        replicas: the parameters that all its ranks must have alike, just now.
        every: steps between two checks.
    """

    def __init__(self, session: Session, replicas: Callable[[], Mapping[str, Tensor]], every: int) -> None:
        self.engine, self.every = session.engine, every
        self._session, self._replicas = session, replicas
        self._step, self._due = 0, False  # its number, and whether it is checked
        self._before: list[tuple[Tensor, Tensor, Layout]] = []  # of a lossless codec: buffer, and the gradient in it
        self._squares: list[Tensor] = []  # of this step's gradient, by unit
        self._largest = 0.0  # norm of a gradient, of all checked steps
        self._usual: list[float] = []  # the first errors
        self._told: dict[str, str] = {}  # warnings by kind
        self._seen: dict[str, Any] = {"steps": 0, "error": None, "owed": None, "bound": bound(self.engine)}

    @property
    def seen(self) -> dict[str, Any]:
        """What was seen until now."""
        return {**self._seen, "warnings": dict(self._told)}

    # ---------------------------------------------------------------- what is looked at

    def begin(self) -> None:
        """A step begins: compare parameters, if it is checked."""
        self._session.raise_error()
        self._before, self._squares = [], []
        self._step = self.engine.step
        self._due = self._step % self.every == 0
        if self._due:
            self._seen["steps"] += 1
            self._compare_replicas()

    def look_at(self, buffer: Tensor, layout: Layout) -> None:
        """A gradient is there: look at it, before anything is written over it.

        Args:
            buffer: flat, where the result will be.
            layout: which parameter lies where.
        """
        if not self._due:
            return
        self._squares.append(buffer.detach().float().square().sum())
        if self.engine.lossless:
            self._before.append((buffer, buffer.detach().clone(), layout))

    def finish(self, plan: Sequence[tuple[str, ...]]) -> None:
        """All results of a step are there.

        Args:
            plan: the tensors of its units.
        """
        squares = [(unit, s) for unit, s in zip(plan, self._session.squares, strict=True) if s is not None]
        if not self._due and not squares:
            return
        if self._session.device.type == "cuda":
            torch.cuda.synchronize(self._session.device)
        if squares and not self.engine.lossless:
            self._look_at_error(squares)
        if self._due:
            self.compare_with_sum()
            self._look_at_memory()
        self._due = False

    def _compare_replicas(self) -> None:
        parameters = self._replicas()
        if not parameters:
            return
        own = torch.cat([_sums(p.detach()) for p in parameters.values()])
        everyones = self._session.run(_gathered(own)).view(-1, *own.shape).tolist()
        found = odd_one_out([list(map(tuple, row)) for row in everyones], list(parameters))
        if found is None:
            return
        rank, name, count = found
        self._warn(
            REPLICAS,
            f"rank {rank} has another {name!r} than most ranks ("
            f"{count} of {len(parameters)} tensors differ somewhere): the replicas have drifted apart, and their "
            "gradients no longer belong to one model. Something changes parameters on one rank alone (an optimizer of "
            "its own, a checkpoint that one rank loads, a broken device): find it, and start all ranks again from one "
            "checkpoint",
            common=self._rank != rank,
        )

    def compare_with_sum(self) -> None:
        """Compare the results of a lossless codec with the sum that torch would make, of the gradients as they were."""
        for result, gradient, layout in self._before:
            gradient.mul_(1.0 / self.engine.workers)
            dist.all_reduce(gradient, group=self._session.group)
            different = (_bits(gradient) != _bits(result)).nonzero()
            if different.numel():
                at, count = int(different[0]), len(different)
                self._warn(
                    LOSSLESS,
                    f"codec {self.engine.codec.spec} says that it loses nothing, and {count} of {len(result)} elements "
                    f"of a unit are not what torch computes, the first in {_holder(layout, at)!r}. Do not trust "
                    "this run: compare with gradwire detached (handle.detach()), and report the codec",
                )
        self._before = []

    def _look_at_error(self, squares: Sequence[tuple[tuple[str, ...], Tensor]]) -> None:
        pairs = [(unit, *measured.tolist()) for unit, measured in squares]
        error, exact = (math.fsum(pair[i] for pair in pairs) for i in (1, 2))
        if not exact > 0 or not math.isfinite(error):  # a step that a loss scaler skips
            return
        self._seen["error"] = error / exact
        if len(self._usual) < FIRST:
            self._usual.append(error / exact)
        elif error / exact > error_limit(self._usual):
            worst = max(pairs, key=lambda pair: pair[1])[0]
            more = f" and {len(worst) - 1} more tensors" if len(worst) > 1 else ""
            self._warn(
                ERROR,
                f"the error of the result is {error / exact:.3g} of the exact mean's square, and was "
                f"{median(self._usual):.3g} at first; most of it is in {worst[0]!r}{more}. Either codec "
                f"{self.engine.codec.spec} is broken, or the mean gradient has become small beside what single ranks "
                "have: compress less from here on, or detach",
            )

    def _look_at_memory(self) -> None:
        norms = self.engine.residual_norms()
        gradient = math.sqrt(float(torch.stack(self._squares).sum()))
        if not norms or not math.isfinite(gradient):
            return
        self._largest = max(self._largest, gradient)
        owed = math.hypot(*norms.values()) * float(self.engine.rescale())
        if not self._largest or not math.isfinite(owed):
            return
        ratio = self._seen["owed"] = owed / self._largest
        if ratio > self._seen["bound"]:
            name = max(norms, key=norms.__getitem__)
            self._warn(
                RESIDUAL,
                f"rank {self._rank} owes {ratio:.3g} times its largest gradient, more than the "
                f"{self._seen['bound']:.3g} that codec {self.engine.codec.spec} may leave behind, most of it of "
                f"{name!r}: what is sent never catches up. Send more (a larger ratio, rank or number of bits), or use "
                "memory='none' with a codec that is unbiased",
                common=False,
            )

    @property
    def _rank(self) -> int:
        return self.engine.ranks[0]

    def _warn(self, kind: str, what: str, *, common: bool = True) -> None:
        """Once for each kind; what all ranks see, rank 0 tells."""
        if kind in self._told:
            return
        self._told[kind] = f"gradwire check, step {self._step}: {what}."
        if self._rank == 0 or not common:
            warnings.warn(self._told[kind], stacklevel=2)


# ---------------------------------------------------------------- decisions, and what they are made of


def _sums(x: Tensor) -> Tensor:
    return sums(x.contiguous().view(1, -1).view(torch.uint8))


def _bits(x: Tensor) -> Tensor:
    return x.view(BITS[x.element_size()])


def _gathered(values: Tensor) -> Program[Tensor]:
    """Every rank's whole numbers, in a row."""
    answer = yield Gather(Payload(values.view(1, -1).view(torch.uint8)))
    return answer.data.contiguous().view(torch.int64)  # type: ignore[no-any-return]


def odd_one_out(rows: Sequence[Sequence[Hashable]], names: Sequence[str]) -> tuple[int, str, int] | None:
    """The first rank that disagrees with most others, its first such tensor, and of how many tensors anyone does.

    >>> odd_one_out([[1, 2], [1, 2]], ["a", "b"])
    >>> odd_one_out([[1, 2], [1, 3], [1, 2]], ["a", "b"])
    (1, 'b', 1)
    """
    columns = list(zip(*rows, strict=True))
    different = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    if not different:
        return None
    column = columns[different[0]]
    usual = max(column, key=lambda value: (column.count(value), -column.index(value)))
    rank = next(r for r, value in enumerate(column) if value != usual)
    return rank, names[different[0]], len(different)


def error_limit(usual: Sequence[float]) -> float:
    """Above which an error is a drift.

    >>> error_limit([0.001, 0.002, 0.001]), error_limit([0.9, 0.9, 0.8])
    (0.5, 9.0)
    """
    return max(AS_LARGE, WORSE * median(usual))


def bound(engine: Engine) -> float:
    """How many times the largest gradient a memory may owe, by what its codec claims."""
    if engine.steering is not None or not engine.memory.has_state:
        return UNCLAIMED_BOUND
    return owed_bound(engine.codec.traits, engine.memory)


def owed_bound(traits: Traits, memory: Memory) -> float:
    """|e| <= 2 sqrt(1 - delta) / delta times the gradient's bound, in the mean.

    Karimireddy et al., ICML 2019, arXiv:1901.09847, lemma 3. A momentum makes up to 1 / (1 - momentum) gradients of 1.
    """
    delta = contraction(traits)
    claimed = MARGIN * 2 * math.sqrt(1 - delta) / delta if delta > 0 else UNCLAIMED_BOUND
    momentum = float(getattr(memory, "momentum", 0.0))
    return max(LEAST_BOUND, claimed) * float(getattr(memory, "gamma", 1.0)) / (1 - min(momentum, 0.99))


def contraction(traits: Traits) -> float:
    """The delta with which a codec runs under error feedback; 0: none is claimed."""
    if traits.delta is not None:
        return traits.delta
    if traits.omega is None:
        return 0.0
    return 1 - traits.omega if traits.omega < 1 else 1 / (1 + traits.omega)


def _holder(layout: Layout, position: int) -> str:
    """The tensor in which an element of a bucket lies."""
    for segment in layout.segments:
        if position < segment.numel:
            return segment.name
        position -= segment.numel
    return "padding"
