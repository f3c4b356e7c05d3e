"""The testbed of Beyond Throughput in our model, in three ways: rounds a second beside each published number.

- **ours**: bytes are traced, codecs cost what they do on an H200, the exchange overlaps with the backward pass.
- **theirs**: the same, with what their codecs cost in place of ours, where the paper tells (`their_cost`).
- **in turn**: their costs where they are known and ours elsewhere, the exchange after the backward pass, at the rate
  that their two baselines imply (`implied_rate`). Two of the published numbers go in.

Forward and backward pass take as long as the fastest round that is published, which is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from gradwire.core.errors import GradwireError
from gradwire.core.records import quantile
from gradwire.core.wire import reduced
from gradwire.laboratory.reproduce.evidence import correlation
from gradwire.laboratory.reproduce.throughput import (
    BASELINES,
    MODELS,
    ORTHOGONALIZATION,
    POWERSGD,
    SETTINGS,
    TESTBED,
    THC,
    TOPK,
    TOPK_OVERHEAD,
    Setting,
    compute_seconds,
)
from gradwire.planner import model as perf
from gradwire.planner.profile import Profile
from gradwire.planner.workload import AFTER, OVERLAP, Workload, shipped

HARDWARE = "h200"
WORKERS = 4
FREE = 1e5  # times as fast: as good as nothing
FP32, FP16 = BASELINES
RANK = {setting: rank for setting, rank in zip(POWERSGD, (1, 4, 16, 64), strict=True)}


@cache
def modelled(name: str, setting: Setting) -> tuple[float, bool] | None:
    """Rounds a second by our costs, and whether the codec's own cost was measured; None: the profile knows none."""
    try:
        found = _predicted(name, setting)
    except GradwireError:
        return None
    cost = next(i for i in found.inputs if i.name == "encode and decode")
    return 1 / found.step_seconds, not cost.source.startswith("inferred")


@cache
def _predicted(name: str, setting: Setting, mode: str = OVERLAP, **changed: Any) -> perf.Prediction:
    model, batch = MODELS[name]
    backward = compute_seconds(name) * 2 / 3  # forward is taken as half of it
    asked = {"model": model, "batch": batch, "hardware": HARDWARE, "backward": backward, **TESTBED, **changed}
    return perf.predict(codec=setting.codec, mode=mode, workload=_workload(model, setting.codec, mode), **asked)


def _workload(model: str, codec: str, mode: str) -> Workload | None:
    """Of a codec that is not among the shipped ones; None: it is."""
    if shipped().has(model, codec, "auto"):
        return None
    from gradwire.planner.own_workloads import single

    return single(model, codec, mode, WORKERS)


# -------------------------------------------------------------------- what their codecs cost


def their_cost(name: str, setting: Setting, rest: float) -> float | None:
    """Seconds that their codec takes of a step, the other parts of which take `rest`; None: the paper does not tell.

    - Top-k: the share of table 4, which is of the whole step: cost / (cost + rest).
    - PowerSGD: the share of orthogonalisation at r = 64, likewise; at lower ranks in proportion to the rank, by
      assumption.
    - THC: what a rotation adds between two columns of table 6; quantising is taken as nothing.
    - FP32 and FP16 have no codec.
    """
    if setting in BASELINES:
        return 0.0
    if setting in TOPK:
        return _by_share(TOPK_OVERHEAD[name][setting.bits[name]], rest)
    if setting in RANK:
        return _by_share(ORTHOGONALIZATION[name], rest) * RANK[setting] / RANK[POWERSGD[-1]]
    return _rotation(name, setting) if setting in THC else None


def _by_share(percent: float, rest: float) -> float:
    share = percent / 100
    return rest * share / (1 - share)


def _rotation(name: str, setting: Setting) -> float:
    """The step with a rotation less the one without, of the same bits; exact sums as with saturation."""
    if setting is THC[-1]:
        setting = THC[3]
    plain = next(s for s in THC if s.bits == setting.bits and "rotation='none'" in s.codec)
    return 1 / setting.rounds_per_second[name] - 1 / plain.rounds_per_second[name]


# -------------------------------------------------------------------- three ways


def theirs(name: str, setting: Setting) -> float | None:
    """Rounds a second with their codec's cost, and our exchange."""
    rest = _predicted(name, setting, encode_speed=FREE).step_seconds
    cost = their_cost(name, setting, rest)
    return None if cost is None else 1 / (rest + cost)


def implied_rate(name: str) -> float:
    """Bit/s of an all-reduce, if nothing overlapped: what FP32 sends more than FP16, over what it takes longer."""
    elements = shipped().shape(MODELS[name][0]).elements
    more = reduced(4 * elements, WORKERS) - reduced(2 * elements, WORKERS)
    return 8 * more / (1 / FP32.rounds_per_second[name] - 1 / FP16.rounds_per_second[name])


def in_turn(name: str, setting: Setting) -> float:
    """Rounds a second if backward pass, codec and exchange follow each other, at the implied rate."""
    rate = implied_rate(name) / Profile.load(HARDWARE).network.efficiency
    found = _predicted(name, setting, mode=AFTER, bandwidth=rate, sums="ring")
    rest = compute_seconds(name) + found.parts["exchange"]
    cost = their_cost(name, setting, rest)
    return 1 / (rest + (found.parts["encode"] + found.parts["decode"] if cost is None else cost))


# -------------------------------------------------------------------- how far off


@dataclass(frozen=True)
class Score:
    """How a way to model fares on one network."""

    count: int
    median: float  # of relative errors, without sign
    largest: float
    correlation: float  # of ranks
    wrong_side: int  # of FP16, among settings that are not FP16


def timed(name: str) -> list[Setting]:
    """The settings with a published throughput."""
    return [s for s in SETTINGS if name in s.rounds_per_second]


def score(name: str, found: dict[Setting, float]) -> Score:
    """Against what is published."""
    published = {s: s.rounds_per_second[name] for s in found}
    off = [abs(found[s] / published[s] - 1) for s in found]
    sides = [(found[s] > found[FP16]) != (published[s] > published[FP16]) for s in found if s is not FP16]
    return Score(len(off), quantile(off, 0.5), max(off), correlation(*_columns(found, published)), sum(sides))


def _columns(found: dict[Setting, float], published: dict[Setting, float]) -> tuple[list[float], list[float]]:
    return [found[s] for s in found], [published[s] for s in found]
