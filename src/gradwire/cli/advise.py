"""`gradwire advise`: which codec, if any, for a set-up."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.codec_costs import DecodeMs, EncodeMs, Measure, with_costs
from gradwire.cli.output import AsJson, emit
from gradwire.cli.setup import (
    Accumulate,
    Backward,
    Bandwidth,
    Batch,
    Gpus,
    GpusPerNode,
    Hardware,
    Latency,
    MaxLoss,
    Model,
    Task,
    keywords,
)
from gradwire.core.baselines import MAX_LOSS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradwire.planner.advisor import Advice
    from gradwire.planner.ranking import Ranked

LARGE, VARIABLE = "!", "~"  # marks of codecs that do not fit, and of those whose sizes depend on the data


def advise(
    model: Model,
    batch: Batch,
    gpus: Gpus,
    bandwidth: Bandwidth,
    gpus_per_node: GpusPerNode = 1,
    hardware: Hardware = "h200",
    latency: Latency = None,
    accumulate: Accumulate = 1,
    backward: Backward = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="CODEC",
            help="Rank only this codec; may be repeated. Without it, the whole catalogue.",
            show_default=False,
        ),
    ] = None,
    task: Task = None,
    max_loss: MaxLoss = MAX_LOSS,
    any_codec: Annotated[bool, typer.Option("--any", help="Rank all codecs, by time alone.")] = False,
    measure: Measure = False,
    encode_ms: EncodeMs = None,
    decode_ms: DecodeMs = None,
    top: Annotated[int, typer.Option("--top", metavar="N", help="Rows of the table; JSON has all.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Say which codec is worth it on your cluster, if any.

    Ranks codecs that our own trainings call safe by predicted step time against FP32 and FP16 DDP, each in its fastest
    mode and strategy, and lists the others apart; explains the first three; and says at which bandwidth and from how
    many GPUs on the answer changes, how much compression near-linear scaling would need, and what was measured.

    \b
    Examples:
      gradwire advise --model resnet50 --batch 64 --gpus 64 --gpus-per-node 4 --bandwidth 10gbit
      gradwire advise --model bert-base --batch 12 --gpus 16 --bandwidth 25gbit --codec powersgd --codec qsgd
    """
    from gradwire import planner
    from gradwire.core.registry import Check

    Check("advise").integer("top", top, 1)
    setup = keywords(
        model=model,
        batch=batch,
        gpus=gpus,
        bandwidth=bandwidth,
        gpus_per_node=gpus_per_node,
        hardware=hardware,
        latency=latency,
        accumulate=accumulate,
        backward=backward,
    )
    setup, remarks = with_costs("advise", setup, codec or (), measure, encode_ms, decode_ms)
    advice = planner.advise(**setup, codecs=codec, task=task, max_loss=max_loss, any_codec=any_codec)
    advice = dataclasses.replace(advice, remarks=(*advice.remarks, *remarks))
    emit(dataclasses.asdict(advice), as_json, lambda: _page(advice, top))


def _page(advice: Advice, top: int) -> RenderableType:
    """The verdict, and all that led to it."""
    sections: list[RenderableType] = [Text(_title(advice)), Text(), Text(advice.verdict.sentence, style="bold")]
    if advice.verdict.line:
        sections += [Text(), _indented(advice.verdict.line.split("; "))]
    sections += [Text(), _table(advice, top)]
    sections += [Text(note, style="dim") for note in _notes(advice, top)]
    sections += _section("In our trainings", _trained(advice.ranking, top))
    sections += _section("Apart: lossy or not tried, fastest first", _trained(advice.apart, top))
    sections += _section("Why", advice.explanations)
    changes = [c.sentence for c in (advice.bandwidth, advice.gpus) if c is not None]
    sections += _section("What would change it", [*changes, advice.compression.sentence])
    sections += _section("How sure", [*_certainty(advice), *advice.remarks])
    return Group(*sections)


