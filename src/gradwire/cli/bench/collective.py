"""`gradwire bench collective`: reducing one gradient over an emulated network, by codec and strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.bench import sweeps
from gradwire.cli.output import AsJson, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record

HEADINGS = (
    "codec",
    "strategy",
    "elements",
    "hosts",
    "rate",
    "ms\n(p20-p80)",
    "encode/\nexchange/\ndecode, ms",
    "sent",
    "interface\n/ counted",
    "peak\nmemory",
    "fp16\n/ this",
)


def collective(
    pair: Annotated[
        list[str] | None,
        typer.Option(
            "--pair",
            metavar="'CODEC STRATEGY'",
            help="A codec and what carries it, instead of the usual six; may be repeated.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(
            "--size", metavar="N", help="Elements of the gradient; may be repeated.  [default: 2^18, 2^20, 2^23]"
        ),
    ] = None,
    hosts: sweeps.Hosts = None,
    rate: sweeps.Rates = None,
    per_host: sweeps.PerHost = 1,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", help="Timed passes of each setting.")] = 10,
    record: sweeps.SweepFile = None,
    as_json: AsJson = False,
) -> None:
    """Time the reduction of one gradient over emulated hosts: every codec, strategy, size, rate and number of hosts.

    Bytes are counted by us and by the interface. Started again with the same --record, it goes on where it stopped.

    \b
    Examples:
      gradwire bench collective --hosts 8 --rate 1gbit
      gradwire bench collective --pair "efsignsgd scatter_reduce_gather" --size 25557032 --rate 200mbit --rate 1gbit
    """
    from gradwire.core.errors import ConfigError
    from gradwire.laboratory.bench import collective as experiment

    check_output("bench collective", "--record", record)
    pairs = []
    for one in pair or ():
        codec, _, strategy = one.strip().rpartition(" ")
        if not codec:
            raise ConfigError(
                f"bench collective: a pair is a codec and a strategy, as in 'fp16 all_reduce'; got {one!r}"
            )
        pairs.append((codec.strip(), strategy))
    sweep = experiment.sweep(
        pairs=pairs or experiment.PAIRS,
        sizes=size or experiment.SIZES,
        hosts=hosts or (4,),
        rates=rate or ("1gbit",),
        per_host=per_host,
        repeats=repeats,
    )
    found = sweeps.run(sweep, record)
    emit(sweeps.summary(sweep.command, found), as_json, lambda: sweeps.table(HEADINGS, rows(found), CAPTION))


CAPTION = "sent: by one worker; peak memory: beyond what the process held before; last column: above 1 beats fp16"


def rows(found: Sequence[Record]) -> list[list[str]]:
    """The lines of the table, as printed and as shown in the docs."""
    return [cells(r, _half(r, found)) for r in found]


def _half(record: Record, found: Sequence[Record]) -> float | None:
    """The median of FP16 in the same run."""
    same = [r for r in found if r.time == record.time and r.what["elements"] == record.what["elements"]]
    return next((r.quantiles.p50 for r in same if r.what["codec"] == "fp16"), None)


def cells(record: Record, half: float | None) -> list[str]:
    """One line."""
    from gradwire.core.units import format_bytes, format_rate

    what, outcome, q = record.what, record.outcome, record.quantiles
    bits, sent = what["bits_per_second"], outcome["sent_bytes"]
    parts = outcome["parts_seconds"]
    return [
        what["codec"],
        what["strategy"],
        f"{what['elements']:,}",
        f"{what['hosts']}" if what["ranks_per_host"] == 1 else f"{what['hosts']} x {what['ranks_per_host']}",
        "loopback" if bits is None else format_rate(bits),
        f"{q.p50 * 1e3:.1f} ({q.p20 * 1e3:.0f}-{q.p80 * 1e3:.0f})",
        "/".join(f"{parts[p] * 1e3:.3g}" for p in ("encode", "communicate", "decode")),
        format_bytes(sent),
        sweeps.framing(record),
        format_bytes(outcome["peak_bytes"]),
        "-" if half is None else f"{half / q.p50:.2f}",
    ]
