"""`gradwire bench accuracy`: does training still learn, and how fast."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from gradwire.cli import setup as options
from gradwire.cli.bench.looking import Batch, DataDir, Device, Synthetic
from gradwire.cli.bench.sweeps import table
from gradwire.cli.output import AsJson, bars, check_output, emit, wants_json

if TYPE_CHECKING:
    from gradwire.core.records import Record
    from gradwire.laboratory.bench.accuracy import OnProgress, OnStart
    from gradwire.laboratory.bench.training import History, Plan
    from gradwire.trackers.tracker import Tracker

    Runs = Callable[[OnStart, OnProgress], list[Record]]

PLACES = ("--data-dir", "--checkpoints", "--tracker", "--record")


def accuracy(
    task: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="NAME", help="What is trained; may be repeated.  [default: shapes]"),
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", metavar="CODEC", help='May be repeated; "none" and "fp16" are the baselines.'),
    ] = None,
    controller: Annotated[
        list[str] | None,
        typer.Option("--controller", metavar="SPEC", help="Chooses codecs by itself; may be repeated."),
    ] = None,
    study: Annotated[
        list[str] | None,
        typer.Option(
            "--study",
            metavar="NAME",
            help="Runs of a whole study instead, or those of it with the given tasks, codecs, memories and controllers "
            "(by name); may be repeated.",
        ),
    ] = None,
    part: Annotated[
        str, typer.Option("--part", metavar="I/N", help="The I-th of N parts of the runs, to share them out.")
    ] = "1/1",
    memory: Annotated[
        list[str] | None, typer.Option("--memory", metavar="SPEC", help="May be repeated.  [default: default]")
    ] = None,
    strategy: Annotated[str, typer.Option("--strategy", metavar="NAME", help="How payloads travel.")] = "auto",
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Virtual ones, or ranks.  [default: 8, or one a host]"),
    ] = None,
    hosts: Annotated[
        int | None,
        typer.Option("--hosts", metavar="N", help="Train by real ranks on N emulated hosts.  [default: 4]"),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="RATE",
            help='Of every host\'s link, such as 200mbit, or "loopback" for none.  [default: 1gbit]',
        ),
    ] = None,
    batch: Batch = None,
    epochs: Annotated[int | None, typer.Option("--epochs", metavar="N", help="Else the task's.")] = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", metavar="N", help="May be repeated.  [default: 0]")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", metavar="X", help="At its peak; else the task's.")
    ] = None,
    momentum: Annotated[
        float | None, typer.Option("--momentum", metavar="X", help="The optimizer's; else the task's.")
    ] = None,
    device: Device = "cpu",
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="float32, bf16, or auto: bf16 on a GPU.")
    ] = "auto",
    nmse_every: Annotated[
        int | None,
        typer.Option(
            "--nmse-every",
            metavar="N",
            help="Measure the error of the mean every N rounds; 0: never, as always by real ranks.  [default: 10]",
        ),
    ] = None,
    evaluate_every: Annotated[
        int, typer.Option("--evaluate-every", metavar="N", help="Rounds between evaluations; 0: once an epoch.")
    ] = 0,
    patience: Annotated[
        int, typer.Option("--patience", metavar="N", help="Stop after N epochs without a better one; 0: never.")
    ] = 0,
    data_dir: DataDir = None,
    synthetic: Synthetic = False,
    jobs: Annotated[
        int, typer.Option("--jobs", metavar="N", help="Runs at a time, in processes that share the device.")
    ] = 1,
    checkpoints: Annotated[
        Path | None, typer.Option("--checkpoints", metavar="DIR", help="Save after each epoch, and go on from there.")
    ] = None,
    tracker: Annotated[
        str | None,
        typer.Option("--tracker", metavar="KIND:WHERE", help="Log to tensorboard:DIR, wandb:PROJECT or mlflow:NAME."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Append to this .jsonl file; runs that are in it at this commit are not made again.",
        ),
    ] = None,
    gpus: Annotated[int | None, options.GPUS] = None,
    gpus_per_node: Annotated[int | None, options.GPUS_PER_NODE] = None,
    bandwidth: Annotated[str | None, options.BANDWIDTH] = None,
    hardware: Annotated[
        str | None,
        typer.Option("--hardware", metavar="PROFILE", help="Of the GPUs, as in h200.", show_default=False),
    ] = None,
    latency: options.Latency = None,
    backward: options.Backward = None,
    target: Annotated[
        list[float] | None,
        typer.Option("--target", metavar="Q", help="A quality to reach; may be repeated.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a task on several workers with several codecs: quality, error and bytes, epoch by epoch.

    One device computes all workers in turn, exactly as a distributed run would, so quality and bytes are those of a
    cluster and the time is not: `gradwire tta` turns the records into time to accuracy on any cluster. With --hosts or
    --rate real ranks train on an emulated network, FP32 and FP16 by plain DDP, and the seconds are measured. With
    --gpus or --bandwidth the answer is that of `gradwire tta` for such a cluster.

    \b
    Examples:
      gradwire bench accuracy --codec none --codec "topk(ratio=0.01)" --workers 4 --epochs 3
      gradwire bench accuracy --study grace-resnet9 --device cuda --record accuracy.jsonl
      gradwire bench accuracy --study accordion --task resnet18-cifar10 --device cuda --seed 1 --seed 2
      gradwire bench accuracy --codec fp16 --codec efsignsgd --hosts 4 --rate 200mbit --record measured.jsonl
    """
    from gradwire.laboratory.bench import studies
    from gradwire.laboratory.bench.training import Plan

    check_output("bench accuracy", "--record", record)
    measured = hosts is not None or rate is not None
    common: dict[str, Any] = {
        "epochs": epochs,
        "device": device,
        "precision": precision,
        "nmse_every": (0 if measured else 10) if nmse_every is None else nmse_every,
        "evaluate_every": evaluate_every,
        "patience": patience,
        "synthetic": synthetic,
    }
    if study:
        set_there = {"--strategy": None if strategy == "auto" else strategy, "--workers": workers, "--batch": batch}
        _check_study(set_there | {"--learning-rate": learning_rate, "--momentum": momentum})
    plans = []
    for one in seed or [0]:
        if study:
            whole = [plan for name in study for plan in studies.plans(name, seed=one, **common)]
            plans += studies.pick(
                whole, tasks=task or (), specs=codec or (), steered=controller or (), kept=memory or ()
            )
            continue
        own = common | {"strategy": strategy, "batch": batch, "seed": one}
        own |= {"workers": next(n for n in (workers, hosts, 4 if measured else 8) if n is not None)}
        own |= {"learning_rate": learning_rate, "momentum": momentum}
        for name in task or ["shapes"]:
            for kept in memory or ["default"]:
                chosen = codec or ([] if controller else ["none", "fp16", "topk(ratio=0.01)"])
                plans += [Plan(task=name, codec=c, memory=kept, **own) for c in chosen]
                plans += [Plan(task=name, controller=c, memory=kept, **own) for c in controller or ()]
    chosen_part = tuple(_part(plans, part))
    place = {"gpus": gpus, "gpus_per_node": gpus_per_node, "bandwidth": bandwidth, "hardware": hardware}
    timed = any(value is not None for value in place.values())
    if timed:
        _check_comparable(chosen_part, target)
    if measured:
        _check_alone(jobs, checkpoints)
        runs = _on_network(chosen_part, hosts, rate or "1gbit", data_dir, record)
    else:
        runs = _on_one_device(chosen_part, data_dir, checkpoints, jobs, record)
    with _tracking(tracker) as logged:
        found = _run(runs, chosen_part, logged)
    if timed:
        _tell_time(found, as_json, place, latency, backward, target)
    else:
        emit(summary(found), as_json, lambda: overview(found))


