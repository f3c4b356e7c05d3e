"""Base of the codecs on `kernels.grid`: a scale for each block, and codes on a uniform grid.

Wire: one float32 scale for each block, then the codes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from gradwire.codecs.quantization._rotation import rotated, rotated_back
from gradwire.core.codec import Codec, Combine, Flag, Traits
from gradwire.core.exchange import Payload
from gradwire.core.random import Random, Stream
from gradwire.core.window import Feedback, Window
from gradwire.kernels import grid, rows
from gradwire.kernels.grid import Rule, Turn

ROUNDED = Traits(combine=Combine.GATHER, propagates_nonfinite=True, stochastic=True)  # at random, by default


class GridCodec(Codec):
    """A codec that writes `rule`, how a row is quantised, and `run`, where rows are rotated first."""

    family: ClassVar[str] = "quantization"

    @abstractmethod
    def rule(self, numel: int) -> Rule:
        """How a row of `numel` elements is quantised."""

    def noise(self, rng: Random) -> Stream | None:
        """Random numbers to round by; None rounds to the nearest."""
        return rng.private("round")

    def run(self, numel: int) -> int:
        """Elements that are rotated together before they are quantised; 0 for no rotation."""
        return 0

    @property
    def alignment(self) -> int:
        return math.lcm(self.rule(1).block, 8)

    @property
    def rotates(self) -> bool:
        """Whether rows are rotated before they are quantised."""
        return self.run(1) > 0

    @property
    def scales_by_rule(self) -> bool:
        """Whether the rule gives the scales, so that one pass finds and uses them."""
        return True

    def scales(self, x: Tensor, rule: Rule) -> Tensor:
        """The scale of each block: (rows, blocks)."""
        return grid.scale(x, rule)

    def codes(self, x: Tensor, scales: Tensor, rule: Rule, rng: Random) -> Tensor:
        """The packed codes of (rows, numel) elements for given scales."""
        return grid.encode(x, rule.high / scales, rule.block, rule.low, rule.high, self.noise(rng))

    def coded(self, numel: int) -> int:
        """Elements that have a code: with rotation, whole runs."""
        return numel + -numel % self.run(numel) if self.rotates else numel

    def turned(self, x: Tensor, rng: Random) -> Tensor:
        """The rows that are quantised: (rows, coded)."""
        return rotated(x, self.run(x.shape[1]), rng.shared("signs")) if self.rotates else x

    def turned_back(self, y: Tensor, numel: int, rng: Random) -> Tensor:
        """The inverse: (rows, numel)."""
        return rotated_back(y, self.run(numel), numel, rng.shared("signs")) if self.rotates else y

    def encode(self, x: Tensor, rng: Random) -> Payload:
        rule, y = self.rule(x.shape[1]), self.turned(x, rng)
        if self.scales_by_rule:
            return Payload(rows.join(*grid.encode_by(y, rule, self.noise(rng))))
        scales = self.scales(y, rule)
        return Payload(rows.join(scales, self.codes(y, scales, rule, rng)))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        scales, codes = self.read(payload, numel)
        return self.turned_back(grid.decode_by(codes, scales, self.rule(numel), self.coded(numel)), numel, rng)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        scales, codes = self.read(payload, numel)
        mean = grid.combine_by(codes, scales, self.rule(numel), self.coded(numel), groups)
        return self.turned_back(mean, numel, rng.groups(groups))

    def payload_bytes(self, numel: int) -> int:
        rule = self.rule(numel)
        return rule.code_bytes(self.coded(numel)) + 4 * -(-numel // rule.block)

    def read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """Scales and packed codes."""
        return grid.split(payload.data, self.rule(numel), numel)

    def turn(self, numel: int, rng: Random) -> Turn | None:
        """How a row of `numel` elements is rotated."""
        return Turn(self.run(numel), rng.shared("signs")) if self.rotates else None

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        rule, turn = self.rule(shard), self.turn(shard, rng)
        if not self.scales_by_rule or not grid.in_one_pass(rule, source, feedback, turn):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        noise = self.noise(rng)
        return Payload(grid.encode_from(source, feedback, shards, shard, rule, noise, factor, rng.owner, turn))

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        rule, turn = self.rule(shard), self.turn(shard, rng)
        if not grid.in_one_pass(rule, target, None, turn):
            return super().decode_to(payload, target, shard, rng, factor)
        return grid.decode_to(payload.data, rule, shard, target, factor, turn)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        rule, turn = self.rule(target.numel), self.turn(target.numel, rng.groups(1))
        if not grid.in_one_pass(rule, target, None, turn):
            return super().combine_to(payload, target, rng, factor)
        return grid.combine_to(payload.data, rule, target, factor, turn)

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
        rule, noise = self.rule(numel), self.noise(down)
        given = payload.data, rule, numel, feedback, noise, groups, factor, down.owner
        up, again = self.turn(numel, rng.groups(groups)), self.turn(numel, down)
        if self.scales_by_rule and up is None:
            return Payload(grid.reduce_and_encode(*given))
        done = None
        if self.scales_by_rule and up is not None and again is not None:
            done = grid.reduce_and_encode_turned(*given, up, again)
        if done is None:
            return super().reduce_and_encode(payload, numel, rng, down, feedback, groups, factor)
        return Payload(done)
