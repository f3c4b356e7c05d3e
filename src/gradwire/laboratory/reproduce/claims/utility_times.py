"""Claims about measured times: A (ResNet-101 on 96 GPUs), B (batch size), C (BERT)."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.laboratory.reproduce.claim import Basis
from gradwire.laboratory.reproduce.claims.numbers import (
    AXIS,
    MEASURED,
    PAPER_ERROR,
    TABLE,
    at_least,
    at_most,
    below,
    claim,
    points,
    within,
)
from gradwire.laboratory.reproduce.formula import Formula
from gradwire.laboratory.reproduce.inputs import SIZES, TABLE_3_SIGN
from gradwire.laboratory.reproduce.measured import gather_decode, line_fit
from gradwire.laboratory.reproduce.ours import Ours
from gradwire.laboratory.reproduce.setup import GPUS, MODELS, SYNC, Setup, Source, saving, usual

R4, R8, R16, SIGN = "powersgd(rank=4)", "powersgd(rank=8)", "powersgd(rank=16)", "signsgd"
RN101 = usual("resnet101", 96)
BERT = usual("bert-base", 96)
SIGN_ERROR = 0.191  # appendix C
SIGN_LIMIT = {"bert-base": 32}  # GPUs; above, memory ran out (section 3.2)

Ask = Callable[[Source], float]


def _milliseconds(setup: Setup, codec: str) -> Ask:
    return lambda source: 1e3 * source.seconds(setup, codec)


def _saving(setup: Setup, codec: str) -> Ask:
    return lambda source: saving(source, setup, codec)


def _constant_sign(formula: Formula) -> float:
    """A3 with table 3's time for any number of peers, scaled to ResNet-101."""
    constant = TABLE_3_SIGN * SIZES["resnet101"].formula_bytes / SIZES["resnet50"].formula_bytes
    by_peers = formula.inputs.encode_decode(RN101, SIGN)
    return 1e3 * (formula.seconds(RN101, SIGN) - by_peers + constant)


def _decode_is_linear(ours: Ours) -> float:
    decode = [float(ours.ask(usual("resnet101", p), SIGN).parts["decode"]) for p in GPUS]
    return line_fit(GPUS, decode)[1]


def _slowest_sign(source: Source) -> float:
    setups = [usual(m, p) for m in MODELS for p in GPUS if p <= SIGN_LIMIT.get(m, max(GPUS))]
    return 1e3 * max(source.seconds(s, SIGN) for s in setups)


def _above_linear(source: Source) -> float:
    return 1e3 * (source.seconds(BERT, SYNC) - source.backward(BERT))


CLAIMS = (
    claim(
        id="A1",
        says="ResNet-101 on 96 GPUs: syncSGD takes 262 ms",
        where="section 1",
        kind=MEASURED,
        paper=262,
        unit="ms",
        tolerance=within(262, PAPER_ERROR),
        both=_milliseconds(RN101, SYNC),
        basis=Basis.FITTED,
    ),
    claim(
        id="A2",
        says="ResNet-101 on 96 GPUs: PowerSGD rank 16 takes 470 ms",
        where="section 1",
        kind=MEASURED,
        paper=470,
        unit="ms",
        tolerance=within(470, PAPER_ERROR),
        both=_milliseconds(RN101, R16),
    ),
    claim(
        id="A3",
        says="ResNet-101 on 96 GPUs: signSGD takes 1042 ms",
        where="section 1",
        kind=MEASURED,
        paper=1042,
        unit="ms",
        tolerance=within(1042, SIGN_ERROR),
        both=_milliseconds(RN101, SIGN),
        basis=Basis.FITTED,
    ),
    claim(
        id="A3c",
        says="The same 1042 ms, with table 3's 16.34 ms for any number of peers",
        where="section 1 with table 3",
        kind=TABLE,
        paper=1042,
        unit="ms",
        tolerance=within(1042, SIGN_ERROR),
        formula=_constant_sign,
        basis=Basis.DERIVED,
        remark="Decoding has to grow with the number of peers, as the caption of figure 8 says and table 3 does not.",
    ),
    claim(
        id="A3d",
        says="signSGD's decode time grows linearly with the number of workers (R² of a line)",
        where="figure 8, caption",
        kind=MEASURED,
        paper=1,
        unit="",
        tolerance=at_least(0.95),
        ours=_decode_is_linear,
        measured=gather_decode,
    ),
    *(
        claim(
            id=f"B{batch}",
            says=f"ResNet-101, batch {batch}, 96 GPUs: time that PowerSGD rank 4 saves",
            where="section 3.3, figure 9",
            kind=MEASURED,
            paper=paper,
            unit="%",
            tolerance=points(paper, 3),
            both=_saving(RN101.at(batch=batch), R4),
            basis=basis,
            remark=remark,
        )
        for batch, paper, basis, remark in (
            (16, 42.5, Basis.FITTED, ""),
            (32, 25.7, Basis.TESTED, "It tests that the backward pass is linear in the batch size."),
            (64, -6.3, Basis.FITTED, ""),
        )
    ),
    *(
        claim(
            id=name,
            says=f"BERT on 96 GPUs: time that PowerSGD rank {rank} saves",
            where="section 3.2, figure 6",
            kind=MEASURED,
            paper=paper,
            unit="%",
            tolerance=points(paper, 3),
            both=_saving(BERT, f"powersgd(rank={rank})"),
            basis=basis,
        )
        for name, rank, paper, basis in (("C1", 4, 18.8, Basis.FITTED), ("C2", 8, 11.3, Basis.TESTED))
    ),
    claim(
        id="C3",
        says="BERT on 96 GPUs: PowerSGD rank 16 is slower than syncSGD (saving below 0)",
        where="section 3.2",
        kind=MEASURED,
        paper=None,
        unit="%",
        tolerance=below(0),
        both=_saving(BERT, R16),
    ),
    claim(
        id="C4",
        says="BERT on 96 GPUs: syncSGD takes about 200 ms more than linear scaling",
        where="sections 1 and 3.2, figure 10",
        kind=MEASURED,
        paper=200,
        unit="ms",
        tolerance=within(200, 0.1),
        both=_above_linear,
        basis=Basis.FITTED,
    ),
    claim(
        id="C5",
        says="BERT on 96 GPUs: syncSGD stays below the next tick above 400 ms",
        where="figure 17a, axis",
        kind=AXIS,
        paper=500,
        unit="ms",
        tolerance=at_most(500),
        both=_milliseconds(BERT, SYNC),
        remark="Read off an axis whose last tick is 400.",
    ),
    claim(
        id="C6",
        says="BERT on 96 GPUs: PowerSGD rank 4 stays below the next tick above 400 ms",
        where="figure 17b, axis",
        kind=AXIS,
        paper=450,
        unit="ms",
        tolerance=at_most(450),
        both=_milliseconds(BERT, R4),
        remark="Read off an axis whose last tick is 400.",
    ),
    claim(
        id="C7",
        says="The slowest signSGD stays below the next tick above 1400 ms",
        where="figure 17c, axis",
        kind=AXIS,
        paper=1600,
        unit="ms",
        tolerance=at_most(1600),
        both=_slowest_sign,
        remark="Read off an axis whose last tick is 1400.",
    ),
)
