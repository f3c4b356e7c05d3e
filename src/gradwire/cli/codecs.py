"""`gradwire codecs`: what there is to choose from."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.output import AsJson, emit

if TYPE_CHECKING:
    from gradwire.core.codec import Codec

TRACED = (1024, 1024)  # the float32 matrix for which bits are counted
WORKERS = 8
FULL = 90  # letters of a docstring's line that was broken because it was full


def codecs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help='One codec, with parameters if you like: "topk(ratio=0.1)".', show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List all codecs, or describe one.

    Bits per element are what one worker hands over of a 1024x1024 float32 matrix, among 8 workers, counted by running
    the codec itself.

    \b
    Examples:
      gradwire codecs
      gradwire codecs "topk(ratio=0.1)"
    """
    from gradwire.core.codec import codecs as registry

    if name is None:
        listed = [describe(registry.build(n)) for n in registry.names()]
        emit(listed, as_json, lambda: _table(listed))
    else:
        codec = registry.build(name)
        one = describe(codec) | {"help": inspect.getdoc(type(codec)) or "", "docstring": docstring(codec)}
        emit(one, as_json, lambda: _page(one))


def describe(codec: Codec) -> dict[str, Any]:
    """All that is known about a codec, ready for JSON."""
    from gradwire.collectives.choose import possible

    traits = dataclasses.asdict(codec.traits) | {"combine": codec.traits.combine.value}
    return {
        "name": codec.name,
        "spec": codec.spec,
        "family": codec.family,
        "parameters": {f.name: f.default for f in dataclasses.fields(codec) if f.init},
        "traits": traits,
        "strategies": possible(codec),
        "bits_per_element": _bits(codec),
        "memory": codec.traits.memory,
        "on_gpu": _on_gpu(codec),
        "summary": docstring(codec).partition("\n")[0],
        "paper": codec.paper,
    }


def _on_gpu(codec: Codec) -> str:
    """What computes it on a GPU, and which of its variants go another way."""
    from gradwire.core.codec import codecs as registry

    others: dict[str, list[str]] = {}
    for variant in map(registry.build, codec.variants):
        if variant.plain_on_gpu != codec.plain_on_gpu:
            others.setdefault(_by(variant), []).append(variant.spec)
    return "; ".join([_by(codec), *(f"{', '.join(specs)} in {by}" for by, specs in others.items())])


def _by(codec: Codec) -> str:
    return f"plain torch: {codec.plain_on_gpu}" if codec.plain_on_gpu else "Triton"


@cache
def _bits(codec: Codec) -> float:
    from gradwire.tracing import trace

    return trace(codec, [("matrix", TRACED)], workers=WORKERS).bits_per_element


def docstring(codec: Codec) -> str:
    """The maths lies in the docstring of the codec's module; a codec outside the catalogue may have its own only."""
    cls = type(codec)
    return inspect.getdoc(sys.modules[cls.__module__]) or inspect.getdoc(cls) or ""


def _table(listed: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("codec", "bits per\nelement", "memory", "what it does"):
        table.add_column(heading, justify="right" if heading.startswith("bits") else "left")
    for family in sorted({one["family"] for one in listed}):
        table.add_row(Text(family, style="bold"))
        for one in listed:
            if one["family"] == family:
                cells = (f"  {one['name']}", f"{one['bits_per_element']:.3g}", one["memory"], one["summary"])
                table.add_row(*(Text(cell) for cell in cells))
    return table


def _page(one: dict[str, Any]) -> RenderableType:
    table = Table(show_header=False, box=None)
    for key, value in one.items():
        if key not in ("docstring", "help", "summary", "traits"):
            table.add_row(Text(key, style="bold"), Text(_words(value)))
    claims = {k: v for k, v in one["traits"].items() if v not in (None, False)}
    table.add_row(Text("traits", style="bold"), Text(_words(claims)))
    return Group(table, Text(), Text(one["help"]), Text(), Text(_flowing(one["docstring"])))


def _flowing(text: str) -> str:
    """Lines that were broken because they were full are joined again: the terminal breaks them where it ends.

    >>> print(_flowing("x" * 95 + "\\nends.\\nNew line.\\n\\n  formula")[90:])
    xxxxx ends.
    New line.
    <BLANKLINE>
      formula
    """
    lines: list[str] = []
    full = False
    for line in text.splitlines():
        prose = not line.startswith((" ", ".."))
        if full and prose and line:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
        full = prose and len(line) >= FULL
    return "\n".join(lines)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(value) or "its own rounds"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
