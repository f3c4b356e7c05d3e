r"""Hierarchical: full precision inside a node, compression between nodes, for several ranks on each host.

Ranks are numbered node by node, as torchrun does. Each of the `per_node` ranks of a node owns a share of every unit.

1. Scatter inside the node: each rank sends its gradient of share r to rank r, which takes the mean in float32.
2. Between nodes: rank r of all nodes reduce share r, with codec, memory and the strategy `across`, as if they were all
   the workers there are and the mean of their node were their gradient. A share is a unit of its own: a ratio, a norm
   or a scale is that of the share.
3. Gather inside the node: each rank sends the result of its share to the others, so replicas agree bit for bit.

Wire: of what the only worker of a node would send, each of its p ranks sends 1/p, and encodes as much less; each sends
2 (p-1)/p of the gradient inside the node. What is owed belongs to a node and a share, and lies with the rank that owns
it. With one node nothing is compressed.

Who owns what is decided when a tensor is first seen, and for good: DDP rebuilds its buckets, and memories stay where
they are. Tensors of some size are cut into equal pieces, smaller ones go as a whole to the rank that has least of this
unit. For codecs that look at the shapes of tensors (several rounds, and not `flat`) only large matrices with many more
rows than columns are cut, into pieces of whole rows: an embedding is, a square layer is not, since each piece needs
a factor as wide as the whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collectives.choose import parse
from gradwire.core.codec import Carrier, Codec, Combine, Strategy, strategies
from gradwire.core.errors import ConfigError
from gradwire.core.exchange import Exchange, Gather, Payload, Program, Scatter, Sum, Team
from gradwire.core.layout import Layout, Segment, Split
from gradwire.core.registry import Check

PER_NODE = "LOCAL_WORLD_SIZE"  # where torchrun says how many ranks a node has
CUT = 1 << 14  # elements; the pieces of a smaller tensor would not be worth their handling
CUT_ROWS, TALL = 1 << 18, 4  # elements; rows to a column: the pieces of a matrix must be as many times as high as wide
Parts = tuple[tuple[int, int], ...]  # first and last element, one pair for each rank of a node


@strategies.register
@dataclass(frozen=True)
class Hierarchical(Strategy):
    """`per_node` ranks share a node (0: as many as torchrun says), and `across` carries shares between nodes."""

    name: ClassVar[str] = "hierarchical"
    per_node: int = 0
    across: str = "auto"

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("per_node", self.per_node, 0)
        if not isinstance(self.across, str) or isinstance(parse(self.across), Hierarchical):
            check.fail("across", "the spec of a strategy without levels, such as 'scatter_reduce_gather'", self.across)

    @property
    def carrier(self) -> Carrier | None:
        """What carries one-shot codecs between nodes; None where it is chosen unit by unit."""
        found = parse(self.across)
        assert found is None or isinstance(found, Carrier), "checked when this was made"
        return found

    def fitted(self, workers: int) -> Hierarchical:
        """This, with the number of ranks of a node filled in and checked against all workers."""
        per_node = self.per_node or _told()
        if workers % per_node:
            raise ConfigError(
                f"hierarchical: {workers} workers cannot be {per_node} on each node, and every node must have as many. "
                "Give their number as hierarchical(per_node=...), or choose another strategy."
            )
        return replace(self, per_node=per_node)


@dataclass(frozen=True)
class Placement:
    """Where workers stand: what was wished for, what carries one-shot codecs, and how many share a node."""

    strategy: Strategy | None
    carrier: Carrier | None
    workers: int
    per_node: int = 1  # where that makes a difference

    @classmethod
    def of(cls, wish: Strategy | None, workers: int) -> Placement:
        if not isinstance(wish, Hierarchical):
            assert wish is None or isinstance(wish, Carrier)
            return cls(wish, wish, workers)
        wish = wish.fitted(workers)
        return cls(wish, wish.carrier, workers, wish.per_node)

    def node_of(self, rank: int) -> Team:
        """Those who share a node with worker `rank`."""
        first = rank - rank % self.per_node
        return Team(range(first, first + self.per_node), inside=True)

    def groups(self, ranks: Sequence[int]) -> list[tuple[Team, tuple[int, ...]]]:
        """Whom the workers `ranks` compress with: all, or those who own the same share on all nodes; and as whom."""
        p = self.per_node
        members = [[r for r in ranks if r % p == index] for index in range(p)]
        return [
            (Team(range(index, self.workers, p)), tuple(r // p for r in found))
            for index, found in enumerate(members)
            if found
        ]


def _told() -> int:
    told = os.environ.get(PER_NODE, "")
    if not told.isdecimal() or int(told) < 1:
        raise ConfigError(
            f"hierarchical: the number of ranks of a node is not given, and {PER_NODE}, where torchrun puts it, is "
            f"{repr(told) if told else 'not set'}. Start the ranks with torchrun, or write hierarchical(per_node=...)."
        )
    return int(told)


# -------------------------------------------------------------------- who owns what


class Ownership:
    """Which part of each tensor belongs to which rank of a node."""

    def __init__(self, per_node: int, parts: Mapping[str, Parts] | None = None) -> None:
        self.parts: dict[str, Parts] = dict(parts or {})
        self._loads = [sum(p[r][1] - p[r][0] for p in self.parts.values()) for r in range(per_node)]

    def shares(self, layout: Layout, by_tensor: bool) -> list[Layout]:
        """The pieces of a unit that each rank owns. `by_tensor`: keep tensors whole, or at least their rows."""
        here = [0] * len(self._loads)
        for segment in sorted(layout.segments, key=lambda s: -s.numel):
            if segment.name not in self.parts:
                order = sorted(range(len(here)), key=lambda r: (here[r], self._loads[r], r))
                self.parts[segment.name] = _parts(segment, order, by_tensor)
                self._count(segment.name, self._loads)
            self._count(segment.name, here)
        return [
            Layout(tuple(_piece(s, *self.parts[s.name][r], by_tensor) for s in layout.segments if self._has(r, s.name)))
            for r in range(len(here))
        ]

    def _has(self, rank: int, name: str) -> bool:
        low, high = self.parts[name][rank]
        return low < high

    def _count(self, name: str, loads: list[int]) -> None:
        for rank, (low, high) in enumerate(self.parts[name]):
            loads[rank] += high - low


def looks_at_tensors(codec: Codec) -> bool:
    """Whether the codec may treat tensors by their shapes, so that units must be cut between tensors."""
    return codec.traits.combine is Combine.ROUNDS and not codec.traits.ignores_shapes


def _parts(segment: Segment, order: Sequence[int], by_tensor: bool) -> Parts:
    """The tensor cut into equal pieces, or whole; `order` lists the ranks, those with the least first."""
    width = _width(segment) if by_tensor else 1
    rows = segment.numel // width if segment.numel else 0
    count = 1
    if segment.numel >= (CUT_ROWS if by_tensor else CUT):
        count = max(1, min(len(order), rows // (TALL * width) if by_tensor else rows))
    piece = -(-rows // count) * width
    parts = [(0, 0)] * len(order)
    for i, rank in enumerate(order[:count]):
        parts[rank] = (min(i * piece, segment.numel), min((i + 1) * piece, segment.numel))
    return tuple(parts)


def _piece(segment: Segment, low: int, high: int, by_tensor: bool) -> Segment:
    if high - low == segment.numel:
        return segment
    shape = ((high - low) // _width(segment), *segment.shape[1:]) if by_tensor else (high - low,)
    return Segment(segment.name, shape, low)


def _width(segment: Segment) -> int:
    """Elements of a row."""
    return segment.numel // segment.shape[0] if segment.shape and segment.shape[0] else 1


# -------------------------------------------------------------------- what happens inside a node


class NodeSharding:
    """How a unit is cut into shares for the ranks of a node, and put together again."""

    def __init__(
        self, unit: Split, owners: Ownership, placement: Placement, ranks: Sequence[int], by_tensor: bool
    ) -> None:
        picked, rest = owners.shares(unit.picked, by_tensor), owners.shares(unit.rest, by_tensor=False)
        self.shares = [Split(Layout(p.segments + r.segments), p, r) for p, r in zip(picked, rest, strict=True)]
        self._nodes = list(dict.fromkeys(placement.node_of(rank) for rank in ranks))  # that have ranks here
        self._members = len(ranks) // len(self._nodes)  # of each node: one, or all
        self._indices = [rank % placement.per_node for rank in ranks[: self._members]]
        self.mine = [self.shares[i] for i in self._indices]
        self._whole = unit.whole
        pieces = sorted(
            (unit.whole.find(segment).start, owner, segment.name)
            for owner, share in enumerate(self.shares)
            for segment in share.whole.segments
        )
        numbers = {(owner, name): i for i, (_, owner, name) in enumerate(pieces)}
        self._order = [
            [numbers[owner, s.name] for s in share.whole.segments] for owner, share in enumerate(self.shares)
        ]
        sizes = {(owner, s.name): s.numel for owner, share in enumerate(self.shares) for s in share.whole.segments}
        self._sizes = [sizes[owner, name] for _, owner, name in pieces]

    def mean(self, x: Tensor, flags: Tensor | None) -> Program[list[tuple[Tensor, Tensor | None]]]:
        """For each rank of a node that is here: the nodes' means of its share, in float32 at least, a row for each
        node; and of the flags of its tensors."""
        pieces = torch.split(x, self._sizes, dim=1)
        used = {} if flags is None else dict(zip(self._whole.names, torch.split(flags, 1, 1), strict=True))
        rows = []
        for order, share in zip(self._order, self.shares, strict=True):
            rows.append([pieces[i] for i in order] + [used[name] for name in share.whole.names if used])
        received = yield from self._scatter(rows, x)
        p, found = len(self.shares), []
        for member, share in enumerate(self.mine):
            scaled = received[:, member].to(torch.promote_types(x.dtype, torch.float32)) * (1.0 / p)
            total = scaled[:, 0]
            for i in range(1, p):  # in order of rank, whatever the device
                total = total + scaled[:, i]
            numel, count = share.whole.numel, len(share.whole.names) if used else 0
            found.append((total[:, :numel], total[:, numel : numel + count] if used else None))
        return found

    def _scatter(self, rows: list[list[Tensor]], like: Tensor) -> Program[Tensor]:
        """(nodes, members, senders, width)."""
        lengths = [sum(p.shape[1] for p in row) for row in rows]
        width, p = max(lengths), len(rows)
        padded = [[*row, like.new_zeros((len(like), width - n))] for row, n in zip(rows, lengths, strict=True)]
        data = torch.cat([part for row in padded for part in row], 1).view(len(self._nodes), -1, width)
        received = yield tuple(
            Scatter(Payload(one.contiguous().view(torch.uint8)), p, team=node)
            for one, node in zip(data, self._nodes, strict=True)
        )
        return torch.stack([r.data.view(like.dtype).view(self._members, p, width) for r in received])

    def join(self, outs: Sequence[Tensor], beside: Sequence[Tensor] | None, out: Tensor) -> Program[Tensor | None]:
        """Write the results of all shares to `out`, in the order of the unit; returns the sum of what is `beside`."""
        width = max(share.whole.numel for share in self.shares)
        rows = torch.cat([torch.nn.functional.pad(o, (0, width - o.shape[1])) for o in outs])
        payload = Payload(rows.view(torch.uint8))
        exchanges: list[Exchange] = [Gather(payload, relay=True, team=node) for node in self._nodes]
        if beside is not None:
            exchanges += [Sum(torch.stack(list(beside)), team=node) for node in self._nodes]
        answers = yield tuple(exchanges)
        pieces: dict[int, Tensor] = {}
        for order, share, result in zip(self._order, self.shares, answers[0].data.view(rows.dtype), strict=True):
            pieces |= zip(order, share.whole.split(result[: share.whole.numel]), strict=True)
        torch.cat([pieces[i] for i in range(len(pieces))], out=out[0])
        return None if beside is None else answers[len(self._nodes)][0]
