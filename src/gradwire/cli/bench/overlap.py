"""`gradwire bench overlap`: a codec's work beside the backward pass, in two streams of one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.bench.sweeps import table, tell_inputs
from gradwire.cli.output import AsJson, RecordFile, bars, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record

HEADINGS = (
    "codec",
    "ms a pass\nof the model",
    "ms a step\nof the codec",
    "side by side\n/ one by one",
    "share that hides\n(95 %)",
)
CAPTION = "1: encoding costs nothing beside the backward pass; 0: they take turns"


def overlap(
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Of the catalogue.")] = "resnet50",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Examples a pass.")] = 64,
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", metavar="CODEC", help="Instead of the usual five; may be repeated."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="How many there are said to be.")] = 4,
    precision: Annotated[str, typer.Option("--precision", metavar="NAME", help="fp32, tf32 or bf16.")] = "bf16",
    turns: Annotated[int, typer.Option("--turns", metavar="N", help="Of each codec.")] = 20,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Time a model's passes and a codec's steps alone, and side by side in two streams of one GPU.

    Both are CUDA graphs, so that the GPU alone decides. A study found that encoding blocks the backward pass.

    \b
    Example:
      gradwire bench overlap --model resnet50 --batch 64 --record overlap.jsonl
    """
    from gradwire.core import records
    from gradwire.laboratory.bench import overlap as experiment

    check_output("bench overlap", "--record", record)
    plan = experiment.Plan(
        model=model,
        batch=batch,
        codecs=tuple(codec or experiment.CODECS),
        workers=workers,
        precision=precision,
        turns=turns,
    )
    tell_inputs([model])
    with bars() as progress:
        bar = progress.add_task("codecs", total=len(plan.codecs))
        measured = list(experiment.measure(plan, lambda: progress.advance(bar)))
    found = experiment.to_records(plan, measured)
    if record is not None:
        records.append(record, found)
    emit(summary(plan.command, found), as_json, lambda: table(HEADINGS, [cells(r) for r in found], CAPTION))


def summary(command: str, found: Sequence[Record]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "command": command,
        "measured": [{"codec": r.what["codec"], "seconds": r.quantiles.p50, **r.outcome} for r in found],
    }


def cells(record: Record) -> list[str]:
    """The line of one codec, as printed and as shown in the docs."""
    from gradwire.core.intervals import median

    outcome = record.outcome
    passes, steps = median(outcome["passes_seconds"]).middle, median(outcome["steps_seconds"]).middle
    low, high = outcome["hidden_interval"]
    return [
        record.what["codec"],
        f"{1e3 * passes / outcome['passes']:.2f}",
        f"{1e3 * steps / outcome['steps']:.3f}",
        f"{record.quantiles.p50 / (passes + steps):.3f}",
        f"{outcome['hidden']:.2f} ({low:.2f} to {high:.2f})",
    ]
