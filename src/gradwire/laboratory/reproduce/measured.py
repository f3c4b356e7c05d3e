"""What our own records say about a claim. They are of emulated hosts on CPUs, and of encoding on an H200.

They cannot say how many milliseconds a V100 took; they can say whether an effect is there: does overlap save time, does
an all-gather's memory grow with the workers, is decoding linear in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.core.baselines import DDP
from gradwire.core.intervals import beats, median
from gradwire.core.records import Record
from gradwire.core.units import transfer_seconds
from gradwire.laboratory.reproduce.ours import AFTER, OVERLAP

FP32, FP16, ALONE = "fp32 DDP", "fp16 DDP", "no exchange"


@dataclass(frozen=True)
class Finding:
    """`value` is held against the claim, `text` says what it is of; `low` and `high` enclose it, where it is noisy."""

    value: float | None
    text: str
    low: float | None = None
    high: float | None = None
    where: str = "emulated hosts on CPUs"


def line_fit(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope, and the share of the variance that a straight line explains (R²).

    >>> line_fit([1, 2, 3], [3, 5, 7])
    (2.0, 1.0)
    """
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    together = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    total = sum((y - y_mean) ** 2 for y in ys)
    slope = together / spread
    return slope, together * slope / total if total else 1.0


def gather_memory(records: Sequence[Record]) -> Finding | None:
    """Peak memory of an all-gather of signs, against hosts."""
    return _growth(records, "memory", lambda r: float(r.outcome["peak_bytes"]) / 1e6, "MB")


def gather_decode(records: Sequence[Record]) -> Finding | None:
    """Decoding of gathered signs, against hosts."""
    return _growth(records, "decoding", lambda r: 1e3 * float(r.outcome["parts_seconds"]["decode"]), "ms")


def _growth(records: Sequence[Record], what: str, of: Any, unit: str) -> Finding | None:
    rows = [
        r for r in _kind(records, "collective") if r.what["strategy"] == "all_gather" and r.what["codec"] == "signsgd"
    ]
    runs = _grouped(rows, lambda r: (r.command, r.what["elements"], r.what["ranks_per_host"])).values()
    most = max(runs, key=lambda group: len({r.what["hosts"] for r in group}), default=[])
    at = sorted((int(r.what["hosts"]), float(of(r))) for r in most)
    if len({hosts for hosts, _ in at}) < 3:
        return None
    slope, fit = line_fit(*zip(*at, strict=True))
    return Finding(
        fit,
        f"{what} of gathered signs on {at[0][0]} to {at[-1][0]} emulated hosts: "
        f"{at[0][1]:.3g} to {at[-1][1]:.3g} {unit}, {slope:.2g} {unit} a host",
    )


def overlap_ratios(records: Sequence[Record]) -> list[tuple[Mapping[str, Any], float]]:
    """Overlapped over sequential step, of the same configuration in the same run."""

    def key(record: Record) -> tuple[Any, ...]:
        return record.time, *(record.what[k] for k in ("configuration", "model", "batch", "hosts", "bits_per_second"))

    ratios = []
    for group in _grouped([r for r in _kind(records, "step") if "mode" in r.what], key).values():
        by_mode = {r.what["mode"]: r for r in group}
        if {AFTER, OVERLAP} <= set(by_mode):
            ratio = by_mode[OVERLAP].quantiles.p50 / by_mode[AFTER].quantiles.p50
            ratios.append((by_mode[OVERLAP].what, ratio))
    return ratios


def overlapped_compression(records: Sequence[Record]) -> Finding | None:
    """Is compressing beside the backward pass slower than after it?"""
    ratios = [ratio for _, ratio in overlap_ratios(records)]
    if not ratios:
        return None
    slower, middle = sum(r > 1 for r in ratios), median(ratios)
    return Finding(
        middle.middle,
        f"{slower} of {len(ratios)} pairs on CPUs are slower overlapped; {min(ratios):.2f} to {max(ratios):.2f} times",
        middle.low,
        middle.high,
    )


