r"""Sketched-SGD: the workers find the large coordinates of their mean in a sum of sketches.

With S the Count-Sketch of `rows` × `columns` sums (see `gradwire.kernels.sketch`) and a bar the mean over the workers,

.. math::  \hat a = \text{estimates from}\ \overline{S(a)}, \qquad
           K = \text{the } P k \text{ largest } |\hat a_i|, \qquad
           C(a)_i = \bar a_i \ \text{if}\ |\bar a_i| \text{ is among the } k \text{ largest of } K,\ \text{else } 0

with k = max(1, ceil(ratio·n)) and P = `candidates`. S is linear, so both rounds are all-reduces, and no index is sent.
Each row's estimate has a standard deviation of at most ‖mean of a‖/√columns: coordinates well above that are found. A
worker's own share is its gradient on the final support: delta = 0. Runs with momentum correction, as published. The
hashes depend on the seed and the size alone. Taking the Pk largest estimates is the paper's practical form.
Wire: 4 (rows·columns + P k) bytes.

Ivkin et al., Communication-efficient Distributed SGD with Sketching, NeurIPS 2019, arXiv:1903.04488.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.codecs.sparsification._supports import only
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Sum
from gradwire.core.random import Random
from gradwire.kernels import sketch
from gradwire.kernels.scatter import scatter
from gradwire.kernels.select import top


@register
@dataclass(frozen=True)
class SketchedSGD(Codec):
    """Send a small sketch of the gradient, find the large elements of the mean in it, and send these exactly.

    Args:
        ratio: share of the elements in the result, in (0, 1]. 0.01 keeps 1 %.
        rows: of the sketch, an odd number: estimates are medians over the rows. 5 as published.
        columns: of the sketch; None takes 4 for each element that is kept. More find more of the large elements.
        candidates: elements fetched exactly for each that is kept, at least 1. 4 makes up for errors of the sketch.

    Example:
        >>> cluster = gradwire.VirtualCluster(2, "sketchedsgd(ratio=0.01)")
        >>> _ = cluster.reduce({"w": [torch.randn(1000), torch.randn(1000)]})
        >>> cluster.payload_bytes
        960
    """

    name: ClassVar[str] = "sketchedsgd"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Ivkin et al., NeurIPS 2019, arXiv:1903.04488"
    plain_on_gpu: ClassVar[str] = "sketches have no kernel yet; selection has"
    variants: ClassVar[tuple[str, ...]] = (
        "sketchedsgd(ratio=0.05, rows=3, candidates=2)",
        "sketchedsgd(ratio=0.05, rows=1, columns=64, candidates=1)",
    )
    ratio: float = 0.01
    rows: int = 5
    columns: int | None = None
    candidates: int = 4

    def __post_init__(self) -> None:
        check = checked(self)
        check.integer("rows", self.rows, 1)
        if self.rows % 2 == 0:
            check.fail("rows", "an odd number, so that one of them is the median", self.rows)
        if self.columns is not None:
            check.integer("columns", self.columns, 1, sketch.LARGEST)
        check.integer("candidates", self.candidates, 1)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.ROUNDS, memory="momentum_correction", delta=0.0, sparse=True, ignores_shapes=True)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        numel, share = x.shape[1], 1.0 / ctx.workers
        k = kept(self.ratio, numel)
        columns = 4 * k if self.columns is None else self.columns
        where = _places(ctx.rng.seed, numel, self.rows, columns, x.device)
        table = yield Sum(torch.stack([sketch.fold(row, where, columns) for row in x]) * share)
        found = top(sketch.estimate(table[0], where)[None], min(numel, self.candidates * k))[0]
        values = yield Sum(x[:, found] * share)
        best = top(values, k)
        support = found[best]
        return scatter(values.gather(1, best), support, numel), only(x, support) if ctx.wants_own else None


@lru_cache(maxsize=8)  # units of one size share their hashes
def _places(seed: int, numel: int, rows: int, columns: int, device: torch.device) -> Tensor:
    return sketch.places(Random(seed=seed).shared("sketchedsgd"), numel, rows, columns, device)
