"""`gradwire report`: one page from record files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from gradwire.cli.output import AsJson, check_output, emit


def report(
    records: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDS...", help="Files of records, or folders of them.", show_default=False),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write; its name ends in .html.")
    ] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="The page's heading.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page about measurements: a verdict in words, charts, tables, and where they come from.

    The page needs no network and no other file; it can be mailed, printed and read on a phone. It shows records of
    `gradwire demo`, `bench encode`, `bench collective`, `bench step` and of predictions, and leaves out what is not
    there. Numbers of different machines are never compared, and ratios are formed within one run.

    \b
    Example:
      gradwire report results/step_*.jsonl results/encode_*.jsonl -o report.html
    """
    from gradwire.core.errors import ConfigError
    from gradwire.laboratory.report import document
    from gradwire.laboratory.report.chart import save

    if output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"report: the page is HTML, so `--output` must end in .html, got {str(output)!r}")
    check_output("report", "--output", output)
    made = document.make(records, title=title or document.TITLE)
    content = made.html.encode()
    save(output, content)
    result = {
        "path": str(output),
        "bytes": len(content),
        "sections": list(made.sections),
        "records": made.records,
        "left_out": made.left_out,
    }
    emit(result, as_json, lambda: _summary(result))


def _summary(result: dict[str, Any]) -> RenderableType:
    from rich.text import Text

    from gradwire.core.units import format_bytes

    counted = ", ".join(f"{n} {kind}" for kind, n in result["records"].items())
    lines = [
        f"wrote {result['path']}, {format_bytes(result['bytes'])}",
        f"records: {counted}",
        f"sections: {', '.join(result['sections'])}",
    ]
    if result["left_out"]:
        left_out = ", ".join(f"{n} of kind {kind}" for kind, n in result["left_out"].items())
        lines.append(f"not shown: {left_out}")
    return Text("\n".join(lines))
