"""`gradwire demo`: the main job, on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gradwire.cli.output import AsJson, RecordFile, bars, check_output, emit

if TYPE_CHECKING:
    from gradwire.laboratory.bench.demo import Plan
    from gradwire.laboratory.bench.outcome import Outcome

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
        int, typer.Option("--workers", metavar="N", help="Number of workers: emulated hosts of this machine.")
    ] = 4,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Training steps of each configuration.")] = 120,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of weights, images and codecs.")] = 0,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            "--rate", metavar="RATE", help="Of all links, slowest first; may be repeated.  [default: 200mbit, 1gbit]"
        ),
    ] = None,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="No emulated network: needs no privileges, and shows less.")
    ] = False,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Train one small net under plain FP32 DDP, FP16, and three codecs; compare time, bytes and accuracy.

    Workers are emulated hosts with real, slow links between them: network namespaces that the kernel removes with this
    process. Where they cannot be had (see: gradwire lab --help) workers talk over loopback, which is nearly as fast as
    memory; what the counted bytes would mean on a slower link is then computed, and marked as computed. Takes about
    two minutes on two cores.

    \b
    Examples:
      gradwire demo
      gradwire demo --rate 100mbit --codec "topk(ratio=0.1)" --codec signsgd --steps 60
    """
    from gradwire.core import records
    from gradwire.core.errors import ConfigError
    from gradwire.laboratory.bench import demo as experiment

    check_output("demo", "--record", record)
    if loopback and rate:
        raise ConfigError("demo: --rate is of an emulated network, and --loopback asks for none; leave one out")
    links = () if loopback else tuple(rate or experiment.RATES)
    plan = experiment.Plan(
        workers=workers, steps=steps, seed=seed, codecs=tuple(codec or experiment.CODECS), rates=links
    )
    plan = _possible(plan)
    with _progress(plan) as on_step:
        outcomes = experiment.run(plan, timeout=TIMEOUT, on_step=on_step)
    if record is not None:
        records.append(record, experiment.to_records(plan, outcomes))
    emit(summary(plan, outcomes), as_json, lambda: page(outcomes))


def _possible(plan: Plan) -> Plan:
    """The plan, or the same over loopback with the reason on stderr, where there can be no emulated network."""
    from gradwire.laboratory.hosts.namespace import become_able, missing

    if not plan.rates:
        return plan
    become_able()
    problem = missing()
    if problem is None:
        return plan
    print(f"gradwire: {problem}\nGoing on over loopback.", file=sys.stderr)
    return dataclasses.replace(plan, rates=())


