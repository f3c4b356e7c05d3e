"""The report: one page from record files, with those sections that the records fill.

report = make(["results/step_xeon.jsonl", "results/encode_xeon.jsonl"])
save(Path("report.html"), report.html.encode())
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.laboratory.report import page, verdict
from gradwire.laboratory.report.load import Sourced, machine, of_kind, read
from gradwire.laboratory.report.sections import (
    accuracy,
    collective,
    demo,
    encode,
    predictions,
    provenance,
    scaling,
    steps,
    trainings,
)

TITLE = "Does gradient compression pay?"
SECTIONS = (  # in the order of the page, with the kind of record each is made of
    (trainings.section, "training"),
    (steps.section, "step"),
    (scaling.section, "step"),
    (predictions.section, "prediction"),
    (accuracy.section, "accuracy"),
    (encode.section, "encode"),
    (collective.section, "collective"),
    (demo.section, "demo"),
)


@dataclass(frozen=True)
class Report:
    """The page, and what is in it."""

    html: str
    sections: tuple[str, ...]  # their headings
    records: dict[str, int]  # how many of each kind
    left_out: dict[str, int]  # how many of kinds that a report does not show


def make(paths: Sequence[str | Path], *, title: str = TITLE) -> Report:
    """The report of all records in these files and folders."""
    sources, others = read(paths)
    made = (build(of_kind(sources, kind)) for build, kind in SECTIONS)
    sections = [verdict.section(sources), *(s for s in made if s is not None), provenance.section(sources, others)]
    return Report(
        html=page.render(title, sections, subtitle=_subtitle(sources)),
        sections=tuple(s.title for s in sections),
        records=dict(sorted(Counter(s.record.kind for s in sources).items())),
        left_out=dict(sorted(others.items())),
    )


def _subtitle(sources: Sequence[Sourced]) -> str:
    """How many records of when, and of how many machines."""
    days = sorted({s.record.time[:10] for s in sources})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    machines = list(dict.fromkeys(machine(s.record) for s in sources))
    where = machines[0] if len(machines) == 1 else f"{len(machines)} machines"
    return f"{len(sources):,} records of {when}, made on {where}"
