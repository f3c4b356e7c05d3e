"""Two hundred set-ups, and who beats DDP in them.

Five workloads, five numbers of GPUs in nodes of four, four methods, two bandwidths. Baselines are DDP in FP32 and DDP
with FP16 gradients, both overlapped with the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from gradwire.core.baselines import FP16, WIN
from gradwire.core.records import quantile
from gradwire.laboratory.reproduce.formula import SIGN, Formula
from gradwire.laboratory.reproduce.inputs import MEASURED, SIZES, TABLE_3_SIGN, Inputs, m_set, nominal, s_set
from gradwire.laboratory.reproduce.ours import AFTER, GPUS_PER_NODE, OVERLAP, Ours, Predict
from gradwire.laboratory.reproduce.setup import GPUS, LABEL, SYNC, Setup
from gradwire.planner.profile import Profile, Whole
from gradwire.planner.published import ring_all_reduce

WORKLOADS = (("resnet50", 64), ("resnet101", 16), ("resnet101", 32), ("resnet101", 64), ("bert-base", 12))
METHODS = ("powersgd(rank=4)", SIGN, "qsgd(levels=1)", "topk(ratio=0.01)")
RATES = (10e9, 12.5e9)
CLEAR = WIN - 1  # a win by so much is a clear one
LATENCY = 15e-6  # of the nominal calibration


class Asked(Protocol):
    """Whoever knows seconds of backward pass and exchange."""

    def seconds(self, setup: Setup, codec: str) -> float: ...


def setups(rates: Sequence[float] = RATES, **imagined: float) -> list[Setup]:
    """Without the method: 25 for each rate."""
    return [
        Setup(model=m, batch=b, gpus=p, bits_per_second=rate).at(**imagined)
        for (m, b), p, rate in product(WORKLOADS, GPUS, rates)
    ]


@dataclass(frozen=True)
class Comparison:
    """One of the two hundred. Seconds."""

    setup: Setup
    codec: str
    seconds: float
    fp32: float
    fp16: float


@dataclass(frozen=True)
class Tally:
    """Wins of so many set-ups."""

    of: int
    fp32: int
    fp16: int
    clear_fp32: int
    clear_fp16: int
    median: float  # FP16's time over the method's
    where: str  # wins over FP32 by workload


def play(source: Asked, over: Iterable[Setup], baseline: Asked | None = None) -> list[Comparison]:
    """All methods in all set-ups; `baseline` is asked about DDP, where that is somebody else."""
    ddp = baseline or source
    return [
        Comparison(s, codec, source.seconds(s, codec), ddp.seconds(s, SYNC), ddp.seconds(s, FP16))
        for s in over
        for codec in METHODS
    ]


def tally(played: Sequence[Comparison]) -> Tally:
    """Count."""

    def won(against: str, by: float = 0.0) -> int:
        return sum(c.seconds < (1 - by) * getattr(c, against) for c in played)

    by_workload = Counter(f"{LABEL[c.setup.model]} b{c.setup.batch}" for c in played if c.seconds < c.fp32)
    return Tally(
        of=len(played),
        fp32=won("fp32"),
        fp16=won("fp16"),
        clear_fp32=won("fp32", CLEAR),
        clear_fp16=won("fp16", CLEAR),
        median=quantile([c.fp16 / c.seconds for c in played], 0.5),
        where=", ".join(f"{name} {n}" for name, n in by_workload.items()) or "none",
    )


@dataclass(frozen=True)
class Case:
    """Who is asked, under which assumptions."""

    name: str
    assumes: str
    source: Asked
    baseline: Asked | None = None

    def tally(self, over: Iterable[Setup]) -> Tally:
        return tally(play(self.source, over, self.baseline))


@dataclass(frozen=True)
class PerNode:
    """The formula where a node first adds up its gradients in full precision: compression is among nodes alone."""

    formula: Formula
    gpus_per_node: int = GPUS_PER_NODE

    def seconds(self, setup: Setup, codec: str) -> float:
        if codec in (SYNC, FP16):
            return self.formula.seconds(setup, codec)
        g, inside = self.gpus_per_node, self.formula.inputs.profile.inside
        added_up = ring_all_reduce(SIZES[setup.model].formula_bytes, g, inside.payload_rate)
        return added_up + self.formula.seconds(setup.at(gpus=setup.gpus // g), codec)


def constant_sign(inputs: Inputs) -> Inputs:
    """Table 3's time of signSGD for any number of peers, by size."""
    codecs = dict(inputs.profile.codecs)
    small = SIZES["resnet50"].formula_bytes
    wholes = {
        m: Whole(encode_seconds=TABLE_3_SIGN * s.formula_bytes / small, decode_seconds=0.0, source="published: table 3")
        for m, s in SIZES.items()
    }
    codecs[SIGN] = replace(codecs[SIGN], models=wholes)
    return replace(inputs, profile=replace(inputs.profile, codecs=codecs))


