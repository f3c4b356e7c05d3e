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

from gradwire.core.codec import Codec, Combine, Flag, Traits, nonfinite_flag, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.core.window import Feedback, Window
from gradwire.kernels import rows, signs
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.window import one_pass


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

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        scales, bits = self._read(payload, numel)
        return signs.decode(bits, -scales, scales, self.block, numel)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        scales, bits = self._read(payload, numel)
        return signs.decode_sum(bits, -scales, scales, self.block, numel, groups).div_(payload.rows // groups)

    def reduce_and_encode(
        self,
        payload: Payload,
        numel: int,
        rng: Random,
        down: Random,
        feedback: Feedback | None,
        groups: int,
        factor: float = 1.0,
    ) -> Payload:
        if factor != 1:
            return super().reduce_and_encode(payload, numel, rng, down, feedback, groups, factor)
        scales, bits = self._read(payload, numel)
        bits, scales = signs.reduce_and_encode(bits, -scales, scales, self.block, numel, feedback, groups)
        return Payload(rows.join(scales, bits))

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if not one_pass(source, feedback):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        parts = signs.encode_scaled_from(source, feedback, shards, shard, self.block, factor, rng.owner)
        return Payload(rows.join(*parts, owner=rng.owner))

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target):
            return super().decode_to(payload, target, shard, rng, factor)
        scales, bits = self._read(payload, shard)
        signs.decode_to(bits, -scales, scales, self.block, shard, target, factor)
        return nonfinite_flag(scales)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target):
            return super().combine_to(payload, target, rng, factor)
        scales, bits = self._read(payload, target.numel)
        signs.combine_to(bits, -scales, scales, self.block, target, factor)
        return nonfinite_flag(scales)

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, 1) + 4 * -(-numel // self.block)

    def _read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """Scales and packed signs."""
        scales, start = rows.take(payload.data, 0, -(-numel // self.block), torch.float32)
        return scales, payload.data[:, start:]
