"""The claims about the utility of compression: those of `gradwire reproduce claims`, with its verdicts."""

from __future__ import annotations

from gradwire.laboratory.reproduce.claim import CONTRADICTED, NOT_CHECKABLE, REPRODUCED
from gradwire.laboratory.reproduce.exhibits.claims import outcomes
from gradwire.laboratory.reproduce.finding import CONFIRMED, OPEN
from gradwire.laboratory.reproduce.study import Study

PAPER = "Agarwal et al., On the Utility of Gradient Compression, MLSys 2022, arXiv:2103.00543"
AS_VERDICT = {REPRODUCED: CONFIRMED, CONTRADICTED: CONTRADICTED, NOT_CHECKABLE: OPEN}


def lines(study: Study) -> list[tuple[str, str, str, str, str]]:
    """Id, claim, place, verdict and reason of each."""
    return [(f"U-{o.claim.id}", o.claim.says, o.claim.where, AS_VERDICT[o.verdict], o.reason) for o in outcomes(study)]
