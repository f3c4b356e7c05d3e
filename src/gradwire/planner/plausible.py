"""How far a calibrated profile can be trusted: by the records that it was made from.

A machine that is busy with something else gives times that no law fits. The signs: the profile does not even predict
the steps it was fitted to, its network is far slower than the probe before the run saw it, or a constant is of a size
that no network has.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.core.records import Record
from gradwire.planner.calibrate import STEP, Find, Place, modelled, predict_record
from gradwire.planner.profile import Profile

LEAST_SHARE = 0.6  # of the rate that the probe saw, below which a fitted network is not believed
MOST_SECONDS = 0.05  # of a message, or of the start of an exchange
MOST_ERROR = 0.35  # of the steps that a profile was fitted to, in the median


@dataclass(frozen=True)
class Judgement:
    """Errors are relative to measured medians; `spread` is half the distance of p20 and p80, relative to the median."""

    settings: int
    median_error: float
    largest_error: float
    spread: float
    problems: tuple[str, ...]  # why the fit is not to be believed; empty: it may be

    @property
    def sentence(self) -> str:
        """How sure the profile is."""
        return (
            f"the {self.settings} steps it was fitted to are predicted {self.median_error:.0%} off in the median, "
            f"{self.largest_error:.0%} at most; repeated steps differ by {self.spread:.0%}"
        )


def judge(profile: Profile, records: Sequence[Record], find: Find) -> Judgement:
    """Hold a profile to the records of one place that it was made from."""
    steps = [r for r in records if r.kind == STEP and r.what["bits_per_second"] and modelled(r)]
    seen = [r for r in steps if str(Place.of(r.what)) == profile.about["place"]]
    errors = [abs(predict_record(r, find(r.what), profile).step_seconds / r.quantiles.p50 - 1) for r in seen]
    spreads = [(r.quantiles.p80 - r.quantiles.p20) / (2 * r.quantiles.p50) for r in seen]
    error = statistics.median(errors) if errors else 0.0
    return Judgement(
        settings=len(seen),
        median_error=error,
        largest_error=max(errors, default=0.0),
        spread=statistics.median(spreads) if spreads else 0.0,
        problems=tuple(_problems(profile, error)),
    )


def _problems(profile: Profile, error: float) -> list[str]:
    network, seen = profile.network, float(profile.about.get("available", 1.0))
    found = []
    if network.efficiency < LEAST_SHARE * seen:
        found.append(f"payloads got {network.efficiency:.2g} of the rate in steps, and {seen:.2g} in the probe before")
    for name, value in (("a message", network.latency_seconds), ("the start of an exchange", network.start_seconds)):
        if value > MOST_SECONDS:
            found.append(f"{name} takes {value * 1e3:.0f} ms by the fit")
    if error > MOST_ERROR:
        found.append(f"the steps it was fitted to are predicted {error:.0%} off")
    return found
