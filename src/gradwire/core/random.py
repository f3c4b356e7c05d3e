"""Counter-based randomness: a number is a pure function of who asks for it, when, and for which element.

A `Random` belongs to one worker, one step and one unit of compression. `shared(purpose)` gives the
stream that all workers see alike (supports, coins, rotations), `private(purpose)` one of this worker's own
(rounding, whose errors must be independent to average out). A `Stream` is only a key and an offset;
`gradwire.kernels.random` turns it into numbers, the same ones on every device. The global
generators of torch, NumPy and Python are never touched.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Stream:
    """An endless sequence of random words: a 64-bit key and the position where reading starts."""

    key: int
    offset: int = 0


@dataclass(frozen=True)
class Random:
    """The source of randomness of one worker in one step for one unit."""

    seed: int = 0
    step: int = 0
    unit: str = ""
    rank: int = 0
    offset: int = 0  # position of the first element, for a worker that treats one shard of the unit

    def shared(self, purpose: str) -> Stream:
        """The stream that every worker draws alike."""
        return Stream(_digest(self.seed, self.step, self.unit, purpose), self.offset)

    def private(self, purpose: str) -> Stream:
        """This worker's own stream."""
        return Stream(_digest(self.seed, self.step, self.unit, purpose, self.rank), self.offset)

    def at(self, offset: int) -> Random:
        """The same source, reading from element `offset` on."""
        return replace(self, offset=offset)

    def fold(self, purpose: str) -> Random:
        """A source independent of this one, for a second use of the same codec in one step."""
        return replace(self, unit=f"{self.unit}/{purpose}")


def _digest(*parts: object) -> int:
    text = "\0".join(str(p) for p in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
