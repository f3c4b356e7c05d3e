"""The values on a sparse support, coded by any codec that decodes rows one by one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.core.codec import Codec, Combine, codecs
from gradwire.core.errors import Incompatible
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.scaled import Scaled


@dataclass(frozen=True)
class ValueCoder:
    """Codes (rows, k) values, which stand for rows of `numel` elements."""

    codec: Codec
    contraction: float  # by how much the values contract

    @classmethod
    def of(cls, spec: str, user: str) -> ValueCoder:
        """The codec `spec`, scaled to a contraction if its variance is large. Errors name the `user`."""
        codec = codecs.build(spec)
        if codec.traits.omega is not None and codec.traits.omega >= 1:
            codec = Scaled(codec, 1 / (1 + codec.traits.omega))
        traits = codec.traits
        if traits.combine is not Combine.GATHER or not traits.is_mean:
            reason = "its payloads are not decoded one by one and averaged"
        elif traits.delta is None and traits.omega is None:
            reason = "it claims neither a contraction nor a bounded variance"
        else:
            return cls(codec, 1 - traits.omega if traits.omega is not None else float(traits.delta or 0))
        raise Incompatible(f"{user}: {spec!r} cannot code the values: {reason}. Use a codec such as qsgd or efsignsgd.")

    def encode(self, values: Tensor, numel: int, rng: Random) -> Payload:
        return _joined([self.codec.encode(values[p], self._draws(values, numel, rng, p)) for p in self._parts(values)])

    def encode_own(self, values: Tensor, numel: int, rng: Random) -> tuple[Payload, Tensor]:
        both = [self.codec.encode_own(values[p], self._draws(values, numel, rng, p)) for p in self._parts(values)]
        coded, own = zip(*both, strict=True)
        return _joined(coded), torch.cat(own)

    def decode(self, coded: Payload, where: Tensor, numel: int, rng: Random) -> Tensor:
        """The values at the (rows, k) indices `where`."""
        k, parts = where.shape[1], self._parts(where)
        return torch.cat([self.codec.decode(_part(coded, p), k, self._draws(where, numel, rng, p)) for p in parts])

    def combine(self, coded: Payload, where: Tensor, numel: int, rng: Random, groups: int) -> Tensor:
        """Their means over groups of rows with one support: (groups, k)."""
        draws = self._draws(where, numel, rng, slice(0, len(where)))
        return self.codec.combine(coded, where.shape[1], draws, groups)

    def _parts(self, values: Tensor) -> list[slice]:
        """Rows that may be coded in one call: all where their length suits the codec, else one by one."""
        count, k = values.shape
        step = count if k % self.codec.alignment == 0 else 1
        return [slice(i, i + step) for i in range(0, count, step)]

    def _draws(self, values: Tensor, numel: int, rng: Random, part: slice) -> Random:
        """The source for a part of the rows: a worker's row i begins at element i·k of the values."""
        count, k = values.shape
        each = count // len(rng.ranks)
        ranks = [rank for rank in rng.ranks for _ in range(each)]
        offsets = [(offset // numel + i) * k for offset in rng.offsets for i in range(each)]
        return rng.fold("values").of(ranks[part], offsets[part])


def _joined(parts: list[Payload] | tuple[Payload, ...]) -> Payload:
    width = max(p.data.shape[1] for p in parts)
    lengths = [p.lengths for p in parts if p.lengths is not None]
    data = torch.cat([F.pad(p.data, (0, width - p.data.shape[1])) for p in parts])
    return Payload(data, torch.cat(lengths) if lengths else None)


def _part(payload: Payload, part: slice) -> Payload:
    return Payload(payload.data[part], None if payload.lengths is None else payload.lengths[part])
