"""`gradwire bench supports`: which coordinates are the largest, and whether stochastic gradients agree on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.bench.looking import Batch, DataDir, Device, Seed, Synthetic, Task, Workers, looked
from gradwire.cli.bench.sweeps import table
from gradwire.cli.output import AsJson, RecordFile, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record


def supports(
    task: Task = "shapes",
    share: Annotated[float, typer.Option("--share", metavar="X", help="Of coordinates that are the largest.")] = 0.1,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", help="After which to stop; the schedule is the task's.")
    ] = 1,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="To look at, of each epoch.")] = 10,
    workers: Workers = 4,
    batch: Batch = None,
    seed: Seed = 0,
    device: Device = "cpu",
    data_dir: DataDir = None,
    synthetic: Synthetic = False,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Train without compression, and see what share of their largest coordinates two gradients have in common.

    Top-k assumes that workers mean the same coordinates, and error feedback that a coordinate which was left out comes
    again. Two sets drawn by chance have --share of themselves in common.

    \b
    Example:
      gradwire bench supports --task resnet18-cifar10 --epochs 2 --record supports.jsonl
    """
    from gradwire.laboratory.bench import supports as experiment

    check_output("bench supports", "--record", record)
    plan = experiment.Plan(
        task=task,
        share=share,
        epochs=epochs,
        rounds=rounds,
        workers=workers,
        batch=batch,
        seed=seed,
        device=device,
        synthetic=synthetic,
    )
    found = looked(lambda keep: experiment.measure(plan, data_dir, keep), "epochs", epochs, record)
    headings = ("epoch", "quality", *(kind.replace(" in ", "\nin ") for kind in experiment.PAIRS))
    caption = f"medians (20th to 80th percentile) of pairs; by chance {share:g}"
    emit(summary(plan.command, found), as_json, lambda: table(headings, [cells(r) for r in found], caption))


def summary(command: str, found: Sequence[Record]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {"command": command, "epochs": [{**r.what, **r.outcome} for r in found]}


def cells(record: Record) -> list[str]:
    """The line of one epoch, as printed."""
    from gradwire.core.records import Quantiles

    spread = [Quantiles.of(shares) for shares in record.outcome["pairs"].values()]
    return [
        str(record.what["epoch"] + 1),
        f"{record.outcome['quality']:.4g}",
        *(f"{q.p50:.3f} ({q.p20:.3f} to {q.p80:.3f})" for q in spread),
    ]
