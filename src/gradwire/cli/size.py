"""`gradwire size`: the exact bytes of one step."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli.output import AsJson, emit

if TYPE_CHECKING:
    from gradwire.tracing import Trace


def size(
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="MODEL", help="A model's name, or module:factory for your own.", show_default=False
        ),
    ],
    codec: Annotated[
        str, typer.Option("--codec", metavar="CODEC", help='A codec, such as "powersgd(rank=2)".', show_default=False)
    ],
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Number of workers.")] = 4,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="How payloads travel: auto, all_reduce, all_gather, scatter_reduce_gather, hierarchical(per_node=8).",
        ),
    ] = "auto",
    tensors: Annotated[
        str,
        typer.Option(
            "--tensors",
            metavar="WHAT",
            help="matrices: vectors and tiny tensors travel as they are; all: the codec gets everything.",
        ),
    ] = "matrices",
    as_json: AsJson = False,
) -> None:
    """Count the bytes one worker sends in one training step.

    The codec itself is run on tensors without memory, so the count is exact and a model of any size answers at once.
    The whole gradient is one unit of compression, as with mode="after_backward". Your own factory takes no arguments
    and is found from the working directory too. Under "hierarchical" only what crosses the network counts as sent, and
    the worker is the one of a node that sends most.

    \b
    Models:
      bert-base  bert-large  bert-small  densenet40  gpt-wikitext2  lstm-ptb  lstm-wikitext2  ncf  ncf-ml1m
      resnet101  resnet18-cifar10  resnet18-cifar100  resnet20  resnet50  resnet9  unet
      vgg16  vgg16-cifar10  vgg19  vgg19-200  vgg19bn-cifar10  vgg19bn-cifar100

    \b
    Example:
      gradwire size --model resnet18-cifar10 --codec "powersgd(rank=2)"
    """
    from gradwire import models
    from gradwire.core.registry import Check
    from gradwire.tracing import MOST_WORKERS, trace

    Check("size").integer("--workers", workers, 1, MOST_WORKERS)
    shapes = models.trained(model, models.build(model))
    traced = trace(codec, shapes, workers=workers, strategy=strategy, tensors=tensors)
    result = {"model": model} | _result(traced)
    emit(result, as_json, lambda: _table(result))


def _result(traced: Trace) -> dict[str, Any]:
    floats = traced.payload_bytes / 4
    return {
        "codec": traced.codec,
        "workers": traced.workers,
        "elements": traced.elements,
        "payload_bytes": traced.payload_bytes,
        "payload_floats": int(floats) if floats.is_integer() else floats,
        "bits_per_element": traced.bits_per_element,
        "ratio_to_fp32": 4 * traced.elements / traced.payload_bytes if traced.payload_bytes else None,
        "sent_bytes_per_worker": traced.sent_bytes,
        "node_bytes_per_worker": traced.node_bytes,
        "rounds": traced.rounds,
        "exchanges": [dataclasses.asdict(e) for e in traced.exchanges],
    }


def _table(result: dict[str, Any]) -> RenderableType:
    from gradwire.core.units import format_bytes

    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    rows = {
        "model": f"{result['model']}, {result['elements']:,} elements",
        "codec": f"{result['codec']}, {result['workers']} workers",
        "payload": f"{result['payload_bytes']:,} bytes ({format_bytes(result['payload_bytes'])}), "
        f"{result['payload_floats']:,} floats",
        "per element": f"{result['bits_per_element']:.4g} bits"
        + (f", {result['ratio_to_fp32']:.4g} times less than float32" if result["ratio_to_fp32"] else ""),
        "sent": f"{result['sent_bytes_per_worker']:,} bytes ({format_bytes(result['sent_bytes_per_worker'])}) a worker",
        "exchanges": f"{len(result['exchanges'])} in {result['rounds']} rounds",
    }
    if result["node_bytes_per_worker"]:
        rows["in the node"] = f"{result['node_bytes_per_worker']:,} bytes a worker, uncompressed"
    for key, value in rows.items():
        table.add_row(key, value)
    return table
