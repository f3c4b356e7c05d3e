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

from gradwire.cli.bench.sweeps import table
from gradwire.cli.output import AsJson, bars, check_record, emit

if TYPE_CHECKING:
    from gradwire.bench.accuracy import Study
    from gradwire.bench.training import History, Plan
    from gradwire.core.records import Record
    from gradwire.trackers.tracker import Tracker


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
        str | None, typer.Option("--study", metavar="NAME", help="Runs of a whole study instead.", show_default=False)
    ] = None,
    part: Annotated[
        str, typer.Option("--part", metavar="I/N", help="The I-th of N parts of the runs, to share them out.")
    ] = "1/1",
    memory: Annotated[
        list[str] | None, typer.Option("--memory", metavar="SPEC", help="May be repeated.  [default: default]")
    ] = None,
    strategy: Annotated[str, typer.Option("--strategy", metavar="NAME", help="How payloads travel.")] = "auto",
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Virtual workers.")] = 8,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Of a worker; else the task's.")] = None,
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
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="float32, bf16, or auto: bf16 on a GPU.")
    ] = "auto",
    nmse_every: Annotated[
        int, typer.Option("--nmse-every", metavar="N", help="Measure the error of the mean every N rounds; 0: never.")
    ] = 10,
    evaluate_every: Annotated[
        int, typer.Option("--evaluate-every", metavar="N", help="Rounds between evaluations; 0: once an epoch.")
    ] = 0,
    patience: Annotated[
        int, typer.Option("--patience", metavar="N", help="Stop after N evaluations without a better one; 0: never.")
    ] = 0,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Where the data set lies; else it is downloaded."),
    ] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Tiny made-up data, to try things out.")] = False,
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
            "--record", metavar="FILE", help="Append to this .jsonl file; runs that are in it are not made again."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a task on virtual workers with several codecs: quality, error and bytes, epoch by epoch.

    One device computes all workers in turn, exactly as a distributed run would, so quality and bytes are those of a
    cluster and the time is not: `gradwire tta` turns the records into time to accuracy on any cluster.

    \b
    Examples:
      gradwire bench accuracy --codec none --codec "topk(ratio=0.01)" --workers 4 --epochs 3
      gradwire bench accuracy --study grace-resnet9 --device cuda --record accuracy.jsonl
    """
    from gradwire.bench import studies
    from gradwire.bench.accuracy import Study
    from gradwire.bench.training import Plan

    check_record("bench accuracy", record)
    common: dict[str, Any] = {
        "epochs": epochs,
        "device": device,
        "precision": precision,
        "nmse_every": nmse_every,
        "evaluate_every": evaluate_every,
        "patience": patience,
        "synthetic": synthetic,
    }
    plans = []
    for one in seed or [0]:
        if study is not None:
            plans += studies.plans(study, seed=one, **common)
            continue
        own = common | {"strategy": strategy, "workers": workers, "batch": batch, "seed": one}
        own |= {"learning_rate": learning_rate, "momentum": momentum}
        for name in task or ["shapes"]:
            for kept in memory or ["default"]:
                chosen = codec or ([] if controller else ["none", "fp16", "topk(ratio=0.01)"])
                plans += [Plan(task=name, codec=c, memory=kept, **own) for c in chosen]
                plans += [Plan(task=name, controller=c, memory=kept, **own) for c in controller or ()]
    told = "gradwire " + shlex.join(a for a in sys.argv[1:] if a != "--json") if sys.argv[1:2] == ["bench"] else ""
    chosen_part = _part(plans, part)
    work = Study(plans=tuple(chosen_part), command=told, data_dir=data_dir, checkpoints=checkpoints)
    with _tracking(tracker) as logged:
        found = _run(work, jobs, record, logged)
    emit(summary(found), as_json, lambda: _table(found))


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


def _run(study: Study, jobs: int, record: Path | None, tracker: Tracker | None) -> list[Record]:
    """All runs, with a bar on stderr if that is a terminal, else one line a run."""
    from gradwire.bench.jobs import run

    def all_runs(on_start: Callable[[Plan, bool], None], on_progress: Callable[[Plan, History], None]) -> list[Record]:
        if jobs == 1:
            return list(study.run(record, on_start, on_progress))
        return list(run(study, jobs, record, on_start, on_progress))

    def log(plan: Plan, history: History) -> None:
        if tracker is None:
            return
        label = plan.codec or plan.controller
        values = {
            "quality": history.quality[-1],
            "train_loss": history.train_loss[-1],
            "nmse": history.nmse[-1],
            "payload_bytes": history.payload_bytes[-1],
            "sent_bytes": history.sent_bytes[-1],
            "residual_norm": history.residual_norm[-1],
            **{f"level/{level}": count for level, count in (history.levels[-1] or {}).items()},
        }
        known = {f"{plan.task}/{label}/{plan.seed}/{k}": float(v) for k, v in values.items() if v is not None}
        tracker.log(history.rounds[-1], known)

    if not sys.stderr.isatty():

        def start(plan: Plan, runs: bool) -> None:
            print(f"{'training' if runs else 'done before'}: {_name(plan)}", file=sys.stderr, flush=True)

        return all_runs(start, log)
    with bars() as progress:
        bar = progress.add_task("starting", total=sum(plan.recipe.epochs for plan in study.plans))

        def begin(plan: Plan, runs: bool) -> None:
            progress.update(bar, description=_name(plan), advance=0 if runs else plan.recipe.epochs)

        def advance(plan: Plan, history: History) -> None:
            log(plan, history)
            passed = history.epochs[-1] - (history.epochs[-2] if len(history.epochs) > 1 else 0)
            progress.update(bar, advance=passed, description=f"{_name(plan)}: {history.quality[-1]:.4g}")

        return all_runs(begin, advance)


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {"runs": [{**r.what, "quality": list(r.samples), "unit": r.unit, **r.outcome} for r in found]}


def _table(found: Sequence[Record]) -> RenderableType:
    headings = ("task", "codec", "memory", "seed", "best", "final", "bits an\nelement", "NMSE")
    rows = []
    for r in found:
        out = r.outcome
        bits = 8 * out["payload_bytes"][-1] / out["rounds"][-1] / out["parameters"]
        errors = [e for e in out["nmse"] if e is not None]
        rows.append(
            [
                r.what["task"],
                r.what["codec"] or r.what["controller"],
                r.what["memory"],
                str(r.what["seed"]),
                f"{out['best']:.2f}",
                f"{out['final']:.2f}",
                f"{bits:.3g}",
                f"{sum(errors) / len(errors):.3g}" if errors else "-",
            ]
        )
    return table(headings, rows, f"best and final {found[0].outcome['metric']} in {found[0].unit}" if found else "")
