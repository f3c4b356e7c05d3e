"""GRACE's findings about speed, by our model: 8 GPUs, each in a node of its own; the baseline is FP32, as it is there.

There is no profile of its V100s with our codecs. So that of an H200 is slowed, compute and codecs alike, until
ResNet-50's backward pass takes the 122 ms that were published for a V100 (On the Utility of Gradient Compression, table
3, caption). What H200s at their own speed would do is told beside it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gradwire.core.baselines import DDP, FP16, FP32, WIN
from gradwire.core.errors import GradwireError
from gradwire.laboratory.reproduce import grace
from gradwire.laboratory.reproduce.finding import Evidence, Judged, correlation, judge, left_open
from gradwire.planner.profile import Profile
from gradwire.planner.workload import shipped

HARDWARE = "h200"
V100_BACKWARD = 0.122  # seconds, ResNet-50 at batch 64
MODELS = (("resnet9", 64), ("resnet50", 64), ("vgg19", 64), ("lstm-ptb", 20))  # of its suite, with times in the profile
COMPUTE_BOUND, COMMUNICATION_BOUND = "resnet50", "vgg19"
FEW = 8  # codecs that a task needs, to be counted among benchmarks
STRONG = 0.7  # a rank correlation from here on is a strong one
MILD = 0.05  # by how much 25 Gbit/s may be faster than 10 to be called a mild improvement
COSTLY = 0.05  # share of a step that encoding and decoding take, to be called not negligible

Speeds = dict[str, dict[str, Any]]


def slowdown() -> float:
    """A V100's speed, as a share of the profile's."""
    return Profile.load(HARDWARE).times("resnet50", 64).backward_seconds / V100_BACKWARD


def speeds(evidence: Evidence, bandwidth: str, *, slowed: bool = True) -> Speeds:
    """Predictions by model and codec; asked for once."""
    found: Speeds = evidence.kept.setdefault(f"{bandwidth} {slowed}", {})
    speed = slowdown() if slowed else 1.0
    place = {"gpus": grace.WORKERS, "bandwidth": bandwidth, "hardware": HARDWARE}
    for model, batch in MODELS if evidence.predict and not found else ():
        for codec in shipped().codecs():
            asked = {"model": model, "batch": batch, "compute_speed": speed, "encode_speed": speed, **place}
            with suppress(GradwireError):  # the profile knows no cost of it
                found.setdefault(model, {})[codec] = evidence.predict(codec=codec, **asked)  # type: ignore[misc]
    return found


def _summed(counted: dict[str, tuple[int, int]]) -> tuple[int, int]:
    return sum(c[0] for c in counted.values()), sum(c[1] for c in counted.values())


def _wins(by_codec: dict[str, Any], over: str = FP32) -> tuple[int, int]:
    """Codecs clearly faster than a baseline, and all."""
    codecs = [p for c, p in by_codec.items() if c not in DDP]
    return sum(by_codec[over].step_seconds >= WIN * p.step_seconds for p in codecs), len(codecs)


NO_MODEL = left_open("no performance model to ask")


def rarely_pays(evidence: Evidence) -> Judged:
    counted = {m: _wins(ps) for m, ps in speeds(evidence, "10gbit").items()}
    if not counted:
        return NO_MODEL
    wins, total = _summed(counted)
    unslowed = speeds(evidence, "10gbit", slowed=False)
    others = _summed({m: _wins(ps) for m, ps in unslowed.items()})[0]
    half = _summed({m: _wins(ps, FP16) for m, ps in unslowed.items()})[0]
    told = (
        f"modelled, 10 Gbit/s: {wins} of {total} are at least {WIN - 1:.0%} faster than FP32 ({_by_model(counted)}); "
        f"at an H200's own speed {others}, and {half} faster than FP16"
    )
    return judge(wins <= total / 2, told, f"That is {'at most' if wins <= total / 2 else 'more than'} half.")


def slow_links_pay(evidence: Evidence) -> Judged:
    slow, fast = (speeds(evidence, rate) for rate in ("1gbit", "10gbit"))
    if not slow:
        return NO_MODEL
    at_1, at_10 = ({m: _wins(ps) for m, ps in found.items()} for found in (slow, fast))
    (wins, total), before = _summed(at_1), _summed(at_10)[0]
    told = f"modelled: {wins} of {total} beat FP32 at 1 Gbit/s, {before} at 10 ({_by_model(at_1)})"
    return judge(wins > total / 2 and wins > before, told, "More than half, and more than at 10 Gbit/s, were wanted.")


def _by_model(counted: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{m} {wins} of {total}" for m, (wins, total) in counted.items())


def bound(evidence: Evidence) -> Judged:
    found = speeds(evidence, "10gbit")
    if COMPUTE_BOUND not in found or COMMUNICATION_BOUND not in found:
        return NO_MODEL
    slower = {m: sum(p.step_seconds > found[m][FP32].step_seconds for p in found[m].values()) for m in found}
    wins = {m: _wins(found[m]) for m in (COMPUTE_BOUND, COMMUNICATION_BOUND)}
    shares = {m: w / n for m, (w, n) in wins.items()}
    losers = slower[COMPUTE_BOUND]
    told = f"modelled, 10 Gbit/s: faster than FP32: {_by_model(wins)}; slower on {COMPUTE_BOUND}: {losers}"
    holds = shares[COMMUNICATION_BOUND] > shares[COMPUTE_BOUND] and losers > 1
    return judge(holds, told, "More gain was wanted where little is computed, and several that lose where much is.")


def faster_links(evidence: Evidence) -> Judged:
    slow, fast = (speeds(evidence, rate) for rate in ("10gbit", "25gbit"))
    gains = [
        slow[m][c].step_seconds / p.step_seconds - 1 for m, ps in fast.items() for c, p in ps.items() if c in slow[m]
    ]
    if not gains:
        return NO_MODEL
    average = sum(gains) / len(gains)
    told = f"modelled: {100 * average:.1f} % on average over {len(gains)} models and codecs"
    return judge(average <= MILD, told, f"At most {MILD:.0%} was wanted.")


def overhead(evidence: Evidence) -> Judged:
    found = speeds(evidence, "10gbit").get("resnet50", {})
    shares = {c: (p.parts["encode"] + p.parts["decode"]) / p.step_seconds for c, p in found.items() if c not in DDP}
    if not shares:
        return NO_MODEL
    many = sum(s > COSTLY for s in shares.values())
    of = f"{many} of {len(shares)} codecs take more than {COSTLY:.0%} of ResNet-50's step"
    told = f"{of} (an H200's encode times, slowed; step modelled)"
    return judge(many > len(shares) / 2, told, "More than half were wanted.")


def correlated(evidence: Evidence) -> Judged:
    """Quality against modelled throughput, on ResNet-9."""
    trained, known = evidence.task(grace.TASK), speeds(evidence, "10gbit").get("resnet9")
    if trained is None or not known:
        return left_open(f"trainings of {grace.TASK} with {FEW} codecs")
    both = [(g.best, 1 / known[g.first.codec].step_seconds) for g in trained.codecs if g.first.codec in known]
    if len(both) < FEW:
        return left_open(f"trainings of {grace.TASK} with {FEW} codecs; there are {len(both)}", files=trained.files)
    found = correlation(*zip(*both, strict=True))
    told = f"rank correlation {found:+.2f} over {len(both)} codecs; throughput modelled, 10 Gbit/s"
    strong = abs(found) >= STRONG
    return judge(not strong, told, f"From {STRONG:g} on it would be strong.", trained.files)
