"""The one way to print a result: JSON with ``--json`` or when piped, a table on a terminal."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, also on a terminal.")]
RecordFile = Annotated[
    Path | None,
    typer.Option("--record", metavar="FILE", help="Append what was measured to this .jsonl file.", show_default=False),
]

PlotFile = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg, .html, .csv or .json.", show_default=False),
]
CsvFile = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Write every point to this file.", show_default=False)
]


def check_output(command: str, option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written before the work, not after it."""
    from gradwire.core.errors import ConfigError

    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(
            f"{command}: `{option}` {str(path)!r} needs a folder that is there; make it first: mkdir -p {folder}"
        )
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(
            f"{command}: `{option}` must name a file that can be written, got {str(path)!r}; choose another"
        )


def check_plot(command: str, path: Path | None) -> None:
    """The same of a picture, whose name also says its format."""
    if path is not None:
        from gradwire.laboratory.report.chart import checked

        check_output(command, "--plot", checked(path))


def bars() -> Progress:
    """Progress on stderr that leaves nothing behind, and shows nothing but on a terminal; for a `with` statement."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def emit(result: Any, as_json: bool, pretty: Callable[[], RenderableType]) -> None:
    """Print `result` as JSON, or what `pretty` makes of it for people."""
    if wants_json(as_json):
        print(json.dumps(_plain(result), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        Console(markup=False).print(pretty())  # names of models and codecs are no markup


def wants_json(as_json: bool) -> bool:
    """Whether a program reads the output."""
    return as_json or not sys.stdout.isatty()


def _plain(value: Any) -> Any:
    """Values that JSON knows: there is no infinity in it, and no tuple."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
