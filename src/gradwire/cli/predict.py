"""`gradwire predict`: the time of a step, before it is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli import codec_costs as costs
from gradwire.cli import setup as options
from gradwire.cli.output import AsJson, emit

if TYPE_CHECKING:
    from gradwire.planner.model import Prediction


def predict(
    model: options.Model,
    batch: options.Batch,
    gpus: options.Gpus,
    bandwidth: options.Bandwidth,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec", metavar="CODEC", help='A codec, such as "powersgd(rank=4)"; may be repeated.', show_default=False
        ),
    ] = None,
    gpus_per_node: options.GpusPerNode = 1,
    hardware: options.Hardware = "h200",
    latency: options.Latency = None,
    mode: options.Mode = "overlap",
    strategy: options.Strategy = "auto",
    accumulate: options.Accumulate = 1,
    backward: options.Backward = None,
    sums: options.Sums = None,
    switch: options.Switch = None,
    measure: costs.Measure = False,
    encode_ms: costs.EncodeMs = None,
    decode_ms: costs.DecodeMs = None,
    as_json: AsJson = False,
) -> None:
    """Predict the time of a training step with codecs, beside DDP with FP32, FP16 and BF16 gradients.

    Every answer lists what went in and where it is from: measured, published, inferred, assumed, or traced. Nothing is
    run; a codec or model of your own is traced once, which takes a few seconds. What your codec costs is measured with
    --measure, or given with --encode-ms and --decode-ms.

    \b
    Examples:
      gradwire predict --model resnet50 --batch 64 --gpus 16 --bandwidth 10gbit --codec "powersgd(rank=4)"
      gradwire predict --model bert-base --batch 16 --gpus 64 --gpus-per-node 8 --bandwidth 25gbit \\
          --codec topk --codec "powersgd(rank=4)" --mode after_backward
      gradwire predict --model resnet50 --batch 64 --gpus 16 --bandwidth 1gbit --import my_module --codec my_int8 \\
          --encode-ms 1.5 --decode-ms 0.4
    """
    from gradwire import planner
    from gradwire.core.baselines import DDP
    from gradwire.planner.sweeps import as_asked, baselines

    setup = options.keywords(
        model=model,
        batch=batch,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        bandwidth=bandwidth,
        hardware=hardware,
        latency=latency,
        mode=mode,
        strategy=strategy,
        accumulate=accumulate,
        backward=backward,
        sums=sums,
        switch=switch,
    )
    known, notes = baselines(hardware, DDP)
    names = list(dict.fromkeys([*known, *(codec or ())]))
    asked, remarks = costs.with_costs("predict", setup, codec or (), measure, encode_ms, decode_ms)
    found = {name: planner.predict(**as_asked(name, asked)) for name in names}
    notes += remarks
    notes += [n for name, p in found.items() for n in _remarks(name, p)]
    result = _result(setup, found, notes)
    emit(result, as_json, lambda: _page(result))


def _remarks(name: str, found: Prediction) -> list[str]:
    """What to know of one of them."""
    from gradwire.core.units import format_bytes
    from gradwire.planner.profile import Profile

    notes = []
    if found.fits is False:
        room = Profile.load(found.hardware).device.memory_bytes
        notes.append(
            f"{_label(name)} is predicted to run out of memory: beside the training its exchange needs "
            f"{format_bytes(found.memory_bytes)}, on a device of {format_bytes(room)}; choose a smaller batch, or a "
            "strategy that gathers less."
        )
    if found.estimated:
        notes.append(f"Sizes of {name} depend on the data; they were taken from noise.")
    return notes


def _label(name: str) -> str:
    from gradwire.planner.ranking import LABELS

    return LABELS.get(name, name)


def _result(setup: dict[str, Any], found: dict[str, Prediction], notes: Sequence[str]) -> dict[str, Any]:
    first = next(iter(found.values()))
    return {
        "setup": {**setup, "hardware": first.hardware, "bits_per_second": first.bits_per_second},
        "predictions": [_row(name, p, found) for name, p in found.items()],
        "inputs": _inputs(found),
        "notes": list(notes),
    }


def _row(name: str, own: Prediction, found: dict[str, Prediction]) -> dict[str, Any]:
    def speedup(over: str, metric: str) -> float | None:
        return None if over not in found else getattr(found[over], metric) / getattr(own, metric)

    return {
        "codec": name,
        "label": _label(name),
        "mode": own.mode,
        "strategy": own.strategy,
        "step_seconds": own.step_seconds,
        "step_speedup_over_fp32": speedup("none", "step_seconds"),
        "step_speedup_over_fp16": speedup("fp16", "step_seconds"),
        "sync_seconds": own.sync_seconds,
        "sync_speedup_over_fp32": speedup("none", "sync_seconds"),
        "sync_speedup_over_fp16": speedup("fp16", "sync_seconds"),
        "parts_seconds": own.parts,
        "sent_bytes": own.sent_bytes,
        "memory_bytes": own.memory_bytes,
        "fits": own.fits,
        "estimated": own.estimated,
    }


def _inputs(found: dict[str, Prediction]) -> list[dict[str, Any]]:
    """Each once; `of` names the codecs it is for, and is null where it is for all."""
    users: dict[Any, list[str]] = {}
    for name, p in found.items():
        for one in p.inputs:
            users.setdefault(one, []).append(name)
    order = sorted(users, key=lambda one: len(users[one]) < len(found))  # what all share comes first
    return [dataclasses.asdict(one) | {"of": None if len(users[one]) == len(found) else users[one]} for one in order]


# -------------------------------------------------------------------- for people


def _page(result: dict[str, Any]) -> RenderableType:
    from gradwire.planner.quantity import setting

    told = f"{setting(result['setup'])}; profile {result['setup']['hardware']}"
    tables = [_times(result["predictions"]), _parts(result["predictions"]), _sizes(result["predictions"])]
    tables.append(_sources(result["inputs"]))
    return Group(Text(told), *(part for table in tables for part in ("", table)), *map(Text, ("", *result["notes"])))


def _table(headings: Sequence[str], caption: str | None = None) -> Table:
    """Names to the left, numbers to the right."""
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left", padding=(0, 0, 0, 1), show_edge=False)
    table.add_column(headings[0], overflow="fold")
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _ms(seconds: float) -> str:
    from gradwire.core.units import format_milliseconds

    return format_milliseconds(seconds).removesuffix(" ms")


def _times(rows: Sequence[dict[str, Any]]) -> Table:
    table = _table(
        ("", "step\nms", "over\nFP32", "over\nFP16", "backward\n+ sync ms", "over\nFP32", "over\nFP16"),
        "over: how many times as fast",
    )
    for row in rows:
        cells = [row["label"]]
        for metric in ("step", "sync"):
            ratios = [row[f"{metric}_speedup_over_{b}"] for b in ("fp32", "fp16")]
            cells += [_ms(row[f"{metric}_seconds"]), *("-" if r is None else f"{r:.2f}" for r in ratios)]
        table.add_row(*(Text(c) for c in cells))
    return table


def _parts(rows: Sequence[dict[str, Any]]) -> Table:
    note = "ms; a step is forward, backward, wait and optimizer: encode, exchange and decode make it wait as far as "
    table = _table(("", *rows[0]["parts_seconds"]), note + "they do not run beside the backward pass")
    for row in rows:
        table.add_row(Text(row["label"]), *(Text(_ms(s)) for s in row["parts_seconds"].values()))
    return table


def _sizes(rows: Sequence[dict[str, Any]]) -> Table:
    from gradwire.core.units import format_bytes

    table = _table(("", "sent a worker", "extra memory", "fits into memory"))
    fits = {True: "yes", False: "no", None: "not known"}
    for row in rows:
        sizes = [format_bytes(row["sent_bytes"]), format_bytes(row["memory_bytes"])]
        table.add_row(Text(row["label"]), *map(Text, sizes), Text(fits[row["fits"]]))
    return table


def _sources(inputs: Sequence[dict[str, Any]]) -> Table:
    """A row for each name and source; where codecs differ, a line for each value."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False, expand=True)
    for heading, ratio in (("input", 2), ("value", 4), ("source", 6)):
        table.add_column(heading, overflow="fold", ratio=ratio)
    rows: dict[tuple[str, str], list[str]] = {}
    for one in inputs:
        whose = "" if one["of"] is None else f"{', '.join(_label(n) for n in one['of'])}: "
        rows.setdefault((one["name"], one["source"]), []).append(whose + one["value"])
    for (name, source), values in rows.items():
        table.add_row(*(Text(t) for t in (name, "\n".join(values), source)))
    return table
