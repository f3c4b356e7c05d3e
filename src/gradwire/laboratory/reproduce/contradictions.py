"""Where the papers contradict themselves. Numbers are computed here wherever there is something to compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from gradwire.laboratory.reproduce import accordion, throughput
from gradwire.laboratory.reproduce.claims.utility_counts import count, main_setups, scaling, small_batches
from gradwire.laboratory.reproduce.claims.utility_regimes import FASTER
from gradwire.laboratory.reproduce.claims.utility_tables import largest_latency
from gradwire.laboratory.reproduce.claims.utility_times import R4, R8, R16, RN101
from gradwire.laboratory.reproduce.exhibit import Exhibit
from gradwire.laboratory.reproduce.formula import Formula
from gradwire.laboratory.reproduce.inputs import ENCODE_MS, MEBI, SIZES, TABLE_3_SIGN
from gradwire.laboratory.reproduce.setup import SYNC, speedup, usual
from gradwire.laboratory.reproduce.study import Study

UTILITY, ACCORDION, THROUGHPUT = "Utility", "Accordion", "Beyond Throughput"


@dataclass(frozen=True)
class Contradiction:
    """Two places of a paper that cannot both be right, and the numbers that show it."""

    name: str
    one: str
    other: str
    numbers: Callable[[Study], str]
    paper: str = UTILITY


def _wins(study: Study) -> str:
    small = count(study.formula_m, small_batches(), (R4, R8, R16))
    return (
        f"Figures 6 to 8 show {main_setups()} set-ups and account for 4 + 2 = 6 wins; by the formula (M-set) "
        f"figure 9's batches 16 and 32 add {small} wins of {3 * len(small_batches())}."
    )


def _bert_size(study: Study) -> str:
    size = SIZES["bert-base"]
    return (
        f"{size.elements:,} parameters are {size.bytes / 1e6:.1f} MB or {size.bytes / MEBI:.1f} MiB, so 418 are MiB; "
        f"490 MB would be {490e6 / 4:,.0f} parameters."
    )


def _model_error(study: Study) -> str:
    return "13.7 % against 9.1 % (and 19.1 % of signSGD); the bars that would decide are not in the text."


def _atomo(study: Study) -> str:
    return f"Table 2: {ENCODE_MS['ATOMO rank 4']} / {ENCODE_MS['PowerSGD rank 4']} = " + (
        f"{ENCODE_MS['ATOMO rank 4'] / ENCODE_MS['PowerSGD rank 4']:.0f} times."
    )


def _upwards_of_50(study: Study) -> str:
    below = [f"{name} {ms}" for name, ms in ENCODE_MS.items() if ms < 50]
    return f"Below 50 ms in table 2: {', '.join(below)}."


def _double_latency(study: Study) -> str:
    return (
        "By equation 1 a tiny all-reduce takes 2 alpha (p-1); divided by (p-1) that is 2 alpha, and is used as alpha."
    )


def _latency(study: Study) -> str:
    quoted = Formula(replace(study.formula_s.inputs, latency=0.5e-3)).seconds(RN101, SYNC)
    return (
        f"With 0.5 ms the formula (S-set) gives {1e3 * quoted:.0f} ms for ResNet-101 on 96 GPUs, where 262 were "
        f"measured; within 13.7 % alpha is at most {1e3 * largest_latency(study.formula_s):.1f} us "
        f"({1e3 * largest_latency(study.formula_m):.1f} us with the M-set)."
    )


def _sign_constant(study: Study) -> str:
    inputs = study.formula_m.inputs
    fitted = 1e3 * inputs.encode_decode(usual("resnet50", 64), "signsgd")
    return f"What U-A3 leaves for ResNet-50 on 64 GPUs is {fitted:.0f} ms, not {1e3 * TABLE_3_SIGN:.2f}."


def _measured_and_simulated(study: Study) -> str:
    setup = usual("resnet101", 64).at(bits_per_second=8.2e9, face_value=True)
    needed = study.formula_m.seconds(setup, SYNC)
    has = study.formula_m.seconds(setup, R4)
    return (
        f"PowerSGD rank 4 takes {1e3 * has:.0f} ms by U-A1 and U-B64 and hardly depends on GPUs or rate; a crossover "
        f"at 8.2 Gbit/s needs {1e3 * needed:.0f} ms."
    )


def _bert_rate(study: Study) -> str:
    setup = usual("bert-base", 64)
    simulated = study.formula_s.crossover(setup, R4) or 0.0
    rate = study.formula_m.inputs.rate(setup)
    return (
        f"U-C1, U-C4 and U-D3 together need {rate / 1e9:.1f} Gbit/s on a network of 10; at 10 the S-set's crossover is "
        f"{simulated / 1e9:.1f} Gbit/s instead of 15."
    )


def _bert_counts(study: Study) -> str:
    parts = []
    for micros in (0, 15, 30):
        formula = Formula(replace(study.formula_m.inputs, latency=micros * 1e-6))
        parts.append(f"{count(formula, scaling('bert-base'), (R4, R8, R16))} at {micros} us")
    return (
        f"Wins of 15 by the formula (M-set, not fitted again): {', '.join(parts)}; the paper has 4, only above 32 GPUs."
    )


def _faster_compute(study: Study) -> str:
    setup = usual("resnet50", 64)
    both = speedup(study.formula_s, setup.at(compute_speed=FASTER, encode_speed=FASTER), R4)
    backward = speedup(study.formula_s, setup.at(compute_speed=FASTER), R4)
    return (
        f"At 3.5 times the compute the formula gives {both:.2f} times if encoding is as much faster, as the text says, "
        f"and {backward:.2f} times if it is not; printed is 1.75."
    )


def _text_and_table(study: Study) -> str:
    line = accordion.LINES[2]
    off = [text - table for text, table in zip(accordion.TEXT_3_2, line.accuracy, strict=True)]
    return f"{', '.join(f'{o:+.1f}' for o in off)} points between text and table, of one training each."


def _logarithms(study: Study) -> str:
    full, _, none = throughput.THC[:3]
    parts = []
    for model in (throughput.BERT, throughput.VGG19):
        ratio = full.rounds_per_second[model] / none.rounds_per_second[model]
        parts.append(f"{model} {100 * (1 - ratio):.1f} % lower, and {-100 * math.log(ratio):.1f} by the logarithm")
    return f"Table 6, b = q = 2: {'; '.join(parts)}. With b = q = 4 it is less."


def _fewer_bits(study: Study) -> str:
    found = throughput.POWERSGD[2].bits[throughput.VGG19]
    return f"Table 7 has {found:g} bits at r = 16: {16 / found:.0f} times fewer than FP16, {32 / found:.0f} than FP32."


LIST = (
    Contradiction(
        "six of 200",
        "abstract: compression wins in 6 of more than 200 set-ups",
        "figures 6, 7: 4 and 2 wins; section 3.3: 42.5 % and 25.7 % at batch 16 and 32",
        _wins,
    ),
    Contradiction("size of BERT", "section 3: 418 MB", "section 3.2: 490 MB", _bert_size),
    Contradiction(
        "error of the model", "section 4.1: 13.7 % at most", "appendix C: 9.1 %, signSGD 19.1 %", _model_error
    ),
    Contradiction("ATOMO", "section 3: PowerSGD is around 45 times faster", "table 2: 45 and 1586 ms", _atomo),
    Contradiction("50 ms", "section 1: encoding takes upwards of 50 ms (table 2)", "table 2", _upwards_of_50),
    Contradiction(
        "memory limits",
        "section 3.2: MSTop-K up to 32 GPUs on ResNet-101 and 16 on BERT",
        "caption of figure 7: 16 and 32 GPUs respectively",
        lambda study: (
            "Swapped; with both readings the limits are powers of two that no published memory figure explains."
        ),
    ),
    Contradiction(
        "who is p", "table 1: machines", "equation 1: GPUs", lambda study: "24 or 96 of them, in one formula."
    ),
    Contradiction(
        "alpha twice", "appendix C: time of a tiny all-reduce over (p-1)", "equation 1: 2 alpha (p-1)", _double_latency
    ),
    Contradiction("alpha's size", "section 2.2: 0.5 to 1 ms", "section 1: 262 ms", _latency),
    Contradiction(
        "decoding of signs", "table 3: 16.34 ms", "caption of figure 8: decode time grows linearly", _sign_constant
    ),
    Contradiction(
        "instances",
        "section 3: p3.8xlarge with 10 Gbps, four GPUs, buckets of 25 MB",
        "the authors' repository (b73b330): BERT with eight processes a node and buckets of 45 MB",
        lambda study: "Not computed: the repository has neither the model's code nor measurements.",
    ),
    Contradiction(
        "measured and simulated ResNet-101",
        "U-A1, U-B64: measured on 96 GPUs",
        "U-D1: crossover at 8.2",
        _measured_and_simulated,
    ),
    Contradiction("BERT's network", "U-C1, U-C4: measured at around 10 Gbps", "U-D3: crossover at 15 Gbps", _bert_rate),
    Contradiction("BERT by GPUs", "U-C1, U-C4: times on 96 GPUs", "U-J2: wins only above 32 GPUs", _bert_counts),
    Contradiction(
        "faster compute", "U-G1: 1.75 times at 3.5 times the compute", "its own text: encoding scales", _faster_compute
    ),
    Contradiction(
        "ResNet-18 on CIFAR-100",
        "section 3.3, text: 72.4 % at rank 2, 71.3 at rank 1, 72.3 under Accordion",
        "table 3.2: 71.7, 70.0 and 71.8 %",
        _text_and_table,
        ACCORDION,
    ),
    Contradiction(
        "the rotation's cost",
        "section 3.2.1: 4.4 and 13.2 % lower throughput, as shown in table 6",
        "table 6",
        _logarithms,
        THROUGHPUT,
    ),
    Contradiction(
        "bits of PowerSGD",
        f"section 3.3: {throughput.POWERSGD_TIMES} times fewer bits than FP16 at r = 16, by table 7",
        "table 7",
        _fewer_bits,
        THROUGHPUT,
    ),
)


def build(study: Study) -> Exhibit:
    """The list as a table."""
    return Exhibit(
        id="contradictions",
        title="Where the papers contradict themselves",
        columns=("paper", "name", "one place", "another", "numbers"),
        rows=tuple((c.paper, c.name, c.one, c.other, c.numbers(study)) for c in LIST),
        notes=("A checker must not expect all claims to hold: some exclude each other, whatever the inputs.",),
    )
