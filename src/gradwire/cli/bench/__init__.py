"""`gradwire bench`: measurements on this machine, into records. One file per experiment."""

from __future__ import annotations

import typer

from gradwire.cli.bench.accuracy import accuracy
from gradwire.cli.bench.autopilot import autopilot
from gradwire.cli.bench.collective import collective
from gradwire.cli.bench.curvature import curvature
from gradwire.cli.bench.encode import encode
from gradwire.cli.bench.frameworks import frameworks
from gradwire.cli.bench.iteration import iteration
from gradwire.cli.bench.overlap import overlap
from gradwire.cli.bench.sharded import sharded
from gradwire.cli.bench.step import step
from gradwire.cli.bench.supports import supports
from gradwire.cli.importing import importing

bench = typer.Typer(name="bench", help="Measure on this machine, into records.")
SPEED = (encode, iteration, overlap, collective, step, sharded, frameworks, autopilot)
TRAININGS = (accuracy, supports, curvature)
for function in (*SPEED, *TRAININGS):
    bench.command()(importing(function))


@bench.callback()
def group() -> None:
    """Measure on this machine, into records."""
