"""How the M-set was made: eight parameters solved from eight claims, with the published formula and no latency.

A1, B16, B64, A3 give the effective rate of CNNs, ResNet-101's backward pass at two batch sizes, and the decoding of
signs. C4, C1, D3 give BERT's backward pass, its PowerSGD encoding, and its effective rate. J3 gives how MSTop-K's
encoding grows with the model. In A1, C4, D3 and J3 the network is the bottleneck: plain ring all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.core.units import BITS_PER_BYTE, GBIT
from gradwire.laboratory.reproduce.inputs import SIZES
from gradwire.planner.published import all_gather, ring_all_reduce

TED_RN50 = 0.045  # PowerSGD rank 4, table 3
TOP_K_RN50 = 0.104  # MSTop-K 0.1 %, table 3
ONE = BITS_PER_BYTE * 1.0  # bit/s at which seconds count bytes


@dataclass(frozen=True)
class Fitted:
    """Seconds and bit/s."""

    cnn_rate: float  # A1
    resnet101_batch64: float  # B64
    resnet101_batch16: float  # B16
    sign_per_peer: float  # A3, ResNet-101
    bert_rate: float  # C1, C4 and D3 together
    bert_backward: float
    bert_powersgd: float
    bert_top_k: float  # J3


def solve() -> Fitted:
    """All eight."""
    size = SIZES["resnet101"]
    cnn_rate = BITS_PER_BYTE * ring_all_reduce(size.formula_bytes, 96, ONE) / 0.262
    matrices = ring_all_reduce(sum(size.low_rank(4)), 96, cnn_rate)
    encode = TED_RN50 * size.elements / SIZES["resnet50"].elements
    batch64, batch16 = (0.262 * (1 - saved) - encode - matrices for saved in (-0.063, 0.425))
    gathered = all_gather(size.formula_bytes / 32, 96, cnn_rate)
    sign = (1.042 - batch64 - gathered) / 97  # 96 are decoded; encoding is assumed to cost as much as one
    bert_rate, backward, powersgd = _bert()
    return Fitted(cnn_rate, batch64, batch16, sign, bert_rate, backward, powersgd, _bert_top_k(bert_rate, backward))


def _bert() -> tuple[float, float, float]:
    """D3 fixes backward pass and encoding together, C1 then the rate, C4 the backward pass."""
    size = SIZES["bert-base"]
    matrices = sum(size.low_rank(4))
    together = ring_all_reduce(size.formula_bytes - matrices, 64, 15 * GBIT)
    bytes_left = (1 - 0.188) * ring_all_reduce(size.formula_bytes, 96, ONE) - ring_all_reduce(matrices, 96, ONE)
    rate = BITS_PER_BYTE * bytes_left / together
    backward = ring_all_reduce(size.formula_bytes, 96, rate) - 0.200
    return rate, backward, together - backward


def _bert_top_k(rate: float, backward: float) -> float:
    size = SIZES["bert-base"].formula_bytes
    wanted = (1 - 0.013) * ring_all_reduce(size, 16, rate)
    return wanted - backward - 2 * all_gather(0.001 * size, 16, rate)