def _title(advice: Advice) -> str:
    from gradwire.core.units import format_rate

    setup = advice.setup
    nodes = f" in nodes of {setup['gpus_per_node']}" if setup["gpus_per_node"] > 1 else ""
    return (
        f"{setup['model']}, batch {setup['batch']}, {setup['gpus']} GPU{'s' * (setup['gpus'] > 1)}{nodes}, "
        f"{format_rate(setup['bits_per_second'])} a node, profile {setup['hardware']}"
    )


def _table(advice: Advice, top: int) -> Table:
    from gradwire.planner.ranking import LABELS

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("codec", "mode", "strategy"):
        table.add_column(heading, overflow="fold")
    for heading in ("step", "times\nas fast", "times\nless sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    known = [r for r in advice.ranking if r.step_seconds is not None]
    for one in known[:top]:
        table.add_row(*_cells(one, one.codec + _marks(one)))
    table.add_section()
    for one in advice.baselines:
        table.add_row(*_cells(one, LABELS[one.codec]), style="bold")
    return table


def _cells(one: Ranked, name: str) -> Iterable[Text]:
    from gradwire.core.units import format_milliseconds

    numbers = (
        format_milliseconds(one.step_seconds or 0.0),
        f"{one.speedup:.3g}",
        f"{one.sent_against_fp16:.3g}" if one.sent_against_fp16 else "-",
    )
    return (Text(cell) for cell in (name, one.mode or "", one.strategy or "", *numbers))


def _marks(one: Ranked) -> str:
    marks = LARGE * (one.fits is False) + VARIABLE * one.estimated
    return f" {marks}" if marks else ""


def _notes(advice: Advice, top: int) -> list[str]:
    """What the table does not show, and what its marks mean."""
    from gradwire.planner.ranking import ESTIMATED, TOO_LARGE

    known = [r for r in advice.ranking if r.step_seconds is not None]
    shown, notes = known[:top], []
    if len(shown) < len(known):
        notes.append(f"{len(shown)} of {len(known)} codecs; more with --top {len(known)}, everything with --json.")
    notes += [f"{LARGE} {TOO_LARGE}."] * any(r.fits is False for r in shown)
    notes += [f"{VARIABLE} {ESTIMATED}."] * any(r.estimated for r in shown)
    unknown = [r for r in (*advice.ranking, *advice.apart) if r.step_seconds is None]
    for reason in dict.fromkeys(r.notes[0] for r in unknown):
        listed = ", ".join(r.codec for r in unknown if r.notes[0] == reason)
        notes.append(f"{reason[0].upper()}{reason[1:]}: {listed}.")
    return notes


def _trained(ranking: Sequence[Ranked], top: int) -> list[str]:
    """What is known of the quality of models that were trained with these codecs."""
    from gradwire.core.units import format_milliseconds

    known = [r for r in ranking if r.step_seconds is not None]
    lines = [f"{r.codec}, {format_milliseconds(r.step_seconds or 0.0)}: {r.evidence}" for r in known[:top]]
    return lines + [f"and {len(known) - top} more, with --json"] * (len(known) > top)


def _certainty(advice: Advice) -> Iterable[str]:
    """The inputs, a line for each kind of source, and the expected error."""
    certainty = advice.certainty
    for kind, inputs in certainty.inputs.items():
        yield f"{kind}: {'; '.join(f'{i.name} ({i.value})' for i in inputs)}."
    costs = ", ".join(f"{count} {kind}" for kind, count in certainty.codec_costs.items())
    yield f"costs of codecs: {costs or 'none'}."
    yield certainty.sentence


def _section(heading: str, lines: Sequence[str]) -> list[RenderableType]:
    return [Text(), Text(heading, style="bold"), _indented(lines, "-")] if lines else []


def _indented(lines: Sequence[str], mark: str = " ") -> Table:
    """Lines that fold behind their mark."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        grid.add_row(mark, Text(line))
    return grid
