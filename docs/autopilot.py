"""docs/autopilot.md: what the autopilot chose on emulated hosts, beside the best that it could have chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradwire.core.records import Record, load
from gradwire.core.units import format_rate

AUTO = "auto"
NEAR = 1.05
Source = Callable[[Path, Record], str]


def block(root: Path, source: Source) -> str:
    """One line a place, from the newest record."""
    path = max((root / "results").glob("autopilot_*.jsonl"))
    found = [r for r in load(path) if r.what["configuration"] == AUTO]
    near = sum(r.outcome["over_best"] <= NEAR for r in found)
    text = (
        f"{near} of {len(found)} times it ended within 5 % of the best it could have chosen, by medians, all replicas "
        f"equal in {sum(r.outcome['replicas_equal'] for r in found)}:\n\n"
        "| model | links | chosen | ms a step | / the best (95 %) | / plain DDP |\n|---|---|---|---|---|---|\n"
    )
    for r in found:
        what, out = r.what, r.outcome
        links = format_rate(what["bits_per_second"])
        if what["changed_to"] is not None:
            links += f", then {format_rate(what['changed_to'])}"
        low, high = out["over_best_interval"]
        chosen = "plain DDP" if out["choice"] == "none" else out["choice"]
        text += (
            f"| {what['model']} | {links} | {chosen} | {1e3 * r.quantiles.p50:.1f} | {out['over_best']:.2f} "
            f"({low:.2f} to {high:.2f}) | {out['over_plain']:.2f} |\n"
        )
    return f"{text}\n{source(path, found[-1])}"
