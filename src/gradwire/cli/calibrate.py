"""`gradwire calibrate`: measure this machine, and write what was found as a profile."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.bench.sweeps import tell_inputs
from gradwire.cli.output import AsJson, RecordFile, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record
    from gradwire.planner.plausible import Judgement
    from gradwire.planner.profile import Profile

CODECS = ("eightbit", "blockint(bits=8)", "efsignsgd", "topk(ratio=0.01)", "powersgd(rank=4)")
PASS_SIZES = (1 << 20, 1 << 23)


def calibrate(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="May be repeated; module:factory for your own.  [default: shapes, the demo's net; on a GPU resnet20]",
        ),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option("--batch", metavar="N", help="May be repeated.  [default: 4]")
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", metavar="CODEC", help="May be repeated.  [default: one of each family]"),
    ] = None,
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", help="Emulated hosts.")] = 2,
    rate: Annotated[
        str, typer.Option("--rate", metavar="RATE", help='Of their links, such as 1gbit, or "loopback".')
    ] = "1gbit",
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="cpu: steps between hosts or ranks; cuda: this GPU alone.")
    ] = "cpu",
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="On a GPU: fp32, tf32 or bf16 (autocast).")
    ] = "tf32",
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="Limit for each configuration.")] = 1.0,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            "--records",
            metavar="FILE",
            help="Measure nothing: make the profile of these step and collective records.",
            show_default=False,
        ),
    ] = None,
    place: Annotated[
        str | None,
        typer.Option(
            "--place", metavar="HOSTS@RATE", help="Which place of the records, such as 4@500mbit.", show_default=False
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of the profile.")] = "this-machine",
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the profile goes.")] = Path(
        "this-machine.toml"
    ),
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a profile that is there, and write one that is not plausible.")
    ] = False,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure what predictions need, and write it to a small file that people can read.

    On the CPU: training steps of the models with the codecs, on emulated hosts at one rate; started by torchrun, on its
    ranks and their real network instead. They give times of models, laws of encode and decode, latency and bandwidth.
    With --device cuda: steps without exchange and encode passes of this GPU, under torchrun also the link between
    ranks; otherwise the network is assumed. The file then answers for other rates, more hosts, other batch sizes:
    gradwire advise --hardware this-machine. On a machine that is busy with something else times are wrong: it warns
    of that first, says how well the file predicts what was measured, and does not write one that is not plausible.

    Your own model is module:factory, found from the working directory too. Its inputs are guessed from its first layer,
    unless the model tells them: model.example = lambda batch: (torch.randn(batch, 3, 32, 32),)

    \b
    Examples:
      gradwire calibrate --model resnet20 --hosts 2 --rate 1gbit
      torchrun --nproc-per-node 2 -m gradwire calibrate --model resnet20
      gradwire calibrate --records steps.jsonl --place 4@500mbit -o four-hosts.toml
    """
    from gradwire.core import records as store
    from gradwire.core.registry import Check
    from gradwire.planner.calibrate import FITTED
    from gradwire.planner.text import dump

    Check("calibrate").one_of("device", device, ("cpu", "cuda"))
    Check("calibrate").integer("--hosts", hosts, 2)
    check_output("calibrate", "--record", record)
    check_output("calibrate", "--output", output)
    _check_overwrite(output, force)
    found: list[Record] | None
    profile: Profile | None
    if records:
        found = store.load_all("calibrate", records, FITTED)
        profile = _fit(found, place, name)
    else:
        models = model or (["resnet20"] if device == "cuda" else ["shapes"])
        codecs = codec or list(CODECS)
        found, profile = _measured(models, batch or [4], codecs, hosts, rate, device, precision, seconds, name)
    if profile is None or found is None:
        return  # another rank writes
    if record is not None:
        store.append(record, found)
    judged = None if device == "cuda" else _judged(profile, found, force)
    output.write_text(dump(profile), encoding="utf-8")
    result = {"profile": str(output), "name": profile.name, **summary(profile, judged)}
    emit(result, as_json, lambda: _page(profile, output, judged))


def _check_overwrite(output: Path, force: bool) -> None:
    """A profile took minutes to measure: it is overwritten with a word only, asked for on a terminal."""
    from gradwire.core.errors import ConfigError

    if force or not output.exists():
        return
    alone = "RANK" not in os.environ
    if alone and sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm(f"overwrite {output}?", err=True):
        return
    raise ConfigError(
        f"calibrate: {str(output)!r} is there already; overwrite it with --force, or name another file: -o FILE"
    )


def _judged(profile: Profile, found: list[Record], force: bool) -> Judgement:
    """How far the profile can be trusted; refuses to write one that cannot."""
    from gradwire.core.errors import GradwireError
    from gradwire.laboratory.bench.prediction import workload_of
    from gradwire.planner.plausible import judge

    judged = judge(profile, found, workload_of)
    if judged.problems and not force:
        raise GradwireError(
            f"calibrate: the fit is not plausible, so no profile was written: {'; '.join(judged.problems)}. Measure "
            "again when the machine is idle, or for longer (--seconds 5), or write it all the same with --force"
        )
    return judged


def _fit(found: list[Record], place: str | None, name: str) -> Profile:
    from gradwire.laboratory.bench.prediction import workload_of
    from gradwire.planner import calibrate as fitting

    where = None if place is None else parse_place(place)
    description = "calibrated from records of training steps"
    return fitting.fit(found, workload_of, name=name, description=description, place=where)


