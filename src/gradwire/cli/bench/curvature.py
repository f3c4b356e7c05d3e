"""`gradwire bench curvature`: critical regimes by the gradient's norm, beside those by the Hessian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.bench.looking import Batch, DataDir, Device, Seed, Synthetic, Task, Workers, looked
from gradwire.cli.bench.sweeps import table
from gradwire.cli.output import AsJson, RecordFile, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record

HEADINGS = ("epoch", "learning\nrate", "quality", "gradient's\nnorm", "critical", "largest\neigenvalue", "critical")


def curvature(
    task: Task = "shapes",
    epochs: Annotated[int | None, typer.Option("--epochs", metavar="N", help="Else the task's.")] = None,
    every: Annotated[int, typer.Option("--every", metavar="N", help="Epochs between two looks.")] = 10,
    examples: Annotated[
        int, typer.Option("--examples", metavar="N", help="Of the training data, that the Hessian is of.")
    ] = 1024,
    workers: Workers = 4,
    batch: Batch = None,
    seed: Seed = 0,
    device: Device = "cpu",
    data_dir: DataDir = None,
    synthetic: Synthetic = False,
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
    found = looked(lambda keep: experiment.measure(plan, data_dir, keep), "looks", plan.looks, record)
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
