"""What the published formula is fed with: sizes of the study's models, and two sets of times.

The M-set is fitted to measured claims, the S-set follows from tables and first principles: the shipped profiles
``v100-paper-measured`` and ``v100-paper-simulated``, which say for each entry whether it is published, inferred or
assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from gradwire.core.errors import UnknownName
from gradwire.laboratory.reproduce.setup import RATE, Setup
from gradwire.planner.profile import Profile
from gradwire.planner.published import SLOWDOWN

MEASURED, SIMULATED = "v100-paper-measured", "v100-paper-simulated"
MEBI = 1 << 20
FLOAT_BYTES = 4
TABLE_3_SIGN = 16.34e-3  # seconds of encoding and decoding, ResNet-50
ENCODE_MS = {  # table 2, ResNet-50
    "MS-TopK 1%": 103,
    "DGC 1%": 221,
    "TopK 1%": 273,
    "RandomK 1%": 163,
    "SignSGD": 16,
    "QSGD 2 bit": 39,
    "TernGrad": 94,
    "PowerSGD rank 4": 45,
    "ATOMO rank 4": 1586,
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a model's gradient. `rows` and `columns` add up over matrices of which no side is below 16."""

    formula_bytes: float  # what the paper calls MB, taken as 10^6 bytes: that meets its crossovers best
    elements: int
    matrices: int
    rows: int
    columns: int
    small: tuple[tuple[int, int], ...] = ()  # the other matrices
    vector_elements: int

    @property
    def bytes(self) -> int:
        """Of the gradient in FP32."""
        return FLOAT_BYTES * self.elements

    def low_rank(self, rank: int) -> tuple[float, float]:
        """Bytes of P and of Q, which PowerSGD sends; for ranks up to 16."""
        p = self.rows * rank + sum(n * min(n, m, rank) for n, m in self.small)
        q = self.columns * rank + sum(m * min(n, m, rank) for n, m in self.small)
        return FLOAT_BYTES * p, FLOAT_BYTES * q

    def low_rank_ratio(self, rank: int, *, vectors: bool) -> float:
        """How many times less PowerSGD sends, with or without the vectors that it leaves as they are."""
        sent = sum(self.low_rank(rank)) + (FLOAT_BYTES * self.vector_elements if vectors else 0)
        return (self.bytes - (0 if vectors else FLOAT_BYTES * self.vector_elements)) / sent


SIZES = {  # section 3 for MB; the rest follows from shapes
    "resnet50": Size(
        formula_bytes=97e6, elements=25_557_032, matrices=54, rows=27_560, columns=54_931, vector_elements=54_120
    ),
    "resnet101": Size(
        formula_bytes=170e6, elements=44_549_160, matrices=105, rows=53_672, columns=115_859, vector_elements=106_344
    ),
    "bert-base": Size(
        formula_bytes=418e6,
        elements=109_482_240,
        matrices=76,
        rows=114_746,
        columns=85_248,
        small=((2, 768),),
        vector_elements=122_112,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One set. Latency is alpha, slowdown is gamma."""

    label: str
    profile: Profile
    latency: float = 0.0
    slowdown: float = SLOWDOWN
    nominal: bool = False  # take a nominal rate for the effective one, also for this set

    def backward(self, setup: Setup) -> float:
        """T_comp."""
        return self.profile.times(setup.model, setup.batch).backward_seconds / setup.compute_speed

    def encode_decode(self, setup: Setup, codec: str) -> float:
        """T_encode-decode of a codec whose payloads are gathered: decoding is once a peer, where that is known."""
        known = self.profile.codecs.get(codec)
        if known is None or setup.model not in known.models:
            raise UnknownName(f"{self.label}: the study says nothing about encoding {setup.model} with {codec}")
        whole = known.models[setup.model]
        return (whole.encode_seconds + setup.gpus * whole.decode_seconds) / setup.encode_speed

    def rate(self, setup: Setup) -> float:
        """The bit/s to put into the formula where the paper says 10 Gbps."""
        if setup.face_value or self.nominal:
            return setup.bits_per_second
        effective: float = self.profile.about["formula_bits_per_second"][setup.model]
        return setup.bits_per_second * effective / RATE


@cache
def m_set() -> Inputs:
    """Fitted to measured claims."""
    return Inputs(label="M-set", profile=Profile.load(MEASURED))


@cache
def s_set() -> Inputs:
    """From tables and first principles."""
    return Inputs(label="S-set", profile=Profile.load(SIMULATED))


def nominal(inputs: Inputs, latency: float) -> Inputs:
    """With nominal bandwidth for all models, and some latency."""
    return replace(inputs, label=f"{inputs.label}, nominal", latency=latency, nominal=True)