def parse_place(text: str) -> Any:
    """``4@500mbit`` as a place."""
    from gradwire.core.errors import ConfigError
    from gradwire.core.units import parse_rate
    from gradwire.planner.calibrate import Place

    count, _, rate = text.partition("@")
    if not count.isdigit() or not rate:
        raise ConfigError(f"calibrate: `--place` is a number of hosts and a rate, such as 4@500mbit; got {text!r}")
    return Place(int(count), 1, parse_rate(rate))


def _measured(
    models: list[str],
    batches: list[int],
    codecs: list[str],
    hosts: int,
    rate: str,
    device: str,
    precision: str,
    seconds: float,
    name: str,
) -> tuple[list[Record] | None, Profile | None]:
    from gradwire.laboratory.bench import calibration

    ranks = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if device == "cuda":
        return _device(models, batches, codecs, precision, seconds, name, ranks)
    plan = calibration.Plan(tuple(models), tuple(batches), tuple(codecs), seconds)
    plan.sweeps(hosts, rate)  # refused now, not in the middle
    _before(models, codecs, batches)
    if ranks > 1:
        with calibration.process_group("gloo"):
            found = calibration.on_group(plan)
        return (None, None) if found is None else (found, _fit(found, None, name))
    found = calibration.on_loopback(plan, hosts) if rate == "loopback" else calibration.on_hosts(plan, hosts, rate)
    return found, _fit(found, None, name)


def _device(
    models: list[str], batches: list[int], codecs: list[str], precision: str, seconds: float, name: str, ranks: int
) -> tuple[list[Record] | None, Profile | None]:
    """One GPU, and under torchrun the link between all of them."""
    from dataclasses import replace

    from gradwire.laboratory.bench import calibration, compute, encode
    from gradwire.planner import device as fitting
    from gradwire.planner.profile import Network, Profile

    link = None
    if ranks > 1:
        with calibration.process_group("nccl"):
            link = calibration.link_of_group("cuda")
        if int(os.environ["RANK"]) > 0:
            return None, None
    found = [compute.measure(m, b, device="cuda", precision=precision) for m in models for b in batches]
    plan = encode.Plan(codecs=tuple(codecs), sizes=PASS_SIZES, models=tuple(models), seconds=seconds, device="cuda")
    found += encode.to_records(plan, list(encode.run(plan)))
    profile = fitting.fit(found, Profile.load("h200"), name=name, description="this GPU", precision=precision)
    if link is not None:
        network = Network(
            latency_seconds=link.latency_seconds / (ranks - 1),
            efficiency=1.0,
            bits_per_second=link.bits_per_second,
            source=f"measured: exchanges between {ranks} ranks",
        )
        profile = replace(profile, network=network)
    return found, profile


def _before(models: list[str], codecs: list[str], batches: list[int]) -> None:
    """What rank 0 says before the clock runs."""
    from gradwire.core.errors import GradwireWarning
    from gradwire.laboratory.bench import noise

    if os.environ.get("RANK", "0") != "0":
        return
    tell_inputs(models)
    busy = noise.measure().warning
    if busy is not None:
        warnings.warn(f"calibrate: {busy}", GradwireWarning, stacklevel=2)
    runs = len(models) * len(batches)
    print(f"measuring {runs} model{'s' * (runs > 1)} with {len(codecs)} codecs", file=sys.stderr, flush=True)


def summary(profile: Profile, judged: Judgement | None) -> dict[str, Any]:
    """What was found, in few numbers."""
    network = profile.network
    return {
        "fit": None if judged is None else dataclasses.asdict(judged),
        "network": {
            "latency_seconds": network.latency_seconds,
            "start_seconds": network.start_seconds,
            "bits_per_second": network.bits_per_second,
            "efficiency": network.efficiency,
        },
        "models": {
            model: [{"batch": t.batch, "forward": t.forward_seconds, "backward": t.backward_seconds} for t in times]
            for model, times in profile.models.items()
        },
        "codecs": sorted(profile.codecs),
    }


def _page(profile: Profile, output: Path, judged: Judgement | None) -> RenderableType:
    from gradwire.core.units import format_milliseconds, format_rate

    network = profile.network
    rate = format_rate(network.bits_per_second) if network.bits_per_second else "as asked"
    models = Table("model", "batch", "forward", "backward", "optimizer", box=SIMPLE_HEAD)
    for name, times in profile.models.items():
        for t in times:
            seconds = (t.forward_seconds, t.backward_seconds, t.optimizer_seconds)
            models.add_row(name, str(t.batch), *(format_milliseconds(s) for s in seconds))
    codecs = Table("codec", "encode", "decode", "of 1 M elements, once", box=SIMPLE_HEAD)
    for name, cost in profile.codecs.items():
        laws = [law.seconds(1e6, profile.device) if law else None for law in (cost.encode, cost.decode)]
        shown = ("-" if s is None else format_milliseconds(s) for s in laws)
        codecs.add_row(Text(name), *shown, Text(cost.source))
    line = (
        f"network: {rate}, {network.efficiency:.3g} of it for payloads, "
        f"{network.latency_seconds * 1e6:.0f} us a message, {network.start_seconds * 1e6:.0f} us an exchange"
    )
    sure = [] if judged is None else [Text(f"how sure: {judged.sentence}"), *(Text(f"! {p}") for p in judged.problems)]
    return Group(Text(f"wrote {output}"), Text(line), *sure, models, codecs)
