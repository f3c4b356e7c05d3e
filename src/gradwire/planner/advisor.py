"""Which codec, if any: all of them ranked for a set-up, a verdict, its reasons, what would change it, and how sure.

Ranked by the time of a step are codecs that our own trainings call safe, see `planner.quality`. What lost too much, or
was not tried on a task like the model's, is listed apart and never recommended, unless `any_codec` is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from gradwire.core.baselines import FP16, MAX_LOSS, PERCENT_A_POINT, WIN
from gradwire.core.errors import ConfigError
from gradwire.core.registry import Check
from gradwire.core.units import format_bytes, format_milliseconds
from gradwire.planner import crossover, quality
from gradwire.planner import model as perf
from gradwire.planner.cluster import check_gpus
from gradwire.planner.crossover import Crossover, Needed
from gradwire.planner.model import HIERARCHICAL, MODES, SERVER, Input, Prediction
from gradwire.planner.profile import SOURCES, Profile
from gradwire.planner.ranking import LABELS, NOT_MEASURED, STRATEGIES, Contest, Ranked, wanted
from gradwire.planner.workload import OVERLAP

WORTH, NOT_WORTH, CLOSE, NOTHING, UNKNOWN = "worth it", "not worth it", "too close to call", "nothing to do", "unknown"
EXPLAINED = 3
KINDS = (*SOURCES, "traced", "estimated")
VALIDATED = ("fp32 DDP", "fp16 DDP", "codecs")  # what accuracy.json tells apart
FP16_HOOK = (
    "import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as hooks; "
    "model.register_comm_hook(None, hooks.fp16_compress_hook)"
)
BY_TIME_ALONE = "Ranked by time alone, as asked for: look at what codecs lost in our trainings before you take one."
NODES_REMARK = "DDP's own sums, like those of codecs, go by the fastest of ring, tree and node by node, as NCCL's do."
MEMORY_REMARK = "Whether codecs fit into memory is not known: the profile has no memory of this model and batch."


@dataclass(frozen=True)
class Verdict:
    """`line` switches on what the sentence says."""

    kind: str  # worth it, not worth it, too close to call, nothing to do, or unknown
    sentence: str
    line: str | None


@dataclass(frozen=True)
class Certainty:
    """What the answer rests on. `expected`: relative errors of predicted steps, where they could be checked."""

    inputs: Mapping[str, tuple[Input, ...]]  # by kind of source
    codec_costs: Mapping[str, int]  # how many codecs by kind of source
    expected: Mapping[str, Any]
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The answer. `dataclasses.asdict` makes it ready for JSON."""

    setup: Mapping[str, Any]
    verdict: Verdict
    baselines: tuple[Ranked, ...]
    ranking: tuple[Ranked, ...]  # of codecs that may be recommended
    apart: tuple[Ranked, ...]  # of those that lost too much in our trainings, or were not tried
    explanations: tuple[str, ...]  # of the first three
    bandwidth: Crossover | None  # None: there is no codec to ask about, or nothing to exchange
    gpus: Crossover | None
    compression: Needed
    certainty: Certainty
    remarks: tuple[str, ...]


