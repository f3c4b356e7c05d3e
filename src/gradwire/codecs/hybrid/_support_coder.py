"""Which elements a row sends, and how the reader learns them: by their indices, or by a seed that all workers share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.kernels import indices, rows
from gradwire.kernels.select import top
from gradwire.kernels.support import Support

SUPPORTS = ("topk", "randomk")


@dataclass(frozen=True)
class SupportCoder:
    """The share `ratio` of the elements: the largest, or random ones that all workers draw alike."""

    kind: str  # one of `SUPPORTS`
    ratio: float

    def index_bytes(self, numel: int) -> int:
        """Bytes of a row's indices; 0 where all workers know them."""
        k = kept(self.ratio, numel)
        return indices.index_bytes(numel, k) if self.kind == "topk" and k < numel else 0

    def choose(self, x: Tensor, rng: Random) -> Tensor:
        """The indices of the elements to send, (rows, k)."""
        if self.index_bytes(x.shape[1]):
            return top(x, kept(self.ratio, x.shape[1]))
        return self._known(x, x.shape[1], rng)

    def join(self, where: Tensor, values: Payload, numel: int) -> Payload:
        """The indices, as far as they are sent, before the coded values."""
        size = self.index_bytes(numel)
        if not size:
            return values
        lengths = None if values.lengths is None else values.lengths + size
        return Payload(rows.join(indices.encode(where, numel), values.data), lengths)

    def split(self, payload: Payload, numel: int, rng: Random) -> tuple[Tensor, Payload]:
        """The inverse: indices and coded values."""
        k, size = kept(self.ratio, numel), self.index_bytes(numel)
        where = indices.decode(payload.data[:, :size], numel, k) if size else self._known(payload.data, numel, rng)
        lengths = None if payload.lengths is None else payload.lengths - size
        return where, Payload(payload.data[:, size:], lengths)

    def _known(self, like: Tensor, numel: int, rng: Random) -> Tensor:
        """The support that does not depend on the data, for all rows."""
        k = kept(self.ratio, numel)
        if k == numel:
            one = torch.arange(k, device=like.device)
        else:
            one = Support(k, rng.common("turn"), rng.common("support")).indices(numel, like.device)
        return one.expand(like.shape[0], k)
