"""The claims of Beyond Throughput and Compression Ratios, by our trainings and their rounds a second (`mixed`).

Our trainings stand in for theirs, so they reproduce a claim or do not, and contradict none. What only the model of
their testbed can tell is in `throughput_model`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gradwire.core.baselines import WIN
from gradwire.laboratory.reproduce import throughput as paper
from gradwire.laboratory.reproduce.claim import Basis, Claim, Judged, Sure, all_of, at_least, judge, left_open
from gradwire.laboratory.reproduce.claims import throughput_model as model
from gradwire.laboratory.reproduce.claims.mixed import FP16, FP32, MIXED, found, noise, seconds, speed_up
from gradwire.laboratory.reproduce.evidence import STRONG, Evidence, Trained, strong
from gradwire.laboratory.reproduce.throughput import BERT, POWERSGD, STAND_IN, TOPK, TOPKC, VGG19, Setting
from gradwire.planner.seeds import Group
from gradwire.planner.tta import ALLOWED

FULL, PARTIAL, UNROTATED, TWO_BITS, EXACT_SUMS = model.FULL, model.PARTIAL, model.UNROTATED, paper.THC[1], paper.THC[-1]
TIMED = tuple(s for s in paper.SETTINGS if s.rounds_per_second)
STANDS_IN = "small networks stand in for theirs"

Check = Callable[[Evidence], Judged]


def _both(evidence: Evidence) -> list[tuple[str, Trained]]:
    return [(m, t) for m in (BERT, VGG19) if (t := found(evidence, m)) is not None]


def _files(tasks: Sequence[tuple[str, Trained]]) -> list[str]:
    return [f for _, t in tasks for f in t.files]


def _missing(what: str) -> Judged:
    return left_open(f"{what} on {' or '.join(STAND_IN.values())}, beside FP16")


def _equal(one: Setting, other: Setting, what: str, beside: str = "") -> Check:
    """Whether `one` ends as good as `other`, wherever both were trained; `beside`: what else differs between them."""

    def check(evidence: Evidence) -> Judged:
        pairs = [(m, t, t.find(one.codec), t.find(other.codec)) for m, t in _both(evidence)]
        there = [(m, t, a, b) for m, t, a, b in pairs if a is not None and b is not None]
        if not there:
            return _missing(what)
        told = "; ".join(f"{t.name}: {t.quality(a)} against {t.quality(b)}" for _, t, a, b in there)
        holds = all_of(t.close(a, b) for _, t, a, b in there)
        why = f"No worse by more than {ALLOWED} was wanted, in each."
        files = _files([(m, t) for m, t, _, _ in there])
        return judge(holds, told, why, files, differs=f"{STANDS_IN}{beside}")

    return check


def _nmse(ours: Sequence[Setting], others: Sequence[Setting], what: str) -> Check:
    """Whether the error of each is below that of its counterpart."""

    def check(evidence: Evidence) -> Judged:
        told, holds, tasks = [], True, []
        for name, trained in _both(evidence):
            for one, other in zip(ours, others, strict=True):
                pair = [_error(trained.find(s.codec)) for s in (one, other)]
                if pair[0] is not None and pair[1] is not None:
                    told.append(f"{trained.name}, {one.label}: {pair[0]:.3g} against {pair[1]:.3g}")
                    holds = holds and pair[0] < pair[1]
                    tasks.append((name, trained))
        if not told:
            return _missing(what)
        return judge(holds, "; ".join(told), "Less error was wanted in each.", _files(tasks), differs=STANDS_IN)

    return check


def _error(group: Group | None) -> float | None:
    known = [r.nmse for r in group.runs if r.nmse is not None] if group is not None else []
    return sum(known) / len(known) if known else None


def _sooner(pairs: Sequence[tuple[Setting, Setting]], what: str) -> Check:
    """Whether the first of each pair meets the target sooner than the second, wherever one of them meets it."""

    def check(evidence: Evidence) -> Judged:
        told, answers = [], []
        tasks = _both(evidence)
        for name, trained in tasks:
            for one, other in pairs:
                a, b = seconds(trained, one, name), seconds(trained, other, name)
                if a is not None and b is not None and min(a, b) < math.inf:
                    answers.append(_faster(b, a, noise(trained)))
                    told.append(f"{trained.name}, {one.label} against {other.label}: {_ratio(b, a)}")
        if not answers:
            return _missing(what)
        why = f"All should be sooner, at {MIXED}, by more than rounds differ between seeds."
        return judge(all_of(answers), "; ".join(told), why, _files(tasks), differs=STANDS_IN)

    return check


def _faster(b: float, a: float, off: float) -> Sure:
    """Whether `a` seconds are less than `b`, by more than a share."""
    if math.inf in (a, b):
        return a < b
    return at_least(b / a, 1.0, off * b / a)


def _ratio(b: float, a: float) -> str:
    if a == math.inf:
        return "never"
    return "alone" if b == math.inf else f"{b / a:.2f} times as soon"


def _beaten(settings: Sequence[Setting], winners: Sequence[Setting], what: str, why: str) -> Check:
    """Whether just the `winners` among the settings beat FP16 to its final quality, in each task."""

    def check(evidence: Evidence) -> Judged:
        tasks, told, answers = _both(evidence), [], list[Sure]()
        for name, trained in tasks:
            ratios = {s: r for s in settings if (r := speed_up(trained, s, name)) is not None}
            for setting, ratio in ratios.items():
                won = at_least(ratio, 1.0, noise(trained) * ratio)
                answers.append(None if won is None else won is (setting in winners))
            sooner = [f"{s.label} ({r:.2f})" for s, r in ratios.items() if r > 1]
            told += [f"{trained.name}: {', '.join(sooner) or 'none'}"] if ratios else []
        if not answers:
            return _missing(what)
        why_told = f"{why} was wanted; {MIXED}."
        return judge(
            all_of(answers), f"sooner than FP16: {'; '.join(told)}", why_told, _files(tasks), differs=STANDS_IN
        )

    return check


def _proxy(evidence: Evidence) -> Judged:
    """Rounds a second against the time to FP16's quality, where never is the longest time."""
    tasks, told, answers = _both(evidence), [], list[Sure]()
    for name, trained in tasks:
        timed = [(s, seconds(trained, s, name)) for s in TIMED if name in s.rounds_per_second]
        there = [(s.rounds_per_second[name], -t) for s, t in timed if t is not None]
        if len(there) >= 4:
            rank, is_strong = strong(*zip(*there, strict=True), either_sign=False)
            answers.append(None if is_strong is None else not is_strong)
            told.append(f"{trained.name}: rank correlation {rank:+.2f} over {len(there)} settings")
    if not answers:
        return _missing("four settings")
    why = f"Below {STRONG:g} with its interval was wanted, in each; {MIXED}."
    return judge(all_of(answers), "; ".join(told), why, _files(tasks), differs=STANDS_IN)


