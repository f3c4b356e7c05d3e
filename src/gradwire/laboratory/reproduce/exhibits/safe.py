"""The two hundred set-ups again, with codecs that kept their quality in our trainings instead of the published four.

Two hundred are fifty places (model, batch, GPUs, bandwidth) times four methods. Here each place is counted once: does
the fastest codec that `planner.quality` calls safe for that kind of model beat FP16 there?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradwire.core.baselines import DDP, FP16
from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit, answer
from gradwire.laboratory.reproduce.grid import CLEAR, METHODS, Case, model_cases, setups
from gradwire.laboratory.reproduce.setup import Setup
from gradwire.laboratory.reproduce.study import Study
from gradwire.planner import quality

MEASURED_CASES = "(ii) "


def candidates(model: str) -> list[str]:
    """What may be recommended for such a model, but for DDP's own widths."""
    return [codec for codec in quality.safe(quality.kind_of(model)) if codec not in DDP]


def fastest(case: Case, setup: Setup, codecs: Sequence[str]) -> tuple[str, float] | None:
    """The fastest of them, and FP16's time over its own; None: the model knows none of them."""
    seconds = {c: found for c in codecs if (found := answer(case.source.seconds, setup, c)) is not None}
    if not seconds:
        return None
    best = min(seconds, key=lambda c: seconds[c])
    return best, (case.baseline or case.source).seconds(setup, FP16) / seconds[best]


def safe(study: Study) -> Exhibit:
    """Wins by place."""
    cases = [c for c in model_cases(study.predict, study.encoding) if c.name.startswith(MEASURED_CASES)]
    over = setups()
    return Exhibit(
        id="safe",
        title=f"{len(over)} places: does the fastest safe codec beat FP16?",
        columns=(
            "case",
            "assumes",
            "places",
            "a safe codec beats FP16",
            "by > 5 %",
            "fastest safe codec",
            "a published method beats FP16 by > 5 %",
        ),
        rows=tuple(_row(case, over) for case in cases),
        notes=(
            f"A place is a model, batch, number of GPUs and bandwidth: the 200 set-ups are {len(over)} places times "
            f"{len(METHODS)} methods.",
            *_candidates(over),
            f"The {len(METHODS)} published methods in our trainings: {'; '.join(map(_method, METHODS))}.",
        ),
    )


def _row(case: Case, over: Sequence[Setup]) -> tuple[Cell, ...]:
    safest = [f for s in over if (f := fastest(case, s, candidates(s.model))) is not None]
    published = [f for s in over if (f := fastest(case, s, METHODS)) is not None]
    named = ", ".join(f"{codec} {n}" for codec, n in Counter(codec for codec, _ in safest).most_common())
    return (
        case.name,
        case.assumes,
        len(over),
        sum(times > 1 for _, times in safest),
        _clear(safest),
        named or "none",
        _clear(published),
    )


def _clear(found: Sequence[tuple[str, float]]) -> int:
    return sum(1 / times < 1 - CLEAR for _, times in found)


def _candidates(over: Sequence[Setup]) -> list[str]:
    """Who is asked, by kind of model."""
    kinds = {quality.kind_of(s.model): s.model for s in over}
    return [
        f"Safe for {kind}, by the rule of `gradwire advise`: {', '.join(candidates(model)) or 'none'}. What is not "
        "among the model's traces is not counted."
        for kind, model in kinds.items()
    ]


def _method(codec: str) -> str:
    kinds = dict.fromkeys(quality.kind_of(s.model) for s in setups())
    found = dict.fromkeys(f"{(s := quality.standing(codec, kind)).kind} ({s.sentence})" for kind in kinds)
    return f"{codec} {' or '.join(found)}"
