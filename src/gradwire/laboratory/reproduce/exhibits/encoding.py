"""Tables 2 and 3: what encoding and decoding ResNet-50's gradient costs."""

from __future__ import annotations

from dataclasses import replace

from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit, answer
from gradwire.laboratory.reproduce.formula import RANK, SPARSE
from gradwire.laboratory.reproduce.inputs import ENCODE_MS, SIZES, TABLE_3_SIGN
from gradwire.laboratory.reproduce.measured import encode_seconds
from gradwire.laboratory.reproduce.setup import SYNC, usual
from gradwire.laboratory.reproduce.study import Study

NEAREST = {  # codecs of ours, as records name them: the same method first, then its defaults
    "MS-TopK 1%": ("mstopk(ratio=0.01)", "mstopk"),
    "DGC 1%": ("dgc(ratio=0.01)", "dgc"),
    "TopK 1%": ("topk(ratio=0.01)", "topk"),
    "RandomK 1%": ("randomk(ratio=0.01)", "randomk"),
    "SignSGD": ("signsgd",),
    "QSGD 2 bit": ("qsgd(levels=1)", "qsgd"),
    "TernGrad": ("terngrad",),
    "PowerSGD rank 4": ("powersgd(rank=4)", "powersgd"),
    "ATOMO rank 4": ("atomo(budget=4)", "atomo"),
}
TABLE_3 = {  # method: codec, as records name it, ratio, ms
    "PowerSGD rank 4": ("powersgd(rank=4)", "powersgd", 72, 45),
    "PowerSGD rank 8": ("powersgd(rank=8)", "powersgd(rank=8)", 37, 64),
    "PowerSGD rank 16": ("powersgd(rank=16)", "powersgd(rank=16)", 19, 130),
    "MSTop-K 1 %": ("mstopk(ratio=0.01)", "mstopk", 100, 103),
    "MSTop-K 0.1 %": ("mstopk(ratio=0.001)", "mstopk(ratio=0.001)", 1000, 104),
    "signSGD": ("signsgd", "signsgd", 32, 1e3 * TABLE_3_SIGN),
}
RN50 = SIZES["resnet50"]
NOT_V100 = (
    "The paper's times are of V100 GPUs (table 2: 64 of them). Measured: one H200, encode + reduce + decode, a "
    "gradient of that size as one matrix in plain torch, or the model's with our kernels; where only defaults were "
    "measured, QSGD has 4 bits, DGC keeps 0.1 % and ATOMO has its own budget."
)


def _measured(study: Study, *codecs: str) -> float | None:
    found = (encode_seconds(study.records, codec, RN50.elements) for codec in codecs)
    seconds = next((s for s in found if s is not None), None)
    return None if seconds is None else 1e3 * seconds


def table2(study: Study) -> Exhibit:
    """Nine methods."""
    return Exhibit(
        id="table2",
        title="Table 2: encode and decode times of ResNet-50's gradient",
        rows=tuple((f"{name}, ms", ms, None, None, _measured(study, *NEAREST[name])) for name, ms in ENCODE_MS.items()),
        notes=(NOT_V100, "These times are inputs of the formula and of our model, so neither has a value to compare."),
    )


def _formula_ratio(codec: str) -> float:
    """Of the payloads that the formula sends."""
    if codec in RANK:
        return RN50.low_rank_ratio(RANK[codec], vectors=True)
    return 1 / (2 * SPARSE[codec]) if codec in SPARSE else 32.0


def _our_ratio(study: Study, codec: str) -> float:
    """Of the bytes that our codec sends: between two workers, what is handed over is sent once."""
    pair = replace(study.ours_m, gpus_per_node=1)
    ddp, ours = (pair.ask(usual("resnet50", 2), c) for c in (SYNC, codec))
    return float(ddp.sent_bytes / ours.sent_bytes)


def _rows(study: Study, method: str) -> tuple[tuple[Cell, ...], ...]:
    codec, recorded, ratio, ms = TABLE_3[method]
    return (
        (f"{method}, ratio", ratio, _formula_ratio(codec), answer(_our_ratio, study, codec), None),
        (f"{method}, ms", ms, None, None, _measured(study, recorded)),
    )


def table3(study: Study) -> Exhibit:
    """Ratios and times of the three that were chosen."""
    return Exhibit(
        id="table3",
        title="Table 3: compression ratios and encode times of ResNet-50",
        rows=tuple(row for method in TABLE_3 for row in _rows(study, method)),
        notes=(
            NOT_V100,
            "Ratios: the formula's follow from shapes, vectors included, with 4 bytes for an index, which the paper "
            "does not count; our model's are of the bytes that our codecs send: vectors as they are, packed indices.",
            "signSGD's 16.34 ms cannot hold for 64 peers: see `gradwire reproduce contradictions`.",
        ),
    )
