"""What there is, by id: four papers, their claims, and the tables and figures of the study on utility."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.core.errors import UnknownName, suggestion
from gradwire.laboratory.reproduce import accordion as accordion_published
from gradwire.laboratory.reproduce import contradictions
from gradwire.laboratory.reproduce import grace as grace_published
from gradwire.laboratory.reproduce import throughput as throughput_published
from gradwire.laboratory.reproduce.claim import Claim, Judged
from gradwire.laboratory.reproduce.claims import accordion, grace, throughput, utility
from gradwire.laboratory.reproduce.evidence import Evidence
from gradwire.laboratory.reproduce.exhibit import Exhibit
from gradwire.laboratory.reproduce.exhibits import (
    claims,
    encoding,
    grid,
    overlap,
    regimes,
    safe,
    scaling,
    schemes,
    sensitivity,
)
from gradwire.laboratory.reproduce.study import Study


@dataclass(frozen=True)
class Paper:
    """`shows`: its tables and figures, diagrams apart; each has a claim or an exhibit."""

    id: str
    title: str
    cites: str
    claims: tuple[Claim, ...]
    shows: tuple[str, ...]

    def judged(self, evidence: Evidence) -> list[tuple[Claim, Judged]]:
        """All its claims."""
        return [(claim, claim.check(evidence)) for claim in self.claims]


def _several(what: str, *numbers: object) -> tuple[str, ...]:
    return tuple(f"{what} {n}" for n in numbers)


PAPERS = {
    paper.id: paper
    for paper in (
        Paper(
            "grace",
            "GRACE",
            grace_published.PAPER,
            grace.CLAIMS,
            (*_several("table", "I", "II"), *_several("figure", 1, 6, 7, 8, 9, 10)),
        ),
        Paper(
            "throughput",
            "Beyond Throughput and Compression Ratios",
            throughput_published.PAPER,
            throughput.CLAIMS,
            (*_several("table", *range(1, 8)), *_several("figure", 1, 2, 3)),
        ),
        Paper(
            "accordion",
            "Accordion",
            accordion_published.PAPER,
            accordion.CLAIMS,
            (*_several("table", "3.1", "3.2"), *_several("figure", *(f"3.{n}" for n in range(1, 7)))),
        ),
        Paper(
            "utility",
            "On the Utility of Gradient Compression",
            utility.PAPER,
            utility.CLAIMS,
            (*_several("table", 1, 2, 3), *_several("figure", *range(2, 22))),
        ),
    )
}
CLAIMS = {claim.id: claim for paper in PAPERS.values() for claim in paper.claims}
ALL = "claims"

Builder = Callable[[Study], Exhibit]

EXHIBITS: dict[str, tuple[str, Builder]] = {
    "contradictions": ("where the papers contradict themselves", contradictions.build),
    "grid": ("200 set-ups: wins over FP32 and FP16 DDP", grid.grid),
    "safe": ("those set-ups with codecs that kept their quality in our trainings", safe.safe),
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


def listed() -> list[dict[str, str]]:
    """Every id: all claims, the papers, their claims, and the exhibits."""
    found = [{"id": ALL, "kind": "all", "paper": "", "what": "the claims of all papers, with their verdicts"}]
    for paper in PAPERS.values():
        found.append({"id": paper.id, "kind": "paper", "paper": paper.id, "what": f"the claims of {paper.title}"})
    for paper in PAPERS.values():
        found += [{"id": c.id, "kind": "claim", "paper": paper.id, "what": c.says} for c in paper.claims]
    for id, (what, _) in EXHIBITS.items():
        of = "" if id == "contradictions" else "utility"
        found.append({"id": id, "kind": "exhibit", "paper": of, "what": what})
    return found


def build(id: str, evidence: Evidence) -> Exhibit:
    """What one id stands for."""
    if id == ALL:
        each = {paper.title: paper.judged(evidence) for paper in PAPERS.values()}
        return claims.several(each)
    if id in PAPERS:
        paper = PAPERS[id]
        return claims.one_paper(id, paper.title, paper.cites, paper.judged(evidence))
    if id in CLAIMS:
        return claims.one(CLAIMS[id], CLAIMS[id].check(evidence))
    if id in EXHIBITS:
        return EXHIBITS[id][1](evidence.study)
    raise UnknownName(f"reproduce: no paper, claim, table or figure {id!r}; {suggestion(id, _ids())}")


def _ids() -> list[str]:
    return [one["id"] for one in listed()]
