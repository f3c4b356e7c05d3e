"""What a comparison of configurations showed, what follows from it, and the verdict in words.

`Outcome` holds what was measured. Everything below it is computed from that, and says so where it is printed: on a
link slower than loopback, each step is taken to last as long as measured and then to wait for its counted bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.core.records import Quantiles
from gradwire.core.units import GBIT, bandwidth, format_milliseconds, format_rate, transfer_seconds

PLAIN = "fp32 DDP"
HALF = "fp16"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one configuration showed."""

    label: str
    samples: tuple[float, ...]  # seconds, one a timed step
    sent_bytes: float  # per step, of the worker that sends most
    loss: float  # on held-out images
    accuracy: float
    parts: dict[str, float] | None  # encode, communicate, decode: seconds a step; None where DDP does all by itself

    @property
    def step(self) -> Quantiles:
        """Seconds a step."""
        return Quantiles.of(self.samples)

    @property
    def shares(self) -> dict[str, float] | None:
        """Encode, communicate and decode as shares of the step; they overlap with the backward pass."""
        mean = sum(self.samples) / len(self.samples)
        return None if self.parts is None else {name: seconds / mean for name, seconds in self.parts.items()}


def on_link(outcome: Outcome, bits_per_second: float = GBIT) -> float:
    """Seconds a step if each worker had such a link: the measured step and the counted bytes, one after the other."""
    return outcome.step.p50 + transfer_seconds(outcome.sent_bytes, bits_per_second)


def wins_below(outcome: Outcome, baseline: Outcome) -> float:
    """The link's bit/s below which the bytes saved outweigh the time added; infinite if no time is added.

    0 if no byte is saved: then no link is slow enough.
    """
    saved, added = baseline.sent_bytes - outcome.sent_bytes, outcome.step.p50 - baseline.step.p50
    if saved <= 0:
        return 0.0
    return math.inf if added <= 0 else bandwidth(saved, added)


def describe_win(bits_per_second: float) -> str:
    """`wins_below` in words: the rate, or that it does not matter."""
    if bits_per_second == 0:
        return "no rate"
    return "any rate" if math.isinf(bits_per_second) else format_rate(bits_per_second)


def verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """What the numbers say, in whole sentences; each names whether it was measured or computed."""
    plain, half = baselines(outcomes)
    tried = [o for o in outcomes if o is not plain and o is not half]
    best = min(tried, key=_median)
    return [
        _measured(min(plain, half, key=_median), best),
        _accuracies(outcomes, plain),
        _computed(outcomes, plain, half, tried),
    ]


def baselines(outcomes: Sequence[Outcome]) -> tuple[Outcome, Outcome]:
    """Plain DDP and FP16."""
    by_label = {o.label: o for o in outcomes}
    return by_label[PLAIN], by_label[HALF]


def _median(outcome: Outcome) -> float:
    return outcome.step.p50


def _measured(baseline: Outcome, best: Outcome) -> str:
    ours, theirs = best.step, baseline.step
    times = f"{format_milliseconds(ours.p50)} a step against {format_milliseconds(theirs.p50)} of {baseline.label}"
    if ours.p20 <= theirs.p80 and theirs.p20 <= ours.p80:
        return f"Measured: a tie. The fastest codec, {best.label}, takes {times}: within the spread of the steps."
    if ours.p50 < theirs.p50:
        return f"Measured: compression pays even here. The fastest codec, {best.label}, takes {times}."
    return (
        f"Measured: compression does not pay here. The fastest codec, {best.label}, takes {times}: over loopback, "
        "sending is cheap, and encoding costs more than it saves."
    )


def _accuracies(outcomes: Sequence[Outcome], plain: Outcome) -> str:
    low, high = min(outcomes, key=lambda o: o.accuracy), max(outcomes, key=lambda o: o.accuracy)
    return (
        f"Measured: on held-out images {PLAIN} is right in {_percent(plain)} of cases, the others between "
        f"{_percent(low)} ({low.label}) and {_percent(high)} ({high.label}); one seed, so a point or two say little."
    )


def _percent(outcome: Outcome) -> str:
    return f"{100 * outcome.accuracy:.1f}%"


def _computed(outcomes: Sequence[Outcome], plain: Outcome, half: Outcome, tried: Sequence[Outcome]) -> str:
    fastest = min(outcomes, key=on_link)
    rate, winner = max(((min(wins_below(o, plain), wins_below(o, half)), o) for o in tried), key=lambda pair: pair[0])
    win = f"below {describe_win(rate)}" if 0 < rate < math.inf else f"at {describe_win(rate)}"
    return (
        f"Computed, not measured: if each worker had a link of 1 Gbit/s and waited for it, {fastest.label} would be "
        f"the fastest, at {format_milliseconds(on_link(fastest))} a step; compression ({winner.label}) would beat both "
        f"baselines {win}. Latency and overlap are left out."
    )
