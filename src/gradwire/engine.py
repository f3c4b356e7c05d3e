"""The one file where codec, memory and strategy meet. Read it first.

An `Engine` stands for the workers of one process: one under torch.distributed, all of them in a virtual cluster, as
rows. For each unit of compression (flat gradients and their layout) `reduce` returns a program, a generator of
exchanges, that any driver can carry out:

1. split the unit: vectors and tiny tensors go as they are, in one sum that travels beside the codec's first exchange;
2. ask the memory what it adds;
3. let the codec reduce the rest over the workers, from where it lies to where it belongs.

Under `hierarchical` this happens between nodes, for each share of the unit by the workers that own it. A program
changes nothing in the engine. What the units of a step return is committed by `finish_step`, and only if all results
are finite: a step that a loss scaler will skip leaves the memories as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gradwire.adaptive import Controller
from gradwire.core.codec import Codec, Context, Strategy, nonfinite_flag
from gradwire.core.errors import ConfigError
from gradwire.core.exchange import Exchange, Program, Sum, side_by_side, together, within
from gradwire.core.layout import Layout, Split
from gradwire.core.random import Random
from gradwire.core.state import Transaction
from gradwire.core.window import Flag, Window
from gradwire.graphs import lies
from gradwire.kernels.window import read, write
from gradwire.memory.base import Memory
from gradwire.setup import moved
from gradwire.steps import Steps
from gradwire.unit import Errors, UnitPart, UnitResult, used_here


class Engine(Steps):
    """The compression of the workers of one process: codec, memory, strategy and state.

    Args:
        codec: a codec or its spec.
        memory: ``"default"`` (what the codec asks for), ``"none"``, or a memory or its spec.
        strategy: ``"auto"``, ``"measured"`` (auto, by the link that `measure` saw), or a strategy or its spec.
        tensors: ``"matrices"`` leaves tensors of fewer than two dimensions or 1024 elements as they are;
            ``"all"`` gives the codec everything.
        seed: of all randomness; the same on all workers.
        ranks: the workers of this process, one or all.
        workers: how many there are in all.
        controller: chooses each tensor's codec, epoch by epoch; `codec` may then be None.
        track_unused: parameters without a gradient on all workers keep their memory and get a zero result.
        nmse_every: measure the normalised error against the exact mean every so many steps (0: never). Such a step
            sends the uncompressed gradient too.
        graphs: on a GPU, capture what units launch in CUDA graphs, and replay it.
    """

    def __init__(
        self,
        codec: str | Codec | None,
        *,
        memory: str | Memory = "default",
        strategy: str | Strategy = "auto",
        controller: str | Controller | None = None,
        tensors: str = "matrices",
        seed: int = 0,
        ranks: Sequence[int] = (0,),
        workers: int = 1,
        track_unused: bool = False,
        nmse_every: int = 0,
        graphs: bool = True,
    ) -> None:
        if nmse_every < 0:
            raise ConfigError(f"gradwire: `nmse_every` must be 0 (never) or a number of steps, got {nmse_every!r}")
        super().__init__(codec, memory, strategy, controller, tensors, ranks, workers, graphs)
        self.seed = seed
        self.track_unused = track_unused and self.memory.has_state
        self.nmse_every = nmse_every

    def reduce(
        self, x: Tensor, layout: Layout, out: Tensor | None = None, *, scratch: bool = False
    ) -> Program[UnitResult]:
        """The program that reduces the gradients `x`, (rows, total), to their mean over the workers.

        The mean is written to `out`, (1, total), which may be `x` itself where that is `scratch`.
        """
        self.watch(x, layout)
        out = torch.empty_like(x[:1]) if out is None else out
        make = partial(self._program, x, self.split(layout), out, scratch)
        if not self.graphs.serve(x) or not self._repeats(layout):
            return (yield from make())
        scales = self._scale, self.kept_scale.data_ptr() if isinstance(self.kept_scale, Tensor) else self.kept_scale
        where = (*(lies(t) for t in (x, out)), scratch, *scales)
        return (yield from self.graphs.run(layout, where, [g.store for g in self.groups], self.step, make))

    def _program(self, x: Tensor, split: Split, out: Tensor, scratch: bool) -> Program[UnitResult]:
        used = used_here(x, split.whole) if self.track_unused else None
        writes = tuple(Transaction(group.store, len(group.ranks)) for group in self.groups)
        if self.per_node == 1:
            flags, errors = yield from self._reduce(Window.whole(x, scratch=scratch), split, used, out, 0, writes[0])
            squares = None if errors is None else errors.total
        else:
            squares = yield from self._reduce_by_node(x, split, used, out, writes)
            flags = (nonfinite_flag(out),)
            errors = None
        return UnitResult(out, flags if self.keeps_anything else (), squares, writes, errors)

    def _reduce_by_node(
        self, x: Tensor, split: Split, flags: Tensor | None, out: Tensor, writes: Sequence[Transaction]
    ) -> Program[Tensor | None]:
        """Reduce each share of the node's mean with those who own it on other nodes, and share the results out."""
        if not x.numel():
            return None
        sharding = self.sharding(split.whole)
        means = yield from sharding.mean(x, flags)
        measures = self._measures(split)
        if self.peers == 1:  # nothing to send
            results = [mean[:, : sharding.mine[i].whole.numel] for i, (mean, _) in enumerate(means)]
            squares = [x.new_zeros(2, dtype=torch.float32) for _ in means] if measures else None
            yield from sharding.join(results, squares, out)
            return None
        outs = [mean.new_empty((1, mean.shape[1]), dtype=x.dtype) for mean, _ in means]
        programs = [
            within(
                self._reduce(Window.whole(mean, scratch=True), sharding.mine[i], used, outs[i], i, writes[i]),
                group.team,
            )
            for i, ((mean, used), group) in enumerate(zip(means, self.groups, strict=True))
        ]
        found = yield from side_by_side(programs)
        none = x.new_zeros(2, dtype=torch.float32)
        squares = [none if errors is None else errors.total for _, errors in found] if measures else None
        return (yield from sharding.join(outs, squares, out))

    def _reduce(
        self, x: Window, split: Split, flags: Tensor | None, out: Tensor, index: int, writes: Transaction
    ) -> Program[tuple[tuple[Flag, ...], Errors | None]]:
        """Write the mean of `x` to `out`; returns flags, and the errors of the result if they are measured."""
        unit, share, rescale = self.unit(split), 1.0 / self.peers, self.rescale()
        used = {}
        if flags is not None:
            places = {name: i for i, name in enumerate(split.whole.names)}
            used = {name: flags[:, places[name] : places[name] + 1] for name in split.picked.names}
        measures = self._measures(split)
        parts = [
            UnitPart(
                fitted,
                self.memory,
                self.context(layout, index, writes, fitted.codec, Window(x.buffer, where), rescale),
                Window(x.buffer, where, x.scratch),
                Window(out, where, checked=self.keeps_anything),
            )
            for fitted, layout, where in unit.parts
        ]
        rest, beside = Window(x.buffer, unit.rest_spans), list[Exchange]()
        if unit.rest.segments or used:
            plain = read(rest, x.buffer.dtype)
            plain = torch.cat([plain, *used.values()], 1) if used else plain
            beside.append(Sum(plain.to(out.dtype) * share))
        for part in parts:
            part.prepare({n: used[n] for n in part.ctx.layout.names} if used else {}, measures)
            if measures:
                beside.append(Sum(part.source.read() * share))
        results, sums = yield from together(side_by_side([p.program() for p in parts]), tuple(beside))
        dense, exact = (sums[0], sums[1:]) if unit.rest.segments or used else (out[:, :0], sums)
        errors = [Errors.of(p.ctx.layout, p.target.read(), wanted) for p, wanted in zip(parts, exact, strict=False)]
        if used:
            anybody = dict(zip(used, dense[:, unit.rest.numel :].split(1, 1), strict=True))
            for part in parts:
                part.hold_unused(anybody)
        for part in parts:
            part.keep()
        if unit.rest.segments:
            ctx = self.context(unit.rest, index, writes, None, rest, rescale)
            mean = self.memory.uncompressed(dense[:, : unit.rest.numel], ctx)
            results.append(write(Window(out, unit.rest_spans), mean))
        return tuple(results), Errors.joined(errors) if errors else None

    def context(
        self,
        layout: Layout,
        index: int,
        writes: Transaction,
        codec: Codec | None,
        source: Window,
        rescale: float | Tensor,
    ) -> Context:
        group = self.groups[index]
        strategy = None if codec is None else self.strategy_for(layout, codec)
        return Context(
            layout=layout,
            state=writes,
            rng=Random(self.seed, self.step, layout.id, group.ranks, (0,) * len(group.ranks)),
            ranks=group.ranks,
            workers=self.peers,
            strategy=strategy,
            source=source,
            observed=self._observed,
            rescale=rescale,
            wants_own=self.memory.has_state,
            owner_memory=self.memory.has_state and codec is not None and codec.traits.is_mean,
            moved=() if codec is None else moved(layout, group, codec, strategy, writes, self.peers),
        )

    def rescale(self) -> float | Tensor:
        """What turns what is kept into today's units; one launch where that is known on a device only."""
        kept = self.kept_scale
        return torch.tensor(self._scale) / kept if isinstance(kept, Tensor) else self._scale / kept

    def _repeats(self, layout: Layout) -> bool:
        """Whether this step of a unit is like others."""
        parts = self.unit(self.split(layout)).parts
        steady = all(self.step >= f.codec.steady_from_step and f.codec.traits.fixed_size for f, _, _ in parts)
        return steady and not self._observed and not self._measures(self.split(layout))

    def _measures(self, split: Split) -> bool:
        return self.nmse_every > 0 and self.step % self.nmse_every == 0 and split.picked.numel > 0
