"""A claim of a paper, and what becomes of it.

- **reproduced**: it holds by what we measured or computed, by more than noise.
- **contradicted**: it fails by more than noise where our set-up is the paper's, or by the paper's own formula.
- **not reproduced**: it fails where our set-up differs, and the verdict says how. A published measurement that only a
  formula or a model speaks against is of this kind.
- **open**: no record can tell, or what there is lies nearer to the limit than seeds, sessions or the model's usual
  error.

A verdict is the answer of the claim's `check`, code over records with named limits; nothing is typed in by hand. What
was fitted to the published numbers, or follows from other published numbers, is counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.laboratory.reproduce.evidence import Evidence

Sure = bool | None  # None: nearer to the limit than noise


class Verdict(StrEnum):
    """What becomes of a claim."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    NOT_REPRODUCED = "not reproduced"
    OPEN = "open"


class Basis(StrEnum):
    """What a verdict rests on."""

    TESTED = "tested"  # it could have failed
    FITTED = "fitted"  # our inputs were solved from it, so that it proves nothing
    DERIVED = "derived"  # arithmetic over other published numbers


@dataclass(frozen=True)
class Judged:
    """`found` are the numbers, `why` the sentence, `files` where the records lie; `numbers` is what tables show."""

    verdict: Verdict
    found: str
    why: str
    files: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`says` is the claim in our words, `where` its place in the paper, `rule` what decides; "-": nothing can yet."""

    id: str
    says: str
    where: str
    rule: str
    check: Callable[[Evidence], Judged]
    basis: Basis = Basis.TESTED


def judge(holds: Sure, found: str, why: str, files: Iterable[str] = (), *, differs: str = "") -> Judged:
    """By a rule that could be applied.

    Args:
        holds: whether the claim does; None: that is too near to tell.
        found: the numbers.
        why: what was wanted.
        files: of the records.
        differs: how our set-up differs from the paper's; empty: it does not, so that a claim can be contradicted.
    """
    known = tuple(dict.fromkeys(files))
    if holds is None:
        return Judged(Verdict.OPEN, found, f"too near to the limit to tell from noise. {why}", known)
    if holds:
        return Judged(Verdict.REPRODUCED, found, f"{why} Ours: {differs}." if differs else why, known)
    if differs:
        return Judged(Verdict.NOT_REPRODUCED, found, f"our set-up differs: {differs}. {why}", known)
    return Judged(Verdict.CONTRADICTED, found, why, known)


def left_open(wanted: str, found: str = "-", files: Iterable[str] = ()) -> Judged:
    """`wanted`: the record that is missing."""
    return Judged(Verdict.OPEN, found, f"no record yet: {wanted}.", tuple(dict.fromkeys(files)))


def never(wanted: str) -> Callable[[Evidence], Judged]:
    """The check of what nothing of ours can tell."""
    return lambda evidence: left_open(wanted)


# -------------------------------------------------------------------- yes, no, too near


def at_least(value: float, limit: float, noise: float = 0.0) -> Sure:
    """Whether a value is as large as a limit, by more than noise.

    >>> at_least(3.0, 2.0, 0.5), at_least(1.0, 2.0, 0.5), at_least(2.2, 2.0, 0.5), at_least(2.0, 2.0)
    (True, False, None, True)
    """
    if value - noise >= limit:
        return True
    return False if value + noise < limit else None


def at_most(value: float, limit: float, noise: float = 0.0) -> Sure:
    """Whether a value is as small as a limit, by more than noise."""
    return at_least(-value, -limit, noise)


def all_of(answers: Iterable[Sure]) -> Sure:
    """No, if one says so; yes, if all do.

    >>> all_of([True, None]), all_of([None, False]), all_of([True, True])
    (None, False, True)
    """
    found = list(answers)
    if False in found:
        return False
    return None if None in found else True


def more_than_half(answers: Iterable[Sure]) -> Sure:
    """Whether most say yes, however those turn out that are too near to tell.

    >>> more_than_half([True, True, None]), more_than_half([True, None, False]), more_than_half([False, False, None])
    (True, None, False)
    """
    found = list(answers)
    yes, maybe = found.count(True), found.count(None)
    if 2 * yes > len(found):
        return True
    return False if 2 * (yes + maybe) <= len(found) else None


# -------------------------------------------------------------------- counting


def tally(judged: Iterable[tuple[Claim, Judged]]) -> dict[Basis, Counter[Verdict]]:
    """Verdicts by what they rest on: those that could have failed, and, apart, those that could not."""
    counts: dict[Basis, Counter[Verdict]] = {basis: Counter() for basis in Basis}
    for claim, found in judged:
        counts[claim.basis][found.verdict] += 1
    return counts
