"""The rule of the study on utility: a claimed number beside its own formula, our model and our records.

- What the study **simulated** is an output of its formula. Where both sets of inputs give it, it is reproduced; where
  neither does, its own formula contradicts it. Where one of them does, whichever it is, the claim hangs on inputs that
  the study does not print, and is open.
- What it **measured** nobody here can measure again. The formula decides, with the M-set, then our records, then our
  model; what they speak against is not reproduced, and what lies nearer to the limit than the formula's usual error is
  open, as it is where the formula fails and our model does not.
- What follows from other numbers of it (**table**, **prose**) is arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradwire.core.records import Record
from gradwire.laboratory.reproduce.claim import Basis, Claim, Judged, Sure, Verdict, judge
from gradwire.laboratory.reproduce.evidence import Evidence
from gradwire.laboratory.reproduce.exhibit import Cell, answer
from gradwire.laboratory.reproduce.formula import Formula
from gradwire.laboratory.reproduce.measured import Finding
from gradwire.laboratory.reproduce.ours import Ours
from gradwire.laboratory.reproduce.setup import Off, Source
from gradwire.laboratory.reproduce.study import Study

MEASURED, SIMULATED, TABLE, PROSE, AXIS = KINDS = ("measured", "simulated", "table", "prose", "axis")
PAPER_ERROR = 0.137  # the study's own largest error, section 4.1
USUAL_ERROR = 0.018  # and its median
ALONE = "no cluster of V100 GPUs"
BY_FORMULA = f"{ALONE}, the study's formula with inputs solved from other claims of it speaks alone"
BY_MODEL = f"{ALONE}, our model speaks alone"


@dataclass(frozen=True)
class Tolerance:
    """What counts as the same."""

    text: str
    holds: Callable[[float], bool]


def within(paper: float, share: float) -> Tolerance:
    """Relative."""
    return Tolerance(f"within {100 * share:.3g} % of {paper:g}", lambda v: abs(v / paper - 1) <= share)


def points(paper: float, by: float) -> Tolerance:
    """Absolute, in percentage points."""
    return Tolerance(f"within {by:g} points of {paper:g}", lambda v: abs(v - paper) <= by)


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
class Asked:
    """What everybody answers; of the formula the values by each reading of the claim, the printed one first."""

    formula_m: tuple[float, ...] = ()
    formula_s: tuple[float, ...] = ()
    near: tuple[float, ...] = ()  # formula_m's, if codecs were slower or faster by its usual error
    ours: float | None = None
    measured: Finding | None = None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """`both` computes the claimed quantity from the formula and from our model alike; or each has its own way.

    `reading` computes it in another sense of the study's words: the verdict is open where the two disagree.
    """

    kind: str
    paper: float | None
    unit: str
    tolerance: Tolerance
    both: Callable[[Source], float | None] | None = None
    reading: Callable[[Source], float | None] | None = None
    formula: Callable[[Formula], float | None] | None = None
    ours: Callable[[Ours], float | None] | None = None
    measured: Callable[[Sequence[Record]], Finding | None] | None = None
    remark: str = ""

    def __call__(self, evidence: Evidence) -> Judged:
        asked = self.ask(evidence.study)
        found = self.decide(asked)
        why = " ".join(part for part in (found.why, self.remark) if part)
        return replace(found, why=why, numbers=self._shown(asked))

    def ask(self, study: Study) -> Asked:
        """Everybody."""
        formula, ours = self.formula or self.both, self.ours or self.both
        model = study.ours_s if self.kind == SIMULATED else study.ours_m
        readings = [each for each in (formula, self.reading) if each is not None]
        both = (study.formula_m, study.formula_s)
        by_set = [tuple(v for r in readings if (v := answer(r, source)) is not None) for source in both]
        off = [Off(study.formula_m, by) for by in (-USUAL_ERROR, USUAL_ERROR)]
        shifted = [answer(self.both, source) for source in off] if self.both else []
        if self.unit == "ms":
            shifted += [(1 + by) * v for v in by_set[0] for by in (-USUAL_ERROR, USUAL_ERROR)]
        return Asked(
            formula_m=by_set[0],
            formula_s=by_set[1],
            near=tuple(v for v in shifted if v is not None),
            ours=answer(ours, model) if ours else None,
            measured=self.measured(study.records) if self.measured else None,
        )

    def decide(self, asked: Asked) -> Judged:
        """The verdict, by whoever has a say in it."""
        if self.kind == SIMULATED and asked.formula_s:
            return self._simulated(asked)
        if self.kind in (TABLE, PROSE) and asked.formula_m:
            value = asked.formula_m[0]
            return judge(self.holds(value), self._by("arithmetic", value), self._wanted)
        if asked.formula_m:
            return self._formula(asked)
        found = asked.measured
        if found is not None and found.value is not None:
            holds = self._unanimous([v for v in (found.low, found.value, found.high) if v is not None])
            return judge(
                holds, self._by("our records", found.value), self._wanted, differs=f"{ALONE}, but {found.where}"
            )
        if asked.ours is not None:
            return judge(self.holds(asked.ours), self._by("our model", asked.ours), self._wanted, differs=BY_MODEL)
        return Judged(Verdict.OPEN, "-", "" if self.remark else "Nothing that we have can compute it.")

    def holds(self, value: float) -> bool:
        return self.tolerance.holds(value)

    def _unanimous(self, values: Sequence[float]) -> Sure:
        answers = {self.holds(v) for v in values}
        return answers.pop() if len(answers) == 1 else None

    def _simulated(self, asked: Asked) -> Judged:
        printed, fitted = self._unanimous(asked.formula_s), self._unanimous(asked.formula_m)
        told = self._by("the formula with the S-set", *asked.formula_s)
        other = f" With the M-set {_several(asked.formula_m)}."
        if printed is not None and printed is fitted:
            return judge(printed, told, self._wanted if printed else f"{self._wanted}{other}")
        unclear = printed is None or fitted is None
        why = "it hangs on what the study means." if unclear else "it hangs on inputs that are not printed."
        return Judged(Verdict.OPEN, told, f"{why} {self._wanted}{other}")

    def _formula(self, asked: Asked) -> Judged:
        value = asked.formula_m[0]
        holds = self._unanimous([value, *asked.near])
        told = self._by("the formula with the M-set", value)
        if holds is False and asked.ours is not None and self.holds(asked.ours):
            why = f"the formula and our model, which has {number(asked.ours)}, disagree. {self._wanted}"
            return Judged(Verdict.OPEN, told, why)
        return judge(holds, told, self._wanted, differs="" if holds else BY_FORMULA)

    @property
    def _wanted(self) -> str:
        return f"Wanted: {self.tolerance.text}."

    def _by(self, who: str, *values: float) -> str:
        return f"{_several(values)}{f' {self.unit}' if self.unit else ''} by {who}"

    def _shown(self, asked: Asked) -> dict[str, Cell]:
        """For tables; by their columns."""
        ours = None if asked.ours is None else ("holds" if self.holds(asked.ours) else "fails")
        return {
            "kind": self.kind,
            "unit": self.unit,
            "paper": self.paper,
            "formula, M-set": asked.formula_m[0] if asked.formula_m else None,
            "formula, S-set": asked.formula_s[0] if asked.formula_s else None,
            "our model": asked.ours,
            "by our model": ours,
            "measured": asked.measured.text if asked.measured else None,
        }


def claim(*, id: str, says: str, where: str, tolerance: Tolerance, basis: Basis = Basis.TESTED, **rule: Any) -> Claim:
    """One of the study's; `rule` has the other fields of `Numbers`."""
    check = Numbers(tolerance=tolerance, **rule)
    return Claim(id=f"U-{id}", says=says, where=where, rule=tolerance.text, check=check, basis=basis)


def number(value: float) -> str:
    """Three or four digits, never an exponent."""
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):g}"


def _several(values: Sequence[float]) -> str:
    return " or ".join(map(number, values))
