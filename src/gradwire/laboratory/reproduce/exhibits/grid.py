"""The two hundred set-ups and how sure their counts are, as tables."""

from __future__ import annotations

from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit
from gradwire.laboratory.reproduce.grid import Case, Tally, formula_cases, model_cases, setups
from gradwire.laboratory.reproduce.study import Study

ASSUMPTIONS = (
    "200 = ResNet-50 b64, ResNet-101 b16, b32, b64 and BERT b12; 8, 16, 32, 64, 96 GPUs, four a node; PowerSGD rank 4, "
    "signSGD, QSGD 2 bit (levels=1), Top-K 1 %; 10 and 12.5 Gbit/s a node.",
    "Backward passes: V100, M-set (published for ResNet-50 b64, inferred elsewhere). Times are backward and exchange: "
    "no forward pass, no optimizer, no loss of accuracy, nobody late.",
    "FP16 is DDP with 16-bit gradients on the wire and the same FP32 compute. DDP overlaps; its all-reduce is a ring.",
    "Encode times of (i): table 2 and 3 for ResNet-50, other models by parameters, PowerSGD on BERT fitted; signSGD's "
    "decoding is once a peer, QSGD's and Top-K's are taken as one figure, which favours them.",
    "Effective rates of the M-set: 10.27 Gbit/s for CNNs, 12.2 for BERT, where 10 are asked for; 12.5 in proportion.",
    "(ii): encode times measured on an H200, as CUDA graphs, memories included; an H200 encodes for a V100.",
    "(iii): the same at the speed of a V100's memory, 0.9 of 4.8 TB/s as published by NVIDIA: assumed, not measured.",
    "(iv): encoding costs nothing. What is not won here, bytes and latencies lose.",
    "Formula and our model differ: real bytes and buckets (BERT's last bucket is 95 MB), vectors sent apart, casts of "
    "FP16 paid for, network cards shared by four GPUs in a direct exchange.",
)


def grid(study: Study) -> Exhibit:
    """The counts."""
    over = setups()
    cases = [*formula_cases(), *model_cases(study.predict, study.encoding)]
    return Exhibit(
        id="grid",
        title="200 set-ups: who beats DDP",
        columns=(
            "case",
            "assumes",
            "beats FP32",
            "beats FP32 by > 5 %",
            "beats FP16",
            "beats FP16 by > 5 %",
            "median FP16 / method",
            "wins over FP32 by workload",
        ),
        rows=tuple(_row(case, case.tally(over)) for case in cases),
        notes=ASSUMPTIONS,
    )


def _row(case: Case, t: Tally) -> tuple[Cell, ...]:
    return case.name, case.assumes, t.fp32, t.clear_fp32, t.fp16, t.clear_fp16, t.median, t.where
