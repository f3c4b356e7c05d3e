"""The findings of Beyond Throughput and Compression Ratios, by our trainings and their rounds a second (`mixed`).

Throughput alone is modelled for their testbed (`Evidence.throughput`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gradwire.core.baselines import WIN
from gradwire.laboratory.reproduce import throughput as paper
from gradwire.laboratory.reproduce.finding import Evidence, Finding, Judged, Trained, correlation, judge, left_open
from gradwire.laboratory.reproduce.findings.mixed import FP16, FP32, MIXED, found, seconds, speed_up
from gradwire.laboratory.reproduce.throughput import BERT, POWERSGD, STAND_IN, TOPK, TOPKC, VGG19, Setting
from gradwire.planner.advisor import shipped_accuracy
from gradwire.planner.tta import Group
from gradwire.planner.workload import AFTER, shipped

SATURATED = {s.codec: s for s in paper.THC}
FULL, PARTIAL = (SATURATED[f"thc(bits=4, rotation='{r}', aggregation='saturate')"] for r in ("full", "partial"))
TWO_BITS = SATURATED["thc(bits=2, rotation='partial', aggregation='saturate')"]
EXACT_SUMS = paper.THC[-1]
TIMED = tuple(s for s in paper.SETTINGS if s.rounds_per_second)
SAME_BITS = 0.01  # of published bits an element, for ours to be the same
HALF = 0.6  # of r = 1's throughput that r = 64 may have, to be called nearly half

Check = Callable[[Evidence], Judged]


# -------------------------------------------------------------------- what trainings say


def _both(evidence: Evidence) -> list[tuple[str, Trained]]:
    return [(m, t) for m in (BERT, VGG19) if (t := found(evidence, m)) is not None]


def _files(tasks: Sequence[tuple[str, Trained]]) -> list[str]:
    return [f for _, t in tasks for f in t.files]


def _missing(what: str) -> Judged:
    return left_open(f"{what} on {' or '.join(STAND_IN.values())}, beside FP16")


def _equal(one: Setting, other: Setting, what: str) -> Check:
    """Whether `one` ends as good as `other`, wherever both were trained."""

    def check(evidence: Evidence) -> Judged:
        pairs = [(m, t, t.find(one.codec), t.find(other.codec)) for m, t in _both(evidence)]
        there = [(m, t, a, b) for m, t, a, b in pairs if a is not None and b is not None]
        if not there:
            return _missing(what)
        told = "; ".join(f"{t.name}: {t.quality(a)} against {t.quality(b)}" for _, t, a, b in there)
        holds = all(t.close(a, b) for _, t, a, b in there)
        why = "No worse by more than 0.5 points (2 %) was wanted, in each."
        return judge(holds, told, why, _files([(m, t) for m, t, _, _ in there]))

    return check


def _nmse(ours: Sequence[Setting], others: Sequence[Setting], what: str) -> Check:
    """Whether the error of each is below that of its counterpart."""

    def check(evidence: Evidence) -> Judged:
        told, holds, tasks = [], True, []
        for model, trained in _both(evidence):
            for one, other in zip(ours, others, strict=True):
                pair = [_error(trained.find(s.codec)) for s in (one, other)]
                if pair[0] is not None and pair[1] is not None:
                    told.append(f"{trained.name}, {one.label}: {pair[0]:.3g} against {pair[1]:.3g}")
                    holds = holds and pair[0] < pair[1]
                    tasks.append((model, trained))
        if not told:
            return _missing(what)
        return judge(holds, "; ".join(told), "Less error was wanted in each.", _files(tasks))

    return check


def _error(group: Group | None) -> float | None:
    found = [r.nmse for r in group.runs if r.nmse is not None] if group is not None else []
    return sum(found) / len(found) if found else None


def _sooner(pairs: Sequence[tuple[Setting, Setting]], what: str) -> Check:
    """Whether the first of each pair meets the target sooner than the second, wherever one of them meets it."""

    def check(evidence: Evidence) -> Judged:
        told, holds = [], []
        tasks = _both(evidence)
        for model, trained in tasks:
            for one, other in pairs:
                a, b = seconds(trained, one, model), seconds(trained, other, model)
                if a is not None and b is not None and min(a, b) < math.inf:
                    holds.append(a < b)
                    told.append(f"{trained.name}, {one.label} against {other.label}: {_ratio(b, a)}")
        if not holds:
            return _missing(what)
        why = f"{sum(holds)} of {len(holds)} are sooner at {MIXED}; all were wanted."
        return judge(all(holds), "; ".join(told), why, _files(tasks))

    return check


def _ratio(b: float, a: float) -> str:
    if a == math.inf:
        return "never"
    return "alone" if b == math.inf else f"{b / a:.2f} times as soon"


def _beaten(settings: Sequence[Setting], wanted: Callable[[dict[str, list[str]]], bool], what: str, why: str) -> Check:
    """Who beats FP16 to its final quality, by task; `wanted` judges."""

    def check(evidence: Evidence) -> Judged:
        tasks, winners = _both(evidence), {}
        for model, trained in tasks:
            ratios = {s.label: speed_up(trained, s, model) for s in settings}
            if any(r is not None for r in ratios.values()):
                winners[trained.name] = [f"{name} ({r:.2f})" for name, r in ratios.items() if r is not None and r > 1]
        if not winners:
            return _missing(what)
        told = "; ".join(f"{task}: {', '.join(names) or 'none'}" for task, names in winners.items())
        return judge(wanted(winners), f"sooner than FP16: {told}", why, _files(tasks))

    return check


def _proxy(evidence: Evidence) -> Judged:
    tasks, told, differs = _both(evidence), [], []
    for model, trained in tasks:
        timed = [(s, seconds(trained, s, model)) for s in TIMED if model in s.rounds_per_second]
        there = [(s, t) for s, t in timed if t is not None]
        if len(there) >= 4:
            fastest = max(there, key=lambda pair: pair[0].rounds_per_second[model])[0]
            soonest = min(there, key=lambda pair: pair[1])[0]
            rank = correlation([s.rounds_per_second[model] for s, _ in there], [-t for _, t in there])
            differs.append(fastest is not soonest)
            who = f"most rounds a second {fastest.label}, soonest {soonest.label}"
            told.append(f"{trained.name}: {who}, correlation {rank:+.2f}")
    if not differs:
        return _missing("four settings")
    why = f"The fastest and the soonest should differ in each; {MIXED}."
    return judge(all(differs), "; ".join(told), why, _files(tasks))


def _small_b(evidence: Evidence) -> Judged:
    tasks = [(m, t) for m, t in _both(evidence) if t.find(TOPKC[0].codec) and t.find(TOPKC[2].codec)]
    if not tasks:
        return _missing("TopKC with b = 0.5 and b = 8")
    told, holds = [], []
    for _, trained in tasks:
        little, much = trained.find(TOPKC[0].codec), trained.find(TOPKC[2].codec)
        assert little is not None, "looked up above"
        assert much is not None, "looked up above"
        gain = trained.gain(little, much)
        holds.append(gain < 0)
        told.append(f"{trained.name}: {trained.told(gain)}")
    return judge(all(holds), "; ".join(told), "b = 0.5 should end worse than b = 8.", _files(tasks))


def _ranks(evidence: Evidence) -> Judged:
    """Higher ranks: better quality, and sooner to what rank 1 reaches."""
    trained = found(evidence, VGG19)
    small = trained.find(POWERSGD[0].codec) if trained is not None else None
    large = [g for s in POWERSGD[2:] if trained is not None and (g := trained.find(s.codec)) is not None]
    if trained is None or small is None or not large:
        return _missing("PowerSGD with r = 1 and with 16 or 64")
    told = "; ".join(f"{g.first.codec}: {trained.told(trained.gain(g, small))}" for g in large)
    holds = all(trained.gain(g, small) > 0 for g in large)
    return judge(
        holds, f"{trained.name}, against r = 1: {told}", "Better than r = 1 was wanted of each.", trained.files
    )


def _modest(evidence: Evidence) -> Judged:
    tasks, told, holds = _both(evidence), [], []
    for model, trained in tasks:
        over = [[speed_up(trained, s, model, base) for s in POWERSGD] for base in (FP32, FP16)]
        best = [max((r for r in ratios if r is not None), default=None) for ratios in over]
        if best[0] is not None and best[1] is not None:
            holds.append(best[0] >= WIN and 1 <= best[1] < best[0])
            told.append(f"{trained.name}: {best[0]:.2f} times as soon as FP32, {best[1]:.2f} as FP16")
    if not holds:
        return _missing("PowerSGD beside FP32")
    why = f"At least {WIN} over FP32, and less but not below 1 over FP16, were wanted; {MIXED}."
    return judge(all(holds), "; ".join(told), why, _files(tasks))


# -------------------------------------------------------------------- what the model says


def _modelled(pairs: Sequence[tuple[Setting, Setting]], least: float, sure: bool, what: str) -> Check:
    """Whether the first of each pair has `least` times the rounds a second of the second, on both of their models."""

    def check(evidence: Evidence) -> Judged:
        told, ratios, known = [], list[float](), True
        for model in (BERT, VGG19):
            for one, other in pairs:
                a, b = evidence.throughput(model, one), evidence.throughput(model, other)
                if a is not None and b is not None:
                    known = known and a[1] and b[1]
                    ratios.append(a[0] / b[0] / least)
                    theirs = one.rounds_per_second[model] / other.rounds_per_second[model]
                    told.append(f"{model}, {one.label} over {other.label}: {a[0] / b[0]:.2f} (theirs {theirs:.2f})")
        if not ratios:
            return left_open(f"a model of {what}")
        if sure and not known:
            return left_open(f"times of {what} on a GPU: the profile infers them", "; ".join(told))
        off = shipped_accuracy()["codecs"]["median"]
        if all(r > 1 - off for r in ratios) and any(r < 1 + off for r in ratios):
            near = f"a model that is nearer than {100 * off:.1f} % in the median: a ratio is that near to {least:g}"
            return left_open(near, "; ".join(told))
        why = f"At least {least:g} was wanted in each; modelled for their testbed."
        return judge(min(ratios) >= 1, "; ".join(told), why)

    return check


def _halves(evidence: Evidence) -> Judged:
    told, holds, known = [], [], True
    for model in (BERT, VGG19):
        pair = [evidence.throughput(model, s) for s in (POWERSGD[3], POWERSGD[0])]
        if pair[0] is not None and pair[1] is not None:
            known = known and pair[0][1] and pair[1][1]
            holds.append(pair[0][0] / pair[1][0] <= HALF)
            theirs = POWERSGD[3].rounds_per_second[model] / POWERSGD[0].rounds_per_second[model]
            told.append(f"{model}: {pair[0][0] / pair[1][0]:.2f} (theirs {theirs:.2f})")
    if not holds or not known:
        return left_open(
            "times of PowerSGD with r = 1 and 64 on a GPU: the profile infers them", "; ".join(told) or "-"
        )
    return judge(all(holds), "; ".join(told), f"At most {HALF:g} of r = 1's throughput was wanted; modelled.")


def bits(model: str, codec: str) -> float | None:
    """Bits an element that a worker hands over, from the shipped traces; None: not among them."""
    if not shipped().has(model, codec, "auto"):
        return None
    workload = shipped().workload(model, codec, "auto", AFTER, 4)
    return 8 * sum(e.num_bytes for u in workload.units for e in u.exchanges) / workload.elements


def _bits(evidence: Evidence) -> Judged:
    told, holds = [], []
    for name, (model, _) in paper.MODELS.items():
        for setting in POWERSGD:
            ours = bits(model, setting.codec)
            if ours is not None:
                holds.append(abs(ours / setting.bits[name] - 1) <= SAME_BITS)
                told.append(f"{name}, {setting.label}: {ours:.4f} (theirs {setting.bits[name]:g})")
    return judge(all(holds), "; ".join(told), f"Within {SAME_BITS:.0%} was wanted; from shapes, factors in FP32.")


# -------------------------------------------------------------------- the list


def _finding(id: str, where: str, says: str, rule: str, check: Check) -> Finding:
    return Finding(id=f"T-{id}", says=says, where=f"Han et al., 2024, {where}", rule=rule, check=check)


def _only_topkc8(winners: dict[str, list[str]]) -> bool:
    return all([n.partition(" (")[0] for n in names] == [TOPKC[2].label] for names in winners.values())


FINDINGS = (
    _finding(
        "proxy", "sections 2.2, 3.1.3, 3.2.3 and 3.3", "Throughput does not tell time to accuracy.",
        "the setting of most rounds a second is not the one that meets FP16's final quality first", _proxy,
    ),
    _finding(
        "fp16-throughput", "table 1", "Rounds are faster with FP16 gradients than with FP32, by more than a third.",
        f"modelled ratio of at least {WIN}",
        _modelled([(FP16, FP32)], WIN, False, "FP16 and FP32"),
    ),
    _finding(
        "fp16-quality", "section 2.2, figure 1", "FP16 gradients cost hardly any accuracy.",
        "FP16 no worse than FP32 by more than 0.5 points (2 %)", _equal(FP16, FP32, "FP32"),
    ),
    _finding(
        "fp16-tta", "section 2.2", "So FP16 is the baseline to beat: it is there sooner than FP32.",
        "sooner to FP16's final quality", _sooner([(FP16, FP32)], "FP32"),
    ),
    _finding(
        "locality", "table 2", "Large coordinates lie together: permuted ones cost TopKC more error.",
        "less NMSE without permutation, for b = 0.5, 2 and 8",
        _nmse(TOPKC, paper.PERMUTED, "TopKC with permuted coordinates"),
    ),
    _finding(
        "topkc-nmse", "table 5", "At the same b TopKC has less error than Top-k.",
        "less NMSE for b = 0.5, 2 and 8", _nmse(TOPKC, TOPK, "TopKC and Top-k"),
    ),
    _finding(
        "topkc-throughput", "table 3", "At the same b TopKC has more throughput than Top-k, up to twice as much.",
        "modelled ratio of at least 1 for b = 0.5, 2 and 8 and both models",
        _modelled(list(zip(TOPKC, TOPK, strict=True)), 1.0, False, "TopKC and Top-k"),
    ),
    _finding(
        "topkc-tta", "figure 1", "TopKC is sooner at the final accuracy than Top-k.",
        "sooner for b = 0.5, 2 and 8 wherever one of them gets there",
        _sooner(list(zip(TOPKC, TOPK, strict=True)), "TopKC and Top-k"),
    ),
    _finding(
        "topkc-fp16", "figure 1", "Of TopKC and Top-k, TopKC with b = 8 alone beats FP16 to the final accuracy.",
        "it and no other is sooner than FP16",
        _beaten([*TOPK, *TOPKC], _only_topkc8, "TopKC and Top-k", f"TopKC with b = 8 alone was wanted; {MIXED}."),
    ),
    _finding(
        "topk-fp16", "figure 1", "Top-k beats FP16 in neither task.", "no b is sooner than FP16",
        _beaten(TOPK, lambda w: not any(w.values()), "Top-k", f"None was wanted; {MIXED}."),
    ),
    _finding(
        "small-b", "section 3.1.3", "Less b is more throughput, but more error and a worse end.",
        "TopKC ends worse with b = 0.5 than with b = 8", _small_b,
    ),
    _finding(
        "overhead", "table 4", "Selecting and moving coordinates is about a tenth of a step of Top-k.",
        "-", lambda evidence: left_open("a profile that tells selection from the rest of encoding"),
    ),
    _finding(
        "saturation-throughput", "table 6", "Saturation halves the bytes of THC and brings up to 29.6 % throughput.",
        f"modelled ratio of at least {WIN}, by measured costs of both",
        _modelled([(FULL, EXACT_SUMS)], WIN, True, "THC with saturation and with exact sums"),
    ),
    _finding(
        "partial-throughput", "table 6", "Rotating in parts brings up to 5.5 % throughput.",
        "modelled ratio above 1, by measured costs of both rotations",
        _modelled([(PARTIAL, FULL)], 1.0, True, "THC's rotations"),
    ),
    _finding(
        "saturation-quality", "section 3.2.3, figure 2", "Saturation costs little accuracy.",
        "with 4 bits and full rotation, no worse than exact sums by more than 0.5 points (2 %)",
        _equal(FULL, EXACT_SUMS, "THC with saturation and with exact sums"),
    ),
    _finding(
        "partial-quality", "section 3.2.3, figure 2", "Rotating in parts costs little accuracy.",
        "with 4 bits and saturation, no worse than full rotation by more than 0.5 points (2 %)",
        _equal(PARTIAL, FULL, "THC with partial and full rotation"),
    ),
    _finding(
        "thc-tta", "figure 2", "Saturation is sooner there than exact sums, and partial rotation sooner still.",
        "both pairs in that order", _sooner([(FULL, EXACT_SUMS), (PARTIAL, FULL)], "THC's variants"),
    ),
    _finding(
        "two-bits", "section 3.2.3, figure 2", "With b = q = 2 the time to accuracy on BERT is worse than FP16's.",
        "later than FP16 on the stand-in of BERT, or never",
        lambda evidence: _two_bits(evidence),
    ),
    _finding(
        "powersgd-bits", "table 7", "Bits an element of PowerSGD by rank.",
        f"ours from shapes within {SAME_BITS:.0%}", _bits,
    ),
    _finding(
        "powersgd-throughput", "section 3.3, table 7", "From r = 1 to 64 throughput falls to nearly half.",
        f"modelled, at most {HALF:g} of it, by measured costs of both", _halves,
    ),
    _finding(
        "powersgd-quality", "section 3.3, figure 3",
        "r = 16 and 64 are more accurate than r = 1, with less throughput.",
        "better best quality than r = 1 on the stand-in of VGG19", _ranks,
    ),
    _finding(
        "powersgd-fp16", "section 3.3, figure 3", "The right r is far sooner than FP32, but only a little than FP16.",
        f"at least {WIN} times as soon as FP32, and less, but not below 1, for FP16", _modest,
    ),
)  # fmt: skip


def _two_bits(evidence: Evidence) -> Judged:
    trained = found(evidence, BERT)
    ratio = speed_up(trained, TWO_BITS, BERT) if trained is not None else None
    if trained is None or ratio is None:
        return left_open(f"THC with b = q = 2 on {STAND_IN[BERT]}, beside FP16")
    told = f"{trained.name}: " + ("never there" if ratio == 0 else f"{ratio:.2f} times as soon as FP16")
    return judge(ratio < 1, told, f"Below 1 was wanted; {MIXED}.", trained.files)
