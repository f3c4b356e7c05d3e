"""A profile of one device from records that need no network: steps without exchange, and encode passes.

Records of kind "compute" (``gradwire calibrate --device cuda``) give the times of models, those of kind "encode"
(``gradwire bench encode``) what codecs cost: on single matrices a law, on a model's gradients that model's figures.
What the network does is not in them; it is taken from `base`, and stays labelled as assumed or published.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradwire.core.baselines import FP32
from gradwire.core.errors import ConfigError
from gradwire.core.records import Record
from gradwire.planner.calibrate import grouped, solve
from gradwire.planner.profile import CodecCost, Device, Law, Profile, Times, Whole
from gradwire.planner.workload import shipped

COMPUTE, ENCODE = "compute", "encode"
LAUNCH_SECONDS = 1e-5


def fit(records: Sequence[Record], base: Profile, *, name: str, description: str, precision: str = "tf32") -> Profile:
    """The profile; links and contention are those of `base`."""
    steps = [r for r in records if r.kind == COMPUTE and r.what["precision"] == precision]
    passes = [r for r in records if r.kind == ENCODE]
    if not steps and not passes:
        raise ConfigError(
            f"calibrate: no record of a step without exchange in {precision}, and none of an encode pass; "
            "measure: gradwire calibrate, gradwire bench encode"
        )
    device = replace(_device(passes, base.device), memory_bytes=base.device.memory_bytes)
    return replace(
        base,
        name=name,
        description=description,
        device=device,
        models=_models(steps) or base.models,
        codecs={**base.codecs, **_codecs(passes, device)},
        about={"records": len(records)} | _where([*steps, *passes][0]),
    )


def _where(record: Record) -> dict[str, str]:
    environment = record.environment
    return {
        "device": environment["gpu"] or environment["cpu"],
        "torch": environment["torch"],
        "commit": record.commit,
        "time": record.time,
    }


def _source(record: Record) -> str:
    return f"measured: {record.environment['gpu'] or record.environment['cpu']}, commit {record.commit[:7]}"


def _device(passes: Sequence[Record], base: Device) -> Device:
    """A pass is a copy of the gradient, as measured beside the largest ones."""
    copies = [(r.what["elements"], r.outcome["copy_seconds"]) for r in passes if r.outcome["copy_seconds"] > 0]
    if not copies:
        return base
    largest = max(n for n, _ in copies)
    speed = 4 * largest / statistics.median(s for n, s in copies if n == largest)
    return replace(
        base, launch_seconds=LAUNCH_SECONDS, pass_bytes_per_second=float(f"{speed:.4g}"), source=_source(passes[0])
    )


def _models(steps: Sequence[Record]) -> dict[str, tuple[Times, ...]]:
    return {
        model: tuple(
            Times(
                batch=r.what["batch"],
                forward_seconds=r.outcome["parts_seconds"]["forward"],
                backward_seconds=r.outcome["parts_seconds"]["backward"],
                optimizer_seconds=r.outcome["parts_seconds"]["optimizer"],
                source=f"{_source(r)}, {r.what['precision']}",
                memory_bytes=r.outcome.get("peak_bytes"),
            )
            for r in sorted(group, key=lambda r: r.what["batch"])
        )
        for model, group in grouped(steps, lambda r: r.what["model"])
    }


def _codecs(passes: Sequence[Record], device: Device) -> dict[str, CodecCost]:
    """DDP's own FP32 sums need no codec: `none` keeps what the base says of it."""
    found = {}
    for codec, group in grouped(passes, lambda r: r.what["codec"]):
        if codec == FP32:
            continue
        matrices = [r for r in group if "model" not in r.what]
        encode = [_seconds(r)["encode"] for r in matrices]
        rows = [[1.0, float(r.what["elements"])] for r in matrices]
        found[codec] = CodecCost(
            encode=_law(rows, encode, device),
            decode=_law(rows, [_once(r) for r in matrices], device),
            source=f"{_source(group[0])}, {group[0].what['device']}",
            models={
                r.what["model"]: Whole(encode_seconds=_seconds(r)["encode"], decode_seconds=_once(r), source=_source(r))
                for r in group
                if "model" in r.what
            },
        )
    return found


def _law(rows: Sequence[Sequence[float]], seconds: Sequence[float], device: Device) -> Law | None:
    if not rows:
        return None
    fixed, each = solve(rows, seconds) if len(rows) > 1 else (0.0, seconds[0] / rows[0][1])
    return Law(launches=fixed / device.launch_seconds, passes=each * device.pass_bytes_per_second / 4)


def _seconds(record: Record) -> Mapping[str, float]:
    """Of each phase, as a step has them: on a GPU that is busy with the backward pass, as graphs where that can be."""
    found: Mapping[str, float] = record.outcome.get("graphs_seconds") or record.outcome["seconds"]
    return found


def _once(record: Record) -> float:
    return decoded_once(_seconds(record), record.what["strategy"], record.what["workers"])


def decoded_once(seconds: Mapping[str, float], strategy: str, workers: int) -> float:
    """Seconds of decoding one gradient, of the seconds of each phase of a step."""
    encodes, decodes = shipped().work(strategy, workers)
    after = float(seconds["reduce"] + seconds["decode"]) - (encodes - 1) * float(seconds["encode"])
    return max(0.0, after) / decodes
