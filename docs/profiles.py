"""`make profiles`: writes h200*.toml, accuracy.json and quality.json of src/gradwire/planner/data from records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gradwire.core import records
from gradwire.planner import device, validate
from gradwire.planner import quality as trained
from gradwire.planner.calibrate import grouped
from gradwire.planner.cluster import Link
from gradwire.planner.profile import CodecCost, Device, Law, Network, Profile
from gradwire.planner.text import dump
from gradwire.planner.timeline import Overlap
from gradwire.planner.training import Run, readable

ROOT = Path(__file__).parent.parent
DATA = ROOT / "src" / "gradwire" / "planner" / "data"
FILES = (  # a later one replaces what an earlier one says of the same codec, or of the same model and batch
    "compute_h200_2026-11-15.jsonl",
    "compute_h200-tasks_2026-11-15.jsonl",
    "compute_h200-gpt_2026-11-18.jsonl",
    "encode_h200-plain-torch_2026-11-15.jsonl",
    "encode_h200_2026-11-18.jsonl",
)
PREDICTIONS = "prediction_xeon_2026-11-15.jsonl"
PRECISIONS = {"h200": "tf32", "h200-bf16": "bf16", "h200-fp32": "fp32"}

BASE = Profile(
    name="h200",
    description="",
    device=Device(
        memory_bytes=1.41e11, launch_seconds=1e-5, pass_bytes_per_second=1e12, source="published: NVIDIA, H200 141 GB"
    ),
    network=Network(
        latency_seconds=1.5e-5,
        efficiency=0.92,
        sums="auto",
        source="assumed: 15 us a hop, 92 % of the nominal rate for payloads, as all-reduce had on shaped links; "
        "sums by the fastest of ring, tree and node by node, as NCCL chooses",
    ),
    inside=Link(latency_seconds=5e-6, bits_per_second=3.2e12),
    inside_source="assumed: NVLink 4, 400 GB/s of its 450 GB/s a direction",
    overlap=Overlap(1.07, 1.0),
    overlap_source="published: On the Utility of Gradient Compression, section 4.1: backward 1.04 to 1.1 times slower "
    "while exchanging (V100); encode and backward taking turns is assumed",
    models={},
    codecs={
        "none": CodecCost(encode=Law(), decode=Law(), source="assumed: DDP sums gradients where they lie"),
    },
)


def measured() -> list[records.Record]:
    """The latest of everything."""
    latest: dict[tuple[object, ...], list[records.Record]] = {}
    for name in FILES:
        found = [r for r in records.load(ROOT / "results" / name) if r.kind in (device.COMPUTE, device.ENCODE)]
        if name == FILES[0]:  # results/README.md says why
            found = [replace(r, outcome=r.outcome | {"peak_bytes": None}) for r in found]
        latest |= dict(grouped(found, _subject))
    return [r for group in latest.values() for r in group]


def _subject(record: records.Record) -> tuple[object, ...]:
    what = record.what
    if record.kind == device.ENCODE:
        return (what["codec"],)
    return what["model"], what["batch"], what["precision"]


def profiles() -> dict[str, Profile]:
    """By file name."""
    found = measured()
    return {
        name: device.fit(
            found,
            BASE,
            name=name,
            description=f"NVIDIA H200: models in {precision} and codecs, measured; network assumed",
            precision=precision,
        )
        for name, precision in PRECISIONS.items()
    }


def qualities() -> list[trained.Quality]:
    """What all trainings say of codecs."""
    files = sorted((ROOT / "results").glob("accuracy_*.jsonl"))
    return trained.tabulate(Run(r) for file in files for r in records.load(file) if readable(r))


def main() -> None:
    made = profiles()
    for name, profile in made.items():
        like = None if name == BASE.name else made[BASE.name]
        (DATA / f"{name}.toml").write_text(dump(profile, like), encoding="utf-8")
    found = validate.accuracy(records.load(ROOT / "results" / PREDICTIONS))
    (DATA / "accuracy.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (DATA / "quality.json").write_text(trained.to_json(qualities()), encoding="utf-8")


if __name__ == "__main__":
    main()
