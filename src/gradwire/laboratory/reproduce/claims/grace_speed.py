"""GRACE's findings about speed, by our model: 8 GPUs, each in a node of its own; the baseline is FP32, as it is there.

Asked are the methods that GRACE runs, over all-gather, as it sends what cannot be summed. There is no profile of its
V100s with our codecs. So that of an H200 is slowed, compute and codecs alike, until ResNet-50's backward pass takes the
122 ms that were published for a V100 (On the Utility of Gradient Compression, table 3, caption). A model alone
contradicts no measurement, and what is nearer to a limit than its usual error on GPUs is open.
"""

from __future__ import annotations

from contextlib import suppress
from statistics import mean
from typing import Any

from gradwire.core.baselines import FP32, WIN
from gradwire.core.errors import GradwireError
from gradwire.laboratory.reproduce import grace
from gradwire.laboratory.reproduce.claim import (
    Judged,
    Sure,
    all_of,
    at_least,
    at_most,
    judge,
    left_open,
    more_than_half,
)
from gradwire.laboratory.reproduce.claims.grace_quality import FEW
from gradwire.laboratory.reproduce.evidence import STRONG, Evidence, strong
from gradwire.planner.profile import Profile
from gradwire.planner.workload import shipped

HARDWARE = "h200"
V100_BACKWARD = 0.122  # seconds, ResNet-50 at batch 64
MODELS = (("resnet9", 64), ("resnet50", 64), ("vgg19", 64), ("lstm-ptb", 20))  # of its suite, with times in the profile
COMPUTE_BOUND, COMMUNICATION_BOUND = "resnet50", "vgg19"
GATHERED = "all_gather"
MILD = 0.05  # by how much 25 Gbit/s may be faster than 10 to be called a mild improvement
COSTLY = 0.05  # share of a step that encoding and decoding take, to be called not negligible
MODELLED = "times are modelled, with codecs of ours on an H200 slowed to a V100"

Speeds = dict[str, dict[str, Any]]


def slowdown() -> float:
    """A V100's speed, as a share of the profile's."""
    return Profile.load(HARDWARE).times("resnet50", 64).backward_seconds / V100_BACKWARD


def specs() -> list[str]:
    """The methods that GRACE runs, with our usual parameters and those variants that are shipped."""
    return [spec for spec in shipped().codecs() if spec.partition("(")[0] in grace.METHODS]


def speeds(evidence: Evidence, bandwidth: str) -> Speeds:
    """Predictions by model and codec; asked for once."""
    found: Speeds = evidence.kept.setdefault(bandwidth, {})
    speed = slowdown()
    place = {"gpus": grace.WORKERS, "bandwidth": bandwidth, "hardware": HARDWARE}
    for model, batch in MODELS if evidence.predict and not found else ():
        for codec in (FP32, *specs()):
            strategy = GATHERED if shipped().has(model, codec, GATHERED) else "auto"
            asked = {"model": model, "batch": batch, "compute_speed": speed, "encode_speed": speed, **place}
            with suppress(GradwireError):  # the profile knows no cost of it
                found.setdefault(model, {})[codec] = evidence.predict(codec=codec, strategy=strategy, **asked)  # type: ignore[misc]
    return found


def _ratios(by_codec: dict[str, Any]) -> dict[str, float]:
    """How many times as fast as FP32."""
    return {c: by_codec[FP32].step_seconds / p.step_seconds for c, p in by_codec.items() if c != FP32}


def _wins(evidence: Evidence, by_codec: dict[str, Any]) -> list[Sure]:
    """Who is clearly faster than FP32, as far as the model can tell."""
    return [at_least(ratio, WIN, evidence.model_error * ratio) for ratio in _ratios(by_codec).values()]


def _counted(found: dict[str, list[Sure]]) -> str:
    every = [answer for each in found.values() for answer in each]
    by_model = ", ".join(f"{m} {each.count(True)} of {len(each)}" for m, each in found.items())
    return f"{every.count(True)} of {len(every)}, and {every.count(None)} too near to tell ({by_model})"


NO_MODEL = left_open("no performance model to ask")


def rarely_pays(evidence: Evidence) -> Judged:
    found = {m: _wins(evidence, ps) for m, ps in speeds(evidence, "10gbit").items()}
    if not found:
        return NO_MODEL
    losses = [None if answer is None else not answer for each in found.values() for answer in each]
    told = f"modelled, 10 Gbit/s, at least {WIN - 1:.0%} faster than FP32: {_counted(found)}"
    return judge(more_than_half(losses), told, "Less than half were wanted.", differs=MODELLED)


