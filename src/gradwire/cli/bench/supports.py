"""`gradwire bench supports`: which coordinates are the largest, and whether stochastic gradients agree on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.bench.sweeps import table
from gradwire.cli.output import AsJson, RecordFile, bars, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record


def supports(
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="What is trained.")] = "shapes",
    share: Annotated[float, typer.Option("--share", metavar="X", help="Of coordinates that are the largest.")] = 0.1,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", help="After which to stop; the schedule is the task's.")
    ] = 1,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="To look at, of each epoch.")] = 10,
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
    """Train without compression, and see what share of their largest coordinates two gradients have in common.

    Top-k assumes that workers mean the same coordinates, and error feedback that a coordinate which was left out comes
    again. Two sets drawn by chance have --share of themselves in common.

    \b
    Example:
      gradwire bench supports --task resnet18-cifar10 --epochs 2 --record supports.jsonl
    """
    from gradwire.core import records
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
    with bars() as progress:
        bar = progress.add_task("epochs", total=epochs)

        def keep(epoch: Record) -> None:
            progress.advance(bar)
            if record is not None:
                records.append(record, [epoch])

        found = experiment.measure(plan, data_dir, keep)
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
