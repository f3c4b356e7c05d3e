"""Who compresses what, with whom and by what: the decisions that hold for a whole training.

A `SetUp` knows codec, memory and strategy, which tensors of a unit each codec gets, and which workers of this process
compress with which others. The engine carries steps out by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from gradwire.adaptive import Controller, Settings
from gradwire.adaptive.steering import steer
from gradwire.collectives.choose import MEASURED, choose, parse
from gradwire.collectives.hierarchical import NodeSharding, Ownership, Placement, looks_at_tensors
from gradwire.collectives.link import Link, measuring
from gradwire.collectives.scatter_reduce_gather import OWNER_ERROR
from gradwire.core.codec import Carrier, Codec, Combine, Strategy
from gradwire.core.contract import check_codec
from gradwire.core.errors import ConfigError
from gradwire.core.exchange import Program, Team, within
from gradwire.core.layout import Layout, Segment, Split
from gradwire.core.registry import to_spec
from gradwire.core.slots import Piece
from gradwire.core.state import Store, Transaction
from gradwire.core.window import spans
from gradwire.memory.base import Memory, memories
from gradwire.unit import FittedCodec, Unit, default_memory

TINY = 1024  # elements; a smaller tensor costs more in headers and scales than it saves


@dataclass(frozen=True, eq=False)
class Group:
    """Workers of this process that compress with the same others: all of them, or those of one share of a node."""

    team: Team  # with whom
    ranks: tuple[int, ...]  # their places in the team
    store: Store


class SetUp:
    """Codec, memory, strategy and workers of one process. For the arguments see `Engine`."""

    def __init__(
        self,
        codec: str | Codec | None,
        memory: str | Memory,
        strategy: str | Strategy,
        controller: str | Controller | None,
        tensors: str,
        ranks: Sequence[int],
        workers: int,
    ) -> None:
        if tensors not in ("matrices", "all"):
            raise ConfigError(f"gradwire: `tensors` must be 'matrices' or 'all', got {tensors!r}")
        self.steering, choices = steer(controller, codec)
        for choice in choices:
            check_codec(choice)
        self.codec = choices[0]
        wanted = default_memory(choices) if memory == "default" else memory
        self.memory = memories.build(wanted) if isinstance(wanted, str) else wanted
        self.tensors = tensors
        self.ranks, self.workers = tuple(ranks), workers
        self.placement = Placement.of(parse(strategy), workers)
        self.strategy = self.placement.strategy
        self._fitted = {c.spec: FittedCodec.of(c, self.memory, self.placement.carrier) for c in choices}
        self.lossless = all(c.traits.lossless for c in choices)
        self.keeps_anything = self.memory.has_state or not self.lossless  # that a bad step could spoil
        # casts lose nothing by taking vectors, too: one message less
        self._takes_all = tensors == "all" or all(
            c.traits.elementwise and c.traits.combine is Combine.SUM for c in choices
        )
        self.measured = MEASURED in (strategy, getattr(self.strategy, "across", None))
        self.link: Link | None = None
        self.per_node = self.placement.per_node
        self.peers = workers // self.per_node
        self.groups = [Group(team, ranks, Store()) for team, ranks in self.placement.groups(self.ranks)]
        self.owners = Ownership(self.per_node)
        self.forget_layouts()

    def forget_layouts(self) -> None:
        """Prepare all units anew: codecs or owners have changed."""
        self.split = cache(self._split)
        self.unit = cache(self._prepared)
        self.sharding = cache(self._sharded)

    @property
    def store(self) -> Store:
        """What the first workers of this process keep."""
        return self.groups[0].store

    @property
    def strategy_spec(self) -> str:
        """As `Engine` was told."""
        return to_spec(self.strategy) if self.strategy else MEASURED if self.measured else "auto"

    @property
    def teams(self) -> list[Team]:
        """The teams this process is in, unless it exchanges with all workers at once."""
        if self.per_node == 1:
            return []
        node = self.placement.node_of(self.ranks[0])
        return [team for team in (node, self.groups[0].team) if len(team.ranks) > 1]

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
        if self._takes_all:
            return Split(layout, layout, Layout(()))
        return Split(layout, *layout.partition(lambda s: len(s.shape) >= 2 and s.numel >= TINY))

    def _prepared(self, split: Split) -> Unit:
        parts = tuple((f, layout, spans(split.whole, layout)) for f, layout in self._by_codec(split.picked))
        return Unit(split.whole, parts, split.rest, spans(split.whole, split.rest))

    def fitted(self, layout: Layout) -> FittedCodec:
        """The one codec that all tensors of `layout` have."""
        found = self._by_codec(layout)
        if len(found) != 1:
            raise ConfigError("gradwire: a controller gave the tensors of one unit several codecs")
        return found[0][0]

    def _by_codec(self, picked: Layout) -> list[tuple[FittedCodec, Layout]]:
        """The tensors of each codec, in the unit's order."""
        if self.steering is None:
            return [(self._fitted[self.codec.spec], picked)]
        groups: dict[str, list[Segment]] = {} if picked.segments else {self.codec.spec: []}
        for segment in picked.segments:
            groups.setdefault(self.steering.spec_of(segment.name), []).append(segment)
        return [(self._fitted[spec], Layout(tuple(segments))) for spec, segments in groups.items()]

    def _sharded(self, layout: Layout) -> NodeSharding:
        by_tensor = any(looks_at_tensors(fitted.codec) for fitted in self._fitted.values())
        sharding = NodeSharding(self.split(layout), self.owners, self.placement, self.ranks, by_tensor)
        for group, mine in zip(self.groups, sharding.mine, strict=True):
            group.store.restrict(layout, mine.whole)  # a state that was averaged is all there on each rank of a node
        return sharding

    def announce(self, layout: Layout) -> None:
        """A unit will be reduced, perhaps beside others: decide who owns what, in the same order on all ranks."""
        if self.per_node > 1:
            self.sharding(layout)

    @property
    def settings(self) -> Settings:
        """How this epoch is trained, as the controller has set it; without a controller, as the schedule says."""
        return Settings() if self.steering is None else self.steering.settings

    def begin(self, parameters: Layout) -> None:
        """Before the first step under a controller: all parameters that there are."""
        if self.steering is not None:
            self.steering.begin(self.picked(parameters).names)

    def end_epoch(self, learning_rate: float, next_learning_rate: float) -> Program[Settings]:
        """The program by which all workers agree on the settings of the next epoch."""
        if self.steering is None:
            raise ConfigError("gradwire: end_epoch is for runs under a controller; pass controller=... to attach")
        return self._agree(self.steering.end_epoch(learning_rate, next_learning_rate, self.workers))

    def _agree(self, program: Program[Settings]) -> Program[Settings]:
        settings = yield from program
        self.forget_layouts()
        return settings


def moved(
    layout: Layout, group: Group, codec: Codec, strategy: Carrier | None, writes: Transaction, peers: int
) -> tuple[tuple[Piece, slice], ...]:
    """Owners' errors of elements that another worker owns by now, and where they lie in the unit."""
    if not group.store.holds(OWNER_ERROR):
        return ()
    held = None if strategy is None else strategy.owner_slot(codec, layout, group.ranks, peers, group.store)
    group.store.dissolve(OWNER_ERROR, layout, keep=held)
    found = []
    for piece in group.store.loose(OWNER_ERROR):
        if piece.name in layout.names:
            segment = Segment(piece.name, (piece.entry.tensor.numel(),), piece.entry.start)
            found.append((piece, layout.find(segment)))
            writes.repaid(OWNER_ERROR, piece)
    return tuple(found)
