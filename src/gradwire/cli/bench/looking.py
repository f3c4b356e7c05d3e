"""Commands that look at a training on its way: their common options, and the watching, with progress and a record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.output import bars

if TYPE_CHECKING:
    from gradwire.core.records import Record

Task = Annotated[str, typer.Option("--task", metavar="NAME", help="What is trained.")]
Workers = Annotated[int, typer.Option("--workers", metavar="N", help="Virtual ones.")]
Batch = Annotated[int | None, typer.Option("--batch", metavar="N", help="Of a worker; else the task's.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of weights and examples.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="Where the data set lies; else it is downloaded.")
]
Synthetic = Annotated[bool, typer.Option("--synthetic", help="Tiny made-up data, to try things out.")]


def looked(
    measure: Callable[[Callable[[Record], None]], list[Record]], what: str, total: int, record: Path | None
) -> list[Record]:
    """What a training showed: `total` looks, called `what`, each kept as soon as it is there."""
    from gradwire.core import records

    with bars() as progress:
        bar = progress.add_task(what, total=total)

        def keep(look: Record) -> None:
            progress.advance(bar)
            if record is not None:
                records.append(record, [look])

        return measure(keep)