def slow_links_pay(evidence: Evidence) -> Judged:
    slow, fast = ({m: _wins(evidence, ps) for m, ps in speeds(evidence, r).items()} for r in ("1gbit", "10gbit"))
    if not slow:
        return NO_MODEL
    wins, before = ([answer for each in found.values() for answer in each] for found in (slow, fast))
    told = f"modelled, faster than FP32 at 1 Gbit/s: {_counted(slow)}; at 10: {before.count(True)}"
    sure, known = wins.count(True), before.count(True)
    more = True if sure > known else False if sure + wins.count(None) <= known else None
    holds = all_of([more_than_half(wins), more])
    return judge(holds, told, "More than half, and more than at 10 Gbit/s, were wanted.", differs=MODELLED)


def bound(evidence: Evidence) -> Judged:
    found = speeds(evidence, "10gbit")
    if COMPUTE_BOUND not in found or COMMUNICATION_BOUND not in found:
        return NO_MODEL
    wins = {m: _wins(evidence, found[m]) for m in (COMPUTE_BOUND, COMMUNICATION_BOUND)}
    ratios = _ratios(found[COMPUTE_BOUND]).values()
    slower = [at_most(ratio, 1, evidence.model_error * ratio) for ratio in ratios]
    (low, high), (least, most) = (_between(wins[m]) for m in (COMPUTE_BOUND, COMMUNICATION_BOUND))
    more = True if least > high else False if most <= low else None
    several = True if slower.count(True) > 1 else False if slower.count(True) + slower.count(None) <= 1 else None
    told = f"modelled, 10 Gbit/s, faster than FP32: {_counted(wins)}; slower on {COMPUTE_BOUND}: {slower.count(True)}"
    why = "More gain was wanted where little is computed, and several that lose where much is."
    return judge(all_of([more, several]), told, why, differs=MODELLED)


def _between(answers: list[Sure]) -> tuple[float, float]:
    """The share of yes, at least and at most."""
    return answers.count(True) / len(answers), 1 - answers.count(False) / len(answers)


def faster_links(evidence: Evidence) -> Judged:
    slow, fast = (speeds(evidence, rate) for rate in ("10gbit", "25gbit"))
    gains = {
        m: mean(slow[m][c].step_seconds / p.step_seconds - 1 for c, p in ps.items() if c in slow[m])
        for m, ps in fast.items()
    }
    if not gains:
        return NO_MODEL
    mild = {gain <= MILD for gain in gains.values()}
    told = f"modelled, on average over codecs: {', '.join(f'{m} {100 * g:.1f} %' for m, g in gains.items())}"
    why = f"At most {MILD:.0%} was wanted; too near to tell is what differs by model."
    return judge(mild.pop() if len(mild) == 1 else None, told, why, differs=MODELLED)


def overhead(evidence: Evidence) -> Judged:
    found = speeds(evidence, "10gbit").get(COMPUTE_BOUND, {})
    shares = [(p.parts["encode"] + p.parts["decode"]) / p.step_seconds for c, p in found.items() if c != FP32]
    if not shares:
        return NO_MODEL
    answers = [at_least(share, COSTLY, evidence.model_error * share) for share in shares]
    told = f"modelled, codecs that take more than {COSTLY:.0%} of a step: {_counted({COMPUTE_BOUND: answers})}"
    return judge(more_than_half(answers), told, "More than half were wanted.", differs=MODELLED)


def correlated(evidence: Evidence) -> Judged:
    """Quality against modelled throughput, on ResNet-9."""
    trained, known = evidence.task(grace.TASK), speeds(evidence, "10gbit").get("resnet9")
    if trained is None or not known:
        return left_open(f"trainings of {grace.TASK} with {FEW} codecs")
    both = [(g.best, 1 / known[g.first.codec].step_seconds) for g in trained.codecs if g.first.codec in known]
    if len(both) < FEW:
        return left_open(f"trainings of {grace.TASK} with {FEW} codecs; there are {len(both)}", files=trained.files)
    found, is_strong = strong(*zip(*both, strict=True))
    told = f"rank correlation {found:+.2f} over {len(both)} codecs; throughput modelled, 10 Gbit/s"
    holds = None if is_strong is None else not is_strong
    return judge(holds, told, f"Below {STRONG:g} was wanted.", trained.files, differs=MODELLED)
