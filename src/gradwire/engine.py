"""The one file where codec, memory and strategy meet. Read it first.

An `Engine` is one worker. For each unit of compression (a flat gradient and its layout) `reduce` returns a program,
a generator of exchanges, that any driver can carry out:

1. split the unit: vectors and tiny tensors go as they are, in one sum that travels beside the codec's first exchange;
2. add what the memory kept; make one non-finite element visible in the whole unit;
3. let the codec reduce it over the workers;
4. let the memory keep what this worker's own share left behind;
5. put both parts together, in the gradient's own dtype.

Under the strategy `hierarchical` the workers of this are those who own the same share on all nodes, and the gradient is
the mean of their node: see `collectives.hierarchical` for what happens before and after.

State written by the units of a step is committed by `finish_step`, and only if all results are finite: a step that a
loss scaler will skip leaves the memories as they were.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gradwire import checkpoint
from gradwire.adaptive.controller import Controller, Settings
from gradwire.adaptive.steering import steer
from gradwire.collectives.choose import MEASURED, choose, parse
from gradwire.collectives.hierarchical import Deal, Ownership, Station, looks_at_tensors
from gradwire.collectives.link import Link, measuring
from gradwire.collectives.scatter_reduce_gather import OWNER_ERROR
from gradwire.core.codec import Carrier, Codec, Context, Strategy
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.core.exchange import Exchange, Program, Sum, Team, side_by_side, together, within
from gradwire.core.layout import Layout, Segment, Split
from gradwire.core.random import Random
from gradwire.core.registry import to_spec
from gradwire.core.state import Store, Transaction
from gradwire.kernels.finite import nonfinite_flag
from gradwire.memory.base import ERROR, Memory, memories
from gradwire.share import Level, Share, default_memory, joined, merged

TINY = 1024  # elements; a smaller tensor costs more in headers and scales than it saves


class Engine:
    """One worker's compression: codec, memory, strategy and state.

    Args:
        codec: a codec or its spec.
        memory: ``"default"`` (what the codec asks for), ``"none"``, or a memory or its spec.
        strategy: ``"auto"``, ``"measured"`` (auto, by the link that `measure` saw), or a strategy or its spec.
        compress: ``"matrices"`` leaves tensors of fewer than two dimensions or 1024 elements as they are;
            ``"all"`` gives the codec everything.
        seed: of all randomness; the same on all workers.
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
        rank: int = 0,
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
        self.seed, self.rank, self.workers = seed, rank, workers
        self.strategy, self._carrier, self._node, self._across = Station.of(parse(strategy), rank, workers)
        self._levels = {c.spec: Level.of(c, self.memory, self._carrier) for c in choices}
        self.lossless = all(c.traits.lossless for c in choices)
        self.measured = MEASURED in (strategy, getattr(self.strategy, "across", None))
        self.link: Link | None = None
        self.per_node = 1 if self._node is None else len(self._node.ranks)
        self.place, self.peers = self._across.ranks.index(rank), len(self._across.ranks)
        self._own(Ownership(self.per_node))
        self.track_unused = track_unused and self.memory.has_state
        self.nmse_every = nmse_every
        self.step = 0
        self._skipped = torch.zeros((), dtype=torch.int64)
        self.store = Store()
        self.loss_scale = 1.0
        self.gradient_scale = 1.0  # loss scale over learning rate: the units of today's gradient
        self._kept_scale: float | Tensor = 1.0  # the units of what the memories hold
        self._transaction = Transaction(self.store)
        self._observed: dict[str, dict[str, Tensor]] = {}
        self._finite: list[Tensor] = []
        self._squares = torch.zeros(2)  # of measured errors, and of exact means
        self._split = cache(self._split_uncached)
        self._shares = cache(self._shares_uncached)

    def _own(self, owners: Ownership) -> None:
        self._owners = owners
        self._deal = cache(self._deal_uncached)

    @property
    def teams(self) -> list[Team]:
        """The teams this worker is in, unless it exchanges with all workers at once."""
        return [] if self._node is None else [t for t in (self._node, self._across) if len(t.ranks) > 1]

    def warn_if_idle(self, what: str, stacklevel: int) -> None:
        """Say that nothing will be compressed, if that is so; `what` happens instead where there is one rank only."""
        if self.workers == 1:
            message = f"gradwire: the process group has one rank, so there is nothing to send; {what}"
        elif self.peers == 1:
            message = "gradwire: all ranks are on one node, so nothing crosses the network, and nothing is compressed"
        else:
            return
        warnings.warn(message, stacklevel=stacklevel + 1)

    # ---------------------------------------------------------------- one unit

    def reduce(self, x: Tensor, layout: Layout) -> Program[Tensor]:
        """The program that reduces the flat gradient `x` to its mean over the workers. `x` is not changed."""
        unit = self._split(layout)
        self.watch(x, layout)
        flags = self._flags(x, unit)
        if self._node is None:
            out, squares = yield from self._reduce(x, unit, flags, x.dtype)
        else:
            out, squares = yield from self._reduce_by_node(x, unit, flags)
        if squares is not None:
            self._squares = self._squares.to(squares.device) + squares
        self._finite.append(nonfinite_flag(out) == 0)
        return out

    def _reduce_by_node(
        self, x: Tensor, unit: Split, flags: Mapping[str, Tensor]
    ) -> Program[tuple[Tensor, Tensor | None]]:
        """Reduce the own share of the node's mean with those who own it on other nodes, and share the results out."""
        if not x.numel():
            return x, None
        deal = self._deal(unit.whole)
        share, flags = yield from deal.mean(x, flags)
        squares = x.new_zeros(2, dtype=torch.float32) if self._measures(unit) else None
        if self.peers == 1:  # nothing to send
            return (yield from deal.joined(share.to(x.dtype), squares))
        out, measured = yield from within(self._reduce(share, deal.mine, flags, x.dtype), self._across)
        return (yield from deal.joined(out, squares if measured is None else measured))

    def _reduce(
        self, x: Tensor, unit: Split, flags: Mapping[str, Tensor], dtype: torch.dtype
    ) -> Program[tuple[Tensor, Tensor | None]]:
        """The mean of `x`, as `dtype`, and the squares of error and mean if they are measured in this step."""
        _, picked, rest = unit
        parts = dict(zip(unit.whole.names, unit.whole.split(x), strict=True))
        shares = [self._share(x, parts, unit, layout, level, dtype) for level, layout in self._shares(picked)]
        plain = [*(parts[name] for name in rest.names), *flags.values()]
        beside: list[Exchange] = []
        if plain:
            beside.append(Sum(torch.cat(plain).to(dtype) * (1.0 / self.peers)))
        if self._measures(unit):
            beside += [Sum(share.sent * (1.0 / self.peers)) for share in shares]
        main = side_by_side([share.program() for share in shares])
        results, sums = yield from together(main, tuple(beside))
        dense, exact = (sums[0], sums[1:]) if plain else (x.new_empty(0), sums)
        pairs = [_squares(mean, wanted) for (mean, _), wanted in zip(results, exact, strict=False)]  # no exact: none
        squares = torch.stack(pairs).sum(0) if pairs else None
        used = dict(zip(flags, dense[rest.numel :].split(1), strict=True)) if flags else {}
        means = [share.settle(result, used) for share, result in zip(shares, results, strict=True)]
        if len(shares) == 1 and not rest.segments:
            return means[0].to(dtype), squares
        layouts = [share.ctx.layout for share in shares]
        if rest.segments:
            layouts.append(rest)
            means.append(self.memory.uncompressed(dense[: rest.numel], self._context(rest, dense, None)))
        return merged(unit.whole, layouts, means, dtype), squares

    def _share(
        self, x: Tensor, parts: Mapping[str, Tensor], unit: Split, layout: Layout, level: Level, dtype: torch.dtype
    ) -> Share:
        """What `level` gets of the unit `x`: the tensors of `layout`."""
        gradient = x if layout == unit.whole else joined(x, parts, layout)
        gradient = gradient.to(dtype) if level.codec.traits.lossless else gradient.float()
        ctx = self._context(layout, gradient, level.codec)
        return Share.of(gradient, level, self.memory, ctx)

    def _context(self, layout: Layout, gradient: Tensor, codec: Codec | None) -> Context:
        return Context(
            layout=layout,
            state=self._transaction,
            rng=Random(self.seed, self.step, layout.id, self.place),
            rank=self.place,
            workers=self.peers,
            strategy=None if codec is None else self.strategy_for(layout, codec),
            gradient=gradient,
            observed=self._observed,
            rescale=self.gradient_scale / self._kept_scale,
            wants_own=self.memory.has_state,
            owner_memory=self.memory.has_state and codec is not None and codec.traits.is_mean,
        )

    def picked(self, layout: Layout) -> Layout:
        """What of a unit the codec gets."""
        return self._split(layout).picked

    def strategy_for(self, layout: Layout, codec: Codec | None = None) -> Carrier | None:
        """What carries a unit; None for a codec that runs its own rounds."""
        # the ranks of a node send at the same time over one link: what counts is what all of them save
        return choose(codec or self.codec, self._carrier, layout.numel * self.per_node, self.peers, self.link)

    def measure(self, device: torch.device) -> Program[None]:
        """The program that measures the link between those who compress together, before the first step."""
        program = measuring(self.peers, device)
        self.link = yield from program if self._node is None else within(program, self._across)

    def _split_uncached(self, layout: Layout) -> Split:
        if self.compress == "all" or self.lossless:
            return Split(layout, layout, Layout(()))
        return Split(layout, *layout.partition(lambda s: len(s.shape) >= 2 and s.numel >= TINY))

    def _shares_uncached(self, picked: Layout) -> list[tuple[Level, Layout]]:
        """The tensors of each level, in the unit's order."""
        if self.steering is None:
            return [(self._levels[self.codec.spec], picked)]
        groups: dict[str, list[Segment]] = {} if picked.segments else {self.codec.spec: []}
        for segment in picked.segments:
            groups.setdefault(self.steering.level(segment.name), []).append(segment)
        return [(self._levels[spec], Layout(tuple(segments))) for spec, segments in groups.items()]

    def _deal_uncached(self, layout: Layout) -> Deal:
        assert self._node is not None
        deal = Deal(
            self._split(layout),
            self._owners,
            self._node,
            self.rank,
            any(looks_at_tensors(level.codec) for level in self._levels.values()),
        )
        others = set(layout.names) - set(deal.mine.whole.names)
        for kind, kept in self.store.entries.items():  # a state that was averaged has all of it on each rank of a node
            for name in others & kept.keys():
                self.store.put(kind, name, None)
        return deal

    def _flags(self, x: Tensor, unit: Split) -> dict[str, Tensor]:
        """For each tensor that is compressed whether this worker used it, where that is tracked."""
        if not self.track_unused:
            return {}
        parts = dict(zip(unit.whole.names, unit.whole.split(x), strict=True))
        return {name: parts[name].ne(0).any().to(x.dtype).view(1) for name in unit.picked.names}

    def _measures(self, unit: Split) -> bool:
        return self.nmse_every > 0 and self.step % self.nmse_every == 0 and unit.picked.numel > 0

    # ---------------------------------------------------------------- one step

    def observe(self, kind: str, values: Mapping[str, Tensor]) -> None:
        """Tell the codec something about the coming step that gradients do not show, parameter by parameter.

        The codec `variance`, for one, asks for "squares": the sum of the squares of per-example gradients.
        """
        if self._node is not None:
            raise Incompatible(
                f"gradwire: under hierarchical a codec sees the mean gradient of a node, and {kind!r} of one rank says "
                "nothing about that. Choose another strategy, or leave observe out."
            )
        self._observed.setdefault(kind, {}).update(values)

    def finish_step(self) -> None:
        """All units of this step are reduced: commit what they wrote, if all of it is finite."""
        if self._finite:
            finite = torch.stack(self._finite).all()
            self._transaction.commit(finite)
            self._skipped = self._skipped.to(finite.device) + finite.logical_not()
            if finite.device.type != "cpu":  # decided there, so that the host never waits
                self._kept_scale = torch.where(finite, self.gradient_scale, self._kept_scale)
            elif bool(finite):
                self._kept_scale = self.gradient_scale
        self._finite.clear()
        self._observed = {}
        self.step += 1

    @property
    def skipped_steps(self) -> int:
        """Steps whose result was not finite, and which left the memories as they were."""
        return int(self._skipped)

    def abandon_step(self) -> None:
        """Something failed in the middle: forget what this step wrote."""
        self._transaction.drop()
        self._finite.clear()

    def nmse(self, *, forget: bool = False) -> float | None:
        """Normalised squared error of all measured results against the exact mean of what the codecs were given.

        With `forget` the next answer is about the steps from here on.
        """
        error, norm = self._squares.tolist()
        if forget:
            self._squares = torch.zeros(2)
        return error / norm if norm else None

    def begin(self, parameters: Layout) -> None:
        """Before the first step under a controller: all parameters that there are."""
        if self.steering is not None:
            self.steering.begin(self.picked(parameters).names)

    def watch(self, x: Tensor, layout: Layout) -> None:
        """Show this worker's gradient to the controller, if there is one."""
        if self.steering is not None:
            self.steering.watch(x, layout, self.loss_scale)

    def end_epoch(self, learning_rate: float, next_learning_rate: float) -> Program[Settings]:
        """The program by which all workers agree on the settings of the next epoch."""
        if self.steering is None:
            raise ConfigError("gradwire: end_epoch is for runs under a controller; pass controller=... to attach")
        return self._agree(self.steering.end_epoch(learning_rate, next_learning_rate, self.workers))

    def _agree(self, program: Program[Settings]) -> Program[Settings]:
        settings = yield from program
        self._shares.cache_clear()
        return settings

    # ---------------------------------------------------------------- state

    def owed(self, name: str, shape: Sequence[int]) -> Tensor | None:
        """What this worker still owes for one parameter, owner's error included at n-fold weight.

        The mean of this over the workers is what separates the results so far from the sum of mean gradients. What is
        owed for a node, which one of its ranks keeps, has the weight of all of them.
        """
        if not self.memory.has_state:
            return None
        owed = torch.zeros(Segment(name, tuple(shape)).numel)
        for kind, weight in ((ERROR, self.per_node), (OWNER_ERROR, self.workers)):
            kept = self.store.get(kind, name)
            if kept is not None:
                owed = owed.to(kept.tensor.device)
                owed[kept.start : kept.stop] += weight * kept.tensor.reshape(-1)
        return owed.view(tuple(shape))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values only, keyed by parameter name. It belongs to this rank: save one file a rank."""
        kept = {
            kind: {name: {"tensor": e.tensor.clone(), "start": e.start} for name, e in entries.items()}
            for kind, entries in self.store.entries.items()
        }
        return {
            "format_version": checkpoint.FORMAT_VERSION,
            "codec": self.codec.spec,
            "memory": to_spec(self.memory),
            "seed": self.seed,
            "rank": self.rank,
            "workers": self.workers,
            "per_node": self.per_node,
            "owners": {name: [list(part) for part in parts] for name, parts in self._owners.parts.items()},
            "step": self.step,
            "skipped_steps": self.skipped_steps,
            "scale": float(self._kept_scale),
            "link": [] if self.link is None else [self.link.latency_seconds, self.link.bits_per_second],
            "state": kept,
            "steering": {} if self.steering is None else self.steering.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state: this rank's own, or the list of all ranks' after the world size changed."""
        states = [saved] if isinstance(saved, Mapping) else list(saved)
        controller = None if self.steering is None else self.steering.controller.spec
        checkpoint.check_set_up(states, self.codec, self.memory, controller)
        mine = checkpoint.own(states, self.rank, self.workers, self.per_node)
        self.abandon_step()
        first = mine or states[0]
        owners = mine.get("owners", {}) if mine else {}
        self.store = checkpoint.restored(mine) if mine else checkpoint.averaged(states, self.place == 0)
        self._own(Ownership(self.per_node, {name: tuple(map(tuple, parts)) for name, parts in owners.items()}))
        self._transaction = Transaction(self.store)
        self.seed, self.step = first["seed"], first["step"]
        self._skipped, self._kept_scale = torch.tensor(first["skipped_steps"]), first["scale"]
        if self.steering is not None:
            self.steering.load_state_dict(first["steering"])
            self._shares.cache_clear()
        if self.measured and first.get("link"):  # else a resumed run might choose otherwise
            self.link = Link(*first["link"])


def _squares(mean: Tensor, exact: Tensor) -> Tensor:
    """Of the error of `mean`, and of what it should be."""
    return torch.stack([(mean - exact).float().square().sum(), exact.float().square().sum()])
