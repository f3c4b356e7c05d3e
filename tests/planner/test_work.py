"""How much a worker encodes and decodes: the model's numbers are those of a codec that counts, under the tracer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from gradwire.core.codec import Codec, Combine, Traits
from gradwire.core.exchange import Payload
from gradwire.planner.model import ALL_GATHER, SHARED, strategy_work
from gradwire.tracing import trace

SHAPE = (512, 512)
ELEMENTS = SHAPE[0] * SHAPE[1]


@dataclass(frozen=True)
class Counting(Codec):
    """Sends what it gets, and counts elements."""

    name: ClassVar[str] = "counting"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "none"
    seen: Counter[str] = field(default_factory=Counter, compare=False)

    @property
    def traits(self):
        return Traits(combine=Combine.GATHER, memory="none", delta=0.0)

    def encode(self, x, rng):
        self.seen["encode"] += x.numel()
        return Payload(x.contiguous().view(torch.uint8))

    def decode(self, payload, numel, rng):
        found = payload.data.view(torch.float32)
        self.seen["decode"] += found.numel()
        return found

    def payload_bytes(self, numel):
        return 4 * numel


def counted(workers, strategy):
    """Gradients that one worker encodes and decodes."""
    codec = Counting()
    trace(codec, [("matrix", SHAPE)], workers=workers, strategy=strategy)
    return codec.seen["encode"] / ELEMENTS, codec.seen["decode"] / ELEMENTS


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
@pytest.mark.parametrize("strategy", [ALL_GATHER, SHARED])
def test_work_is_what_a_strategy_does(strategy, workers):
    assert strategy_work(strategy, workers) == counted(workers, strategy)


@pytest.mark.parametrize("across", [ALL_GATHER, SHARED])
def test_a_node_does_together_what_its_only_worker_would(across):
    """The tracer asks every rank of a node; the model gives each of them an equal share of this."""
    assert counted(16, f"hierarchical(per_node=4, across='{across}')") == strategy_work(across, 4)
