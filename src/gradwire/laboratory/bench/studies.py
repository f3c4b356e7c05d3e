"""The studies behind docs/findings.md, as lists of runs: ``gradwire bench accuracy --study NAME``.

Unless epochs are given, runs are as long as those of the page.

A vote (signsgd, signum) says nothing about the size of a step, and a codec that keeps the momentum itself must not meet
another one in the optimizer; what such codecs need instead of the task's recipe stands here, for all studies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gradwire.core.codec import Codec, codecs
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.core.registry import parse
from gradwire.laboratory.bench.training import Plan
from gradwire.laboratory.reproduce import throughput
from gradwire.memory import ErrorFeedback, MomentumCorrection, NoMemory
from gradwire.memory.base import memories

NONE, FEEDBACK = NoMemory.name, ErrorFeedback.name
RESNET9: dict[str, Any] = {"workers": 8, "batch": 128, "learning_rate": 0.6}  # one set-up for all its studies
VOTE_RATE = 1e-3  # learning rate of a vote at its peak


def adjusted(plan: Plan) -> Plan:
    """The plan with what its codec needs under SGD; Adam brings its own scale."""
    if plan.codec is None or plan.recipe.optimizer != "sgd":
        return plan
    codec = codecs.build(plan.codec)
    if not codec.traits.is_mean:
        return replace(plan, momentum=0.0, learning_rate=VOTE_RATE)
    return replace(plan, momentum=0.0) if _has_momentum(codec) and plan.memory == "default" else plan


def _has_momentum(codec: Codec) -> bool:
    """Whether its own memory accumulates momentum."""
    return isinstance(memories.build(codec.traits.memory), MomentumCorrection)


def both_memories(codec: Codec) -> tuple[str, ...]:
    """The default, and the other one of none and error feedback where that makes sense."""
    traits = codec.traits
    if codec.family == "baseline" or _has_momentum(codec):
        return ("default",)
    if traits.memory != NONE:
        return ("default", NONE)
    bounded = traits.delta is not None or traits.omega is not None
    return ("default", FEEDBACK) if bounded else ("default",)


def grace(base: Plan) -> list[Plan]:
    """Every codec of the catalogue on ResNet-9 and CIFAR-10, with and without error feedback."""
    base = replace(base, task="resnet9-cifar10", **RESNET9)
    built = [codecs.build(name) for name in codecs.names()]
    first = [replace(base, codec=c.spec) for c in built]
    second = [replace(base, codec=c.spec, memory=m) for c in built for m in both_memories(c)[1:]]
    return [adjusted(p) for p in (*first, *second)]


def _specs(base: Plan, specs: Iterable[str]) -> list[Plan]:
    return [adjusted(replace(base, codec=codecs.build(spec).spec)) for spec in specs]


def images(base: Plan) -> list[Plan]:
    """Top-k and TopKC at 0.5, 2 and 8 bits, THC's variants and PowerSGD's ranks, beside FP32 and FP16: on images."""
    base = replace(base, task="resnet9-cifar10", **RESNET9)
    return _specs(base, [spec for spec in throughput.SPECS if "permute" not in spec])


def language(base: Plan) -> list[Plan]:
    """The same for a masked language model, with TopKC on permuted gradients, and other well-known codecs."""
    base = replace(base, task="bert-small-wikitext2", workers=4, batch=64, epochs=base.epochs or 12)
    return _specs(base, (*throughput.SPECS, *OTHERS))


def _interval(plan: Plan) -> int:
    """Epochs between Accordion's comparisons: a thirtieth of the schedule, as published, and at least five.

    With windows of one or two it left low compression after a few epochs and ended far below it (docs/adaptive.md).
    """
    return max(5, plan.recipe.epochs // 30)


def accordion(base: Plan) -> list[Plan]:
    """Low and high compression throughout, Accordion between them and the wrong way round, and AdaQS."""
    plans = []
    for task, low in (("vgg19bn-cifar10", 4), ("resnet18-cifar10", 2)):
        less, more = f"powersgd(rank={low})", "powersgd(rank=1)"
        steps = tuple(f"powersgd(rank={r})" for r in (1, 2, 4) if r <= low)
        own = replace(base, task=task, workers=4, batch=128, epochs=base.epochs or 60)
        every = _interval(own)
        plans += [
            replace(own, codec=codecs.build(less).spec),
            replace(own, codec=codecs.build(more).spec),
            replace(own, codec=None, controller=f"accordion(low={less!r}, high={more!r}, every={every})"),
            replace(own, codec=None, controller=f"accordion(low={more!r}, high={less!r}, every={every})"),
            replace(own, codec=None, controller=f"adaqs(levels={steps!r})"),
        ]
    return plans


def batch_size(base: Plan) -> list[Plan]:
    """A batch of 512, one of 4096, and Accordion from the small one to 4096 and to 16,384."""
    own = replace(base, task="resnet18-cifar10", workers=4, epochs=base.epochs or 60)
    steered = [f"accordion_batch(codec='none', factor={factor}, every={_interval(own)})" for factor in (8, 32)]
    return [
        replace(own, codec="none", batch=128),
        replace(own, codec="none", batch=1024, learning_rate=3.2),
        *(replace(own, codec=None, controller=spec, batch=128) for spec in steered),
    ]


OTHERS = ("efsignsgd", "qsgd", "terngrad", "natural", "eightbit", "onebit", "randomk", "blockint", "bf16")
DEGREES = ("topk(ratio=0.1)", "topk(ratio=0.001)")
RECOMMENDATION = ("none", "fp16", *OTHERS, "topk", "dgc", "topkc", "powersgd", "thc")


def recommendation(base: Plan) -> list[Plan]:
    """Recommendation, where degrees of compression were seen to matter, and error feedback to hurt some."""
    base = replace(base, task="ncf-ml1m", workers=8, epochs=base.epochs or 8)
    hurt = [replace(base, codec=name, memory=NONE) for name in ("topk", "eightbit", "natural")]
    return [*_specs(base, (*RECOMMENDATION, *DEGREES)), *hurt]


GPT = ("none", "fp16", "blockint(bits=8)", "eightbit", "qsgd", "blockint", "thc", "efsignsgd", "topk", "powersgd")


def gpt(base: Plan) -> list[Plan]:
    """A GPT under AdamW at a constant rate: FP32, FP16 and eight codecs."""
    return _specs(replace(base, task="gpt-wikitext2", workers=4), GPT)


FACTORS = (0.5, 1.0, 2.0)  # of the usual learning rate
TWENTY = (
    *("none", "fp16", "blockint(bits=8)", *OTHERS, "thc", "lpc", "signsgd", "signum", "topk", "dgc", "topkc"),
    *("globaltopk", "powersgd"),
)


def rates(base: Plan) -> list[Plan]:
    """Twenty well-known codecs and FP32 on images, each at three learning rates; further seeds are for the best one."""
    usual = _specs(replace(base, task="resnet9-cifar10", **RESNET9), TWENTY)
    return [replace(p, learning_rate=factor * p.recipe.learning_rate) for factor in FACTORS for p in usual]


STUDIES: dict[str, Callable[[Plan], list[Plan]]] = {
    "grace-resnet9": grace,
    "beyond-throughput": images,
    "language": language,
    "gpt": gpt,
    "rates": rates,
    "recommendation": recommendation,
    "accordion": accordion,
    "accordion-batch": batch_size,
}


def plans(name: str, **given: Any) -> list[Plan]:
    """The runs of a study; `given` holds for all of them."""
    if name not in STUDIES:
        raise UnknownName(f"no study named {name!r}; there are: {', '.join(STUDIES)}")
    return STUDIES[name](Plan(task="shapes", codec="none", **given))


def pick(
    runs: Sequence[Plan],
    *,
    tasks: Collection[str] = (),
    specs: Collection[str] = (),
    steered: Collection[str] = (),
    kept: Collection[str] = (),
) -> list[Plan]:
    """Those of the runs with one of these tasks, memories, and codecs or names of controllers; nothing given: any.

    Each once: studies share some.
    """
    wanted = {codecs.build(spec).spec for spec in specs}

    def fits(plan: Plan) -> bool:
        if plan.controller is not None:
            chosen = parse(plan.controller, "controller")[0] in steered
        else:
            chosen = codecs.build(plan.codec or "").spec in wanted
        return (
            (chosen or not (wanted or steered))
            and (not tasks or plan.task in tasks)
            and (not kept or plan.memory in kept)
        )

    found = list(dict.fromkeys(plan for plan in runs if fits(plan)))
    if not found:
        asked = [*tasks, *specs, *steered, *(f"memory {m}" for m in kept)]
        known = dict.fromkeys(parse(p.controller, "controller")[0] if p.controller else str(p.codec) for p in runs)
        raise ConfigError(f"bench accuracy: no run of the study has {', '.join(asked)}; it has: {', '.join(known)}")
    return found
