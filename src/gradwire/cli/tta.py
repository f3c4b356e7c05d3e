"""`gradwire tta`: time to accuracy, from records of trainings."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli import setup as options
from gradwire.cli.output import AsJson, CsvFile, PlotFile, check_output, check_plot, emit

if TYPE_CHECKING:
    from gradwire.planner.clock import Clock
    from gradwire.planner.seeds import Options
    from gradwire.planner.training import Run
    from gradwire.planner.tta import Row, Utility

    Setups = dict[tuple[Any, ...], list[Run]]  # trainings by what they must share to be compared

USUAL = {"gpus": 16, "gpus_per_node": 1, "bandwidth": "10gbit", "hardware": "h200"}
DEFAULT = "default"
OPTIONS = {"task": "--task", "workers": "--workers", "epochs": "--epochs", "batch": "--trained-batch"}  # that choose
FilterNumber = typer.Option(metavar="N", help="Only trainings with so many.", show_default=False)


def tta(
    records: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDS...", help="Files of `bench accuracy`, or folders.", show_default=False),
    ],
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Only this task's trainings.", show_default=False)
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", metavar="CODEC", help="Only these, and the baselines; may be repeated."),
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            "--memory",
            metavar="NAME",
            help='Only with these; "default" is each codec\'s own; may be repeated.',
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int | None, FilterNumber] = None,
    epochs: Annotated[int | None, FilterNumber] = None,
    trained_batch: Annotated[
        int | None, typer.Option(metavar="N", help="Only trainings with this batch a worker.", show_default=False)
    ] = None,
    gpus: Annotated[int | None, options.GPUS] = None,
    gpus_per_node: Annotated[int | None, options.GPUS_PER_NODE] = None,
    bandwidth: Annotated[str | None, options.BANDWIDTH] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            metavar="PROFILE",
            help="A profile's name, or the file that `gradwire calibrate` wrote.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            metavar="B",
            help="Examples a GPU, for the time of a round; the records' if not given.",
            show_default=False,
        ),
    ] = None,
    latency: options.Latency = None,
    mode: options.Mode = "overlap",
    backward: options.Backward = None,
    target: Annotated[
        list[float] | None,
        typer.Option("--target", metavar="Q", help="A quality to reach; may be repeated.", show_default=False),
    ] = None,
    rolling: Annotated[
        int, typer.Option("--rolling", metavar="ROUNDS", help="Average quality over so many rounds; 0: not at all.")
    ] = 0,
    patience: Annotated[
        float | None,
        typer.Option(
            "--patience", metavar="EPOCHS", help="Stop curves after so many without improvement.", show_default=False
        ),
    ] = None,
    min_delta: Annotated[
        float, typer.Option("--min-delta", metavar="Q", help="What counts as an improvement for --patience.")
    ] = 0.0,
    plot: PlotFile = None,
    csv: CsvFile = None,
    as_json: AsJson = False,
) -> None:
    """Tell how soon each codec reaches a target, and whether that is sooner than with FP16 gradients.

    Quality and rounds are those of the records. The time of a round is modelled for the cluster that you describe (16
    GPUs at 10 Gbit/s if you do not), or that of the records, where they were measured on a cluster and you describe
    none. Targets are qualities near FP16's best unless given. Of several seeds the median time is told. Under an
    annealed schedule quality comes at its end, so that a time to it is rounds a second times pass or fail; a note says
    so where all that arrive do so in the last tenth. Codecs that lost more than `advise` allows in any training of ours
    are called lossy, and come last. Several set-ups are listed, with the options that choose one of
    them; the exit code then is 2.

    \b
    Examples:
      gradwire tta results/accuracy_resnet9.jsonl --gpus 16 --bandwidth 10gbit
      gradwire tta results/accuracy_resnet9.jsonl --target 93 --rolling 500 --plot curves.html
    """
    from gradwire.planner.seeds import Options

    check_plot("tta", plot)
    check_output("tta", "--csv", csv)
    wanted = {"task": task, "workers": workers, "epochs": epochs, "batch": trained_batch}
    found = _matching(_runs(records), {k: v for k, v in wanted.items() if v is not None})
    if len(found) > 1:
        emit({"setups": list(map(_setup, found.values()))}, as_json, lambda: _listing(found))
        raise typer.Exit(2)
    runs = named(next(iter(found.values())), codec, memory)
    place = {"gpus": gpus, "gpus_per_node": gpus_per_node, "bandwidth": bandwidth, "hardware": hardware, "batch": batch}
    clock = clock_of(runs, place, mode, latency, backward)
    read = Options(rolling=rolling, patience=patience, min_delta=min_delta)
    tell(runs, clock, target, read, plot, csv, as_json=as_json)


def tell(
    runs: Sequence[Run],
    clock: Clock,
    target: Sequence[float] | None = None,
    read: Options | None = None,
    plot: Path | None = None,
    csv: Path | None = None,
    *,
    as_json: bool,
) -> None:
    """The utility table of one set-up, drawn and written where asked."""
    from gradwire.planner.seeds import AS_IT_IS
    from gradwire.planner.tta import as_dict, utility

    table = utility(runs, clock, targets=target or None, options=read or AS_IT_IS)
    files = [*_draw(table, plot), *_write(table, csv)]
    emit({**as_dict(table), "files": files}, as_json, lambda: _page(table, files))


def _runs(paths: Sequence[Path]) -> list[Run]:
    from gradwire.core.errors import ConfigError
    from gradwire.core.records import load_all
    from gradwire.planner.training import KIND, MAKE, Run

    found = [Run.of(r) for r in load_all("tta", paths) if r.kind == KIND]
    if not found:
        raise ConfigError(f"tta: no training in {', '.join(str(p) for p in paths)}; {MAKE}")
    return found


def _matching(runs: Sequence[Run], wanted: dict[str, Any]) -> Setups:
    """By set-up, those that have what was asked for."""
    from gradwire.core.errors import ConfigError
    from gradwire.planner.seeds import setups

    found = setups(r for r in runs if all(r.what.get(k) == v for k, v in wanted.items()))
    if found:
        return found
    alike = setups(r for r in runs if r.task == wanted.get("task"))
    there = [_choosing(key, alike) for key in alike] or dict.fromkeys(f"--task {r.task}" for r in runs)
    asked = " ".join(f"{OPTIONS[k]} {v}" for k, v in wanted.items())
    raise ConfigError(f"tta: no training has {asked}; there are: {', '.join(there)}")


def _choosing(key: tuple[Any, ...], among: Setups) -> str:
    """The options that choose a set-up: its task, and what else tells it from others of that task."""
    from gradwire.planner.seeds import SETUP

    of_task = [dict(zip(SETUP, other, strict=True)) for other in among if other[0] == key[0]]
    own = dict(zip(SETUP, key, strict=True))
    names = [n for n in OPTIONS if n == "task" or len({str(other[n]) for other in of_task}) > 1]
    return " ".join(f"{OPTIONS[n]} {own[n]}" for n in names)


def _setup(runs: Sequence[Run]) -> dict[str, Any]:
    """A set-up for JSON."""
    from gradwire.planner.seeds import SETUP

    return {**{n: runs[0].what.get(n) for n in SETUP}, "codecs": len({r.codec for r in runs}), "trainings": len(runs)}


def _listing(found: Setups) -> RenderableType:
    """One line a set-up, with what chooses it."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False)
    names = ("workers", "batch", "epochs", "codecs", "trainings")
    table.add_column("choose it with", overflow="fold")
    for name in names:
        table.add_column(name, justify="right")
    for key, runs in found.items():
        told = _setup(runs)
        table.add_row(Text(_choosing(key, found)), *("-" if told[n] is None else str(told[n]) for n in names))
    return Group(Text(f"{len(found)} set-ups cannot be compared with each other; choose one of them."), "", table)


