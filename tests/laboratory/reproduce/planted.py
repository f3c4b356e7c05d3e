"""Evidence that nobody measured, for and against each claim."""

from __future__ import annotations

from types import SimpleNamespace

from stand_in import record, study

from gradwire.laboratory.reproduce import grace, throughput
from gradwire.laboratory.reproduce.claims import grace_speed
from gradwire.laboratory.reproduce.claims import throughput as of_throughput
from gradwire.laboratory.reproduce.evidence import Evidence
from gradwire.laboratory.reproduce.throughput import POWERSGD, TOPK, TOPKC
from gradwire.planner.spec import keeps
from trainings import perplexity, training

EF = "error_feedback()"
NAMES = ("topk", "signsgd", "qsgd", "terngrad", "natural", "dgc", "powersgd", "efsignsgd")
SWITCH = {"epoch": 1, "parameter": "*", "from": "powersgd(rank=1)", "to": "powersgd(rank=2)", "why": "MSDR fell"}
FULL, PARTIAL, EXACT = of_throughput.FULL, of_throughput.PARTIAL, of_throughput.EXACT_SUMS


def evidence(records=(), encoded=(), **more):
    return Evidence([("some.jsonl", r) for r in records], study=study(encoded), **more)


def ending(codec, quality, **changes):
    """A training that ends with this quality."""
    start = (50.0, 80.0) if quality > 80 else (quality - 40, quality - 10)
    return training(codec, (*start, quality), **changes)


def kept(codec, quality, make=ending, **changes):
    """With the memory of the codec's own choice, and the optimiser that GRACE has for it."""
    name = codec.partition("(")[0]
    usual = {"memory": EF if keeps(codec) else "none()", "momentum": 0.0 if name in grace.PLAIN_SGD else 0.9}
    return make(codec, quality, **{**usual, **changes})


def words(codec, quality, **changes):
    return perplexity(codec, (300.0, quality), **{"epochs": 3, **changes})


def own(codec, quality, **changes):
    """On ResNet-9 for as long as GRACE."""
    return kept(codec, quality, **{"epochs": 24, **changes})


def several(first, second):
    """Two tasks with eight codecs each; qualities and perplexities by codec, the others in between."""
    images = [ending("fp16", 90.0), *(kept(c, first.get(c, 85.0)) for c in NAMES)]
    return [*images, words("fp16", 100.0), *(kept(c, second.get(c, 120.0), words) for c in NAMES)]


def seeds(make, *arguments, count=3, **changes):
    return [make(*arguments, seed=s, **changes) for s in range(count)]


# -------------------------------------------------------------------- GRACE


def ncf(codec, quality, **changes):
    return kept(codec, quality, **{"task": "ncf-ml1m", "model": "ncf-ml1m", **changes})


def sized(bits, **changes):
    """Payloads of so many bits for each of the 1000 elements."""
    return {"payload_bytes": [125 * bits * r for r in (10, 20, 30)], **changes}


def by_volume(heavy, light):
    many = [ending("fp16", 90.0)]
    many += [kept(f"topk(ratio=0.{n})", heavy, **sized(0.5)) for n in range(11, 20)]
    many += [kept(f"qsgd(levels={n})", light, **sized(4)) for n in range(11, 24)]
    return [*many, kept("natural", 60.0, **sized(9))]


def with_and_without(names, better):
    return [r for c in names for r in (ending(c, 80.0 + better, memory=EF), ending(c, 80.0, memory="none()"))]


def stepping(seconds, share=0.06):
    """A model: seconds by model, codec and rate, and the share of them that encoding takes."""

    def predict(model, codec, bandwidth, **_):
        step = seconds(model, codec, bandwidth)
        return SimpleNamespace(step_seconds=step, parts={"encode": share * step / 2, "decode": share * step / 2})

    return {"predict": predict}