def two_streams(records: Sequence[Record]) -> Finding | None:
    """How much of encoding costs nothing in a stream beside the backward pass: the most of any codec and model."""
    found = [(r.outcome["hidden"], r) for r in _kind(records, "overlap")]
    if not found:
        return None
    most, best = max(found, key=lambda each: each[0])
    least, worst = min(found, key=lambda each: each[0])
    low, high = best.outcome["hidden_interval"]
    gpu = best.environment.get("gpu")
    return Finding(
        most,
        f"of encoding's time {least:.2f} ({_which(worst)}) to {most:.2f} ({_which(best)}) hides behind the model's "
        f"passes, {len(found)} pairs on one {gpu}",
        low,
        high,
        f"one {gpu}, fused kernels in CUDA graphs",
    )


def _which(record: Record) -> str:
    return f"{record.what['codec']} beside {record.what['model']}"


def ddp_overlap(records: Sequence[Record]) -> Finding | None:
    """Largest share of a step that overlapping DDP's all-reduce saves; what it would take alone is computed."""
    savings = []
    for group in _setups(records).values():
        if {FP32, ALONE} <= set(group):
            ddp, alone = group[FP32], group[ALONE]
            exchange = transfer_seconds(float(ddp.outcome["sent_bytes"]), float(ddp.what["bits_per_second"]))
            sequential = alone.quantiles.p50 + exchange
            savings.append((100 * (1 - ddp.quantiles.p50 / sequential), str(ddp.what["model"])))
    if not savings:
        return None
    most, model = max(savings)
    return Finding(
        most,
        f"at most {most:.0f} % ({model}) in {len(savings)} set-ups on CPUs; the sequential time is computed",
    )


def step_wins(records: Sequence[Record]) -> Finding | None:
    """Overlapped codecs against DDP, in training steps on emulated hosts."""
    total = over_fp32 = over_fp16 = 0
    for group in _setups(records).values():
        if {FP32, FP16} <= set(group):
            codecs = [r for name, r in group.items() if r.what.get("mode") == OVERLAP and name not in DDP]
            total += len(codecs)
            over_fp32 += sum(beats(r.samples, group[FP32].samples) for r in codecs)
            over_fp16 += sum(beats(r.samples, group[FP16].samples) for r in codecs)
    if not total:
        return None
    rates = sorted({float(r.what["bits_per_second"]) for r in _kind(records, "step")})
    return Finding(
        None,
        f"{over_fp32} of {total} steps beat FP32 DDP and {over_fp16} FP16 DDP, on CPUs at {rates[0] / 1e9:g} to "
        f"{rates[-1] / 1e9:g} Gbit/s: slower links than the study's, and other codecs",
    )


def encode_seconds(records: Sequence[Record], spec: str, elements: int) -> float | None:
    """Encode, reduce and decode of about so many elements on a GPU; None: no such record."""
    for record in _kind(records, "encode"):
        near = abs(record.what["elements"] / elements - 1) < 0.01
        if record.what["device"] == "cuda" and near and record.what["codec"] == spec:
            return record.quantiles.p50
    return None


def _setups(records: Sequence[Record]) -> dict[tuple[Any, ...], dict[str, Record]]:
    """Steps of one run, model, batch, number of hosts and rate, by configuration; overlapped where there is a mode."""
    rows = [r for r in _kind(records, "step") if r.what.get("mode", OVERLAP) == OVERLAP]
    keys = ("model", "batch", "hosts", "ranks_per_host", "bits_per_second")
    grouped = _grouped(rows, lambda r: (r.time, *(r.what[k] for k in keys)))
    return {key: {str(r.what["configuration"]): r for r in group} for key, group in grouped.items()}


def _kind(records: Iterable[Record], kind: str) -> list[Record]:
    return [r for r in records if r.kind == kind]


def _grouped(records: Iterable[Record], key: Any) -> dict[Any, list[Record]]:
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups
