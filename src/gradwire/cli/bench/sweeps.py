"""What the sweeps have in common: options of a network, a progress bar, and a table of records."""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.output import bars

if TYPE_CHECKING:
    from gradwire.core.records import Record
    from gradwire.laboratory.bench.sweep import Sweep

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help='Of the catalogue, "shapes" (the demo\'s), or module:factory; may be repeated.  [default: resnet20]',
    ),
]
Batches = Annotated[
    list[int] | None,
    typer.Option("--batch", metavar="N", help="Examples a step on each rank; may be repeated.  [default: 4]"),
]
Hosts = Annotated[
    list[int] | None, typer.Option("--hosts", metavar="N", help="Emulated hosts; may be repeated.  [default: 4]")
]
Rates = Annotated[
    list[str] | None,
    typer.Option(
        "--rate",
        metavar="RATE",
        help='Of every link, such as 200mbit, or "loopback" for none; may be repeated.  [default: 1gbit]',
    ),
]
PerHost = Annotated[int, typer.Option("--gpus-per-host", metavar="N", help="Ranks on each host.")]
SweepFile = Annotated[
    Path | None,
    typer.Option(
        "--record",
        metavar="FILE",
        help="Append to this .jsonl file; what is there already, of this commit, is not measured again.",
        show_default=False,
    ),
]


def tell_inputs(names: Sequence[str]) -> None:
    """Warn of inputs of own models that are guessed."""
    from gradwire import models
    from gradwire.core.errors import GradwireWarning

    for remark in filter(None, map(models.remark, names)):
        warnings.warn(remark, GradwireWarning, stacklevel=2)


def run(sweep: Sweep, record: Path | None) -> list[Record]:
    """Measure what is missing, with one bar on stderr if that is a terminal, else one line a group."""
    from gradwire.laboratory.bench.sweep import LOOPBACK
    from gradwire.laboratory.hosts.namespace import become_able

    if set(sweep.rates) != {LOOPBACK}:
        become_able()
    with _progress(sweep) as on_group:
        return sweep.run(record, on_group)


@contextlib.contextmanager
def _progress(sweep: Sweep) -> Iterator[Callable[[str, bool], None]]:
    if not sys.stderr.isatty():
        yield lambda title, runs: print(f"{'measuring' if runs else 'done before'}: {title}", file=sys.stderr)
        return
    with bars() as progress:
        bar = progress.add_task("starting", total=sweep.total)
        groups = itertools.count()  # before this one
        yield lambda title, runs: progress.update(bar, completed=next(groups), description=title)


def summary(command: str, found: Sequence[Record]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "command": command,
        "measured": [
            {**r.what, "seconds": r.quantiles.p50, "p20": r.quantiles.p20, "p80": r.quantiles.p80, **r.outcome}
            for r in found
        ],
    }


def framing(record: Record) -> str:
    """Bytes that the interface saw over those counted, where one rank has it to itself."""
    sent, what = record.outcome["sent_bytes"], record.what
    shared = what["bits_per_second"] is None or what["ranks_per_host"] > 1
    return "-" if shared or not sent else f"{record.outcome['interface_bytes'] / sent:.3f}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> RenderableType:
    """Words to the left, numbers to the right."""
    shown = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    for column, heading in enumerate(headings):
        words = all(not row[column][:1].isdigit() for row in rows)
        shown.add_column(heading, justify="left" if words else "right", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    return shown