def times(codecs, at_1=None, at_25=None, resnet50=None):
    """DDP takes 1 s, codecs so much; other rates and another model where they are given."""

    def seconds(model, codec, bandwidth):
        if codec in ("none", "fp16"):
            return 1.0
        if model == "resnet50" and resnet50 is not None:
            return resnet50
        return {"1gbit": at_1, "25gbit": at_25}.get(bandwidth) or codecs

    return seconds


def correlated(quality):
    """Codecs whose place in the list is their speed; quality by place."""
    codecs = [c for c in grace_speed.specs() if "(" not in c]
    model = stepping(lambda model, codec, bandwidth: 1.0 / (1 + codecs.index(codec)) if codec in codecs else 1.0)
    return evidence([ending("fp16", 95.0), *(kept(c, quality(i)) for i, c in enumerate(codecs))], **model)


def baseline(row, quality):
    if row.task == "lstm-ptb":
        return seeds(words, "none", quality, task="lstm-ptb", model="lstm-ptb")
    return seeds(training, "none", (quality - 30, quality), task=row.task, model="some")


GRACE = {
    **{
        f"G-baseline-{row.name.partition(' on ')[0].lower().replace('-', '')}": (
            evidence(baseline(row, row.quality)),
            evidence(baseline(row, row.quality * 0.9)),
        )
        for row in grace.TABLE_II
        if row.task
    },
    "G-comparable": (
        evidence([own("fp16", 90.0), *(own(c, 90.1) for c in NAMES)]),
        evidence([own("fp16", 90.0), *(own(c, 85.0) for c in NAMES)]),
    ),
    "G-above": (
        evidence([*seeds(own, "fp16", 90.0), *seeds(own, "topk", 92.0)]),
        evidence([*seeds(own, "fp16", 90.0), *(r for c in grace.METHODS for r in seeds(own, c, 85.0))]),
    ),
    "G-no-winner": (
        evidence(several({"topk": 89.0}, {"qsgd": 101.0})),
        evidence(several({"topk": 89.0}, {"topk": 101.0})),
    ),
    "G-not-everywhere": (
        evidence(several({"topk": 90.0}, {"qsgd": 100.0})),
        evidence(several({"topk": 90.0}, {"topk": 99.0})),
    ),
    "G-no-correlation": (correlated(lambda i: 90.0 + i % 2), correlated(lambda i: 90.0 + i / 10)),
    "G-bound": (
        evidence(**stepping(times(0.5, resnet50=2.0))),
        evidence(**stepping(times(2.0, resnet50=0.5))),
    ),
    "G-ncf-loss": (
        evidence([ncf("fp16", 70.0), ncf("topk", 63.0)]),
        evidence([ncf("fp16", 70.0), ncf("topk", 69.8)]),
    ),
    "G-ncf-degree": (
        evidence([ncf("fp16", 70.0), ncf("topk(ratio=0.001)", 60.0, **sized(0.1)), ncf("topk", 69.0, **sized(1))]),
        evidence([ncf("fp16", 70.0), ncf("topk(ratio=0.001)", 69.0, **sized(0.1)), ncf("topk", 60.0, **sized(1))]),
    ),
    "G-cifar-degree": (
        evidence([own("topk(ratio=0.001)", 89.9, **sized(0.1)), own("topk", 90.0, **sized(1))]),
        evidence([own("topk(ratio=0.001)", 80.0, **sized(0.1)), own("topk", 90.0, **sized(1))]),
    ),
    "G-ef-sparse": (
        evidence(with_and_without(["topk", "randomk"], 5.0)),
        evidence(with_and_without(["topk", "randomk"], -5.0)),
    ),
    "G-ef-table": (
        evidence(with_and_without(grace.WITH_EF, 5.0)),
        evidence(with_and_without(grace.WITH_EF, -5.0)),
    ),
    "G-ef-ncf": (
        evidence(
            [*with_and_without(["topk"], 5.0), ncf("fp16", 70.0), ncf("topk", 60.0), ncf("topk", 65.0, memory="none()")]
        ),
        evidence(
            [*with_and_without(["topk"], 5.0), ncf("fp16", 70.0), ncf("topk", 65.0), ncf("topk", 60.0, memory="none()")]
        ),
    ),
    "G-volume": (evidence(by_volume(70.0, 89.0)), evidence(by_volume(89.0, 70.0))),
    "G-overhead": (evidence(**stepping(times(1.0), 0.2)), evidence(**stepping(times(1.0), 0.001))),
    "G-rarely-pays": (evidence(**stepping(times(2.0))), evidence(**stepping(times(0.5)))),
    "G-slow-links": (evidence(**stepping(times(2.0, at_1=0.5))), evidence(**stepping(times(2.0, at_1=2.0)))),
    "G-25gbit": (evidence(**stepping(times(1.0))), evidence(**stepping(times(1.0, at_25=0.5)))),
}