def _better(ones: Sequence[Setting], than: Setting, models: Sequence[str], what: str) -> Check:
    """Whether each ends better than a setting, by more than seeds."""

    def check(evidence: Evidence) -> Judged:
        told, answers, tasks = [], list[Sure](), []
        for name, trained in _both(evidence):
            other = trained.find(than.codec)
            groups = [g for s in ones if (g := trained.find(s.codec)) is not None]
            if other is not None and name in models:
                answers += [trained.better(g, other) for g in groups]
                told += [f"{trained.name}, {g.first.codec}: {trained.told(trained.gain(g, other))}" for g in groups]
                tasks.append((name, trained))
        if not answers:
            return _missing(what)
        why = f"Better than with {than.label} was wanted of each."
        return judge(all_of(answers), "; ".join(told), why, _files(tasks), differs=STANDS_IN)

    return check


def _modest(evidence: Evidence) -> Judged:
    tasks, told, answers = _both(evidence), [], list[Sure]()
    for name, trained in tasks:
        over = [[speed_up(trained, s, name, reference) for s in POWERSGD] for reference in (FP32, FP16)]
        best = [max((r for r in ratios if r is not None), default=None) for ratios in over]
        if best[0] is not None and best[1] is not None:
            off = noise(trained)
            answers += [at_least(best[0], WIN, off * best[0]), at_least(best[1], 1.0, off * best[1]), best[1] < best[0]]
            told.append(f"{trained.name}: {best[0]:.2f} times as soon as FP32, {best[1]:.2f} as FP16")
    if not answers:
        return _missing("PowerSGD beside FP32")
    why = f"At least {WIN} over FP32, and less but not below 1 over FP16, were wanted; {MIXED}."
    return judge(all_of(answers), "; ".join(told), why, _files(tasks), differs=STANDS_IN)


