"""All claims in one table, with the held-out scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gradwire.laboratory.reproduce.claim import CONTRADICTED, HELD_OUT, NOT_CHECKABLE, REPRODUCED, Outcome, evaluate
from gradwire.laboratory.reproduce.claims import ALL
from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit
from gradwire.laboratory.reproduce.study import Study

COLUMNS = (
    "id",
    "claim",
    "where",
    "kind",
    "unit",
    "paper",
    "formula, M-set",
    "formula, S-set",
    "our model",
    "measured",
    "role",
    "tolerance",
    "verdict",
    "our model's verdict",
    "reason",
)


def outcomes(study: Study) -> list[Outcome]:
    """Every claim, asked."""
    return [evaluate(claim, study) for claim in ALL]


def _row(outcome: Outcome) -> tuple[Cell, ...]:
    claim = outcome.claim
    return (
        claim.id,
        claim.says,
        claim.where,
        claim.kind,
        claim.unit,
        claim.paper,
        outcome.formula_m,
        outcome.formula_s,
        outcome.ours,
        outcome.measured.text if outcome.measured else None,
        claim.role,
        claim.tolerance.text,
        outcome.verdict,
        outcome.judge(outcome.ours),
        outcome.reason,
    )


def score(judged: Sequence[Outcome], of: Callable[[Outcome], float | None]) -> Counter[str]:
    """How many held-out claims a source reproduces, contradicts, or cannot say anything about."""
    return Counter(o.judge(of(o)) for o in judged if o.claim.role == HELD_OUT)


def _sentence(who: str, counted: Counter[str]) -> str:
    return (
        f"Held out, {who}: {counted[REPRODUCED]} reproduced, {counted[CONTRADICTED]} contradicted, "
        f"{counted[NOT_CHECKABLE]} not checkable."
    )


def build(study: Study) -> Exhibit:
    """The table."""
    judged = outcomes(study)
    return Exhibit(
        id="claims",
        title="Claims of the study",
        columns=COLUMNS,
        brief=("id", "claim", "unit", "paper", "formula, M-set", "formula, S-set", "our model", "role", "verdict"),
        details=tuple(f"{o.claim.id}, {o.verdict}: {o.reason}" for o in judged if o.verdict != REPRODUCED),
        rows=tuple(_row(o) for o in judged),
        notes=(
            _sentence("formula with the M-set", score(judged, lambda o: o.formula_m)),
            _sentence("formula with the S-set", score(judged, lambda o: o.formula_s)),
            _sentence("our model", score(judged, lambda o: o.ours)),
            "Held out: not used to fit the M-set. The S-set was fitted to A3 alone, by hand.",
            "Our model runs with the M-set's profile, for simulated claims with the S-set's.",
            "Claims that only ask for a sign or for no win (C3, J1, J4, I1) come out right by chance, too.",
        ),
    )