# -------------------------------------------------------------------- Beyond Throughput


def images(*pairs, memory=None):
    """FP16, FP32 and settings on the stand-in of VGG19."""
    made = {} if memory is None else {"memory": memory}
    return [ending("fp16", 90.0), ending("none", 90.2), *(kept(s.codec, q, **made) for s, q in pairs)]


def texts(*pairs):
    """FP16 and settings on the stand-in of BERT."""
    return [
        perplexity(),
        *(kept(s.codec, q, lambda c, q, **m: perplexity(c, (300.0, 120.0, q), **m)) for s, q in pairs),
    ]


def errors(settings, values):
    return [kept(s.codec, 90.0, nmse=[e] * 3) for s, e in zip(settings, values, strict=True)]


def published(**factors):
    """A model that is right, but for some settings, by label."""
    return {"throughput": lambda model, s: (s.rounds_per_second[model] * factors.get(s.label, 1.0), True)}


def encoding(shares, factor=1.0):
    """As long as these percent of the published step, or a factor of it."""
    return [
        record(
            "encode",
            {"model": {throughput.BERT: "bert-large", throughput.VGG19: "vgg19"}[model], "codec": setting.codec},
            1.0,
            {"graphs_seconds": {"encode": factor * percent / 100 / setting.rounds_per_second[model]}},
        )
        for model, setting, percent in shares
    ]