def _command() -> str:
    """As it was typed, without where things lie on this machine."""
    if sys.argv[1:2] != ["bench"]:
        return ""
    given = zip(["", *sys.argv[1:]], sys.argv[1:], strict=False)
    return "gradwire " + shlex.join(a for before, a in given if before not in PLACES and not _is_place(a))


def _is_place(argument: str) -> bool:
    return argument == "--json" or argument.partition("=")[0] in PLACES


def _check_study(options: dict[str, Any]) -> None:
    """Refuse what a study sets itself."""
    from gradwire.core.errors import ConfigError

    given = ", ".join(option for option, value in options.items() if value is not None)
    if given:
        raise ConfigError(f"bench accuracy: a study sets {given} itself; leave that away, or --study")


def _check_alone(jobs: int, checkpoints: Path | None) -> None:
    from gradwire.core.errors import ConfigError

    if jobs > 1 or checkpoints is not None:
        option = "--jobs" if jobs > 1 else "--checkpoints"
        raise ConfigError(
            f"bench accuracy: {option} is for virtual workers; on a network one run at a time is measured, from its "
            "start to its end. Leave it away"
        )


def _check_comparable(plans: Sequence[Plan], target: list[float] | None) -> None:
    """Refuse now what could not be told when all is done."""
    from gradwire.core.baselines import FP16
    from gradwire.core.errors import ConfigError

    tasks = list(dict.fromkeys(plan.task for plan in plans))
    if len(tasks) > 1 or (not target and all(plan.codec != FP16 for plan in plans)):
        problem = f"{len(tasks)} tasks" if len(tasks) > 1 else f"no run with {FP16} to compare with, and no target"
        raise ConfigError(
            f"bench accuracy: the time to a quality is told of one task, beside {FP16}, got {problem}; add --codec "
            f"{FP16} or --target, or leave the cluster away and ask `gradwire tta` afterwards"
        )


