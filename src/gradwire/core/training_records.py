"""Records of a user's own training: one line for every so many steps, as `handle.watch(record=...)` writes them.

The lines of one training share their `time` and `what`. A sample is the seconds of a step of rank 0, from its beginning
to that of the next one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from gradwire.core.records import Quantiles, Record

KIND = "training"
UNIT = "seconds a step, rank 0"
MEANS = ("sent_bytes", "plain_bytes", "hidden_seconds", "exposed_seconds")  # of a step, in `outcome`


def trainings(records: Iterable[Record]) -> list[list[Record]]:
    """The lines of each training, in the order of its steps."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.kind == KIND:
            about = sorted((name, str(value)) for name, value in record.what.items())
            found.setdefault(f"{record.time} {about}", []).append(record)
    return [sorted(lines, key=lambda r: int(r.outcome["step"])) for lines in found.values()]


def pooled(lines: list[Record]) -> Record:
    """A whole training in one record: all samples, and the means of what its lines say of a step.

    Args:
        lines: of one training, at least one.
    """
    samples = tuple(sample for line in lines for sample in line.samples)
    outcome: dict[str, Any] = dict(lines[-1].outcome)
    for name in MEANS:
        known = [(float(r.outcome[name]), len(r.samples)) for r in lines if r.outcome[name] is not None]
        outcome[name] = sum(v * n for v, n in known) / sum(n for _, n in known) if known else None
    outcome["parts_seconds"] = None if lines[-1].outcome["parts_seconds"] is None else _parts(lines)
    return dataclasses.replace(lines[-1], samples=samples, quantiles=Quantiles.of(samples), outcome=outcome)


def _parts(lines: list[Record]) -> dict[str, float]:
    known = [(r.outcome["parts_seconds"], len(r.samples)) for r in lines if r.outcome["parts_seconds"] is not None]
    steps = sum(n for _, n in known)
    return {name: sum(parts[name] * n for parts, n in known) / steps for name in known[0][0]}
