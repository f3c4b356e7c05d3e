r"""Strom's threshold: one sign, worth τ, for each coordinate whose magnitude exceeds τ.

.. math::  C(a)_i = \tau\,\mathrm{sgn}(a_i) \ \text{if}\ |a_i| > \tau, \text{ else } 0

Runs with error feedback, which keeps a_i ∓ τ. |a_i − C(a)_i| ≤ |a_i|, which is delta = 0. A row may send nothing.
Wire: per row the count k in 4 bytes, k indices in the shortest coding, see `gradwire.kernels.indices`, and k signs of
one bit; no byte where k = 0. A row that is not finite is a count of −1.

Departs from the paper in the coding: there each coordinate takes a 32-bit word, 31 bits of index and one of sign.

Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification._ragged import RowByRow, all_nan, no_bytes, ragged, rows_above
from gradwire.codecs.sparsification._sparse_payload import read_signs, write_signs
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import rows
from gradwire.kernels.bitpack import packed_bytes


@register
@dataclass(frozen=True)
class Strom(RowByRow):
    """Send the sign of each element that exceeds τ, worth τ; error feedback keeps the rest.

    Args:
        tau: the threshold τ, above 0, in the units of the gradient as it comes, loss scale included. An element drains
            by τ a step at most, so it must not be small against the gradients; no default fits all models.

    Example:
        >>> gradwire.VirtualCluster(1, "strom(tau=1.5)").reduce({"w": [torch.tensor([1.0, -2.0, 3.0])]})["w"]
        tensor([ 0.0000, -1.5000,  1.5000])
    """

    name: ClassVar[str] = "strom"
    family: ClassVar[str] = "hybrid"
    paper: ClassVar[str] = "Strom, Interspeech 2015"
    plain_on_gpu: ClassVar[str] = "how many elements are sent changes from step to step"
    variants: ClassVar[tuple[str, ...]] = ("strom(tau=1.5)",)
    tau: float = 0.01

    def __post_init__(self) -> None:
        Check(self.name).number("tau", self.tau, 5e-324, sys.float_info.max, "a magnitude above 0")

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, memory="error_feedback", delta=0.0, fixed_size=False, homogeneous=False)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return ragged([self._row(values, where, x.shape[1]) for values, where in rows_above(x, self.tau)])

    def payload_bytes(self, numel: int) -> int:
        return 8 + 4 + 2 * packed_bytes(numel, 1)

    def _row(self, values: Tensor, where: Tensor, numel: int) -> Tensor:
        """One row's bytes."""
        if not values.numel():
            return no_bytes(values)
        if bool(values.isnan().any()):
            return rows.join(where.new_full((1, 1), -1, dtype=torch.int32))
        return rows.join(where.new_full((1, 1), where.shape[1], dtype=torch.int32), write_signs(values, where, numel))

    def entries(self, data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        head, start = rows.take(data, 0, 1, torch.int32)
        if int(head) < 0:
            return all_nan(data, numel)
        tau = torch.full((1, 1), self.tau, dtype=torch.float32, device=data.device)
        values, where = read_signs(data[:, start:], numel, int(head), tau)
        return values[0], where[0]
