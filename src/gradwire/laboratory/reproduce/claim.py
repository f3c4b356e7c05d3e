"""A claim of the study, and what becomes of it: reproduced, contradicted, or not checkable.

The formula decides, with the set of inputs that fits the kind of claim: the M-set for what was measured, the S-set
for what was simulated. Where the formula cannot say anything our records decide, and where there are none, our model.
Each claim says beforehand to which tolerance it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradwire.core.records import Record
from gradwire.laboratory.reproduce.exhibit import answer
from gradwire.laboratory.reproduce.formula import Formula
from gradwire.laboratory.reproduce.measured import Finding
from gradwire.laboratory.reproduce.ours import Ours
from gradwire.laboratory.reproduce.setup import Source
from gradwire.laboratory.reproduce.study import Study

REPRODUCED, CONTRADICTED, NOT_CHECKABLE = "reproduced", "contradicted", "not checkable"
KINDS = ("measured", "simulated", "table", "prose", "axis")
FIT, HELD_OUT, DERIVED = "fit", "held out", "derived"
PAPER_ERROR = 0.137  # the study's own largest error, section 4.1


@dataclass(frozen=True)
class Tolerance:
    """What counts as the same."""

    text: str
    holds: Callable[[float], bool]


def within(paper: float, share: float) -> Tolerance:
    """Relative."""
    return Tolerance(f"within {100 * share:.3g} %", lambda v: abs(v / paper - 1) <= share)


def points(paper: float, by: float) -> Tolerance:
    """Absolute, in percentage points."""
    return Tolerance(f"within {by:g} points", lambda v: abs(v - paper) <= by)


def at_most(limit: float) -> Tolerance:
    return Tolerance(f"at most {limit:g}", lambda v: v <= limit)


def at_least(limit: float) -> Tolerance:
    return Tolerance(f"at least {limit:g}", lambda v: v >= limit)


def above(limit: float) -> Tolerance:
    return Tolerance(f"above {limit:g}", lambda v: v > limit)


def below(limit: float) -> Tolerance:
    return Tolerance(f"below {limit:g}", lambda v: v < limit)


def exactly(paper: float) -> Tolerance:
    return Tolerance(f"exactly {paper:g}", lambda v: v == paper)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`both` computes the claimed quantity from the formula and from our model alike; or each has its own way."""

    id: str
    says: str
    where: str
    kind: str
    paper: float | None
    unit: str
    tolerance: Tolerance
    both: Callable[[Source], float | None] | None = None
    formula: Callable[[Formula], float | None] | None = None
    ours: Callable[[Ours], float | None] | None = None
    measured: Callable[[Sequence[Record]], Finding | None] | None = None
    role: str = HELD_OUT  # of the M-set
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A claim with all its numbers."""

    claim: Claim
    formula_m: float | None
    formula_s: float | None
    ours: float | None
    measured: Finding | None

    @property
    def decided_by(self) -> tuple[str, float] | None:
        """Who decides, and with which value."""
        simulated = self.claim.kind == "simulated"
        candidates = (
            ("the formula with the S-set", self.formula_s)
            if simulated
            else ("the formula with the M-set", self.formula_m),
            ("our records", self.measured.value if self.measured else None),
            ("our model", self.ours),
        )
        return next(((who, value) for who, value in candidates if value is not None), None)

    def judge(self, value: float | None) -> str:
        """The verdict of one value."""
        if value is None:
            return NOT_CHECKABLE
        return REPRODUCED if self.claim.tolerance.holds(value) else CONTRADICTED

    @property
    def verdict(self) -> str:
        return self.judge(self.decided_by[1] if self.decided_by else None)

    @property
    def reason(self) -> str:
        """In a sentence or two."""
        claim, decided = self.claim, self.decided_by
        if decided is None:
            return claim.remark or "Nothing that we have can compute it."
        who, value = decided
        sentence = f"{number(value)}{_unit(claim.unit)} by {who}; wanted: {claim.tolerance.text}."
        if claim.role == FIT and who.endswith("M-set"):
            sentence += " The set was fitted to this claim, so it proves nothing."
        return " ".join(part for part in (sentence, self._otherwise(), claim.remark) if part)

    def _otherwise(self) -> str:
        """What the other set would have said, where that is another verdict."""
        name, other = ("M-set", self.formula_m) if self.claim.kind == "simulated" else ("S-set", self.formula_s)
        if other is None or self.judge(other) == self.verdict:
            return ""
        return f"With the {name} {number(other)}: {self.judge(other)}."


def evaluate(claim: Claim, study: Study) -> Outcome:
    """Ask everybody."""
    formula, ours = claim.formula or claim.both, claim.ours or claim.both
    model = study.ours_s if claim.kind == "simulated" else study.ours_m
    return Outcome(
        claim=claim,
        formula_m=answer(formula, study.formula_m) if formula else None,
        formula_s=answer(formula, study.formula_s) if formula else None,
        ours=answer(ours, model) if ours else None,
        measured=claim.measured(study.records) if claim.measured else None,
    )


def number(value: float) -> str:
    """Three or four digits, never an exponent."""
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):g}"


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""