def advise(
    *,
    model: str,
    batch: int,
    gpus: int,
    bandwidth: str | float,
    gpus_per_node: int = 1,
    hardware: str | Profile = "h200",
    codecs: str | Sequence[str] | None = None,
    mode: str | None = None,
    strategy: str | None = None,
    task: str | None = None,
    max_loss: float = MAX_LOSS,
    any_codec: bool = False,
    predict: Callable[..., Prediction] = perf.predict,
    accuracy: Mapping[str, Any] | None = None,
    **setup: Any,
) -> Advice:
    """Rank codecs for a set-up, and say whether any is worth it; `gradwire.advise` tells what the arguments are.

    Args:
        predict: what answers for one codec (`planner.questions` passes its own, for codecs and models of yours).
        setup: more of what `predict` takes: latency, accumulate, backward, …
    """
    if "codec" in setup:
        raise ConfigError(f"advise: codecs are compared here; write codecs=[{setup['codec']!r}] instead of codec=")
    if strategy is not None:
        Check("advise").one_of("strategy", strategy, STRATEGIES)
    if task is not None:
        Check("advise").one_of("task", task, quality.TASKS)
    Check("advise").number("max_loss", max_loss, 0, 100, "points from 0 to 100, such as 0.5")
    check_gpus(gpus, gpus_per_node)
    profile = Profile.load(hardware)
    place = {"model": model, "batch": batch, "gpus": gpus, "gpus_per_node": gpus_per_node, "bandwidth": bandwidth}
    modes = MODES if mode is None else (mode,)
    contest = Contest(predict, profile, {**place, "hardware": profile, **setup}, modes, strategy)
    baselines = contest.baselines()  # first, since it refuses what is wrong with the set-up
    reference = contest.reference()
    kind = _kind_of(model) if task is None else task
    judged = [_judged(r, kind, max_loss) for r in contest.ranking(wanted(codecs))]
    ranking = tuple(r for r in judged if any_codec or r.standing == quality.SAFE)
    apart = tuple(r for r in judged if r not in ranking)
    able = [r for r in ranking if r.step_seconds is not None and r.fits is not False]
    best = able[0] if able else None
    expected = shipped_accuracy() if accuracy is None else accuracy
    asked = best if gpus > 1 else None
    return Advice(
        setup={**place, "bits_per_second": reference.bits_per_second, "hardware": profile.name, **setup},
        verdict=_verdict(ranking, apart, best, reference, expected),
        baselines=tuple(contest.ranked(p, reference) for p in baselines),
        ranking=ranking,
        apart=apart,
        explanations=tuple(_explain(i, able, reference) for i in range(min(EXPLAINED, len(able)))) if asked else (),
        bandwidth=crossover.bandwidth(contest, asked.codec) if asked else None,
        gpus=crossover.gpus(contest, asked.codec) if asked else None,
        compression=crossover.needed(contest),
        certainty=_certainty(contest, ranking, best, reference, expected),
        remarks=_remarks(ranking, gpus_per_node, BY_TIME_ALONE if any_codec else _rule(kind, max_loss)),
    )


def shipped_accuracy() -> Mapping[str, Any]:
    """How far predictions were from measurements, as far as that was validated; empty if it was not."""
    file = files("gradwire.planner") / "data" / "accuracy.json"
    found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def least_speedup(accuracy: Mapping[str, Any] | None = None) -> float:
    """From which speed-up on a codec is worth it: more than 5 %, and more than predictions are off in the median."""
    return max(WIN, 1 + _median_error(shipped_accuracy() if accuracy is None else accuracy))


def switch_on(best: Ranked, gpus_per_node: int) -> str | None:
    """The line that a user adds; None where gradwire has no such strategy."""
    if best.strategy == SERVER:
        return None
    strategy = f"hierarchical(per_node={gpus_per_node})" if best.strategy == HIERARCHICAL else best.strategy
    return f'gradwire.attach(model, "{best.codec}", mode="{best.mode}", strategy="{strategy}")'


# ---------------------------------------------------------------- the verdict


def _verdict(
    ranking: Sequence[Ranked],
    apart: Sequence[Ranked],
    best: Ranked | None,
    reference: Prediction,
    expected: Mapping[str, Any],
) -> Verdict:
    keep = LABELS[reference.codec]
    if reference.gpus == 1:
        return Verdict(NOTHING, "Nothing to compress: one GPU exchanges no gradients.", None)
    if best is None:
        return _no_codec(ranking, apart, reference)
    assert best.step_seconds is not None
    assert best.speedup is not None
    taken, against = format_milliseconds(best.step_seconds), format_milliseconds(reference.step_seconds)
    off, hook = _median_error(expected), _hook(reference)
    gain, compared = best.speedup - 1, f"{taken} a step against {against} of {keep}"
    if 0 < gain < off:
        return Verdict(
            CLOSE,
            f"Too close to call: {best.codec} is predicted to take {compared}, {_faster(best.speedup)}, and such "
            f"predictions are {_percent(off)} off in the median; keep {keep} unless a measurement says otherwise.",
            hook,
        )
    if best.speedup <= WIN:
        return Verdict(
            NOT_WORTH,
            f"Not worth it: keep {keep}. The fastest codec, {best.codec}, takes {compared}, {_faster(best.speedup)}; "
            "more than 5 % would be worth it.",
            hook,
        )
    notes = f" Mind: {'; '.join(best.notes)}." if best.notes else ""
    return Verdict(
        WORTH,
        f"Worth it: {best.codec} takes {compared}, {_faster(best.speedup)}. In our trainings: {best.evidence}.{notes}",
        switch_on(best, reference.gpus_per_node),
    )


