"""`gradwire bench curvature`: critical regimes by the gradient's norm, beside those by the Hessian."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.bench.sweeps import table
from gradwire.cli.output import AsJson, RecordFile, bars, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record

HEADINGS = ("epoch", "learning\nrate", "quality", "gradient's\nnorm", "critical", "largest\neigenvalue", "critical")


def curvature(
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="What is trained.")] = "shapes",
    epochs: Annotated[int | None, typer.Option("--epochs", metavar="N", help="Else the task's.")] = None,
    every: Annotated[int, typer.Option("--every", metavar="N", help="Epochs between two looks.")] = 10,
    examples: Annotated[
        int, typer.Option("--examples", metavar="N", help="Of the training data, that the Hessian is of.")
    ] = 1024,
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Virtual ones.")] = 4,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Of a worker; else the task's.")] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of weights and examples.")] = 0,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Where the data set lies; else it is downloaded."),
    ] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Tiny made-up data, to try things out.")] = False,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Train without compression, and see whether the gradient's norm finds the critical regimes of the Hessian.

    Accordion compresses little where the norm of an epoch's gradient has changed by half since the last look. Others
    ask the Hessian's largest eigenvalue instead, which costs many passes over the data.

    \b
    Example:
      gradwire bench curvature --task resnet18-cifar10 --epochs 300 --device cuda --record curvature.jsonl
    """
    from gradwire.core import records
    from gradwire.laboratory.bench import curvature as experiment

    check_output("bench curvature", "--record", record)
    plan = experiment.Plan(
        task=task,
        epochs=epochs,
        every=every,
        examples=examples,
        workers=workers,
        batch=batch,
        seed=seed,
        device=device,
        synthetic=synthetic,
    )
    with bars() as progress:
        bar = progress.add_task("looks", total=plan.looks)

        def keep(look: Record) -> None:
            progress.advance(bar)
            if record is not None:
                records.append(record, [look])

        found = experiment.measure(plan, data_dir, keep)
    caption = "critical: changed by half or more since the last look"
    emit(summary(plan.command, found), as_json, lambda: table(HEADINGS, [cells(r) for r in found], caption))


def summary(command: str, found: Sequence[Record]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {"command": command, "looks": [{**r.what, **r.outcome} for r in found]}


def cells(record: Record) -> list[str]:
    """The line of one look, as printed."""
    seen = record.outcome
    critical = seen["critical"] or {}
    marks = {name: {True: "yes", False: "no", None: "-"}[critical.get(name)] for name in ("norm", "eigenvalue")}
    return [
        str(record.what["epoch"] + 1),
        f"{seen['learning_rate']:.3g}",
        f"{seen['quality']:.4g}",
        f"{seen['norm']:.3g}",
        marks["norm"],
        f"{seen['eigenvalue']:.3g}",
        marks["eigenvalue"],
    ]