V100_MEMORY = 0.9 / 4.8  # of an H200's; published by NVIDIA, TB/s
FREE = 1e5  # times as fast: as good as nothing


def formula_cases() -> list[Case]:
    """Case (i) by the formula: published encode times, all-gather (PowerSGD all-reduce), after the backward pass."""
    m, s = m_set(), s_set()
    flat = nominal(m, LATENCY)
    per_node = "full precision inside a node, every GPU encodes its sum, all-gather among nodes"
    return [
        Case("(i) formula, M-set, as printed", "gamma slows DDP's whole backward pass", Formula(m)),
        Case("(i) formula, M-set", "gamma only while sending", Formula(m, True)),
        Case("(i) formula, nominal", "10 Gbit/s for all, alpha 15 us, gamma only while sending", Formula(flat, True)),
        Case("(i) formula, S-set", "gamma only while sending", Formula(s, True)),
        Case(
            "(i) formula, M-set, table 3's sign", "signSGD 16.34 ms by size, any peers", Formula(constant_sign(m), True)
        ),
        Case("(i') formula, M-set", per_node, PerNode(Formula(m, True))),
        Case("(i') formula, nominal", f"{per_node}, nominal", PerNode(Formula(flat, True))),
        Case("(i) formula, nominal, table 3's sign", "the same, nominal", Formula(constant_sign(flat), True)),
    ]


def with_our_encoding(profile: Profile, ours: Profile) -> Profile:
    """A profile that encodes as fast as `ours`, and is otherwise the old one."""
    device = replace(ours.device, memory_bytes=profile.device.memory_bytes)
    return replace(profile, name=f"{profile.name} with {ours.name}'s encoding", device=device, codecs=ours.codecs)


def flat(codec: str) -> str:
    """Our default: scatter-reduce-gather, and all-reduce for what adds up."""
    return "auto"


def hierarchical(codec: str) -> str:
    """Full precision inside a node; DDP as always."""
    return "auto" if codec in (SYNC, FP16) else "hierarchical"


def model_cases(predict: Predict, encoding: str) -> list[Case]:
    """Cases (i) to (iv) by our model; `encoding` has our encode times. DDP is asked with the V100 profile."""
    v100 = Profile.load(MEASURED)
    fast = with_our_encoding(v100, Profile.load(encoding))
    ddp = Ours(v100, predict)
    ours = f"our encode times ({encoding})"
    slower = f"as (ii), encoding {1 / V100_MEMORY:.2g} times slower: by the speed of a V100's memory"
    bound = "as (ii), encoding for nothing: a bound"

    def at(speed: float) -> Predict:
        return lambda **question: predict(**question | {"encode_speed": speed * question["encode_speed"]})

    v100s, free = at(V100_MEMORY), at(FREE)

    return [
        Case("(i) our model", "published encode times, all-gather, after the backward pass", ddp),
        Case(
            "(i') our model",
            "published encode times, hierarchical: every GPU encodes its part of the node's sum",
            Ours(v100, predict, hierarchical),
            ddp,
        ),
        Case("(ii) flat, after", f"{ours}, scatter-reduce-gather", Ours(fast, predict, flat), ddp),
        Case("(ii) flat, overlapped", f"{ours}, scatter-reduce-gather", Ours(fast, predict, flat, OVERLAP), ddp),
        Case("(ii) hierarchical, after", ours, Ours(fast, predict, hierarchical, AFTER), ddp),
        Case("(ii) hierarchical, overlapped", ours, Ours(fast, predict, hierarchical, OVERLAP), ddp),
        Case("(iii) flat, overlapped", slower, Ours(fast, v100s, flat, OVERLAP), ddp),
        Case("(iii) hierarchical, overlapped", slower, Ours(fast, v100s, hierarchical, OVERLAP), ddp),
        Case("(iv) flat, overlapped", bound, Ours(fast, free, flat, OVERLAP), ddp),
        Case("(iv) hierarchical, overlapped", bound, Ours(fast, free, hierarchical, OVERLAP), ddp),
    ]