def _on_network(
    plans: Sequence[Plan], hosts: int | None, rate: str, data_dir: Path | None, record: Path | None
) -> Runs:
    """By real ranks, one run at a time."""
    from gradwire.laboratory.bench.distributed import NetworkStudy
    from gradwire.laboratory.bench.sweep import LOOPBACK
    from gradwire.laboratory.hosts.namespace import become_able

    count = max((plan.workers for plan in plans), default=4) if hosts is None else hosts
    study = NetworkStudy(plans=tuple(plans), command=_command(), hosts=count, rate=rate, data_dir=data_dir)
    if rate != LOOPBACK:
        become_able()
    return lambda on_start, on_progress: list(study.run(record, on_start, on_progress))


def _on_one_device(
    plans: Sequence[Plan], data_dir: Path | None, checkpoints: Path | None, jobs: int, record: Path | None
) -> Runs:
    """On virtual workers."""
    from gradwire.laboratory.bench import jobs as processes
    from gradwire.laboratory.bench.accuracy import Study

    study = Study(plans=tuple(plans), command=_command(), data_dir=data_dir, checkpoints=checkpoints)
    if jobs == 1:
        return lambda on_start, on_progress: list(study.run(record, on_start, on_progress))
    return lambda on_start, on_progress: list(processes.run(study, jobs, record, on_start, on_progress))


def _part(plans: Sequence[Plan], part: str) -> list[Plan]:
    """Every N-th run, from the I-th on."""
    from gradwire.core.errors import ConfigError

    index, _, count = part.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise ConfigError(f"bench accuracy: --part must be I/N with I from 1 to N, such as 2/4, got {part!r}")
    return list(plans[int(index) - 1 :: int(count)])


@contextlib.contextmanager
def _tracking(spec: str | None) -> Iterator[Tracker | None]:
    if spec is None:
        yield None
        return
    from gradwire.trackers import open_tracker

    with open_tracker(spec) as tracker:
        yield tracker


