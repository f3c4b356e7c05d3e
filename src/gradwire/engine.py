"""The one file where codec, memory and strategy meet. Read it first.

An `Engine` stands for the workers of one process: one under torch.distributed, all of them in a virtual cluster, as
rows. For each unit of compression (flat gradients and their layout) `reduce` returns a program, a generator of
exchanges, that any driver can carry out:

1. split the unit: vectors and tiny tensors go as they are, in one sum that travels beside the codec's first exchange;
2. ask the memory what it adds;
3. let the codec reduce the rest over the workers, from where it lies to where it belongs.

Under the strategy `hierarchical` this happens between nodes, for each share of the unit by the workers that own it:
see `collectives.hierarchical` for what happens before and after.

A program changes nothing in the engine. What the units of a step return is committed by `finish_step`, and only if all
results are finite: a step that a loss scaler will skip leaves the memories as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gradwire.adaptive.controller import Controller, Settings
from gradwire.adaptive.steering import steer
from gradwire.collectives.choose import MEASURED, choose, parse
from gradwire.collectives.hierarchical import NodeSharding, Ownership, Placement, looks_at_tensors
from gradwire.collectives.link import Link, measuring
from gradwire.collectives.scatter_reduce_gather import OWNER_ERROR
from gradwire.core.codec import Carrier, Codec, Context, Strategy, nonfinite_flag
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.core.exchange import Exchange, Program, Sum, Team, side_by_side, together, within
from gradwire.core.layout import Layout, Segment, Split
from gradwire.core.random import Random
from gradwire.core.state import Piece, Store, Transaction
from gradwire.core.window import Window, spans, total
from gradwire.memory.base import Memory, memories
from gradwire.unit import FittedCodec, Unit, UnitPart, default_memory, used_here

TINY = 1024  # elements; a smaller tensor costs more in headers and scales than it saves


@dataclass(frozen=True, eq=False)
class UnitResult:
    """What a unit's program returns: the mean, and what `finish_step` needs."""

    out: Tensor  # (1, total)
    flag: Tensor  # 0 where all of it is finite, else NaN
    squares: Tensor | None  # of error and exact mean, where they were measured
    writes: tuple[Transaction, ...]


@dataclass(frozen=True, eq=False)
class Group:
    """Workers of this process that compress with the same others: all of them, or those of one share of a node."""

    team: Team  # with whom
    ranks: tuple[int, ...]  # their places in the team
    store: Store