def _hook(reference: Prediction) -> str | None:
    """What switches DDP on as it is kept."""
    return FP16_HOOK if reference.codec == FP16 else None


def _no_codec(ranking: Sequence[Ranked], apart: Sequence[Ranked], reference: Prediction) -> Verdict:
    keep = LABELS[reference.codec]
    if any(r.fits is False for r in ranking):
        return Verdict(NOT_WORTH, f"Not worth it: keep {keep}. No codec fits into memory here.", None)
    if any(NOT_MEASURED in r.notes for r in ranking):
        sentence = (
            f"No answer: profile {reference.hardware} knows the cost of none of these codecs; measure one: "
            f"gradwire calibrate --codec {ranking[0].codec}"
        )
        return Verdict(UNKNOWN, sentence, None)
    if apart:
        return Verdict(
            NOT_WORTH,
            f"Not worth the risk: keep {keep}. In our trainings no codec asked about was tried on such a task without "
            "losing more than is allowed; --any (any_codec=True) ranks them by time alone.",
            _hook(reference),
        )
    return Verdict(
        UNKNOWN, "No answer: there is no codec to rank; name one, or leave out --codec and --strategy.", None
    )


def _faster(speedup: float) -> str:
    if speedup >= 2:
        return f"{speedup:.3g} times as fast"
    percent = abs(speedup - 1) if speedup >= 1 else 1 / speedup - 1
    word = "faster" if speedup >= 1 else "slower"
    return f"{_percent(percent)} {word}" if percent >= 0.0005 else "as fast"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _median_error(expected: Mapping[str, Any]) -> float:
    """Of a comparison: the larger of both sides'."""
    return max((float(expected[k]["median"]) for k in VALIDATED if k in expected), default=0.0)


# ---------------------------------------------------------------- its reasons


def _explain(position: int, able: Sequence[Ranked], reference: Prediction) -> str:
    one = able[position]
    parts, first = one.parts or {}, position == 0
    computing = parts["forward"] + parts["backward"] + parts["optimizer"]
    beside = ", partly beside the backward pass" if one.mode == OVERLAP else ""
    fewer = one.sent_against_fp16
    sent = f"sends {format_bytes(one.sent_bytes or 0.0)} a worker"
    if fewer is not None:
        sent += f", {fewer:.3g} times less than FP16" if fewer >= 1 else f", {1 / fewer:.3g} times more than FP16"
    why = _first_reason(one, able, reference) if first else _behind(one, able[position - 1])
    return (
        f"{one.codec} ({one.mode}, {one.strategy}): {format_milliseconds(one.step_seconds or 0.0)} a step, of which "
        f"{format_milliseconds(computing)} compute and {format_milliseconds(parts['wait'])} wait; it encodes and "
        f"decodes for {format_milliseconds(_coding(one))} and exchanges for "
        f"{format_milliseconds(parts['exchange'])}{beside}; it {sent}; {why}."
    )


def _coding(one: Ranked) -> float:
    parts = one.parts or {}
    return parts["encode"] + parts["decode"]


def _exchange(one: Ranked) -> float:
    return (one.parts or {})["exchange"]


