"""`gradwire bench autopilot`: what `attach(model)` chooses over an emulated network, beside all that it may choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.bench import sweeps
from gradwire.cli.output import AsJson, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record

HEADINGS = ("configuration", "links changed to", "ms a step\n(p20-p80)", "/ best", "/ plain DDP")
CAPTION = "auto: the autopilot, with what it has chosen; last columns: below 1 is faster"


def autopilot(
    model: sweeps.Models = None,
    batch: sweeps.Batches = None,
    hosts: sweeps.Hosts = None,
    rate: sweeps.Rates = None,
    then: Annotated[
        str | None,
        typer.Option(
            "--then", metavar="RATE", help="Change all links to this rate during the training.", show_default=False
        ),
    ] = None,
    per_host: sweeps.PerHost = 1,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Counted steps of each.")] = 40,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="S", help="Limit for each; twelve steps are made anyhow.", show_default=False
        ),
    ] = None,
    record: sweeps.SweepFile = None,
    as_json: AsJson = False,
) -> None:
    """Let the autopilot choose on emulated hosts, then time it in turns with plain DDP and every codec it may choose.

    Started again with the same --record, it goes on where it stopped.

    \b
    Examples:
      gradwire bench autopilot --model shapes --hosts 2 --rate 100mbit --rate 2gbit
      gradwire bench autopilot --model shapes --hosts 2 --rate 2gbit --then 100mbit --record autopilot.jsonl
    """
    from gradwire.laboratory.bench import autopilot as experiment

    check_output("bench autopilot", "--record", record)
    sweep = experiment.sweep(
        model_names=model or ("resnet20",),
        batches=batch or (4,),
        hosts=hosts or (4,),
        rates=rate or ("1gbit",),
        then=then,
        per_host=per_host,
        steps=steps,
        seconds=seconds,
    )
    sweeps.tell_inputs(model or ())
    found = sweeps.run(sweep, record)
    emit(sweeps.summary(sweep.command, found), as_json, lambda: _page(found))


def _page(found: Sequence[Record]) -> Any:
    """One table a group, and what the autopilot did there."""
    from rich.console import Group

    from gradwire.cli.bench.step import title
    from gradwire.laboratory.bench.autopilot import verdicts

    shown: list[Any] = []
    for time in dict.fromkeys(r.time for r in found):
        group = [r for r in found if r.time == time]
        shown += [title(group[0]), sweeps.table(HEADINGS, rows(group), CAPTION), *verdicts(group), ""]
    return Group(*shown)


def rows(group: Sequence[Record]) -> list[list[str]]:
    """The lines of one group."""
    from gradwire.core.baselines import PLAIN
    from gradwire.core.units import format_rate

    found = []
    for record in group:
        bits, q = record.what["changed_to"], record.quantiles
        beside = {
            r.what["configuration"]: r.quantiles.p50
            for r in group
            if r.what["changed_to"] == bits and "choice" not in r.outcome  # which the autopilot's has
        }
        found.append(
            [
                record.what["configuration"],
                "-" if bits is None else format_rate(bits),
                f"{q.p50 * 1e3:.1f} ({q.p20 * 1e3:.0f}-{q.p80 * 1e3:.0f})",
                f"{q.p50 / min(beside.values()):.2f}",
                f"{q.p50 / beside[PLAIN]:.2f}",
            ]
        )
    return found
