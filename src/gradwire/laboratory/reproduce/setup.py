"""A set-up of the study, and what can say how long backward pass and synchronisation take in it.

Two things can: the published formula with one of two sets of inputs (`formula.Formula`), and our own model
(`ours.Ours`). Claims and figures ask either of them through the same few questions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from gradwire.core.baselines import FP32
from gradwire.core.units import GBIT

RATE = 10 * GBIT  # what the instances of section 3 have
GPUS = (8, 16, 32, 64, 96)  # on the x axis of figures 6 to 10
SYNC = FP32  # syncSGD: DDP in FP32
MODELS = ("resnet50", "resnet101", "bert-base")
BATCH = {"resnet50": 64, "resnet101": 64, "bert-base": 12}  # of figures 6 to 8
LABEL = {"resnet50": "ResNet-50", "resnet101": "ResNet-101", "bert-base": "BERT base"}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Who trains what over which network, and what is imagined to be faster or smaller."""

    model: str
    batch: int
    gpus: int
    bits_per_second: float = RATE  # nominal
    face_value: bool = False  # the formula gets just that rate, as where a bandwidth is an axis
    compute_speed: float = 1.0
    encode_speed: float = 1.0
    ratio: float = 1.0  # payloads so many times smaller

    def at(self, **changes: object) -> Setup:
        """The same but for some fields."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{LABEL[self.model]}, batch {self.batch}, {self.gpus} GPUs"


def usual(model: str, gpus: int) -> Setup:
    """With the batch size of the study's main figures."""
    return Setup(model=model, batch=BATCH[model], gpus=gpus)


class Source(Protocol):
    """Seconds of backward pass and synchronisation."""

    @property
    def label(self) -> str: ...

    def seconds(self, setup: Setup, codec: str) -> float:
        """With a codec that runs after the backward pass; `SYNC`: DDP, overlapped."""

    def backward(self, setup: Setup) -> float:
        """The backward pass alone: linear scaling."""

    def without_overlap(self, setup: Setup) -> float:
        """DDP that waits for the end of the backward pass."""

    def required(self, setup: Setup, within: float | None) -> float:
        """How many times smaller gradients must be; see `planner.published.required_compression`."""

    def crossover(self, setup: Setup, codec: str) -> float | None:
        """The bit/s above which DDP is the faster one."""


def saving(source: Source, setup: Setup, codec: str) -> float:
    """Percent of DDP's time that the codec saves; negative where it is slower."""
    return 100 * (1 - source.seconds(setup, codec) / source.seconds(setup, SYNC))


def speedup(source: Source, setup: Setup, codec: str) -> float:
    """DDP's time over the codec's."""
    return source.seconds(setup, SYNC) / source.seconds(setup, codec)


def wins(source: Source, setups: list[Setup], codec: str) -> list[Setup]:
    """Where the codec is faster than DDP."""
    return [s for s in setups if source.seconds(s, codec) < source.seconds(s, SYNC)]


@dataclass(frozen=True)
class Off:
    """A source that is wrong by a share about codecs, and not about DDP: how near a claim is to its limit."""

    source: Source
    by: float

    @property
    def label(self) -> str:
        return f"{self.source.label}, codecs {100 * self.by:+.3g} %"

    def seconds(self, setup: Setup, codec: str) -> float:
        return self.source.seconds(setup, codec) * (1 if codec == SYNC else 1 + self.by)

    def backward(self, setup: Setup) -> float:
        return self.source.backward(setup)

    def without_overlap(self, setup: Setup) -> float:
        return self.source.without_overlap(setup)

    def required(self, setup: Setup, within: float | None) -> float:
        return self.source.required(setup, within)

    def crossover(self, setup: Setup, codec: str) -> float | None:
        return self.source.crossover(setup, codec)