def _name(plan: Plan) -> str:
    kept = "" if plan.memory == "default" else f", memory {plan.memory}"
    return f"{plan.task}, {plan.codec or plan.controller}{kept}, seed {plan.seed}"


def _run(runs: Runs, plans: Sequence[Plan], tracker: Tracker | None) -> list[Record]:
    """All runs, with a bar on stderr if that is a terminal, else one line a run."""

    def log(plan: Plan, history: History) -> None:
        if tracker is None:
            return
        values = {
            "quality": history.quality[-1],
            "train_loss": history.train_loss[-1],
            "nmse": history.nmse[-1],
            "payload_bytes": history.payload_bytes[-1],
            "sent_bytes": history.sent_bytes[-1],
            "residual_norm": history.residual_norm[-1],
            **{f"level/{level}": count for level, count in (history.levels[-1] or {}).items()},
        }
        known = {f"{_name(plan)}/{k}": float(v) for k, v in values.items() if v is not None}
        tracker.log(history.rounds[-1], known)

    if not sys.stderr.isatty():

        def start(plan: Plan, runs: bool) -> None:
            print(f"{'training' if runs else 'done before'}: {_name(plan)}", file=sys.stderr, flush=True)

        return runs(start, log)
    with bars() as progress:
        bar = progress.add_task("starting", total=sum(plan.recipe.epochs for plan in plans))

        def begin(plan: Plan, runs: bool) -> None:
            progress.update(bar, description=_name(plan), advance=0 if runs else plan.recipe.epochs)

        def advance(plan: Plan, history: History) -> None:
            log(plan, history)
            passed = history.epochs[-1] - (history.epochs[-2] if len(history.epochs) > 1 else 0)
            progress.update(bar, advance=passed, description=f"{_name(plan)}: {history.quality[-1]:.4g}")

        return runs(begin, advance)


def _tell_time(
    found: Sequence[Record],
    as_json: bool,
    place: dict[str, Any],
    latency: str | None,
    backward: str | None,
    target: list[float] | None,
) -> None:
    """What `gradwire tta` says of these runs, after the table for people."""
    from gradwire.cli.tta import clock_of, tell
    from gradwire.core.errors import GradwireError
    from gradwire.planner.training import Run

    for_people = not wants_json(as_json)
    if for_people:
        emit(summary(found), as_json, lambda: overview(found))
    runs = [Run.of(record) for record in found]
    try:
        tell(runs, clock_of(runs, place, "overlap", latency, backward), target, as_json=as_json)
    except GradwireError:
        if not for_people:  # the runs are made, whatever their time is
            emit(summary(found), as_json, lambda: overview(found))
        raise


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    runs = [{**r.outcome, **r.what, "at_epochs": r.outcome["epochs"]} for r in found]  # both have `epochs`
    return {"runs": [{**run, "quality": list(r.samples), "unit": r.unit} for run, r in zip(runs, found, strict=True)]}


def overview(found: Sequence[Record]) -> RenderableType:
    """One line a run."""
    headings = ("task", "codec", "memory", "seed", "best", "final", "bits an\nelement", "NMSE", "measured\nseconds")
    rows = [_cells(r) for r in found]
    columns = [i for i in range(len(headings)) if i < len(headings) - 1 or any(row[i] != "-" for row in rows)]
    caption = f"best and final {found[0].outcome['metric']} in {found[0].unit}" if found else ""
    return table([headings[i] for i in columns], [[row[i] for i in columns] for row in rows], caption)


def _cells(record: Record) -> list[str]:
    from gradwire.laboratory.report.accuracy import number
    from gradwire.planner.training import Run

    what, out, run = record.what, record.outcome, Run.of(record)
    return [
        what["task"],
        what["codec"] or what["controller"],
        what["memory"],
        str(what["seed"]),
        f"{out['best']:.2f}",
        f"{out['final']:.2f}",
        number(run.bits_per_element),
        number(run.nmse),
        f"{out['seconds'][-1]:.1f}" if out["clock"].startswith("measured") else "-",
    ]
