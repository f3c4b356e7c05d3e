"""What a comparison of configurations showed, what follows from it, and the verdict in words.

`Outcome` holds what was measured, link by link. Everything below it is computed from that, and says so where it is
printed. Two models serve: between two measured links a step is taken as a constant plus bytes over rate; where only
loopback was measured, it is the measured step followed by the wait for the counted bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.core.baselines import HALF, PLAIN
from gradwire.core.intervals import beats
from gradwire.core.records import Quantiles
from gradwire.core.units import GBIT, bandwidth, format_milliseconds, format_rate, parse_rate, transfer_seconds
from gradwire.planner.quality import IMAGES, SAFE, standing

LOOPBACK = "loopback"
HOLDS = 0.85  # of its rate, that a link must carry as payload to be called by it


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one configuration showed."""

    label: str
    samples: Mapping[str, tuple[float, ...]]  # by link: seconds, one a timed step
    sent_bytes: float  # per step, of the worker that sends most
    loss: float  # on held-out images
    accuracy: float
    parts: dict[str, float] | None  # encode, communicate, decode on the last link: seconds a step; None for plain DDP
    network: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by link: what was measured of it

    @property
    def links(self) -> list[str]:
        """Slowest first."""
        return list(self.samples)

    def step(self, link: str) -> Quantiles:
        """Seconds a step."""
        return Quantiles.of(self.samples[link])

    @property
    def shares(self) -> dict[str, float] | None:
        """Encode, communicate and decode as shares of the step on the last link; backward runs beside them."""
        samples = self.samples[self.links[-1]]
        mean = sum(samples) / len(samples)
        return None if self.parts is None else {name: seconds / mean for name, seconds in self.parts.items()}


def baselines(outcomes: Sequence[Outcome]) -> tuple[Outcome, Outcome]:
    """Plain DDP and FP16."""
    by_label = {o.label: o for o in outcomes}
    return by_label[PLAIN], by_label[HALF]


def verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """What the numbers say, in whole sentences; each names whether it was measured or computed."""
    plain, half = baselines(outcomes)
    tried = [o for o in outcomes if o is not plain and o is not half]
    if plain.links == [LOOPBACK]:
        computed = _computed_from_loopback(outcomes, plain, half, tried)
        return [_measured(LOOPBACK, plain, half, tried), _accuracies(outcomes, plain), computed]
    lines = [_measured(link, plain, half, tried) for link in plain.links]
    lines += [line for link in plain.links if (line := _slower_link(link, plain))]
    if len(plain.links) > 1:
        lines.append(_computed_between(plain.links, min(tried, key=_median(plain.links[0])), plain, half))
    return [*lines, _accuracies(outcomes, plain), _advice(plain, half, tried)]


def _median(link: str) -> Any:
    return lambda outcome: outcome.step(link).p50


def _best(link: str, plain: Outcome, half: Outcome, tried: Sequence[Outcome]) -> tuple[Outcome, Outcome]:
    """The faster baseline and the fastest codec."""
    return min(plain, half, key=_median(link)), min(tried, key=_median(link))


def pays(link: str, baseline: Outcome, codec: Outcome) -> bool | None:
    """Whether the codec is faster; None where the medians differ by less than twice their standard error."""
    ours, theirs = codec.step(link).p50, baseline.step(link).p50
    if abs(ours - theirs) < 2 * math.hypot(_error(codec.samples[link]), _error(baseline.samples[link])):
        return None
    return ours < theirs


def _error(samples: Sequence[float]) -> float:
    """The standard error of the median, as of a normal distribution with the same middle three fifths."""
    middle = Quantiles.of(samples)
    deviation = (middle.p80 - middle.p20) / 1.683
    return 1.253 * deviation / math.sqrt(len(samples))


def _measured(link: str, plain: Outcome, half: Outcome, tried: Sequence[Outcome]) -> str:
    baseline, best = _best(link, plain, half, tried)
    ours, theirs = best.step(link).p50, baseline.step(link).p50
    where = "over loopback" if link == LOOPBACK else f"at {link}"
    times = f"{format_milliseconds(ours)} a step against {format_milliseconds(theirs)} of {baseline.label}"
    pay = pays(link, baseline, best)
    if pay is None:
        return f"Measured {where}: a tie. The fastest codec, {best.label}, takes {times}: too close to tell."
    if pay:
        return f"Measured {where}: compression pays. {best.label} takes {times}: {theirs / ours:.1f} times as fast."
    return (
        f"Measured {where}: compression does not pay. The fastest codec, {best.label}, takes {times}: "
        "sending is cheap here, and encoding costs more than it saves."
    )


def _slower_link(link: str, outcome: Outcome) -> str | None:
    """What to say of a link that did not hold what was asked for."""
    measured = outcome.network.get(link, {})
    flows = zip(measured.get("payload_bits_per_second", ()), measured.get("asked_bits_per_second", ()), strict=True)
    held, asked = min(flows, key=lambda f: f[0] / f[1], default=(1.0, 1.0))
    if held >= HOLDS * asked:
        return None
    return f"Beware: a link of {link} carried {format_rate(held)} here, because the machine is busy or slow."


def _accuracies(outcomes: Sequence[Outcome], plain: Outcome) -> str:
    low, high = min(outcomes, key=lambda o: o.accuracy), max(outcomes, key=lambda o: o.accuracy)
    return (
        f"Measured: on held-out images {PLAIN} is right in {_percent(plain)} of cases, the others between "
        f"{_percent(low)} ({low.label}) and {_percent(high)} ({high.label}); one seed, so a point or two say little."
    )