def _two_bits(evidence: Evidence) -> Judged:
    trained = found(evidence, BERT)
    ratio = speed_up(trained, TWO_BITS, BERT) if trained is not None else None
    if trained is None or ratio is None:
        return left_open(f"THC with b = q = 2 on {STAND_IN[BERT]}, beside FP16")
    told = f"{trained.name}: " + ("never there" if ratio == 0 else f"{ratio:.2f} times as soon as FP16")
    sooner = at_least(ratio, 1.0, noise(trained) * ratio)
    holds = None if sooner is None else not sooner
    return judge(holds, told, f"Below 1 was wanted; {MIXED}.", trained.files, differs=STANDS_IN)


def _claim(id: str, where: str, says: str, rule: str, check: Check, basis: Basis = Basis.TESTED) -> Claim:
    return Claim(id=f"T-{id}", says=says, where=where, rule=rule, check=check, basis=basis)


CLAIMS = (
    _claim(
        "proxy", "sections 2.2, 3.1.3, 3.2.3 and 3.3", "Throughput does not tell time to accuracy.",
        f"their rank correlation over all settings is below {STRONG:g}, with its interval", _proxy,
    ),
    _claim(
        "fp16-throughput", "table 1", "Rounds are faster with FP16 gradients than with FP32, by more than a third.",
        f"modelled ratio of at least {WIN}", model.ratio([(FP16, FP32)], WIN, False, "FP16 and FP32"),
    ),
    _claim(
        "fp16-quality", "section 2.2, figure 1", "FP16 gradients cost hardly any accuracy.",
        f"FP16 no worse than FP32 by more than {ALLOWED}", _equal(FP16, FP32, "FP32"),
    ),
    _claim(
        "fp16-tta", "section 2.2", "So FP16 is the baseline to beat: it is there sooner than FP32.",
        "sooner to FP16's final quality", _sooner([(FP16, FP32)], "FP32"),
    ),
    _claim(
        "locality", "table 2", "Large coordinates lie together: permuted ones cost TopKC more error.",
        "less NMSE without permutation, for b = 0.5, 2 and 8",
        _nmse(TOPKC, paper.PERMUTED, "TopKC with permuted coordinates"),
    ),
    _claim(
        "topkc-nmse", "table 5", "At the same b TopKC has less error than Top-k.",
        "less NMSE for b = 0.5, 2 and 8", _nmse(TOPKC, TOPK, "TopKC and Top-k"),
    ),
    _claim(
        "topkc-throughput", "table 3", "At the same b TopKC has more throughput than Top-k, up to twice as much.",
        "modelled ratio of at least 1 for b = 0.5, 2 and 8 and both models",
        model.ratio(list(zip(TOPKC, TOPK, strict=True)), 1.0, False, "TopKC and Top-k"),
    ),
    _claim(
        "topkc-tta", "figure 1", "TopKC is sooner at the final accuracy than Top-k.",
        "sooner for b = 0.5, 2 and 8 wherever one of them gets there",
        _sooner(list(zip(TOPKC, TOPK, strict=True)), "TopKC and Top-k"),
    ),
    _claim(
        "topkc-fp16", "figure 1", "Of TopKC and Top-k, TopKC with b = 8 alone beats FP16 to the final accuracy.",
        "it and no other is sooner than FP16",
        _beaten([*TOPK, *TOPKC], [TOPKC[2]], "TopKC and Top-k", "TopKC with b = 8 alone"),
    ),
    _claim(
        "topk-fp16", "figure 1", "Top-k beats FP16 in neither task.", "no b is sooner than FP16",
        _beaten(TOPK, [], "Top-k", "None"),
    ),
    _claim(
        "small-b", "section 3.1.3", "Less b is more throughput, but more error and a worse end.",
        "TopKC ends better with b = 8 than with b = 0.5",
        _better([TOPKC[2]], TOPKC[0], (BERT, VGG19), "TopKC with b = 0.5 and b = 8"),
    ),
    _claim(
        "overhead", "table 4", "Selecting and moving coordinates is about a tenth of a step of Top-k.",
        "the whole codec on a GPU takes their share of their step, to a factor of 2, for each b", model.selection,
    ),
    _claim(
        "saturation-throughput", "table 6", "Saturation halves the bytes of THC and brings up to 29.6 % throughput.",
        f"modelled ratio of at least {WIN}, by measured costs of both",
        model.ratio([(FULL, EXACT_SUMS)], WIN, True, "THC with saturation and with exact sums"),
    ),
    _claim(
        "partial-throughput", "table 6", "Rotating in parts brings up to 5.5 % throughput.",
        "modelled ratio above 1, by measured costs of both rotations",
        model.ratio([(PARTIAL, FULL)], 1.0, True, "THC's rotations"),
    ),
    _claim(
        "rotation-share", "section 3.2.1, table 6",
        "The rotation costs 4.4 % of BERT's throughput and 13.2 % of VGG19's.",
        "modelled loss within a factor of 2 of these, by measured costs of both", model.rotation,
    ),
    _claim(
        "saturation-quality", "section 3.2.3, figure 2", "Saturation costs little accuracy.",
        f"with 4 bits and full rotation, no worse than exact sums by more than {ALLOWED}",
        _equal(FULL, EXACT_SUMS, "THC with saturation and with exact sums", ", and exact sums keep a memory"),
    ),
    _claim(
        "partial-quality", "section 3.2.3, figure 2", "Rotating in parts costs little accuracy.",
        f"with 4 bits and saturation, no worse than full rotation by more than {ALLOWED}",
        _equal(PARTIAL, FULL, "THC with partial and full rotation"),
    ),
    _claim(
        "thc-tta", "figure 2", "Saturation is sooner there than exact sums, and partial rotation sooner still.",
        "both pairs in that order", _sooner([(FULL, EXACT_SUMS), (PARTIAL, FULL)], "THC's variants"),
    ),
    _claim(
        "two-bits", "section 3.2.3, figure 2", "With b = q = 2 the time to accuracy on BERT is worse than FP16's.",
        "later than FP16 on the stand-in of BERT, or never", _two_bits,
    ),
    _claim(
        "powersgd-bits", "table 7", "Bits an element of PowerSGD by rank.",
        f"ours from shapes within {model.SAME_BITS:.0%}", model.bits_of_powersgd,
    ),
    _claim(
        "powersgd-throughput", "section 3.3, table 7", "From r = 1 to 64 throughput falls to nearly half.",
        f"modelled, at most {model.HALF:g} of it, by measured costs of both", model.halves,
    ),
    _claim(
        "orthogonalization", "section 3.3",
        "Orthogonalisation takes 39.7 % (BERT) and 47.4 % (VGG19) of a step at r = 64.",
        "the whole codec on a GPU takes their share of their step, to a factor of 2", model.orthogonalization,
    ),
    _claim(
        "powersgd-quality", "section 3.3, figure 3",
        "r = 16 and 64 are more accurate than r = 1, with less throughput.",
        "better best quality than r = 1 on the stand-in of VGG19",
        _better(POWERSGD[2:], POWERSGD[0], (VGG19,), "PowerSGD with r = 1 and with 16 or 64"),
    ),
    _claim(
        "powersgd-fp16", "section 3.3, figure 3", "The right r is far sooner than FP32, but only a little than FP16.",
        f"at least {WIN} times as soon as FP32, and less, but not below 1, for FP16", _modest,
    ),
)  # fmt: skip