SELECTION = [(m, s, throughput.TOPK_OVERHEAD[m][s.bits[m]]) for m in throughput.TOPK_OVERHEAD for s in TOPK]
ORTHOGONAL = [(m, POWERSGD[3], percent) for m, percent in throughput.ORTHOGONALIZATION.items()]
ALL_SETTINGS = [*throughput.BASELINES, *TOPK, *TOPKC, *throughput.THC, *POWERSGD]
THROUGHPUT = {
    "T-proxy": (
        evidence(images(*((s, 70.0) for s in (*TOPK, *TOPKC[:2], *POWERSGD)), *((s, 91.0) for s in throughput.THC))),
        evidence(images(*((s, 90.0) for s in ALL_SETTINGS[2:]))),
    ),
    "T-fp16-throughput": (evidence(**published()), evidence(**published(FP16=0.5))),
    "T-fp16-quality": (
        evidence([ending("fp16", 90.0), ending("none", 90.0)]),
        evidence([ending("fp16", 88.0), ending("none", 90.0)]),
    ),
    "T-fp16-tta": (evidence(images()), evidence([ending("fp16", 90.0), training("none", (50.0, 89.9, 90.0))])),
    "T-locality": (
        evidence([*images(), *errors(TOPKC, (1, 2, 3)), *errors(throughput.PERMUTED, (4, 5, 6))]),
        evidence([*images(), *errors(TOPKC, (1, 2, 9)), *errors(throughput.PERMUTED, (4, 5, 6))]),
    ),
    "T-topkc-nmse": (
        evidence([*images(), *errors(TOPKC, (1, 2, 3)), *errors(TOPK, (4, 5, 6))]),
        evidence([*images(), *errors(TOPKC, (1, 2, 9)), *errors(TOPK, (4, 5, 6))]),
    ),
    "T-topkc-throughput": (
        evidence(**published()),
        evidence(**published(**{s.label: 0.3 for s in TOPKC})),
    ),
    "T-topkc-tta": (
        evidence(images((TOPKC[2], 90.0), (TOPK[2], 90.0))),
        evidence(images((TOPKC[2], 80.0), (TOPK[2], 90.0))),
    ),
    "T-topkc-fp16": (
        evidence(images(*((s, 70.0) for s in (*TOPK, *TOPKC[:2])), (TOPKC[2], 90.0))),
        evidence(images((TOPKC[0], 90.0), (TOPKC[2], 90.0))),
    ),
    "T-topk-fp16": (evidence(images((TOPK[0], 70.0))), evidence(images((TOPK[0], 90.0)))),
    "T-small-b": (
        evidence(images((TOPKC[0], 80.0), (TOPKC[2], 90.0))),
        evidence(images((TOPKC[0], 90.0), (TOPKC[2], 80.0))),
    ),
    "T-overhead": (
        evidence(encoded=encoding(SELECTION)),
        evidence(encoded=[*encoding(SELECTION[:1], 0.4), *encoding(SELECTION[1:])]),
    ),
    "T-orthogonalization": (evidence(encoded=encoding(ORTHOGONAL)), evidence(encoded=encoding(ORTHOGONAL, 2.1))),
    "T-saturation-throughput": (evidence(**published()), evidence(**published(**{FULL.label: 0.3}))),
    "T-partial-throughput": (evidence(**published()), evidence(**published(**{PARTIAL.label: 0.3}))),
    "T-rotation-share": (evidence(**published()), evidence(**published(**{FULL.label: 0.3}))),
    "T-saturation-quality": (
        evidence(images((FULL, 90.0), (EXACT, 90.0))),
        evidence(images((FULL, 85.0), (EXACT, 90.0))),
    ),
    "T-partial-quality": (
        evidence(images((PARTIAL, 90.0), (FULL, 90.0))),
        evidence(images((PARTIAL, 85.0), (FULL, 90.0))),
    ),
    "T-thc-tta": (
        evidence(
            [*seeds(ending, "fp16", 90.0), *images((FULL, 90.0), (PARTIAL, 90.0), (EXACT, 90.0))[1:]],
        ),
        evidence(images((FULL, 80.0), (PARTIAL, 80.0), (EXACT, 90.0))),
    ),
    "T-two-bits": (
        evidence(texts((of_throughput.TWO_BITS, 150.0))),
        evidence(texts((of_throughput.TWO_BITS, 100.0))),
    ),
    "T-powersgd-throughput": (evidence(**published()), evidence(**published(**{POWERSGD[3].label: 2.0}))),
    "T-powersgd-quality": (
        evidence(images((POWERSGD[0], 85.0), (POWERSGD[2], 90.0), (POWERSGD[3], 90.5))),
        evidence(images((POWERSGD[0], 85.0), (POWERSGD[2], 90.0), (POWERSGD[3], 80.0))),
    ),
    "T-powersgd-fp16": (
        evidence(images((POWERSGD[2], 90.0))),
        evidence([ending("fp16", 90.0), ending("none", 90.2), *seeds(kept, POWERSGD[3].codec, 70.0)]),
    ),
}


# -------------------------------------------------------------------- Accordion


LEVELS = {"resnet18-cifar10": (2, 1), "vgg19bn-cifar10": (4, 1), "resnet18-cifar100": (2, 1)}


def ranked(task, rank, quality, floats=6e9, **changes):
    place = {"task": task, "model": task, "memory": EF, "floats_sent": [floats / 3, floats / 2, floats]}
    return ending(f"powersgd(rank={rank})", quality, **{**place, **changes})


def steered(task, quality, floats=3e9, name="accordion", swapped=False, **changes):
    low, high = reversed(LEVELS[task]) if swapped else LEVELS[task]
    controller = f"{name}(low='powersgd(rank={low})', high='powersgd(rank={high})')"
    named = {"controller": controller if name == "accordion" else f"{name}(factor=0.5)"}
    return ranked(task, LEVELS[task][0], quality, floats, **{**named, **changes})


