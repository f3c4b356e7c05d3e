"""`gradwire demo`: the main job, on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gradwire.cli.output import AsJson, RecordFile, check_record, emit

if TYPE_CHECKING:
    from gradwire.bench.demo import Plan
    from gradwire.bench.outcome import Outcome

TIMEOUT = 900.0  # seconds for everything, on a machine that does much else


def demo(
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="CODEC",
            help="A codec to show, instead of the usual three; may be repeated.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", help="Number of workers: processes on this machine.")
    ] = 4,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Training steps of each configuration.")] = 120,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of weights, images and codecs.")] = 0,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Train one small net under plain FP32 DDP, FP16, and three codecs; compare time, bytes and accuracy.

    Workers talk over loopback, which is nearly as fast as memory: expect compression to lose here. What the counted
    bytes would mean on a slower link is computed, and marked as computed. Takes one to two minutes on two cores.

    \b
    Examples:
      gradwire demo
      gradwire demo --codec "topk(ratio=0.1)" --codec signsgd --steps 60
    """
    from gradwire.bench import demo as experiment
    from gradwire.core import records

    check_record("demo", record)
    plan = experiment.Plan(workers=workers, steps=steps, seed=seed, codecs=tuple(codec or experiment.CODECS))
    with _progress(plan) as on_step:
        outcomes = experiment.run(plan, timeout=TIMEOUT, on_step=on_step)
    if record is not None:
        records.append(record, experiment.to_records(plan, outcomes))
    emit(summary(plan, outcomes), as_json, lambda: page(outcomes))


@contextlib.contextmanager
def _progress(plan: Plan) -> Iterator[Callable[[str, int], None] | None]:
    """One bar per configuration on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.console.print(f"Starting {plan.workers} workers; the configurations take turns.")
        bars = {label: progress.add_task(label, total=plan.steps) for label in plan.labels}
        yield lambda label, done: progress.update(bars[label], completed=done)


def summary(plan: Plan, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    from gradwire.bench import outcome as computed

    plain, half = computed.baselines(outcomes)
    return {
        "command": plan.command,
        "plan": dataclasses.asdict(plan),
        "configurations": [
            {
                "configuration": o.label,
                "step_seconds": dataclasses.asdict(o.step),
                "sent_bytes_per_step": o.sent_bytes,
                "loss": o.loss,
                "accuracy": o.accuracy,
                "shares": o.shares,
                "computed": {
                    "wire_seconds_at_1_gbit": computed.on_link(o) - o.step.p50,
                    "step_seconds_at_1_gbit": computed.on_link(o),
                    "beats_fp32": computed.describe_win(computed.wins_below(o, plain)),
                    "beats_fp32_below_bits_per_second": computed.wins_below(o, plain),
                    "beats_fp16": computed.describe_win(computed.wins_below(o, half)),
                    "beats_fp16_below_bits_per_second": computed.wins_below(o, half),
                },
            }
            for o in outcomes
        ],
        "verdict": computed.verdict(outcomes),
    }


def page(outcomes: Sequence[Outcome]) -> RenderableType:
    """Table and verdict, as printed on a terminal and shown in the README."""
    from gradwire.bench.outcome import verdict

    return Group(_table(outcomes), *(Text(line) for line in verdict(outcomes)))


HEADINGS = (
    "configuration",
    "ms a step\n(p20-p80)",
    "sent a\nstep",
    "final\nloss",
    "held-out\naccuracy",
    "encode/\nexchange/\ndecode, %",
    "wire at\n1 Gbit/s*",
    "beats fp32*\nbelow",
    "beats fp16*\nbelow",
)


def _table(outcomes: Sequence[Outcome]) -> RenderableType:
    from gradwire.bench.outcome import baselines

    note = "bytes: sent by one worker; %: of the step; *: computed from bytes and measured steps, not measured"
    table = Table(box=SIMPLE_HEAD, caption=note, caption_justify="left")
    for heading in HEADINGS:
        first = heading == HEADINGS[0]
        table.add_column(heading, justify="left" if first else "right", no_wrap=first)
    for outcome in outcomes:
        table.add_row(*(Text(cell) for cell in _cells(outcome, *baselines(outcomes))))
    return table


def _cells(outcome: Outcome, plain: Outcome, half: Outcome) -> list[str]:
    from gradwire.bench.outcome import describe_win, wins_below
    from gradwire.core.units import GBIT, format_bytes, format_milliseconds, transfer_seconds

    step, shares = outcome.step, outcome.shares
    return [
        outcome.label,
        f"{step.p50 * 1e3:.1f} ({step.p20 * 1e3:.0f}-{step.p80 * 1e3:.0f})",
        format_bytes(outcome.sent_bytes),
        f"{outcome.loss:.3f}",
        f"{100 * outcome.accuracy:.1f}%",
        "/".join(f"{100 * share:.0f}" for share in shares.values()) if shares else "-",
        format_milliseconds(transfer_seconds(outcome.sent_bytes, GBIT)),
        *("-" if outcome in (base, plain) else describe_win(wins_below(outcome, base)) for base in (plain, half)),
    ]