@contextlib.contextmanager
def _progress(plan: Plan) -> Iterator[Callable[[str, str, int], None] | None]:
    """One bar per link and configuration on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with bars() as progress:
        progress.console.print(f"Starting {plan.workers} workers; the configurations take turns.")
        tasks = {
            (link, label): progress.add_task(f"{link}: {label}", total=steps)
            for link, steps in plan.stages
            for label in plan.labels
        }
        yield lambda link, label, done: progress.update(tasks[link, label], completed=done)


def summary(plan: Plan, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    from gradwire.laboratory.bench import outcome as computed

    plain, half = computed.baselines(outcomes)
    shown = []
    for o in outcomes:
        one: dict[str, Any] = {
            "configuration": o.label,
            "step_seconds": {link: dataclasses.asdict(o.step(link)) for link in o.links},
            "sent_bytes_per_step": o.sent_bytes,
            "loss": o.loss,
            "accuracy": o.accuracy,
            "shares": o.shares,
        }
        if not plan.rates:
            one["computed"] = {
                "wire_seconds_at_1_gbit": computed.on_link(o) - o.step(computed.LOOPBACK).p50,
                "step_seconds_at_1_gbit": computed.on_link(o),
                "beats_fp32_below_bits_per_second": computed.wins_below(o, plain),
                "beats_fp16_below_bits_per_second": computed.wins_below(o, half),
            }
        shown.append(one)
    return {
        "command": plan.command,
        "plan": dataclasses.asdict(plan),
        "network": plain.network,
        "configurations": shown,
        "verdict": computed.verdict(outcomes),
    }


def page(outcomes: Sequence[Outcome]) -> RenderableType:
    """Table and verdict, as printed on a terminal and shown in the README."""
    from gradwire.laboratory.bench.outcome import LOOPBACK, verdict

    columns = _loopback_columns if outcomes[0].links == [LOOPBACK] else _link_columns
    return Group(_Fitted(outcomes, columns(outcomes)), *(Text(line) for line in verdict(outcomes)))


Column = tuple[str, Callable[["Outcome"], str]]


@dataclasses.dataclass(frozen=True)
class _Fitted:
    """The table with as many columns as are whole on the terminal; the last ones are the first to go."""

    outcomes: Sequence[Outcome]
    columns: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self.columns)
        while len(shown) > 3 and self._width(console, options, shown) > options.max_width:
            shown.pop()
        yield _table(self.outcomes, shown)
        if len(shown) < len(self.columns):
            yield Text(f"{len(self.columns) - len(shown)} more columns on a wider terminal, everything with --json")

    def _width(self, console: Console, options: ConsoleOptions, columns: Sequence[Column]) -> int:
        return Measurement.get(console, options.update(max_width=999), _table(self.outcomes, columns)).maximum


def _table(outcomes: Sequence[Outcome], columns: Sequence[Column]) -> Table:
    note = "bytes: sent by one worker; %: of the step"
    if any("*" in heading for heading, _ in columns):
        note += "; *: computed from bytes and measured steps, not measured"
    table = Table(box=SIMPLE_HEAD, caption=note, caption_justify="left")
    for heading, _ in columns:
        first = heading == "configuration"
        table.add_column(heading, justify="left" if first else "right", no_wrap=first)
    for outcome in outcomes:
        table.add_row(*(Text(cell(outcome)) for _, cell in columns))
    return table


def _common_columns() -> list[Column]:
    from gradwire.core.units import format_bytes

    def shares(outcome: Outcome) -> str:
        found = outcome.shares
        return "/".join(f"{100 * share:.0f}" for share in found.values()) if found else "-"

    return [
        ("sent a\nstep", lambda o: format_bytes(o.sent_bytes)),
        ("final\nloss", lambda o: f"{o.loss:.3f}"),
        ("held-out\naccuracy", lambda o: f"{100 * o.accuracy:.1f}%"),
        ("encode/\nexchange/\ndecode, %", shares),
    ]


def _step_column(heading: str, link: str) -> Column:
    def cell(outcome: Outcome) -> str:
        step = outcome.step(link)
        return f"{step.p50 * 1e3:.1f} ({step.p20 * 1e3:.0f}-{step.p80 * 1e3:.0f})"

    return heading, cell


def _link_columns(outcomes: Sequence[Outcome]) -> list[Column]:
    """Measured on each link: the step, and how many times as fast as FP16 that is."""
    from gradwire.laboratory.bench.outcome import baselines

    half = baselines(outcomes)[1]
    columns: list[Column] = [("configuration", lambda o: o.label)]
    for link in outcomes[0].links:

        def ratio(outcome: Outcome, link: str = link) -> str:
            return f"{half.step(link).p50 / outcome.step(link).p50:.2f}"

        columns += [_step_column(f"ms a step\nat {link}\n(p20-p80)", link), ("fp16\n/ this", ratio)]
    return columns + _common_columns()


def _loopback_columns(outcomes: Sequence[Outcome]) -> list[Column]:
    """Measured over loopback, and what that would mean on a slower link."""
    from gradwire.core.units import GBIT, format_milliseconds, transfer_seconds
    from gradwire.laboratory.bench.outcome import LOOPBACK, baselines, describe_win, wins_below

    plain, half = baselines(outcomes)

    def win(baseline: Outcome) -> Callable[[Outcome], str]:
        return lambda o: "-" if o in (baseline, plain) else describe_win(wins_below(o, baseline))

    return [
        ("configuration", lambda o: o.label),
        _step_column("ms a step\n(p20-p80)", LOOPBACK),
        *_common_columns(),
        ("wire at\n1 Gbit/s*", lambda o: format_milliseconds(transfer_seconds(o.sent_bytes, GBIT))),
        ("beats fp32*\nbelow", win(plain)),
        ("beats fp16*\nbelow", win(half)),
    ]
