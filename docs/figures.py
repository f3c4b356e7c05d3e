"""Makes docs/figures/*.svg from trainings under results/: curves to lay beside those of papers. Part of `make docs`.

Pictures differ from one version of matplotlib to the next, so the last line of a file is a digest of its numbers, by
which `python docs/render.py --check` finds one that is out of date.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradwire.laboratory.report import accuracy
from gradwire.laboratory.report.chart import Chart, Picture
from gradwire.laboratory.report.export import csv_text
from gradwire.laboratory.report.plots import draw
from gradwire.laboratory.reproduce import accordion
from gradwire.laboratory.reproduce.claims import accordion as of_accordion
from gradwire.laboratory.reproduce.claims import mixed
from gradwire.laboratory.reproduce.evidence import Evidence, Trained
from gradwire.laboratory.reproduce.throughput import (
    BASELINES,
    BERT,
    POWERSGD,
    SETTINGS,
    THC,
    TOPK,
    TOPKC,
    VGG19,
    Setting,
)
from gradwire.planner.clock import Times
from gradwire.planner.seeds import Group
from gradwire.planner.spec import same, short
from gradwire.planner.training import Run
from gradwire.planner.tta import utility

THROUGHPUT = {
    "topkc": ("Figure 1", (*TOPK, *TOPKC)),
    "thc": ("Figure 2", THC),
    "powersgd": ("Figure 3", POWERSGD),
}


@dataclass(frozen=True)
class TheirPace:
    """Our rounds over their rounds a second."""

    model: str
    label: str = mixed.MIXED

    def times(self, run: Run) -> Times:
        pace = _setting(run).rounds_per_second[self.model]
        return Times(tuple(n / pace for n in run.outcome["rounds"]), 1 / pace)

    def assumptions(self) -> list[str]:
        return []


def _setting(run: Run) -> Setting:
    return next(s for s in SETTINGS if same(s.codec, run.codec))


def figures(evidence: Evidence) -> dict[str, list[Picture]]:
    """The pictures of each file, where there are trainings for them."""
    found: dict[str, list[Picture]] = {name: _throughput(evidence, *what) for name, what in THROUGHPUT.items()}
    found["accordion"] = _accordion(evidence)
    return {name: pictures for name, pictures in found.items() if pictures}


def _throughput(evidence: Evidence, title: str, settings: Sequence[Setting]) -> list[Picture]:
    """Time to accuracy of both their tasks, by ours that stand in for them."""
    pictures: list[Picture] = []
    for model in (BERT, VGG19):
        trained = mixed.found(evidence, model)
        groups = [] if trained is None else _of(trained, [*BASELINES, *settings])
        if len(groups) > len(BASELINES):
            table = utility([r for g in groups for r in g.runs], TheirPace(model))
            labels = {g.name: _setting(g.first).label for g in groups}
            pictures.append(_named(accuracy.over_time(table), f"{title}: {table.setup['task']} for {model}", labels))
    return pictures


def _of(trained: Trained, settings: Sequence[Setting]) -> list[Group]:
    return [g for s in settings if (g := trained.find(s.codec)) is not None]


def _accordion(evidence: Evidence) -> list[Picture]:
    """Low and high compression, Accordion between them, and how many tensors it has at each level."""
    pictures: list[Picture] = []
    for line in accordion.LINES:
        trained, groups = of_accordion.lookup(evidence, line)
        if trained is None or groups is None:
            continue
        table = utility([r for g in groups if g for r in g.runs], None, baseline=groups[0].first.codec)
        names = (f"low: {short(line.low)}", f"high: {short(line.high)}", "Accordion")
        labels = {g.name: name for g, name in zip(groups, names, strict=True) if g}
        pictures.append(_named(accuracy.over_rounds(table), f"Accordion: {trained.name}", labels))
        levels = accuracy.levels(groups[2].first)
        pictures += [] if levels is None else [levels]
    return pictures


def _named(chart: Chart, title: str, labels: dict[str, str]) -> Chart:
    return replace(chart, title=title, series=[replace(s, label=labels.get(s.label, s.label)) for s in chart.series])


# -------------------------------------------------------------------- files


def outdated(path: Path, pictures: Sequence[Picture]) -> bool:
    """Whether the file shows other numbers, or is not there."""
    return not path.exists() or not path.read_text(encoding="utf-8").endswith(_last_line(pictures))


def write(path: Path, pictures: Sequence[Picture]) -> None:
    path.parent.mkdir(exist_ok=True)
    text = draw(pictures, "svg").decode()
    path.write_text(f"{text.rstrip()}\n{_last_line(pictures)}", encoding="utf-8")


def _last_line(pictures: Sequence[Picture]) -> str:
    return f"<!-- {hashlib.blake2b(csv_text(pictures).encode(), digest_size=16).hexdigest()} -->\n"
