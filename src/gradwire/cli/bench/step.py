"""`gradwire bench step`: training steps over an emulated network, beside FP32 DDP, FP16 DDP and torch's PowerSGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.bench import sweeps
from gradwire.cli.output import AsJson, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record

PARTS = ("forward", "backward", "wait", "optimizer", "encode", "communicate", "decode")
HEADINGS = (
    "configuration",
    "strategy",
    "mode",
    "ms a step\n(p20-p80)",
    "forward/\nbackward/\nwait, ms",
    "encode/\nexchange/\ndecode, ms",
    "sent a\nstep",
    "interface\n/ counted",
    "fp32\n/ this",
    "fp16\n/ this",
)
CAPTION = (
    "sent: by one worker; wait: what the exchange adds to the backward pass; last columns: above 1 is faster than DDP"
)


def step(
    model: sweeps.Models = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec", metavar="CODEC", help="Instead of the usual twelve; may be repeated.", show_default=False
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option("--strategy", metavar="NAME", help="May be repeated.  [default: auto]")
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option("--mode", metavar="NAME", help="overlap or after_backward; may be repeated.  [default: overlap]"),
    ] = None,
    batch: sweeps.Batches = None,
    hosts: sweeps.Hosts = None,
    rate: sweeps.Rates = None,
    per_host: sweeps.PerHost = 1,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Steps of each; a sixth is dropped.")] = 60,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            help="Limit for each configuration; eight steps are made anyhow.",
            show_default=False,
        ),
    ] = None,
    checksum: Annotated[bool, typer.Option("--checksum", help="Every codec with checksums, too.")] = False,
    record: sweeps.SweepFile = None,
    as_json: AsJson = False,
) -> None:
    """Time training steps on emulated hosts: models x codecs x strategies x modes x hosts x rates.

    FP32 DDP, FP16 DDP and torch's own PowerSGD hook run in the same processes, in turns. Bytes are counted by us and by
    the interface. Started again with the same --record, it goes on where it stopped.

    \b
    Examples:
      gradwire bench step --model resnet20 --hosts 4 --rate 200mbit
      gradwire bench step --model shapes --codec efsignsgd --hosts 2 --hosts 4 --rate 100mbit --record steps.jsonl
    """
    from gradwire.laboratory.bench import step as experiment

    check_output("bench step", "--record", record)
    sweep = experiment.sweep(
        codecs=codec or experiment.CODECS,
        strategies=strategy or ("auto",),
        modes=mode or ("overlap",),
        model_names=model or ("resnet20",),
        batches=batch or (4,),
        hosts=hosts or (4,),
        rates=rate or ("1gbit",),
        per_host=per_host,
        steps=steps,
        seconds=seconds,
        checksum=checksum,
    )
    sweeps.tell_inputs(model or ())
    found = sweeps.run(sweep, record)
    emit(sweeps.summary(sweep.command, found), as_json, lambda: _page(found))


def _page(found: Sequence[Record]) -> Any:
    """One table a group."""
    from rich.console import Group

    tables = []
    for time in dict.fromkeys(r.time for r in found):
        group = [r for r in found if r.time == time]
        tables += [title(group[0]), sweeps.table(HEADINGS, rows(group), CAPTION)]
    return Group(*tables)


def title(record: Record) -> str:
    """What a group has in common."""
    from gradwire.core.units import format_rate

    what = record.what
    bits = what["bits_per_second"]
    ranks = "" if what["ranks_per_host"] == 1 else f" with {what['ranks_per_host']} ranks each"
    rate = "loopback" if bits is None else format_rate(bits)
    return f"{what['model']}, batch {what['batch']} a rank, {what['hosts']} hosts{ranks}, {rate}"


def rows(group: Sequence[Record]) -> list[list[str]]:
    """The lines of one group."""
    by_label = {r.what["configuration"]: r.quantiles.p50 for r in group if "mode" not in r.what}
    return [cells(r, by_label) for r in group]


def cells(record: Record, baselines: dict[str, float]) -> list[str]:
    """One line; `baselines` holds the medians of the same run."""
    from gradwire.core.baselines import HALF, PLAIN
    from gradwire.core.units import format_bytes

    what, outcome, q = record.what, record.outcome, record.quantiles
    parts = {name: outcome["parts_seconds"][name] for name in PARTS}
    sent, shown = outcome["sent_bytes"], outcome["interface_bytes"]
    return [
        f"{what['configuration']}{', checksums' if what.get('checksum') else ''}",
        what.get("strategy", "-"),
        what.get("mode", "-"),
        f"{q.p50 * 1e3:.1f} ({q.p20 * 1e3:.0f}-{q.p80 * 1e3:.0f})",
        "/".join(f"{parts[p] * 1e3:.3g}" for p in ("forward", "backward", "wait")),
        "-" if parts["encode"] is None else "/".join(f"{parts[p] * 1e3:.3g}" for p in PARTS[-3:]),
        format_bytes(shown if sent is None else sent),
        sweeps.framing(record),
        *(f"{baselines[b] / q.p50:.2f}" if b in baselines else "-" for b in (PLAIN, HALF)),
    ]
