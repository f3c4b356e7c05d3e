"""`gradwire bench sharded`: steps of a sharded model (FSDP2) over an emulated network, beside torch's own reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.bench import sweeps
from gradwire.cli.output import AsJson, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record

HEADINGS = (
    "configuration",
    "ms a step\n(p20-p80)",
    "forward/\nbackward, ms",
    "encode/\nexchange/\ndecode, ms",
    "gradients\nsent",
    "all sent\nby a host",
)
CAPTION = (
    "of a step; gradients: by one rank, in the codec's exchange; all: by the interface, gathered weights among "
    "them; last columns: above 1 is faster than that baseline"
)


def sharded(
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec", metavar="CODEC", help="Instead of bf16 and blockint; may be repeated.", show_default=False
        ),
    ] = None,
    hosts: sweeps.Hosts = None,
    rate: sweeps.Rates = None,
    per_host: Annotated[
        int,
        typer.Option("--gpus-per-host", metavar="N", help="Ranks on each host; above 1, hosts hold replicas (HSDP)."),
    ] = 1,
    layers: Annotated[int, typer.Option("--layers", metavar="N", help="Of the GPT.")] = 4,
    width: Annotated[int, typer.Option("--width", metavar="N", help="Of a layer, a multiple of 32.")] = 448,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Texts of 64 words a step on each rank.")] = 1,
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
    record: sweeps.SweepFile = None,
    as_json: AsJson = False,
) -> None:
    """Time training steps of a sharded GPT (FSDP2) on emulated hosts: codecs x hosts x rates.

    With one rank a host the codec is in the reduce-scatter; with several (HSDP) it is between hosts, and shards stay
    inside a host. Torch's own reduction, in float32 and in bf16, runs in the same processes, in turns. Its
    reduce-scatter over gloo sends twice as much as it must, so one that does not runs, too. Started again with the same
    --record, it goes on where it stopped.

    \b
    Examples:
      gradwire bench sharded --hosts 4 --rate 1gbit --record sharded.jsonl
      gradwire bench sharded --hosts 2 --gpus-per-host 2 --rate 1gbit --record sharded.jsonl
    """
    from gradwire.laboratory.bench import sharded as experiment

    check_output("bench sharded", "--record", record)
    sweep = experiment.sweep(
        codecs=codec or experiment.CODECS,
        layers=layers,
        width=width,
        batch=batch,
        hosts=hosts or (4,),
        rates=rate or ("1gbit",),
        per_host=per_host,
        steps=steps,
        seconds=seconds,
    )
    found = sweeps.run(sweep, record)
    emit(sweeps.summary(sweep.command, found), as_json, lambda: _page(found))


def _page(found: Sequence[Record]) -> Any:
    """One table a network."""
    from rich.console import Group

    from gradwire.laboratory.bench.sharded import SHARDS

    tables = []
    for time in dict.fromkeys(r.time for r in found):
        group = [r for r in found if r.time == time]
        medians = {r.what["configuration"]: r.quantiles.p50 for r in group}
        beside = {label: medians[label] for label in SHARDS if label in medians}
        headings = (*HEADINGS, *(f"{label}\n/ this" for label in beside))
        tables += [title(group[0]), sweeps.table(headings, [cells(r, beside) for r in group], CAPTION)]
    return Group(*tables)


def title(record: Record) -> str:
    """What a group has in common."""
    from gradwire.core.units import format_rate

    what = record.what
    each = what["ranks_per_host"]
    ranks = "one shard each" if each == 1 else f"replicas, {each} shards each"
    rate = "loopback" if what["bits_per_second"] is None else format_rate(what["bits_per_second"])
    return f"GPT, {what['parameters'] / 1e6:.3g} million parameters, {what['hosts']} hosts, {ranks}, {rate}"


def cells(record: Record, beside: dict[str, float]) -> list[str]:
    """One line; `beside` holds the medians of the same run's baselines."""
    from gradwire.core.units import format_bytes

    outcome, q = record.outcome, record.quantiles
    parts, sent = outcome["parts_seconds"], outcome["sent_bytes"]
    lane = [parts[p] for p in ("encode", "communicate", "decode")]
    return [
        record.what["configuration"],
        f"{q.p50 * 1e3:.0f} ({q.p20 * 1e3:.0f}-{q.p80 * 1e3:.0f})",
        "/".join(f"{parts[p] * 1e3:.0f}" for p in ("forward", "backward")),
        "-" if sent is None else "/".join(f"{s * 1e3:.0f}" for s in lane),
        "-" if sent is None else format_bytes(sent),
        format_bytes(outcome["interface_bytes"]),
        *(f"{median / q.p50:.2f}" for median in beside.values()),
    ]
