"""What goes on from step to step: its number, the units of gradient and memories, what is committed or skipped.

A program changes nothing here. What the units of a step return is committed by `finish_step`, and only if all results
are finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gradwire.adaptive import Controller
from gradwire.collectives.scatter_reduce_gather import OWNER_ERROR
from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import Incompatible
from gradwire.core.layout import Layout
from gradwire.core.state import Transaction
from gradwire.core.window import total
from gradwire.graphs import Graphs, lies
from gradwire.kernels.commit import settle
from gradwire.memory.base import ERROR, Memory
from gradwire.setup import SetUp
from gradwire.unit import Errors, UnitResult


class Steps(SetUp):
    """The steps of the workers of one process. For the arguments see `Engine`."""

    def __init__(
        self,
        codec: str | Codec | None,
        memory: str | Memory,
        strategy: str | Strategy,
        controller: str | Controller | None,
        tensors: str,
        ranks: Sequence[int],
        workers: int,
        graphs: bool,
    ) -> None:
        self.graphs = Graphs(graphs)
        super().__init__(codec, memory, strategy, controller, tensors, ranks, workers)
        self.step = 0
        self.loss_scale = 1.0
        self._scale = 1.0  # loss scale over learning rate: the units of today's gradient
        self.kept_scale: float | Tensor = 1.0  # the units of what the memories hold
        self._skipped = torch.zeros((), dtype=torch.int64)
        self._observed: dict[str, dict[str, Tensor]] = {}
        self._squares = torch.zeros(2)  # of measured errors, and of exact means
        self.errors: tuple[Errors, ...] = ()  # of the last step in which they were measured, unit by unit
        self.errors_step: int | None = None  # which one that was

    def forget_layouts(self) -> None:
        super().forget_layouts()
        self.graphs.forget()

    def take_over(self, other: Steps) -> None:
        """Go on with what another engine of the same workers keeps. Both then keep it together."""
        self.groups, self.owners, self.kept_scale = other.groups, other.owners, other.kept_scale
        self.forget_layouts()

    def debt(self) -> float:
        """The norm of all that the memories still owe; an accelerator is waited for."""
        pieces = [p for g in self.groups for kind in (ERROR, OWNER_ERROR) for p in g.store.pieces(kind)]
        norms = [p.entry.tensor.norm() for p in pieces]
        return float(torch.stack(norms).norm()) if norms else 0.0

    def forget_own(self) -> None:
        """Drop what each worker keeps for itself, and what was captured for it; what all have alike stays."""
        for group in self.groups:
            group.store.forget_own()
        self.forget_layouts()

    def begin_step(self, loss_scale: float = 1.0, learning_rate: float = 1.0) -> None:
        """Say in which units the coming gradients are, so that memories can follow."""
        self._scale, self.loss_scale = loss_scale / learning_rate, loss_scale

    def finish_step(self, results: Sequence[UnitResult]) -> None:
        """All units of this step are reduced: commit what they wrote, if all of it is finite."""
        if results:
            writes = [one for result in results for one in result.writes]
            flags = [flag for result in results for flag in result.flags]
            on_host = not flags or flags[0].device.type == "cpu"
            finite = self._on_host(flags) if on_host else self._on_device(flags, writes)
            for one in writes:
                one.commit(finite)
            for squares in (r.squares for r in results if r.squares is not None):
                self._squares = self._squares.to(squares.device) + squares
            if found := [r.errors for r in results if r.errors is not None]:
                self.errors, self.errors_step = tuple(found), self.step
        self._observed = {}
        self.step += 1

    def _on_host(self, flags: Sequence[Tensor]) -> Tensor:
        """Whether the step is finite; it is counted."""
        finite = total(flags, torch.zeros(())) == 0
        if flags:  # else nothing is kept
            self._skipped = self._skipped.cpu() + finite.logical_not()
            self.kept_scale = self._scale if bool(finite) else self.kept_scale
        return finite

    def _on_device(self, flags: Sequence[Tensor], writes: Sequence[Transaction]) -> Tensor:
        """The same, decided there, so that the host never waits. What is counted stays where it is: it is captured."""
        device = flags[0].device
        if not isinstance(self.kept_scale, Tensor):
            self.kept_scale = torch.full((), self.kept_scale, device=device)
        kept, self._skipped = self.kept_scale, self._skipped.to(device)  # either may lie there already
        written = [(pending, current) for one in writes for _, current, pending in one.turns()]
        end = partial(settle, flags, written, self._skipped, kept, self._scale)
        if not self.graphs.serve(flags[0]) or any(old is None for _, old in written):
            return end()
        tensors = [*flags, *(t for pair in written for t in pair if t is not None), kept, self._skipped]
        return self.graphs.repeat((*map(lies, tensors), self._scale), end)

    def restore(self, skipped_steps: int, scale: float) -> None:
        """Continue with these counts, and state in these units of the gradient."""
        self._skipped, self.kept_scale = torch.tensor(skipped_steps), scale
        self.forget_layouts()

    @property
    def skipped_steps(self) -> int:
        """Steps whose result was not finite, and which left the memories as they were; without any, 0 under `none`."""
        return int(self._skipped)

    def nmse(self, *, forget: bool = False) -> float | None:
        """Normalised squared error of all measured results against the exact mean; `forget` starts anew."""
        error, norm = self._squares.tolist()
        if forget:
            self._squares = torch.zeros(2)
        return error / norm if norm else None

    def residual_norms(self) -> dict[str, float]:
        """Of what is owed, by parameter; an accelerator is waited for once."""
        pieces = self.store.pieces(ERROR)
        if not pieces:
            return {}
        found = torch.stack([piece.entry.tensor.norm() for piece in pieces]).tolist()
        return dict(zip([piece.name for piece in pieces], found, strict=True))

    def observe(self, kind: str, values: Mapping[str, Tensor]) -> None:
        """Tell the codec something about the coming step that gradients do not show: (rows, numel) by parameter.

        The codec `variance`, for one, asks for "squares": the sum of the squares of per-example gradients.
        """
        if self.per_node > 1:
            raise Incompatible(
                f"gradwire: under hierarchical a codec sees the mean gradient of a node, and {kind!r} of one rank says "
                "nothing about that. Choose another strategy, or leave observe out."
            )
        self._observed.setdefault(kind, {}).update(values)

    def watch(self, x: Tensor, layout: Layout) -> None:
        """Show the workers' gradients to the controller, if there is one."""
        if self.steering is not None:
            self.steering.watch(x, layout, self.loss_scale)
