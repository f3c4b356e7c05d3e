"""How far predictions are from what was measured: one line a configuration, and three for all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.core.baselines import HALF, PLAIN
from gradwire.core.records import Record
from gradwire.planner.calibrate import grouped

CODECS = "codecs"


@dataclass(frozen=True)
class Errors:
    """Of some settings: relative errors of predicted step times."""

    what: str
    settings: int
    median: float  # of absolute values
    maximum: float
    bias: float  # the median of signed errors: negative where steps took longer than predicted
    spread: float  # of the measurements themselves: half the distance from p20 to p80, median

    @classmethod
    def of(cls, what: str, predictions: Sequence[Record]) -> Errors:
        errors = [float(r.outcome["error"]) for r in predictions]
        return cls(
            what,
            len(errors),
            statistics.median(map(abs, errors)),
            max(map(abs, errors)),
            statistics.median(errors),
            statistics.median(float(r.outcome["spread"]) for r in predictions),
        )


def by(predictions: Sequence[Record], key: Callable[[Record], str]) -> list[Errors]:
    """Errors of the settings that have a key in common."""
    return [Errors.of(name, group) for name, group in grouped(predictions, key)]


def configuration(record: Record) -> str:
    """Codec and mode, or the baseline's name."""
    mode = record.what.get("mode")
    return f"{record.what['configuration']}, {mode}" if mode else str(record.what["configuration"])


def family(record: Record) -> str:
    """FP32 DDP, FP16 DDP, or codecs."""
    return record.what["configuration"] if record.what["configuration"] in (PLAIN, HALF) else CODECS


def accuracy(predictions: Sequence[Record]) -> dict[str, Any]:
    """What answers say of their own error; shipped as ``data/accuracy.json``."""
    about = predictions[0].outcome["calibrated_on"]
    found: dict[str, Any] = {
        e.what: {"settings": e.settings, "median": round(e.median, 4), "max": round(e.maximum, 4)}
        for e in by(predictions, family)
    }
    return found | {"about": {"place": about["place"], "cpu": about["cpu"], "cores": about["cores"]}}
