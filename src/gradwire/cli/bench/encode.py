"""`gradwire bench encode`: what codecs cost beside the network."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.output import AsJson, RecordFile, bars, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record
    from gradwire.laboratory.bench.encode import Measured, Plan


def encode(
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="CODEC",
            help="A codec to measure, instead of all; may be repeated.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(
            "--size", metavar="N", help="Elements of the gradient; may be repeated.  [default: 2^16, 2^20, 2^23]"
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="A model whose gradients are measured instead of one matrix; may be repeated.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Workers whose payloads are decoded.")] = 4,
    threads: Annotated[int, typer.Option("--threads", metavar="N", help="Threads of one worker.")] = 1,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", help="Timed passes of each codec and size.")] = 15,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", help="Limit for each codec and size; three passes are made anyhow."),
    ] = 4.0,
    memory: Annotated[
        str, typer.Option("--memory", metavar="NAME", help='"none" leaves error feedback out.')
    ] = "default",
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    compile_plain: Annotated[
        bool, typer.Option("--compile", help="Measure the plain form under torch.compile, too (minutes).")
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Record what the GPU does in a pass, too: launches and their seconds.")
    ] = False,
    hooks: Annotated[
        bool, typer.Option("--hooks", help="Measure torch's FP16 and PowerSGD hooks on each model, too.")
    ] = False,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Time encode, reduce and decode of every codec, beside plain torch and a copy, in one run.

    No network is involved: every exchange is answered at once. Rates are bytes of the float32 gradient a second; the
    next columns say how much faster the compiled kernels are than plain torch, and how many copies of the gradient the
    whole takes. On a GPU the last ones show the whole as CUDA graphs, behind other work.

    \b
    Examples:
      gradwire bench encode
      gradwire bench encode --codec efsignsgd --codec "blockint(bits=8)" --size 25557032
    """
    from gradwire.core import records
    from gradwire.core.codec import codecs
    from gradwire.laboratory.bench import encode as experiment
    from gradwire.laboratory.bench.hooks import HOOKS

    check_output("bench encode", "--record", record)
    plan = experiment.Plan(
        codecs=tuple(codec or codecs.names()),
        sizes=tuple(size or (() if model else experiment.SIZES)),
        workers=workers,
        threads=threads,
        repeats=repeats,
        seconds=seconds,
        memory=memory,
        device=device,
        models=tuple(model or ()),
        compile=compile_plain,
        kernels=kernels,
    )
    by_hooks = [
        experiment.hook_record(plan, name, m, experiment.measure_hook(name, m, plan))
        for m in plan.models
        for name in (HOOKS if hooks else ())
    ]
    if record is not None:
        records.append(record, by_hooks)
    measured = []
    with _progress(plan) as on_done:
        for one in experiment.run(plan, on_done):
            measured.append(one)
            if record is not None:
                records.append(record, experiment.to_records(plan, [one]))
    emit(summary(plan, measured) | {"hooks": hook_summary(by_hooks)}, as_json, lambda: table(measured, by_hooks))


@contextlib.contextmanager
def _progress(plan: Plan) -> Iterator[Callable[[str, int], None]]:
    """One bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda codec, size: None
        return
    with bars() as progress:
        bar = progress.add_task("measuring", total=len(plan.codecs) * (len(plan.sizes) + len(plan.models)))
        yield lambda codec, size: progress.update(bar, advance=1, description=f"{codec}, {size:,} elements")


def summary(plan: Plan, measured: Sequence[Measured]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    from gradwire.laboratory.bench.encode import PHASES

    return {
        "command": plan.command,
        "measured": [
            {
                "codec": m.codec,
                "elements": m.elements,
                "model": m.model,
                "strategy": m.strategy,
                "payload_bytes": m.payload_bytes,
                "seconds": {p: m.median(p) for p in (*PHASES, "total")},
                "reference_seconds": {p: m.median(p, "reference") for p in (*PHASES, "total")},
                "graphs_seconds": None if m.graphs is None else {p: m.median(p, "graphs") for p in (*PHASES, "total")},
                "launched": m.launched,
                "compiled_seconds": None if m.compiled is None else m.median("total", "compiled"),
                "copy_seconds": m.copy_seconds,
                "encode_bytes_per_second": m.rate("encode"),
                "total_bytes_per_second": m.rate("total"),
            }
            for m in measured
        ],
    }


def hook_summary(found: Sequence[Record]) -> list[dict[str, Any]]:
    """The same of torch's hooks."""
    return [{"hook": r.what["hook"], "model": r.what["model"], "seconds": r.quantiles.p50} for r in found]


HEADINGS = (
    "codec",
    "elements",
    "encode\nms",
    "reduce\nms",
    "decode\nms",
    "encode\nGB/s",
    "all\nGB/s",
    "plain torch\n/ ours",
    "ours\n/ copy",
)
COMPILED = "torch.compile\n/ ours"
AS_GRAPHS = ("as graphs\nms", "graphs\n/ copy")  # on a GPU


def table(measured: Sequence[Measured], by_hooks: Sequence[Record] = ()) -> RenderableType:
    """One line a codec and size."""
    others = "".join(f"\n{h['hook']}, {h['model']}: {h['seconds'] * 1e3:.3g} ms" for h in hook_summary(by_hooks))
    caption = f"GB/s of float32 gradient; medians of one run{others}"
    shown = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    for heading in headings(measured):
        shown.add_column(heading, justify="left" if heading == "codec" else "right", no_wrap=heading == "codec")
    for m in measured:
        shown.add_row(*(Text(cell) for cell in cells(m, measured)))
    return shown


def headings(measured: Sequence[Measured]) -> tuple[str, ...]:
    """Of the lines of `cells`."""
    compiled = (COMPILED,) if _some_compiled(measured) else ()
    return (*HEADINGS, *compiled, *(AS_GRAPHS if any(m.on_gpu for m in measured) else ()))


def _some_compiled(measured: Sequence[Measured]) -> bool:
    return any(m.compiled is not None for m in measured)


def cells(m: Measured, measured: Sequence[Measured]) -> list[str]:
    """The line of one codec and size in a table of several, as printed and as shown in the docs."""
    ours, plain = m.median("total"), m.median("total", "reference")
    compiled = "–" if m.compiled is None else f"{m.median('total', 'compiled') / ours:.1f}"
    graphs = ["–", "–"] if m.on_gpu else []
    if m.graphs is not None:
        replayed = m.median("total", "graphs")
        graphs = [f"{replayed * 1e3:.3g}", f"{replayed / m.copy_seconds:.1f}"]
    return [
        m.codec,
        f"{m.elements:,}" if m.model is None else m.model,
        *(f"{m.median(p) * 1e3:.3g}" for p in ("encode", "reduce", "decode")),
        f"{m.rate('encode') / 1e9:.2f}",
        f"{m.rate('total') / 1e9:.2f}",
        f"{plain / ours:.1f}",
        f"{ours / m.copy_seconds:.1f}",
        *([compiled] if _some_compiled(measured) else []),
        *graphs,
    ]
