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
from gradwire.kernels import rows, signs
from gradwire.kernels.bitpack import packed_bytes


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
        return Traits(combine=Combine.GATHER, propagates_nonfinite=True, memory="error_feedback", delta=1 / self.block)

    @property
    def alignment(self) -> int:
        return self.block

    def encode(self, x: Tensor, rng: Random) -> Payload:
        scales, bits, _ = signs.encode_scaled(x, self.block)
        return Payload(rows.join(scales, bits))

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        scales, bits, own = signs.encode_scaled(x, self.block, keep_own=True)
        assert own is not None, "asked for"
        return Payload(rows.join(scales, bits)), own

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        scales, bits = self._read(payload, numel)
        return signs.decode(bits, -scales, scales, self.block, numel)

    def combine(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        scales, bits = self._read(payload, numel)
        return signs.decode_sum(bits, -scales, scales, self.block, numel).div_(payload.rows)

    def reduce_and_encode(
        self, payload: Payload, numel: int, rng: Random, down: Random, kept: Tensor | None, remember: bool
    ) -> tuple[Payload, Tensor | None]:
        scales, bits = self._read(payload, numel)
        bits, scales, lost = signs.reduce_and_encode(bits, -scales, scales, self.block, numel, kept, remember)
        return Payload(rows.join(scales, bits)), lost

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, 1) + 4 * -(-numel // self.block)

    def _read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """Scales and packed signs."""
        scales, start = rows.take(payload.data, 0, -(-numel // self.block), torch.float32)
        return scales, payload.data[:, start:]