def _first_reason(one: Ranked, able: Sequence[Ranked], reference: Prediction) -> str:
    """Why nobody is faster."""
    ddp = f"{LABELS[reference.codec]} exchanges for {format_milliseconds(reference.parts['exchange'])}"
    if len(able) == 1:
        return f"{ddp}"
    if all(_exchange(one) <= _exchange(other) for other in able):
        return f"it is first because no other exchanges for less time ({ddp})"
    if all(_coding(one) <= _coding(other) for other in able):
        return f"it is first because no other encodes and decodes faster ({ddp})"
    if all(_coding(one) + _exchange(one) <= _coding(other) + _exchange(other) for other in able):
        return f"it is first because coding and exchange together are shortest ({ddp})"
    return f"it is first because more of it hides behind the backward pass ({ddp})"


def _behind(one: Ranked, ahead: Ranked) -> str:
    """What holds it back against the one before it."""
    late = (one.step_seconds or 0.0) - (ahead.step_seconds or 0.0)
    if late < 1e-7:
        return f"as fast as {ahead.codec}"
    coding, exchange = _coding(one) - _coding(ahead), _exchange(one) - _exchange(ahead)
    if max(coding, exchange) <= 0:
        reason = "less of it hides behind the backward pass"
    elif coding >= exchange:
        reason = f"it encodes and decodes {format_milliseconds(coding)} longer"
    else:
        reason = f"it exchanges {format_milliseconds(exchange)} longer"
    return f"{format_milliseconds(late)} behind {ahead.codec} because {reason}"


# ---------------------------------------------------------------- how sure


def _certainty(
    contest: Contest, ranking: Sequence[Ranked], best: Ranked | None, reference: Prediction, expected: Mapping[str, Any]
) -> Certainty:
    compared = [reference, *([contest.best(best.codec)] if best else [])]
    inputs = [replace(i, name=f"bytes of {p.codec}") if i.name == "bytes" else i for p in compared for i in p.inputs]
    grouped = {kind: tuple(i for i in dict.fromkeys(inputs) if _kind(i.source) == kind) for kind in KINDS}
    sources = [_kind(r.cost_source) if r.cost_source else r.notes[0] for r in ranking]
    return Certainty(
        inputs={kind: found for kind, found in grouped.items() if found},
        codec_costs={source: sources.count(source) for source in dict.fromkeys(sources)},
        expected=dict(expected),
        sentence=_expected_sentence(expected, contest.profile),
    )


def _kind(source: str) -> str:
    return source.partition(":")[0]


def _expected_sentence(expected: Mapping[str, Any], profile: Profile) -> str:
    known = {what: expected[what] for what in VALIDATED if what in expected}
    found = [
        f"{_percent(e['median'])} in the median ({_percent(e['max'])} at most, {e['settings']} settings) for {what}"
        for what, e in known.items()
    ]
    if not found:
        return "Expected error: not known, no validation shipped."
    place = expected.get("about", {}).get("place")
    where = f" ({place})" if place else ""
    return (
        f"Expected error of a step: {', '.join(found)}. That was found on an emulated network between CPU hosts"
        f"{where}, not on the hardware of {profile.name}, where it may be larger."
    )


def _kind_of(model: str) -> str | None:
    if ":" not in model:
        return quality.kind_of(model)
    from gradwire.planner import own_kind  # loads torch

    return own_kind.kind_of(model)


def _judged(one: Ranked, kind: str | None, max_loss: float) -> Ranked:
    found = quality.standing(one.codec, kind, max_loss)
    return replace(one, standing=found.kind, evidence=found.sentence)


def _rule(kind: str | None, max_loss: float) -> str:
    """Which codecs are ranked."""
    percent = max_loss * PERCENT_A_POINT
    tried = f"were tried on {kind}" if kind is not None else "were tried on every kind of task; --task says yours"
    return (
        f"Ranked are codecs that lost at most {max_loss:g} points, or {percent:g} % of a perplexity, wherever we "
        f"trained with them, and that {tried}; others are listed apart. The mean of seeds counts: the ± "
        "beside it is its 95 % interval, which may reach beyond that."
    )


def _remarks(ranking: Sequence[Ranked], gpus_per_node: int, rule: str) -> tuple[str, ...]:
    remarks = [rule]
    if gpus_per_node > 1:
        remarks.append(NODES_REMARK)
    if any(r.step_seconds is not None and r.fits is None for r in ranking):
        remarks.append(MEMORY_REMARK)
    return tuple(remarks)
