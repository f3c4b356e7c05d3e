"""`gradwire bench iteration`: whole training iterations under DDP on one device, beside no hook and torch's hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.bench.sweeps import tell_inputs
from gradwire.cli.output import AsJson, RecordFile, bars, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record

HEADINGS = (
    "configuration",
    "ms an iteration\n(p20-p80)",
    "/ no\nexchange",
    "/ fp32\nDDP",
    "GPU at\nwork, ms",
    "units as\ngraphs",
)


def iteration(
    model: Annotated[
        str,
        typer.Option("--model", metavar="NAME", help='Of the catalogue, "shapes" (the demo\'s), or module:factory.'),
    ] = "resnet20",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Examples an iteration.")] = 4,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec", metavar="CODEC", help="Instead of the usual twelve; may be repeated.", show_default=False
        ),
    ] = None,
    exchange: Annotated[
        str,
        typer.Option(
            "--exchange",
            metavar="NAME",
            help="echo: one process, answered at once; gloo: several processes that share the device.",
        ),
    ] = "echo",
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="How many there are, or are said to be.")] = 4,
    precision: Annotated[str, typer.Option("--precision", metavar="NAME", help="fp32, tf32 or bf16.")] = "fp32",
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    turns: Annotated[
        int, typer.Option("--turns", metavar="N", help="Of each configuration; four iterations each.")
    ] = 10,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Time whole training iterations under DDP with each codec, beside no hook and torch's own hooks, in turns.

    With an echo in the place of a network, what a codec adds is its own work, hidden behind the backward pass or not.

    \b
    Examples:
      gradwire bench iteration
      gradwire bench iteration --model resnet50 --batch 64 --precision bf16 --device cuda
    """
    from gradwire.core import records
    from gradwire.laboratory.bench import iteration as experiment
    from gradwire.laboratory.bench.step import CODECS

    check_output("bench iteration", "--record", record)
    plan = experiment.Plan(
        model=model,
        batch=batch,
        codecs=tuple(codec or CODECS),
        exchange=exchange,
        workers=workers,
        precision=precision,
        device=device,
        turns=turns,
    )
    tell_inputs([model])
    with bars() as progress:
        bar = progress.add_task("turns", total=experiment.rounds(plan))
        measured = experiment.measure(plan, lambda: progress.advance(bar))
    found = experiment.to_records(plan, measured)
    if record is not None:
        records.append(record, found)
    emit(summary(plan.command, found), as_json, lambda: table(found))


def summary(command: str, found: Sequence[Record]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "command": command,
        "measured": [
            {"configuration": r.what["configuration"], "seconds": r.quantiles.p50, **r.outcome} for r in found
        ],
    }


def table(found: Sequence[Record]) -> RenderableType:
    """One line a configuration."""
    shown = Table(
        box=SIMPLE_HEAD,
        caption="medians of one run; ratios are of turns side by side",
        caption_justify="left",
    )
    for heading in HEADINGS:
        shown.add_column(heading, justify="left" if heading == "configuration" else "right", no_wrap=True)
    for record in found:
        shown.add_row(*(Text(cell) for cell in cells(record)))
    return shown


def cells(record: Record) -> list[str]:
    """The line of one configuration, as printed and as shown in the docs."""
    q, outcome = record.quantiles, record.outcome
    graphs, busy = outcome["graphs"], outcome["busy_seconds"]
    return [
        record.what["configuration"],
        f"{q.p50 * 1e3:.2f} ({q.p20 * 1e3:.2f}-{q.p80 * 1e3:.2f})",
        f"{outcome['over_no_exchange']:.3f}",
        f"{outcome['over_ddp']:.3f}",
        "–" if busy is None else f"{busy * 1e3:.2f}",
        "–" if graphs is None else str(graphs["captured"]),
    ]
