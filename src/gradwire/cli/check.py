"""`gradwire check`: does a codec keep what it claims?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.output import AsJson, bars, emit

if TYPE_CHECKING:
    from gradwire.conformance import Outcome
    from gradwire.core.codec import Codec


def check(
    codec: Annotated[
        str,
        typer.Argument(
            metavar="CODEC",
            help='A codec, such as "topk(ratio=0.1)", or module:Class for one that has no name yet.',
            show_default=False,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Check that a codec keeps its contract and its claims: the suite that all of gradwire's codecs pass.

    Tried are odd shapes, three dtypes, zeros, denormals and NaN, 1 to 8 workers under every strategy, bytes, memories,
    checkpoints, and each claim in the codec's traits; its class attribute `variants` names other specs to try, too. No
    network and no GPU are involved. Exit code 1: something failed, and the answer says what to do.

    \b
    Examples:
      gradwire check "blockint(bits=8)"
      gradwire check my_module:MyCodec
    """
    from gradwire import conformance
    from gradwire.conformance.target import chosen

    outcomes: list[Outcome] = []
    codecs = chosen(codec)
    with bars() as progress:
        for one in codecs:
            bar = progress.add_task(one.spec, total=len(conformance.CHECKS))
            for outcome in conformance.run(one):
                outcomes.append(outcome)
                progress.advance(bar)
    result = _result(codecs, outcomes)
    emit(result, as_json, lambda: _page(result))
    if not result["passed"]:
        raise typer.Exit(1)


def _result(codecs: list[Codec], outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "codecs": [codec.spec for codec in codecs],
        "passed": all(one.passed for one in outcomes),
        "checks": [
            {
                "codec": one.codec,
                "check": one.check,
                "title": one.title,
                "cases": one.cases,
                "passed": one.passed,
                "problems": [dataclasses.asdict(problem) for problem in one.problems],
            }
            for one in outcomes
        ],
    }


def _page(result: dict[str, Any]) -> RenderableType:
    checks = result["checks"]
    several = len({one["codec"] for one in checks}) > 1
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for heading in (*(["codec"] if several else []), "what must hold", "cases", ""):
        table.add_column(heading, justify="right" if heading == "cases" else "left")
    for one in checks:
        verdict = Text("ok", style="green") if one["passed"] else Text("failed", style="bold red")
        table.add_row(*([Text(one["codec"])] if several else []), Text(one["title"]), str(one["cases"]), verdict)
    failed = [one for one in checks if not one["passed"]]
    told = [line for one in failed for line in _failure(one)]
    return Group(table, *told, Text(), Text(_verdict(result, failed), style="bold"))


def _failure(one: dict[str, Any]) -> list[RenderableType]:
    """The first case that fails, how many more do, and what to do."""
    first, more = one["problems"][0], len(one["problems"]) - 1
    rest = f" (and {more} more case{'s' * (more > 1)}; all with --json)" if more else ""
    return [
        Text(),
        Text(f"{one['codec']}: {first['case']}{rest}", style="bold"),
        Text(f"  {first['sentence']}"),
        Text(f"  What to do: {first['remedy']}."),
    ]


def _verdict(result: dict[str, Any], failed: list[dict[str, Any]]) -> str:
    codecs, cases = ", ".join(result["codecs"]), sum(one["cases"] for one in result["checks"])
    if not failed:
        return f"{codecs}: all {len(result['checks'])} checks passed, {cases} cases."
    return f"{codecs}: {len(failed)} of {len(result['checks'])} checks failed."