def _percent(outcome: Outcome) -> str:
    return f"{100 * outcome.accuracy:.1f}%"


def _advice(plain: Outcome, half: Outcome, tried: Sequence[Outcome]) -> str:
    """What to do, in a few words. Only what kept its quality in our longer trainings is recommended."""
    safe = [o for o in tried if standing(o.label, IMAGES).kind == SAFE]
    slow = _fastest_link_that_pays(plain, half, safe)
    if slow is None:
        other = _fastest_link_that_pays(plain, half, tried)
        if other is None:
            return "So: on links like these keep DDP as it is; compression would save you no time."
        best = _best(other, plain, half, tried)[1]
        return f"So: keep DDP as it is. {best.label} was faster, but in our trainings: {_trained(best)}."
    baseline, best = _best(slow, plain, half, safe)
    lost = 100 * (plain.accuracy - best.accuracy)
    points = f"{abs(lost):.1f} points {'less' if lost > 0 else 'more'} accuracy than {PLAIN} in this short run"
    told = (
        f'So: on links up to {slow}, one line saves time: gradwire.attach(model, "{best.label}"). It was '
        f"{baseline.step(slow).p50 / best.step(slow).p50:.1f} times as fast as {baseline.label} there, with {points}; "
        f"in our longer trainings: {_trained(best)}."
    )
    first = _best(slow, plain, half, tried)[1]
    return told if first in safe else f"{told} {first.label} was faster still, but there: {_trained(first)}."


def _fastest_link_that_pays(plain: Outcome, half: Outcome, tried: Sequence[Outcome]) -> str | None:
    """The one at which the fastest codec is still a win."""
    for link in reversed(plain.links) if tried else ():
        baseline, best = _best(link, plain, half, tried)
        if beats(best.samples[link], baseline.samples[link]):
            return link
    return None


def _trained(outcome: Outcome) -> str:
    return standing(outcome.label, IMAGES).sentence


# -------------------------------------------------------------------- computed from two measured links


def line(outcome: Outcome, links: Sequence[str]) -> tuple[float, float]:
    """Constant seconds and bits of a step, from the slowest and the fastest link: seconds = constant + bits / rate."""
    slow, fast = links[0], links[-1]
    difference = outcome.step(slow).p50 - outcome.step(fast).p50
    bits = difference / (1 / parse_rate(slow) - 1 / parse_rate(fast))
    return outcome.step(fast).p50 - bits / parse_rate(fast), bits


def even_at(outcome: Outcome, baseline: Outcome) -> float:
    """The bit/s at which both take as long; infinite if the codec is ahead at any rate, 0 if at none."""
    ours, theirs = line(outcome, outcome.links), line(baseline, outcome.links)
    saved, added = theirs[1] - ours[1], ours[0] - theirs[0]
    if saved <= 0:
        return 0.0
    return math.inf if added <= 0 else saved / added


def _computed_between(links: Sequence[str], best: Outcome, plain: Outcome, half: Outcome) -> str:
    even = min(even_at(best, plain), even_at(best, half))
    if even == 0:
        return f"Computed from {links[0]} and {links[-1]}: no rate is slow enough for {best.label} to win."
    if math.isinf(even):
        return f"Computed from {links[0]} and {links[-1]}: {best.label} would stay ahead at any rate."
    return (
        f"Computed from {links[0]} and {links[-1]}: DDP catches up with {best.label} at about {format_rate(even)}; "
        "slower links are for compression, faster ones are not."
    )


# -------------------------------------------------------------------- computed from loopback alone


def on_link(outcome: Outcome, bits_per_second: float = GBIT) -> float:
    """Seconds a step if each worker had such a link: the measured step and the counted bytes, one after the other."""
    return outcome.step(LOOPBACK).p50 + transfer_seconds(outcome.sent_bytes, bits_per_second)


def wins_below(outcome: Outcome, baseline: Outcome) -> float:
    """The link's bit/s below which the bytes saved outweigh the time added; infinite if no time is added.

    0 if no byte is saved: then no link is slow enough.
    """
    saved = baseline.sent_bytes - outcome.sent_bytes
    added = outcome.step(LOOPBACK).p50 - baseline.step(LOOPBACK).p50
    if saved <= 0:
        return 0.0
    return math.inf if added <= 0 else bandwidth(saved, added)


def describe_win(bits_per_second: float) -> str:
    """`wins_below` in words: the rate, or that it does not matter."""
    if bits_per_second == 0:
        return "no rate"
    return "any rate" if math.isinf(bits_per_second) else format_rate(bits_per_second)


def _computed_from_loopback(
    outcomes: Sequence[Outcome], plain: Outcome, half: Outcome, tried: Sequence[Outcome]
) -> str:
    fastest = min(outcomes, key=on_link)
    rate, winner = max(((min(wins_below(o, plain), wins_below(o, half)), o) for o in tried), key=lambda pair: pair[0])
    win = f"below {describe_win(rate)}" if 0 < rate < math.inf else f"at {describe_win(rate)}"
    return (
        f"Computed, not measured: if each worker had a link of 1 Gbit/s and waited for it, {fastest.label} would be "
        f"the fastest, at {format_milliseconds(on_link(fastest))} a step; compression ({winner.label}) would beat both "
        f"baselines {win}. Latency and overlap are left out."
    )
