"""What there is, by id."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.core.errors import UnknownName, suggestion
from gradwire.laboratory.reproduce import contradictions
from gradwire.laboratory.reproduce.exhibit import Exhibit
from gradwire.laboratory.reproduce.exhibits import (
    claims,
    encoding,
    grid,
    overlap,
    regimes,
    scaling,
    schemes,
    sensitivity,
)
from gradwire.laboratory.reproduce.study import Study

Builder = Callable[[Study], Exhibit]

EXHIBITS: dict[str, tuple[str, Builder]] = {
    "claims": ("every checkable claim, with verdicts and held-out scores", claims.build),
    "contradictions": ("where the study contradicts itself", contradictions.build),
    "grid": ("200 set-ups: wins over FP32 and FP16 DDP", grid.grid),
    "sensitivity": ("how those wins move with the assumptions", sensitivity.sensitivity),
    "table1": ("what aggregation schemes cost", schemes.table1),
    "table2": ("encode and decode times of nine methods", encoding.table2),
    "table3": ("compression ratios and encode times", encoding.table3),
    "fig2": ("DDP with and without overlap", overlap.fig2),
    "fig3": ("ResNet-101 over bandwidth", regimes.fig3),
    "fig4": ("all-reduce, all-gather, parameter server", schemes.fig4),
    "fig5": ("overlapped and sequential compression", overlap.fig5),
    "fig6": ("PowerSGD on 8 to 96 GPUs", scaling.fig6),
    "fig7": ("MSTop-K on 8 to 96 GPUs", scaling.fig7),
    "fig8": ("signSGD on 8 to 96 GPUs", scaling.fig8),
    "fig9": ("PowerSGD by batch size", scaling.fig9),
    "fig10": ("syncSGD above linear scaling", scaling.fig10),
    "fig11": ("the formula for syncSGD", scaling.fig11),
    "fig12": ("compression that ResNet-101 needs", regimes.fig12),
    "fig14": ("overlapped PowerSGD", overlap.fig14),
    "fig15": ("overlapped MSTop-K", overlap.fig15),
    "fig16": ("overlapped signSGD", overlap.fig16),
    "fig17": ("the formula for three methods", scaling.fig17),
    "fig18": ("compression that three models need", regimes.fig18),
    "fig19": ("three models over bandwidth", regimes.fig19),
    "fig20": ("faster compute", regimes.fig20),
    "fig21": ("less encoding for more bytes", regimes.fig21),
}


def build(id: str, study: Study) -> Exhibit:
    """One exhibit."""
    if id not in EXHIBITS:
        raise UnknownName(f"reproduce: no table or figure {id!r}; {suggestion(id, EXHIBITS)}")
    return EXHIBITS[id][1](study)
