"""`gradwire bench frameworks`: steps in JAX, TensorFlow and Keras over an emulated network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.bench import sweeps
from gradwire.cli.output import AsJson, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record

HEADINGS = ("configuration", "ms a step\n(p20-p80)", "encode/\nexchange/\ndecode, ms", "sent", "none\n/ this")
CAPTION = "sent: by one rank in a step; last column: above 1 is faster than uncompressed, on the same way"


def frameworks(
    framework: Annotated[
        list[str] | None,
        typer.Option(
            "--framework",
            metavar="NAME",
            help="jax, tensorflow, keras-jax, keras-tensorflow or keras-torch; may be repeated.  [default: all]",
        ),
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="CODEC",
            help="Instead of none, bf16, blockint and topk; may be repeated.",
            show_default=False,
        ),
    ] = None,
    hosts: Annotated[
        list[int] | None, typer.Option("--hosts", metavar="N", help="Emulated hosts; may be repeated.  [default: 2]")
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            "--rate",
            metavar="RATE",
            help='Of every link, or "loopback" for none; may be repeated.  [default: 200mbit]',
        ),
    ] = None,
    width: Annotated[int, typer.Option("--width", metavar="N", help="Of the hidden layers.")] = 896,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Steps of each; a sixth is dropped.")] = 30,
    record: sweeps.SweepFile = None,
    as_json: AsJson = False,
) -> None:
    """Time training steps in JAX, TensorFlow and Keras on emulated hosts: frameworks x codecs x hosts x rates.

    Gradients go through a bridge; the codec none on the same way is the uncompressed step. Beside the steps, arrays of
    the gradients' shapes are handed to torch and back, as they are and inside a compiled program. Started again with
    the same --record, it goes on where it stopped.

    \b
    Examples:
      gradwire bench frameworks --record frameworks.jsonl
      gradwire bench frameworks --framework jax --codec none --codec "topk(ratio=0.001)" --rate 100mbit
    """
    from gradwire.laboratory.bench import frameworks as experiment

    check_output("bench frameworks", "--record", record)
    sweep = experiment.sweep(
        frameworks=framework or experiment.FRAMEWORKS,
        codecs=codec or experiment.CODECS,
        width=width,
        hosts=hosts or (2,),
        rates=rate or ("200mbit",),
        steps=steps,
    )
    found = sweeps.run(sweep, record)
    emit(sweeps.summary(sweep.command, found), as_json, lambda: _page(found))


def _page(found: Sequence[Record]) -> Any:
    """One table a framework and network."""
    from rich.console import Group

    from gradwire.core.baselines import FP32

    tables = []
    for place in dict.fromkeys(_title(r) for r in found):
        group = [r for r in found if _title(r) == place]
        plain = next((r.quantiles.p50 for r in group if r.what["configuration"] == FP32), None)
        tables += [place, sweeps.table(HEADINGS, [cells(r, plain) for r in group], CAPTION)]
    return Group(*tables)


def _title(record: Record) -> str:
    from gradwire.core.units import format_rate

    what = record.what
    rate = "loopback" if what["bits_per_second"] is None else format_rate(what["bits_per_second"])
    return f"{what['framework']}, {what['parameters'] / 1e6:.3g} million parameters, {what['hosts']} hosts, {rate}"


def cells(record: Record, plain: float | None) -> list[str]:
    """One line; `plain` is the median of the uncompressed step in the same run."""
    from gradwire.core.units import format_bytes

    q, sent = record.quantiles, record.outcome["sent_bytes"]
    parts = record.outcome["parts_seconds"].values()
    return [
        record.what["configuration"],
        f"{q.p50 * 1e3:.3g} ({q.p20 * 1e3:.3g}-{q.p80 * 1e3:.3g})",
        "-" if sent is None else "/".join(f"{s * 1e3:.0f}" for s in parts),
        "-" if sent is None else format_bytes(sent),
        "-" if sent is None or plain is None else f"{plain / q.p50:.2f}",
    ]
