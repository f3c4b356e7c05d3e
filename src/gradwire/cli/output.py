"""The one way to print a result: JSON with ``--json`` or when piped, a table on a terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, also on a terminal.")]


def emit(result: Any, as_json: bool, pretty: Callable[[], RenderableType]) -> None:
    """Print `result` as JSON, or what `pretty` makes of it for people."""
    if wants_json(as_json):
        print(json.dumps(_plain(result), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        Console().print(pretty())


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
