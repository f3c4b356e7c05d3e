"""Counter-based randomness: a number is a pure function of who asks for it, when, and for which element.

A `Random` belongs to one step and one unit of compression, and to one worker or several: the workers of a process are
rows of one tensor, and each has numbers of its own. `shared(purpose)` gives numbers that all workers see alike
(supports, coins, rotations), `private(purpose)` each worker's own (rounding, whose errors must be independent to
average out). A `Stream` is only keys and offsets; `gradwire.kernels.random` turns it into numbers, the same ones on
every device. The global generators of torch, NumPy and Python are never touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Stream:
    """Endless sequences of random words: for each a 64-bit key and the position where reading starts.

    The elements of a tensor, flattened, are dealt out to the keys in equal consecutive parts. With one key, element i
    is number ``offset + i``. With a key for each worker, the rows of a worker are its part.
    """

    keys: tuple[int, ...]
    offsets: tuple[int, ...] = (0,)
    of_step: Callable[[int], Stream] | None = field(default=None, compare=False, repr=False)  # the same in another step

    def __post_init__(self) -> None:
        assert len(self.keys) == len(self.offsets), "an offset for each key"

    @property
    def parts(self) -> int:
        """Into how many parts the elements are dealt."""
        return len(self.keys)

    def each(self, rows: int) -> Iterator[tuple[slice, int, int]]:
        """For each part of `rows` rows: which rows, their key and their offset."""
        size, left = divmod(rows, self.parts)
        if left:
            raise ValueError(f"{rows} rows cannot be dealt out evenly to {self.parts} keys")
        for i, (key, offset) in enumerate(zip(self.keys, self.offsets, strict=True)):
            yield slice(i * size, (i + 1) * size), key, offset


def joined(streams: Sequence[Stream]) -> Stream:
    """The keys of all streams, one after the other."""
    keys, offsets = (tuple(n for s in streams for n in getattr(s, part)) for part in ("keys", "offsets"))
    again = [stream.of_step for stream in streams if stream.of_step is not None]
    known = len(again) == len(streams)
    return Stream(keys, offsets, (lambda step: joined([one(step) for one in again])) if known else None)


@dataclass(frozen=True)
class Random:
    """The source of randomness in one step for one unit, of the workers `ranks`.

    Args:
        seed: of all randomness, the same on all workers.
        step: the number of the step.
        unit: the name of the unit of compression.
        ranks: whose numbers these are; the rows of a tensor are dealt out to them in equal consecutive parts.
        offsets: for each of them, the position of its first element, where it treats one shard of the unit.

    A codec is given one and asks it for a `Stream`: `private`, `shared` or `common`, by a name of what it is for. The
    functions of `gradwire.kernels.random` make numbers of a stream.

    Example:
        >>> import torch
        >>> from gradwire.kernels.random import uniform
        >>> rng = Random(seed=1, ranks=(0, 1), offsets=(0, 0))  # two workers, a row for each
        >>> own = uniform(rng.private("round"), (2, 5), torch.device("cpu"))
        >>> alike = uniform(rng.shared("support"), (2, 5), torch.device("cpu"))
        >>> bool((own[0] == own[1]).any()), bool((alike[0] == alike[1]).all())
        (False, True)
    """

    seed: int = 0
    step: int = 0
    unit: str = ""
    ranks: tuple[int, ...] = (0,)
    offsets: tuple[int, ...] = (0,)

    @property
    def owner(self) -> str:
        """Names unit and workers, for room that is theirs alone."""
        return f"{self.unit}@{self.ranks[0]}"

    def shared(self, purpose: str) -> Stream:
        """Numbers that every worker draws alike, element by element.

        Args:
            purpose: tells streams of one step apart.
        """
        keys = (_digest(self.seed, self.step, self.unit, purpose),) * len(self.ranks)
        return Stream(keys, self.offsets, lambda step: replace(self, step=step).shared(purpose))

    def private(self, purpose: str) -> Stream:
        """Each worker's own numbers.

        Args:
            purpose: tells streams of one step apart.
        """
        keys = tuple(_digest(self.seed, self.step, self.unit, purpose, rank) for rank in self.ranks)
        return Stream(keys, self.offsets, lambda step: replace(self, step=step).private(purpose))

    def common(self, purpose: str) -> Stream:
        """Numbers that belong to no element and no worker, such as the coefficients of a hash: drawn once for all.

        Args:
            purpose: tells streams of one step apart.
        """
        keys = (_digest(self.seed, self.step, self.unit, purpose),)
        return Stream(keys, of_step=lambda step: replace(self, step=step).common(purpose))

    def at(self, *offsets: int) -> Random:
        """The same source, reading from other positions: one for all workers, or one for each."""
        return replace(self, offsets=offsets * len(self.ranks) if len(offsets) == 1 else offsets)

    def of(self, ranks: Sequence[int], offsets: Sequence[int]) -> Random:
        """The same source, for the rows of other workers."""
        return replace(self, ranks=tuple(ranks), offsets=tuple(offsets))

    def groups(self, count: int) -> Random:
        """For one row a group, after the rows of each of `count` equal groups were combined."""
        size = len(self.ranks) // count
        return replace(self, ranks=self.ranks[::size], offsets=self.offsets[::size]) if size > 1 else self

    def fold(self, purpose: str) -> Random:
        """A source independent of this one, for a second use of the same codec in one step."""
        return replace(self, unit=f"{self.unit}/{purpose}")


def _digest(*parts: object) -> int:
    text = "\0".join(str(p) for p in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
