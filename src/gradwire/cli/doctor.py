"""`gradwire doctor`: why a job is not faster."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli import setup as options
from gradwire.cli.output import AsJson, RecordFile, check_output, emit, wants_json
from gradwire.core.baselines import MAX_LOSS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradwire.diagnosis.causes import Account
    from gradwire.diagnosis.report import Diagnosis
    from gradwire.diagnosis.watch import Watch
    from gradwire.planner.profile import CodecCost

KIND = "doctor"  # of record
MEANING = {
    "data": "waiting for the data loader",
    "compute": "forward and backward pass",
    "waiting": "waiting for slower ranks",
    "network": "exchange that nothing hides",
    "optimizer": "optimizer",
    "other": "the script between steps",
}


class Rule(NamedTuple):
    """Which codecs may be recommended."""

    task: str | None
    max_loss: float


def doctor(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- CMD", help="The job, as you start it: torchrun … train.py", show_default=False),
    ],
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", help="Steps to measure, after the first few.", min=3)
    ] = 30,
    task: options.Task = None,
    max_loss: options.MaxLoss = MAX_LOSS,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> int:
    """Watch a DDP job for some steps, and say why it is not faster on several machines.

    Where a step's time goes, which rank is late, how large buckets are, what a free exchange would bring, what each
    safe codec is estimated to bring, which settings cost; or that there is nothing to gain. The script stays as it is
    and computes the same numbers, and the exit code is the job's. The answer comes as soon as it is there on GPUs; on
    CPUs after the job, because then what codecs cost is measured. In JSON the job's own output goes to standard error.
    On several machines, type it on each: rank 0's has the answer.

    \b
    Examples:
      gradwire doctor -- torchrun --nproc-per-node 2 train.py
      gradwire doctor -- gradwire lab --hosts 2 --rate 100mbit -- python train.py
    """
    from gradwire.core.errors import ConfigError
    from gradwire.core.registry import Check
    from gradwire.diagnosis import job
    from gradwire.diagnosis.watch import CPU
    from gradwire.planner import quality

    if not command:
        raise ConfigError("doctor: there is no job; write it behind --, as in: gradwire doctor -- torchrun train.py")
    if task is not None:
        Check("doctor").one_of("task", task, quality.TASKS)
    Check("doctor").number("max_loss", max_loss, 0, 100, "points from 0 to 100, such as 0.5")
    check_output("doctor", "--record", record)
    rule = Rule(task, max_loss)
    answered = False

    def when_seen(watches: list[Watch]) -> None:
        nonlocal answered
        if watches[0].settings.device != CPU:
            answered = True
            _keep(_answer(watches, rule, as_json, ()), watches, command, record)

    ended = job.run(command, steps, quiet=wants_json(as_json), when_seen=when_seen)
    if _elsewhere(ended.watches):
        print("gradwire doctor: the answer is where rank 0 runs", file=sys.stderr)
    elif not answered:
        _keep(_answer(ended.watches, rule, as_json, ended.problems), ended.watches, command, record)
    if ended.code:
        print(f"gradwire doctor: the job ended with exit code {ended.code}", file=sys.stderr)
    return ended.code


def _elsewhere(watches: Sequence[Watch]) -> bool:
    """Whether rank 0 is on another machine, or has a doctor of its own."""
    return bool(watches) and watches[0].rank > 0


def _answer(watches: Sequence[Watch], rule: Rule, as_json: bool, problems: Sequence[str]) -> Diagnosis:
    from gradwire.diagnosis.report import diagnose

    found = diagnose(watches, _costs(watches, rule), rule.task, rule.max_loss, problems)
    emit(dataclasses.asdict(found), as_json, lambda: page(found))
    return found


def _keep(found: Diagnosis, watches: Sequence[Watch], command: Sequence[str], file: Path | None) -> None:
    """Append the answer to a file, with the steps of the first rank that was heard of."""
    if file is None or found.account is None:
        return
    from gradwire.core import environment
    from gradwire.core.records import Quantiles, Record, append

    commit, dirty = environment.commit()
    first = watches[0]
    words = [Path(word).name if Path(word).is_absolute() else word for word in command]  # a record holds no path
    samples = tuple(step.seconds for step in first.steps)
    one = Record(
        kind=KIND,
        what={"model": first.model, "ranks": first.ranks, "hook": first.settings.hook},
        command=shlex.join(["gradwire", "doctor", "--", *words]),
        time=environment.now(),
        commit=commit,
        dirty=dirty,
        environment=environment.fingerprint(f"{first.settings.backend} between ranks"),
        unit="s",
        quantiles=Quantiles.of(samples),
        samples=samples,
        outcome=dataclasses.asdict(found),
    )
    append(file, [one])


def _costs(watches: Sequence[Watch], rule: Rule) -> Mapping[str, CodecCost] | None:
    """Of codecs on this CPU, where compression may help; None where that does not matter."""
    from gradwire.diagnosis.causes import LEAST, NETWORK, account
    from gradwire.diagnosis.codecs import candidates
    from gradwire.diagnosis.watch import CPU

    if not watches or min(len(w.steps) for w in watches) < LEAST or watches[0].settings.device != CPU:
        return None
    found, first = account(watches), watches[0]
    if all(cause.kind != NETWORK for cause in found.causes):
        return None
    from gradwire.laboratory.bench import own_costs

    specs = candidates(rule.task or first.task, rule.max_loss)
    print(f"gradwire doctor: measuring what {', '.join(specs)} cost here", file=sys.stderr, flush=True)
    return own_costs.measure(first.model, first.shapes, specs, workers=first.ranks, threads=first.settings.threads)


# ---------------------------------------------------------------- for people


def page(found: Diagnosis) -> RenderableType:
    """The verdict, and all that led to it."""
    sections: list[RenderableType] = [Text(found.verdict, style="bold")]
    if found.line:
        sections += [Text(), Text(f"  {found.line}")]
    if found.account is not None:
        sections += [Text(), _parts(found.account)]
        sections += [Text(line) for line in _lines(found, found.account)]
    if found.codecs:
        sections += [Text(), _codecs(found)]
    for heading, lines in (("Also", found.also), ("Settings that cost", found.settings)):
        if lines:
            sections += [Text(), Text(heading, style="bold"), *(Text(f"- {line}") for line in lines)]
    sections += [Text(remark, style="dim") for remark in found.remarks]
    return Group(*sections)


def _parts(account: Account) -> Table:
    from gradwire.core.units import format_milliseconds

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("a step")
    table.add_column(format_milliseconds(account.step_seconds), justify="right", no_wrap=True)
    table.add_column("share", justify="right")
    for name, meaning in MEANING.items():
        table.add_row(meaning, format_milliseconds(account.parts[name]), f"{100 * account.share(name):.0f} %")
    return table


def _lines(found: Diagnosis, account: Account) -> list[str]:
    from gradwire.core.units import format_bytes, format_milliseconds, format_rate

    lines = [f"{account.steps} steps of {account.ranks} rank{'s' * (account.ranks > 1)}, mean of all."]
    if account.lag is not None:
        lag = account.lag
        lines.append(
            f"Slowest: rank {lag.rank}, {format_milliseconds(lag.own_seconds)} for itself against "
            f"{format_milliseconds(lag.others_seconds)}; it came last in {100 * lag.share:.0f} % of the steps."
        )
    if account.ranks > 1 and account.bucket_bytes:
        count, total = len(account.bucket_bytes), sum(account.bucket_bytes)
        rate = f"; about {format_rate(found.bits_per_second)} was seen" if found.bits_per_second else ""
        lines.append(
            f"Gradients: {format_bytes(total)} in {count} bucket{'s' * (count > 1)}{rate}. If the exchange were free, "
            f"a step would be {found.headroom:.2f} times as fast."
        )
    return lines


def _codecs(found: Diagnosis) -> Table:
    from gradwire.core.units import format_bytes, format_milliseconds

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("estimated with")
    for heading in ("step", "times\nas fast", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("in our trainings")
    for gain in found.codecs:
        cells = (format_milliseconds(gain.step_seconds), f"{gain.speedup:.2f}", format_bytes(gain.sent_bytes))
        table.add_row(gain.codec, *cells, gain.evidence)
    return table