class Engine:
    """The compression of the workers of one process: codec, memory, strategy and state.

    Args:
        codec: a codec or its spec.
        memory: ``"default"`` (what the codec asks for), ``"none"``, or a memory or its spec.
        strategy: ``"auto"``, ``"measured"`` (auto, by the link that `measure` saw), or a strategy or its spec.
        compress: ``"matrices"`` leaves tensors of fewer than two dimensions or 1024 elements as they are;
            ``"all"`` gives the codec everything.
        seed: of all randomness; the same on all workers.
        ranks: the workers of this process, one or all.
        workers: how many there are in all.
        controller: chooses each tensor's codec, epoch by epoch; `codec` may then be None.
        track_unused: parameters without a gradient on all workers keep their memory and get a zero result.
        nmse_every: measure the normalised error against the exact mean every so many steps (0: never). Such a step
            sends the uncompressed gradient too.
    """

    def __init__(
        self,
        codec: str | Codec | None,
        *,
        memory: str | Memory = "default",
        strategy: str | Strategy = "auto",
        controller: str | Controller | None = None,
        compress: str = "matrices",
        seed: int = 0,
        ranks: Sequence[int] = (0,),
        workers: int = 1,
        track_unused: bool = False,
        nmse_every: int = 0,
    ) -> None:
        if compress not in ("matrices", "all"):
            raise ConfigError(f"gradwire: `compress` must be 'matrices' or 'all', got {compress!r}")
        if nmse_every < 0:
            raise ConfigError(f"gradwire: `nmse_every` must be 0 (never) or a number of steps, got {nmse_every!r}")
        self.steering, choices = steer(controller, codec)
        self.codec = choices[0]
        wanted = default_memory(choices) if memory == "default" else memory
        self.memory = memories.build(wanted) if isinstance(wanted, str) else wanted
        self.compress = compress
        self.seed, self.ranks, self.workers = seed, tuple(ranks), workers
        self.placement = Placement.of(parse(strategy), workers)
        self.strategy = self.placement.strategy
        self._fitted = {c.spec: FittedCodec.of(c, self.memory, self.placement.carrier) for c in choices}
        self.lossless = all(c.traits.lossless for c in choices)
        self.measured = MEASURED in (strategy, getattr(self.strategy, "across", None))
        self.link: Link | None = None
        self.per_node = self.placement.per_node
        self.peers = workers // self.per_node
        self.groups = [Group(team, ranks, Store()) for team, ranks in self.placement.groups(self.ranks)]
        self.owners = Ownership(self.per_node)
        self.track_unused = track_unused and self.memory.has_state
        self.nmse_every = nmse_every
        self.step = 0
        self.loss_scale = 1.0
        self._scale = 1.0  # loss scale over learning rate: the units of today's gradient
        self.kept_scale: float | Tensor = 1.0  # the units of what the memories hold
        self._skipped = torch.zeros((), dtype=torch.int64)
        self._observed: dict[str, dict[str, Tensor]] = {}
        self._squares = torch.zeros(2)  # of measured errors, and of exact means
        self.forget_layouts()

    def forget_layouts(self) -> None:
        """Prepare all units anew: codecs or owners have changed."""
        self.split = cache(self._split)
        self._unit = cache(self._prepared)
        self._sharding = cache(self._sharded)

    @property
    def store(self) -> Store:
        """What the first workers of this process keep."""
        return self.groups[0].store

    @property
    def teams(self) -> list[Team]:
        """The teams this process is in, unless it exchanges with all workers at once."""
        if self.per_node == 1:
            return []
        node = self.placement.node_of(self.ranks[0])
        return [team for team in (node, self.groups[0].team) if len(team.ranks) > 1]

    # ---------------------------------------------------------------- one unit

    def announce(self, layout: Layout) -> None:
        """A unit will be reduced, perhaps beside others: decide who owns what, in the same order on all ranks."""
        if self.per_node > 1:
            self._sharding(layout)

    def reduce(
        self, x: Tensor, layout: Layout, out: Tensor | None = None, *, scratch: bool = False
    ) -> Program[UnitResult]:
        """The program that reduces the gradients `x`, (rows, total), to their mean over the workers.

        The mean is written to `out`, (1, total), which may be `x` itself where that is `scratch`.
        """
        split = self.split(layout)
        self.watch(x, layout)
        out = torch.empty_like(x[:1]) if out is None else out
        flags = used_here(x, layout) if self.track_unused else None
        writes = tuple(Transaction(group.store, len(group.ranks)) for group in self.groups)
        if self.per_node == 1:
            flag, squares = yield from self._reduce(Window.whole(x, scratch=scratch), split, flags, out, 0, writes[0])
        else:
            flag, squares = yield from self._reduce_by_node(x, split, flags, out, writes)
        return UnitResult(out, flag, squares, writes)

    def _reduce_by_node(
        self, x: Tensor, split: Split, flags: Tensor | None, out: Tensor, writes: Sequence[Transaction]
    ) -> Program[tuple[Tensor, Tensor | None]]:
        """Reduce each share of the node's mean with those who own it on other nodes, and share the results out."""
        if not x.numel():
            return x.new_zeros(()), None
        sharding = self._sharding(split.whole)
        means = yield from sharding.mean(x, flags)
        measures = self._measures(split)
        if self.peers == 1:  # nothing to send
            results = [mean[:, : sharding.mine[i].whole.numel] for i, (mean, _) in enumerate(means)]
            squares = [x.new_zeros(2, dtype=torch.float32) for _ in means] if measures else None
            yield from sharding.join(results, squares, out)
            return nonfinite_flag(out), None
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
        squares = [none if measured is None else measured for _, measured in found] if measures else None
        measured = yield from sharding.join(outs, squares, out)
        return nonfinite_flag(out), measured

    def _reduce(
        self, x: Window, split: Split, flags: Tensor | None, out: Tensor, index: int, writes: Transaction
    ) -> Program[tuple[Tensor, Tensor | None]]:
        """Write the mean of `x` to `out`; returns its flag, and the squares of error and mean if they are measured."""
        unit, share = self._unit(split), 1.0 / self.peers
        used = {}
        if flags is not None:
            places = {name: i for i, name in enumerate(split.whole.names)}
            used = {name: flags[:, places[name] : places[name] + 1] for name in split.picked.names}
        measures = self._measures(split)
        parts = [
            UnitPart(
                fitted,
                self.memory,
                self._context(layout, index, writes, fitted.codec, Window(x.buffer, where)),
                Window(x.buffer, where, x.scratch),
                Window(out, where),
            )
            for fitted, layout, where in unit.parts
        ]
        rest, beside = Window(x.buffer, unit.rest_spans), list[Exchange]()
        if unit.rest.segments or used:
            plain = torch.cat([rest.read(x.buffer.dtype), *used.values()], 1)
            beside.append(Sum(plain.to(out.dtype) * share))
        for part in parts:
            part.prepare({n: used[n] for n in part.ctx.layout.names} if used else {}, measures)
            if measures:
                beside.append(Sum(part.source.read() * share))
        results, sums = yield from together(side_by_side([p.program() for p in parts]), tuple(beside))
        dense, exact = (sums[0], sums[1:]) if unit.rest.segments or used else (out[:, :0], sums)
        pairs = [_squares(part.target.read(), wanted) for part, wanted in zip(parts, exact, strict=False)]
        if used:
            anybody = dict(zip(used, dense[:, unit.rest.numel :].split(1, 1), strict=True))
            for part in parts:
                part.hold_unused(anybody)
        if unit.rest.segments:
            ctx = self._context(unit.rest, index, writes, None, rest)
            mean = self.memory.uncompressed(dense[:, : unit.rest.numel], ctx)
            Window(out, unit.rest_spans).write_(mean)
            results.append(nonfinite_flag(mean))
        return total(results, out), torch.stack(pairs).sum(0) if pairs else None

    def _context(self, layout: Layout, index: int, writes: Transaction, codec: Codec | None, source: Window) -> Context:
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
            rescale=self._scale / self.kept_scale,
            wants_own=self.memory.has_state,
            owner_memory=self.memory.has_state and codec is not None and codec.traits.is_mean,
            moved=() if codec is None else self._moved(layout, group, codec, strategy, writes),
        )

    def _moved(
        self, layout: Layout, group: Group, codec: Codec, strategy: Carrier | None, writes: Transaction
    ) -> tuple[tuple[Piece, slice], ...]:
        """Owners' errors of elements that another worker owns by now, and where they lie in the unit."""
        if not group.store.holds(OWNER_ERROR):
            return ()
        held = None if strategy is None else strategy.owner_slot(codec, layout, group.ranks, self.peers, group.store)
        group.store.dissolve(OWNER_ERROR, layout, keep=held)
        moved = []
        for piece in group.store.loose(OWNER_ERROR):
            if piece.name in layout.names:
                segment = Segment(piece.name, (piece.entry.tensor.numel(),), piece.entry.start)
                moved.append((piece, layout.find(segment)))
                writes.repaid(OWNER_ERROR, piece)
        return tuple(moved)

    def picked(self, layout: Layout) -> Layout:
        """What of a unit the codec gets."""
        return self.split(layout).picked

    def strategy_for(self, layout: Layout, codec: Codec | None = None) -> Carrier | None:
        """What carries a unit; None for a codec that runs its own rounds."""
        # the ranks of a node send at the same time over one link: what counts is what all of them save
        carrier = self.placement.carrier
        return choose(codec or self.codec, carrier, layout.numel * self.per_node, self.peers, self.link)

    def measure(self, device: torch.device) -> Program[None]:
        """The program that measures the link between those who compress together, before the first step."""
        program = measuring(self.peers, device)
        self.link = yield from program if self.per_node == 1 else within(program, self.groups[0].team)

    def _split(self, layout: Layout) -> Split:
        if self.compress == "all" or self.lossless:
            return Split(layout, layout, Layout(()))
        return Split(layout, *layout.partition(lambda s: len(s.shape) >= 2 and s.numel >= TINY))

    def _prepared(self, split: Split) -> Unit:
        parts = tuple((f, layout, spans(split.whole, layout)) for f, layout in self._by_codec(split.picked))
        return Unit(split.whole, parts, split.rest, spans(split.whole, split.rest))

    def _by_codec(self, picked: Layout) -> list[tuple[FittedCodec, Layout]]:
        """The tensors of each codec, in the unit's order."""
        if self.steering is None:
            return [(self._fitted[self.codec.spec], picked)]
        groups: dict[str, list[Segment]] = {} if picked.segments else {self.codec.spec: []}
        for segment in picked.segments:
            groups.setdefault(self.steering.level(segment.name), []).append(segment)
        return [(self._fitted[spec], Layout(tuple(segments))) for spec, segments in groups.items()]

    def _sharded(self, layout: Layout) -> NodeSharding:
        by_tensor = any(looks_at_tensors(fitted.codec) for fitted in self._fitted.values())
        sharding = NodeSharding(self.split(layout), self.owners, self.placement, self.ranks, by_tensor)
        for group, mine in zip(self.groups, sharding.mine, strict=True):
            group.store.restrict(layout, mine.whole)  # a state that was averaged is all there on each rank of a node
        return sharding

    def _measures(self, split: Split) -> bool:
        return self.nmse_every > 0 and self.step % self.nmse_every == 0 and split.picked.numel > 0

    # ---------------------------------------------------------------- one step

    def begin_step(self, loss_scale: float = 1.0, learning_rate: float = 1.0) -> None:
        """Say in which units the coming gradients are, so that memories can follow."""
        self._scale, self.loss_scale = loss_scale / learning_rate, loss_scale

    def finish_step(self, results: Sequence[UnitResult]) -> None:
        """All units of this step are reduced: commit what they wrote, if all of it is finite."""
        if results:
            finite = total([r.flag for r in results], results[0].flag) == 0
            for result in results:
                for writes in result.writes:
                    writes.commit(finite)
                if result.squares is not None:
                    self._squares = self._squares.to(result.squares.device) + result.squares
            self._skipped = self._skipped.to(finite.device) + finite.logical_not()
            if finite.device.type != "cpu":  # decided there, so that the host never waits
                self.kept_scale = torch.where(finite, self._scale, self.kept_scale)
            elif bool(finite):
                self.kept_scale = self._scale
        self._observed = {}
        self.step += 1

    def restore(self, skipped_steps: int, scale: float) -> None:
        """Continue with these counts, and state in these units of the gradient."""
        self._skipped, self.kept_scale = torch.tensor(skipped_steps), scale
        self.forget_layouts()

    @property
    def skipped_steps(self) -> int:
        """Steps whose result was not finite, and which left the memories as they were."""
        return int(self._skipped)

    def nmse(self, *, forget: bool = False) -> float | None:
        """Normalised squared error of all measured results against the exact mean of what the codecs were given.

        With `forget` the next answer is about the steps from here on.
        """
        error, norm = self._squares.tolist()
        if forget:
            self._squares = torch.zeros(2)
        return error / norm if norm else None

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

    def begin(self, parameters: Layout) -> None:
        """Before the first step under a controller: all parameters that there are."""
        if self.steering is not None:
            self.steering.begin(self.picked(parameters).names)

    def watch(self, x: Tensor, layout: Layout) -> None:
        """Show the workers' gradients to the controller, if there is one."""
        if self.steering is not None:
            self.steering.watch(x, layout, self.loss_scale)

    def end_epoch(self, learning_rate: float, next_learning_rate: float) -> Program[Settings]:
        """The program by which all workers agree on the settings of the next epoch."""
        if self.steering is None:
            raise ConfigError("gradwire: end_epoch is for runs under a controller; pass controller=... to attach")
        return self._agree(self.steering.end_epoch(learning_rate, next_learning_rate, self.workers))

    def _agree(self, program: Program[Settings]) -> Program[Settings]:
        settings = yield from program
        self._unit = cache(self._prepared)
        return settings


def _squares(mean: Tensor, exact: Tensor) -> Tensor:
    """Of the error of `mean`, and of what it should be."""
    return torch.stack([(mean - exact).float().square().sum(), exact.float().square().sum()])