def named(runs: Sequence[Run], wanted: Sequence[str] | None, memories: Sequence[str] | None = None) -> list[Run]:
    """Those of the codecs and memories that were named, and the baselines."""
    from gradwire.core.baselines import FP16, FP32
    from gradwire.core.errors import ConfigError
    from gradwire.planner.spec import keeps, same
    from gradwire.planner.training import NO_MEMORY

    def own(run: Run) -> bool:
        return run.controller is not None or (run.memory != NO_MEMORY) is keeps(run.codec)

    if wanted:
        fixed = [r for r in runs if r.controller is None]
        for spec in wanted:
            if not any(same(r.codec, spec) for r in fixed):
                known = ", ".join(dict.fromkeys(r.codec for r in fixed))
                raise ConfigError(f"tta: no training of codec {spec}; there are: {known}")
        runs = [r for r in fixed if any(same(r.codec, spec) for spec in (*wanted, FP16, FP32))]
    for memory in memories or ():
        if memory != DEFAULT and not any(r.memory == memory for r in runs):
            known = ", ".join(dict.fromkeys(r.memory for r in runs))
            raise ConfigError(f"tta: no training with memory {memory}; there are: {known}, and {DEFAULT}")
    return [
        r
        for r in runs
        if not memories or r.codec in (FP16, FP32) or r.memory in memories or (DEFAULT in memories and own(r))
    ]


