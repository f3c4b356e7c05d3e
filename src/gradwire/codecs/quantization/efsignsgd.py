r"""EF-signSGD: one bit a coordinate, and the mean magnitude of each block.

.. math::  C(a)_i = \frac{\|a_B\|_1}{|B|}\,\mathrm{sgn}(a_i), \qquad i \in B

A contraction with delta = ‖a‖₁² / (|B| ‖a‖₂²) in each block B, between 1/|B| and 1, and 2/π for Gaussian entries; runs
with error feedback. Zero counts as positive; a block of zeros decodes to zeros.
Wire: ceil(n/8) bytes, and 4 for each block of `block` elements.

Departs from the paper in the unit of the scale: blocks of fixed length instead of layers, after the blockwise scheme
of Zheng et al., NeurIPS 2019, arXiv:1905.10936. The learning rate is not folded into a.

Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, arXiv:1901.09847, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import rows
from gradwire.kernels.bitpack import pack, packed_bytes, unpack


@register
@dataclass(frozen=True)
class EFSignSGD(Codec):
    """Scaled signs."""

    name: ClassVar[str] = "efsignsgd"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2019, arXiv:1901.09847"
    variants: ClassVar[tuple[str, ...]] = ("efsignsgd(block=64)", "efsignsgd(block=7)")
    block: int = 2048

    def __post_init__(self) -> None:
        Check(self.name).integer("block", self.block, 1)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, memory="error_feedback", delta=1 / self.block)

    @property
    def alignment(self) -> int:
        return self.block

    def encode(self, x: Tensor, rng: Random) -> Payload:
        sums = rows.blocks(x.abs(), self.block).sum(2)
        return Payload(rows.join(sums / self._lengths(x.shape[1], x.device), pack(x >= 0, 1)))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        scales, start = rows.take(payload.data, 0, -(-numel // self.block), torch.float32)
        signs = unpack(payload.data[:, start:], 1, numel).float().mul_(2).sub_(1)
        return (rows.blocks(signs, self.block) * scales.unsqueeze(2)).flatten(1)[:, :numel]

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, 1) + 4 * -(-numel // self.block)

    def _lengths(self, numel: int, device: torch.device) -> Tensor:
        """Elements in each block; the last may be shorter."""
        starts = torch.arange(0, numel, self.block, device=device)
        return (numel - starts).clamp(max=self.block)
