"""docs/doctor.md: a run of `gradwire doctor` as its record tells it, and whether its estimates came true."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from gradwire.cli.doctor import page
from gradwire.core.records import Record, load
from gradwire.diagnosis.report import Diagnosis

WIDTH = 105
Source = Callable[[Path, Record], str]


def block(root: Path, source: Source) -> str:
    """What the newest record says: the job as it is, then the same job with codecs."""
    path = max((root / "results").glob("doctor_*.jsonl"))
    plain, *others = load(path)
    found = Diagnosis.of(plain.outcome)
    screen = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    screen.print(page(found))
    assert isinstance(screen.file, io.StringIO)
    shown = "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines()).strip("\n")
    estimated = {gain.codec: gain.step_seconds for gain in found.codecs}
    text = (
        f"```text\n$ {plain.command}\n{shown}\n```\n{source(path, plain)}\n"
        "What our trainings say is of that day; `gradwire advise` has those that were made since.\n\n"
        "Did the estimates come true? The same job afterwards, with `--codec`, steps as they were seen:\n\n"
        "| codec | estimated, ms | measured, median, ms | p20 to p80 | off |\n|---|---|---|---|---|\n"
    )
    for record in others:
        codec, q = record.command.split("--codec ")[1].strip("'"), record.quantiles
        off = 100 * (estimated[codec] / q.p50 - 1)
        told = f"{1e3 * estimated[codec]:.1f} | {1e3 * q.p50:.1f} | {1e3 * q.p20:.1f} to {1e3 * q.p80:.1f}"
        text += f"| {codec} | {told} | {off:+.0f} % |\n"
    return text
