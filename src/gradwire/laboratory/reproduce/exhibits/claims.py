"""Claims as tables: of all papers, of one, and one by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gradwire.laboratory.reproduce.claim import Basis, Claim, Judged, Verdict, tally
from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit

COLUMNS = ("id", "claim", "where", "basis", "verdict", "found", "why", "rule", "records")
NUMBERS = ("kind", "unit", "paper", "formula, M-set", "formula, S-set", "our model", "by our model", "measured")
APART = "Fitted: inputs were solved from it. Derived: it follows from other published numbers. Neither counts above."
BY_CHANCE = "Claims that only ask for a sign or for no win (U-C3, U-J1, U-J4, U-I1) come out right by chance, too."

Pairs = Sequence[tuple[Claim, Judged]]


def _row(claim: Claim, found: Judged) -> tuple[Cell, ...]:
    told = (claim.id, claim.says, claim.where, claim.basis.value, found.verdict.value, found.found, found.why)
    return (*told, claim.rule, ", ".join(found.files) or None)


def _counted(counted: Counter[Verdict]) -> str:
    return ", ".join(f"{counted[verdict]} {verdict}" for verdict in Verdict)


def counts(judged: Pairs) -> tuple[str, ...]:
    """How many of each verdict; what was fitted or derived, apart."""
    found = tally(judged)
    apart = [f"{basis}: {_counted(found[basis])}" for basis in (Basis.FITTED, Basis.DERIVED) if found[basis]]
    told = f"{_counted(found[Basis.TESTED])}."
    return (told, f"Apart, {'; '.join(apart)}. {APART}") if apart else (told,)


def several(papers: Mapping[str, Pairs]) -> Exhibit:
    """All of them."""
    every = [pair for pairs in papers.values() for pair in pairs]
    return Exhibit(
        id="claims",
        title="Claims of four papers",
        columns=COLUMNS,
        brief=("id", "claim", "basis", "verdict"),
        rows=tuple(_row(*pair) for pair in every),
        notes=(*counts(every), *(f"{title}: {' '.join(counts(pairs)[:1])}" for title, pairs in papers.items())),
    )


def one_paper(id: str, title: str, cites: str, judged: Pairs) -> Exhibit:
    """Its claims; with the columns of numbers, where it has them."""
    numbers = tuple(name for name in NUMBERS if any(name in found.numbers for _, found in judged))
    rows = tuple((*_row(claim, found), *(found.numbers.get(name) for name in numbers)) for claim, found in judged)
    shown = [name for name in numbers if name not in ("kind", "measured", "by our model")]
    return Exhibit(
        id=id,
        title=f"Claims of {title}",
        columns=(*COLUMNS, *numbers),
        brief=("id", "claim", *shown, "basis", "verdict"),
        details=tuple(_sentence(claim, found) for claim, found in judged if found.verdict != Verdict.REPRODUCED),
        rows=rows,
        notes=(cites, *counts(judged), *(_scores(judged) if numbers else ())),
    )


def _sentence(claim: Claim, found: Judged) -> str:
    numbers = "" if found.found == "-" else f" Found: {found.found}."
    return f"{claim.id}, {found.verdict}: {found.why}{numbers}"


def _scores(judged: Pairs) -> tuple[str, ...]:
    """How the study's own formula and our model fare on what they were not fitted to."""
    tested = [found.numbers for claim, found in judged if claim.basis == Basis.TESTED]
    ours = Counter(numbers.get("by our model") for numbers in tested)
    return (
        f"Our model alone: {ours['holds']} hold, {ours['fails']} fail, {ours[None]} it cannot tell. It runs with the "
        "M-set's profile, for simulated claims with the S-set's.",
        "Tested: not used to fit the M-set. The S-set was fitted to U-A3 alone, by hand.",
        BY_CHANCE,
    )


def one(claim: Claim, found: Judged) -> Exhibit:
    """One claim with all that is known of it."""
    told: dict[str, Cell] = {
        "claim": claim.says,
        "where": claim.where,
        "rule": claim.rule,
        "basis": claim.basis.value,
        "verdict": found.verdict.value,
        "found": found.found,
        "why": found.why,
        "records": ", ".join(found.files) or None,
        **found.numbers,
    }
    return Exhibit(id=claim.id, title=claim.id, columns=("what", "is"), rows=tuple(told.items()), notes=())