def clock_of(runs: Sequence[Run], asked: dict[str, Any], mode: str, latency: str | None, backward: str | None) -> Clock:
    """Modelled for the cluster that was described, or measured where none was and the records can tell."""
    from gradwire import planner
    from gradwire.core.baselines import FP16
    from gradwire.core.errors import ConfigError
    from gradwire.planner.clock import Measured, Modelled

    place = {k: v for k, v in asked.items() if v is not None}
    if not place and all(r.measured for r in runs):
        return Measured.of(runs)
    setup = options.keywords(model="", latency=latency, backward=backward, **{**USUAL, **place}, mode=mode)
    del setup["model"]
    clock = Modelled(planner.predict, setup)
    first = next((r for r in runs if r.codec == FP16), runs[0])
    refused = clock.times(first).note
    if refused:  # what the baseline cannot be told without, nothing can
        raise ConfigError(refused)
    return clock


def _draw(table: Utility, path: Path | None) -> list[str]:
    if path is None:
        return []
    from gradwire.laboratory.report.accuracy import over_bytes, over_rounds, over_time
    from gradwire.laboratory.report.chart import write

    drawn = [over_time(table), over_rounds(table), over_bytes(table)]
    title = f"{table.setup['task']}: time to accuracy"
    return [str(write([p for p in drawn if p is not None], path, title=title))]


def _write(table: Utility, path: Path | None) -> list[str]:
    if path is None:
        return []
    from gradwire.laboratory.report.chart import save

    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(("codec", "memory", "controller", "seed", "rounds", "epoch", "seconds", table.metric))
    for row in table.rows:
        for run, curve in zip(row.group.runs, row.curves, strict=False):
            named = (run.codec, run.memory, run.controller or "", run.seed)
            writer.writerows((*named, p.rounds, p.epoch, p.seconds, p.quality) for p in curve.points)
    return [str(save(path, text.getvalue().encode()))]


# -------------------------------------------------------------------- for people


def _page(table: Utility, files: Sequence[str]) -> RenderableType:
    from gradwire.laboratory.report.accuracy import setup_words

    told = f"{table.setup['task']}: {setup_words(table)}; time {table.time_label}"
    lines = [f"- {a}" for a in (table.schedule_note, *table.assumptions) if a]
    lines += [f"- {row.label}: no time, because {row.note}" for row in table.rows if row.note]
    lines += [f"wrote {name}" for name in files]
    return Group(Text(told), "", table_of(table), *map(Text, ("", *lines) if lines else ()))


def table_of(table: Utility) -> Table:
    from gradwire.planner.tta import LOSSY_NOTE

    lossy = f"; {LOSSY_NOTE}" if any(row.lossy for row in table.rows) else ""
    caption = f"2x: twice as soon as {table.baseline}; -: not reached{lossy}"
    made = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False, caption=caption, caption_justify="left")
    made.add_column("", overflow="fold")
    heads = [f"best\n{table.unit}", f"to\n{table.baseline}", "a round", "bits"]
    for heading in [*heads, *(f"to {t:g}" for t in table.targets)]:
        made.add_column(heading, justify="right", no_wrap=True)
    for row in table.rows:
        made.add_row(*(Text(cell) for cell in _cells(row, table)))
    return made


def _cells(row: Row, table: Utility) -> list[str]:
    from gradwire.core.units import format_milliseconds
    from gradwire.laboratory.report.accuracy import duration, number, quality_cell

    cells = [row.name, quality_cell(row), "-" if row.difference is None else f"{row.difference:+.2f}"]
    cells += ["-" if row.seconds_per_round is None else format_milliseconds(row.seconds_per_round)]
    cells += [number(row.bits_per_element)]
    for target in table.targets:
        reached, ratio = row.to_target[target], row.speed_up[target]
        cells.append(duration(reached.seconds if reached else None) + ("" if ratio is None else f" {ratio:.2f}x"))
    return cells