def line(task, low=93.0, high=70.0, between=93.0, floats=3e9):
    levels = LEVELS[task]
    return [ranked(task, levels[0], low), ranked(task, levels[1], high, 2e9), steered(task, between, floats)]


VGG = "vgg19bn-cifar10"
PUBLISHED_LOSS = {"resnet18-cifar10": 0.4, VGG: 24.8, "resnet18-cifar100": 1.7}


def plain(quality, **changes):
    return ending("none", quality, **{"task": VGG, "model": VGG, **changes})


def grown(quality, factor):
    sizes = {"controller": f"accordion_batch(factor={factor})", "batch_sizes": [512, 512 * factor, 512]}
    return plain(quality, **sizes)


def adaqs(task, quality):
    return [*line(task), steered(task, quality, 4e9, "adaqs", switches=[SWITCH])]


def shared(*shares, share=0.1, data="CIFAR-10"):
    """What two gradients have in common, by kind of pair."""
    kinds = ("two workers", "two rounds", "two means")[: max(len(shares), 1)]
    pairs = {kind: 9 * [value] for kind, value in zip(kinds, shares, strict=True)}
    what = {"task": "resnet18-cifar10", "data": data, "share": share, "epoch": 0}
    return record("supports", what, 1.0, {"pairs": pairs})


def curved(*windows, epochs=300, seed=0, data="CIFAR-10"):
    """Looks at the loss's curvature: critical by the norm, by the eigenvalue."""
    marks = [None, *({"norm": norm, "eigenvalue": eigenvalue} for norm, eigenvalue in windows)]
    what = {"task": "resnet18-cifar10", "data": data, "epochs": epochs, "every": 10}
    command = f"gradwire bench curvature --epochs {epochs} --seed {seed}"
    return [
        record("curvature", {**what, "epoch": 10 * i}, 1.0, {"critical": mark}, command=command)
        for i, mark in enumerate(marks)
    ]


BOTH, NEITHER, NORM, EIGENVALUE = (True, True), (False, False), (True, False), (False, True)
ACCORDION = {
    **{
        f"A-{task}-{what}": pair
        for task, loss in PUBLISHED_LOSS.items()
        for what, pair in {
            "accuracy": (evidence(line(task)), evidence(line(task, between=90.0))),
            "floats": (evidence(line(task)), evidence(line(task, floats=5.9e9))),
            "high": (evidence(line(task, high=93.0 - loss)), evidence(line(task, high=93.0 - 3 * loss - 1))),
        }.items()
    },
    "A-critical": (
        evidence([*line(VGG), steered(VGG, 90.0, swapped=True)]),
        evidence([*line(VGG), steered(VGG, 94.0, swapped=True)]),
    ),
    "A-batch": (evidence([plain(93.9), grown(93.9, 8)]), evidence([plain(93.9), grown(92.0, 8)])),
    "A-16384": (evidence([plain(93.9), grown(92.3, 32)]), evidence([plain(93.9), grown(93.9, 32)])),
    "A-large-batch": (
        evidence([plain(93.9), plain(92.6, batch=1024)]),
        evidence([plain(93.9), plain(93.9, batch=1024)]),
    ),
    "A-hessian": (evidence(curved(*3 * [BOTH], NEITHER)), evidence(curved(*2 * [NORM, EIGENVALUE], NEITHER))),
    "A-overlap": (evidence([shared(0.95)]), evidence([shared(0.4)])),
    "A-adaqs": (evidence(adaqs("resnet18-cifar10", 90.0)), evidence(adaqs("resnet18-cifar10", 94.0))),
    "A-adaqs-cifar100": (evidence(adaqs("resnet18-cifar100", 90.0)), evidence(adaqs("resnet18-cifar100", 94.0))),
}
PLANTED = {**GRACE, **THROUGHPUT, **ACCORDION}
BY_SHAPES = {
    "T-powersgd-bits",
    "A-volumes",
    "A-schedule",
}  # a test changes the shapes
