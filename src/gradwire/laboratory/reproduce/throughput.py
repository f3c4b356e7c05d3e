"""What Beyond Throughput and Compression Ratios publishes, and the codecs of ours that stand for its settings.

Han et al., 2024, arXiv:2407.01378. Its testbed: 2 nodes of 2 A100 each at 100 Gbit/s, a batch of 32 a worker for VGG19
on TinyImageNet and of 4 for BERT-large on WikiText-103. b is what a worker hands to the exchange, in bits an element:

- Top-k: b = 48 K/d, with values of 16 bits and indices of 32, so K/d = b/48. Ours keeps as many elements; "packed"
  indices take ceil(log2 d) bits in place of 32, so it sends less than b.
- TopK-Chunked: b = 16 (J C/d + 1/C), with C = 128 for b = 0.5 and 64 for 2 and 8. Ours takes b as `bits`.
- THC: q bits an element are sent as b. "Saturation" has b = q; the baseline adds integers of 8 bits up exactly, with a
  full rotation. With 8 workers our exact sum of 4-bit integers takes 8 bits, too. Ours runs without memory under
  saturation, which has no bound, and rotates chunks of 1024 elements where theirs are as large as a GPU's fast memory.
- PowerSGD: b follows from the rank.

The curves of figures 1 to 3 are not in the text that we have; what is said about them is in `reproduce.claims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PAPER = "Han et al., Beyond Throughput and Compression Ratios, 2024, arXiv:2407.01378"
BERT, VGG19 = "BERT-large", "VGG19"
TESTBED = {"gpus": 4, "gpus_per_node": 2, "bandwidth": "100gbit"}
MODELS = {BERT: ("bert-large", 4), VGG19: ("vgg19-200", 32)}  # ours, and the batch a worker
STAND_IN = {BERT: "bert-small-wikitext2", VGG19: "resnet9-cifar10"}  # the tasks that we train in their place
ROLLING = {BERT: 3750, VGG19: 7810}  # rounds that the curves of figures 1 to 3 are averaged over


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """One column of a table: a codec of ours, and what is published of theirs."""

    label: str
    codec: str
    table: str
    bits: Mapping[str, float] = field(default_factory=dict)  # an element, by their model
    rounds_per_second: Mapping[str, float] = field(default_factory=dict)
    nmse: float | None = None  # of BERT-large


def _both(bits: float) -> dict[str, float]:
    return {BERT: bits, VGG19: bits}


BASELINES = (
    Setting(label="FP32", codec="none", table="table 1", bits=_both(32), rounds_per_second={BERT: 2.36, VGG19: 6.37}),
    Setting(label="FP16", codec="fp16", table="table 1", bits=_both(16), rounds_per_second={BERT: 3.17, VGG19: 8.73}),
)
TF32 = {"FP32": {BERT: 2.44, VGG19: 6.59}, "FP16": {BERT: 3.32, VGG19: 9.31}}  # table 1, trained in TF32

TOPK = tuple(
    Setting(
        label=f"Top-k, b = {bits:g}",
        codec=f"topk(ratio={ratio}, value_bits=16, index='packed')",
        table="tables 3 and 5",
        bits=_both(bits),
        rounds_per_second={BERT: bert, VGG19: vgg},
        nmse=nmse,
    )
    for bits, ratio, bert, vgg, nmse in (
        (0.5, 0.0104167, 5.53, 21.5, 0.303),
        (2, 0.0416667, 3.87, 13.9, 0.185),
        (8, 0.1666667, 2.50, 7.60, 0.0865),
    )
)
TOPKC = tuple(
    Setting(
        label=f"TopKC, b = {bits:g}",
        codec=f"topkc(chunk={chunk}, bits={bits})",
        table="tables 2, 3 and 5",
        bits=_both(bits),
        rounds_per_second={BERT: bert, VGG19: vgg},
        nmse=nmse,
    )
    for bits, chunk, bert, vgg, nmse in (
        (0.5, 128, 6.06, 24.9, 0.273),
        (2.0, 64, 6.02, 22.2, 0.142),
        (8.0, 64, 4.78, 15.2, 0.0280),
    )
)
PERMUTED = tuple(
    Setting(
        label=f"TopKC, permuted, b = {bits:g}",
        codec=f"topkc(chunk={chunk}, bits={bits}, permute=True)",
        table="table 2",
        bits=_both(bits),
        nmse=nmse,
    )
    for bits, chunk, nmse in ((0.5, 128, 0.398), (2.0, 64, 0.297), (8.0, 64, 0.123))
)
THC = (
    *(
        Setting(
            label=f"THC, saturation, {'no' if rotation == 'none' else rotation} rotation, b = q = {bits}",
            codec=f"thc(bits={bits}, rotation='{rotation}', aggregation='saturate')",
            table="table 6",
            bits=_both(bits),
            rounds_per_second={BERT: bert, VGG19: vgg},
        )
        for bits, rotation, bert, vgg in (
            (2, "full", 5.59, 19.9),
            (2, "partial", 5.75, 21.5),
            (2, "none", 5.84, 22.7),
            (4, "full", 5.37, 18.4),
            (4, "partial", 5.47, 19.4),
            (4, "none", 5.54, 20.3),
        )
    ),
    Setting(
        label="THC, exact sums, full rotation, b = 8, q = 4",
        codec="thc(bits=4, rotation='full', aggregation='sum')",
        table="table 6",
        bits=_both(8),
        rounds_per_second={BERT: 4.32, VGG19: 14.2},
    ),
)
POWERSGD = tuple(
    Setting(
        label=f"PowerSGD, r = {rank}",
        codec=f"powersgd(rank={rank})",
        table="table 7",
        bits={BERT: bert_bits, VGG19: vgg_bits},
        rounds_per_second={BERT: bert, VGG19: vgg},
    )
    for rank, bert_bits, bert, vgg_bits, vgg in (
        (1, 0.0797, 5.49, 0.0242, 21.0),
        (4, 0.217, 4.89, 0.0872, 19.8),
        (16, 0.764, 4.01, 0.339, 15.2),
        (64, 2.95, 3.03, 1.36, 11.0),
    )
)
SETTINGS = (*BASELINES, *TOPK, *TOPKC, *PERMUTED, *THC, *POWERSGD)
SPECS = tuple(s.codec for s in SETTINGS)  # all of them with each codec's own memory

# table 4: percent of a step that Top-k's selection and rearrangement take
TOPK_OVERHEAD = {BERT: {0.5: 9.7, 2: 12.5, 8: 8.7}, VGG19: {0.5: 11.9, 2: 12.1, 8: 8.2}}
ORTHOGONALIZATION = {BERT: 39.7, VGG19: 47.4}  # percent of a step of PowerSGD with r = 64, section 3.3
ROTATION = {BERT: 4.4, VGG19: 13.2}  # percent of throughput that THC loses by it, section 3.2.1
POWERSGD_TIMES = 94  # fewer bits than FP16 at r = 16, section 3.3


def compute_seconds(model: str) -> float:
    """Forward and backward pass on their GPUs, at most: as long as the fastest round that they report."""
    return 1 / max(s.rounds_per_second[model] for s in SETTINGS if model in s.rounds_per_second)
