"""GRACE's findings about quality, error feedback and volume, by our trainings; and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gradwire.core.baselines import WIN
from gradwire.laboratory.reproduce import grace
from gradwire.laboratory.reproduce.finding import Evidence, Finding, Judged, Trained, judge, left_open
from gradwire.laboratory.reproduce.findings import grace_speed as speed
from gradwire.laboratory.reproduce.findings.grace_speed import FEW
from gradwire.planner.quality import seed_noise
from gradwire.planner.tta import Group

SEEDS = 2  # of codec and baseline, to tell a small difference from chance
NEAR = 0.5  # points within which a baseline counts as reproduced
LARGE_LOSS = 1.0  # points on NCF that count as a trade-off
BALLPARK = 1.0  # points between degrees of compression of one codec
HEAVY = 1.0  # bits an element below which compression is heavy
SPARSE = ("topk", "threshold", "dgc", "randomk", "mstopk", "gtopk", "topkc", "globaltopk", "sketchedsgd", "randomblock")

Check = Callable[[Evidence], Judged]


# -------------------------------------------------------------------- quality


def _of_task(check: Callable[[Trained], Judged]) -> Check:
    def asked(evidence: Evidence) -> Judged:
        trained = evidence.task(grace.TASK)
        return left_open(f"trainings of {grace.TASK}") if trained is None else check(trained)

    return asked


def _baseline(trained: Trained) -> Judged:
    group = trained.fp32 or trained.fp16
    if group is None:
        return left_open(f"{grace.TASK} without compression", files=trained.files)
    holds = group.best >= grace.BASELINE - NEAR
    told = trained.quality(group)
    what = "reaches" if holds else "stays below"
    return judge(holds, told, f"Our baseline {what} {grace.BASELINE} % less {NEAR:g} points.", trained.files)


def _comparable(evidence: Evidence) -> Judged:
    near = total = 0
    files: list[str] = []
    for trained in evidence.tasks.values():
        if trained.baseline is not None and trained.codecs:
            near += sum(trained.close(g, trained.baseline) for g in trained.codecs)
            total += len(trained.codecs)
            files += trained.files
    if not total:
        return left_open("trainings with codecs beside FP16")
    told = f"{near} of {total} codecs and tasks are within what counts as equal to the baseline"
    return judge(near > total / 2, told, f"That is {'more' if near > total / 2 else 'not more'} than half.", files)


def _above(evidence: Evidence) -> Judged:
    found, asked, once = [], [], []
    for trained in evidence.tasks.values():
        base = trained.baseline
        if base is None or len(base.bests()) < SEEDS:
            continue
        sign = 1 if trained.higher else -1
        top = max(sign * b for b in base.bests())
        several = [g for g in trained.codecs if len(g.bests()) >= SEEDS]
        asked += [trained] if several else []
        found += [(trained, g, base) for g in several if min(sign * b for b in g.bests()) > top]
        once += [g.name for g in trained.codecs if g not in several and max(sign * b for b in g.bests()) > top]
    if not asked:
        return left_open(f"trainings with codecs beside FP16, {SEEDS} seeds each: one alone is chance")
    files = [f for t in asked for f in t.files]
    if not found and once:
        told = f"no codec of several seeds; with one seed {', '.join(once)}"
        return left_open("a second seed of these, which one seed has above FP16", told, files)
    if not found:
        return judge(False, "no codec", "No codec is above the baseline with all its seeds.", files)
    trained, best, base = max(found, key=lambda f: f[0].gain(f[1], f[2]))
    told = (
        f"{len(found)} codecs and tasks; most: {best.name} on {trained.name}, {trained.told(trained.gain(best, base))}"
    )
    return judge(True, told, "Some are above every seed of the baseline.", files)


def _benchmarks(evidence: Evidence) -> list[Trained]:
    return [t for t in evidence.tasks.values() if t.baseline is not None and len(t.codecs) >= FEW]


def _no_winner(evidence: Evidence) -> Judged:
    found = _benchmarks(evidence)
    if len(found) < 2:
        return left_open(f"two tasks with at least {FEW} codecs each; there are {len(found)}")
    winners = {t.name: max(t.codecs, key=lambda g, t=t: t.gain(g, t.baseline)).first.codec for t in found}  # type: ignore[misc]
    told = "; ".join(f"{task}: {codec}" for task, codec in winners.items())
    holds = len(set(winners.values())) > 1
    why = "The codec of the best quality differs between tasks." if holds else "One codec has the best quality in all."
    return judge(holds, told, why, [f for t in found for f in t.files])


def _everywhere_good(evidence: Evidence) -> Judged:
    found = _benchmarks(evidence)
    if len(found) < 2:
        return left_open(f"two tasks with at least {FEW} codecs each; there are {len(found)}")
    good = [{g.first.codec for g in t.codecs if t.close(g, t.baseline)} for t in found]  # type: ignore[arg-type]
    shared = set.intersection(*({g.first.codec for g in t.codecs} for t in found))
    steady = sorted(set.intersection(*good))
    told = f"{len(steady)} of {len(shared)} codecs that ran everywhere: {', '.join(steady) or 'none'}"
    why = "Some codec equals the baseline in every task." if steady else "No codec equals the baseline in every task."
    return judge(not steady, told, why, [f for t in found for f in t.files])


def _trade_off(evidence: Evidence) -> Judged:
    trained = evidence.of_model("ncf")
    if trained is None or trained.baseline is None or not trained.codecs:
        return left_open("trainings of NCF with codecs")
    base = trained.baseline
    worst = min(trained.codecs, key=lambda g: trained.gain(g, base))
    loss = -trained.gain(worst, base)
    told = f"largest loss {loss:.2f} points, with {worst.name}; baseline {trained.quality(base)}"
    holds = loss >= LARGE_LOSS
    why = f"The largest loss is {'at least' if holds else 'less than'} {LARGE_LOSS:g} point."
    return judge(holds, told, why, trained.files)


def _degrees(trained: Trained) -> dict[str, list[Group]]:
    """Codecs that were run with more than one degree of compression, the heaviest first."""
    found: dict[str, list[Group]] = {}
    for group in trained.codecs:
        if group.first.bits_per_element is not None:
            found.setdefault(group.first.codec.partition("(")[0], []).append(group)
    order = {n: sorted(gs, key=lambda g: g.first.bits_per_element or 0.0) for n, gs in found.items()}
    return {n: gs for n, gs in order.items() if len(gs) > 1}


def _heavier_is_worse(evidence: Evidence) -> Judged:
    trained = evidence.of_model("ncf")
    degrees = _degrees(trained) if trained is not None else {}
    if trained is None or not degrees:
        return left_open("trainings of NCF with one codec at several degrees of compression")
    falls = {n: trained.gain(gs[-1], gs[0]) for n, gs in degrees.items()}
    told = "; ".join(f"{n}: {trained.told(f)} from {len(degrees[n])} degrees" for n, f in falls.items())
    holds = all(f > 0 for f in falls.values())
    return judge(holds, told, "Lightest against heaviest degree of each codec.", trained.files)


def _ballpark(trained: Trained) -> Judged:
    degrees = {n: gs for n, gs in _degrees(trained).items() if n in ("qsgd", "topk")}
    if not degrees:
        return left_open(f"{grace.TASK} with QSGD or Top-k at several degrees of compression", files=trained.files)
    ranges = {n: max(g.best for g in gs) - min(g.best for g in gs) for n, gs in degrees.items()}
    told = "; ".join(f"{n}: {len(degrees[n])} degrees within {r:.2f} points" for n, r in ranges.items())
    holds = max(ranges.values()) <= BALLPARK
    return judge(holds, told, f"{'At most' if holds else 'More than'} {BALLPARK:g} point apart.", trained.files)


# -------------------------------------------------------------------- error feedback


def _effects(trained: Trained, names: Iterable[str]) -> dict[str, float]:
    """How much better each codec is with error feedback than without, where both were trained."""
    found = {}
    for group in trained.codecs:
        codec = group.first.codec
        with_it, without = trained.find(codec, memory=True), trained.find(codec, memory=False)
        if with_it is not None and without is not None and codec.partition("(")[0] in names:
            found[codec] = trained.gain(with_it, without)
    return found


def _told(trained: Trained, effects: dict[str, float]) -> str:
    return f"{trained.name}: " + ", ".join(f"{n} {trained.told(e)}" for n, e in effects.items())


def _helps(names: Sequence[str], what: str, better: bool, listed: bool = False) -> Check:
    """Whether error feedback helps (or harms) the most of them, on every task but NCF, by more than seeds do.

    Where the claim has `listed` them, half at least must have been tried.
    """

    def check(evidence: Evidence) -> Judged:
        ncf = evidence.of_model("ncf")
        tasks = [t for t in evidence.tasks.values() if t is not ncf]
        found = {t.name: (t, e) for t in tasks if (e := _effects(t, names))}
        effects = [(e, seed_noise() if t.unit == "%" else 0.0) for t, es in found.values() for e in es.values()]
        if not effects:
            return left_open(f"{what} both with error feedback and without")
        many, opposite = (sum((e if way else -e) > noise for e, noise in effects) for way in (better, not better))
        told = "; ".join(_told(t, es) for t, es in found.values())
        files = [f for t, _ in found.values() for f in t.files]
        tried = {codec.partition("(")[0] for _, es in found.values() for codec in es}
        if listed and 2 * len(tried) < len(names):
            return left_open(f"more than {len(tried)} of {len(names)} of them both ways", told, files)
        if many <= len(effects) / 2 < len(effects) - opposite:
            alike = len(effects) - many - opposite
            return left_open(f"more seeds: {alike} of {len(effects)} differ by no more than seeds do", told, files)
        verb = "improves" if better else "harms"
        why = f"Error feedback {verb} {many} of {len(effects)} by more than seeds do; more than half were wanted."
        return judge(many > len(effects) / 2, told, why, files)

    return check


def _only_ncf(evidence: Evidence) -> Judged:
    ncf = evidence.of_model("ncf")
    effects = _effects(ncf, grace.HURT_ON_NCF) if ncf is not None else {}
    others = {t.name: (t, e) for t in evidence.tasks.values() if t is not ncf and (e := _effects(t, grace.HURT_ON_NCF))}
    if ncf is None or not effects or not others:
        return left_open("Top-k, 8-bit and Natural with and without error feedback, on NCF and on another task")
    hurt = all(e < 0 for e in effects.values())
    elsewhere = [f"{n} on {t.name}" for t, es in others.values() for n, e in es.items() if e < 0]
    told = "; ".join([_told(ncf, effects), *(_told(t, es) for t, es in others.values())])
    why = f"{'Worse' if hurt else 'Not all worse'} on NCF; worse elsewhere: {', '.join(elsewhere) or 'none'}."
    return judge(hurt and not elsewhere, told, why, [*ncf.files, *(f for t, _ in others.values() for f in t.files)])


# -------------------------------------------------------------------- volume


def _volume(evidence: Evidence) -> Judged:
    """More is not always better, and little is worse."""
    found = [t for t in _benchmarks(evidence) if all(g.first.bits_per_element for g in t.codecs)]
    light = heavy = exceptions = 0
    gains: dict[bool, list[float]] = {True: [], False: []}
    for trained in found:
        base = trained.baseline
        assert base is not None, "a benchmark has a baseline"
        for group in trained.codecs:
            bits = group.first.bits_per_element or 0.0
            gains[bits < HEAVY].append(trained.gain(group, base))
            exceptions += any(
                (o.first.bits_per_element or 0.0) < bits and not trained.close(group, o) for o in trained.codecs
            )
        heavy, light = len(gains[True]), len(gains[False])
    if not heavy or not light:
        return left_open(f"tasks with {FEW} codecs, some below and some above {HEAVY:g} bit an element")
    lower = sum(gains[True]) / heavy < sum(gains[False]) / light
    told = (
        f"mean difference to the baseline {sum(gains[True]) / heavy:+.2f} below {HEAVY:g} bit ({heavy} codecs), "
        f"{sum(gains[False]) / light:+.2f} above ({light}); {exceptions} codecs are worse than one that sends less"
    )
    why = (
        f"Heavy compression is {'worse' if lower else 'no worse'}, exceptions are {'there' if exceptions else 'none'}."
    )
    return judge(lower and exceptions > 0, told, why, [f for t in found for f in t.files])


def _never(wanted: str) -> Check:
    return lambda evidence: left_open(wanted)


def _finding(id: str, where: str, says: str, rule: str, check: Check) -> Finding:
    return Finding(id=f"G-{id}", says=says, where=f"{grace.PAPER}, {where}", rule=rule, check=check)


FINDINGS = (
    _finding(
        "baseline", "table II", f"ResNet-9 on CIFAR-10 reaches {grace.BASELINE} % without compression in 24 epochs.",
        f"our FP32 best is at least that less {NEAR:g} points", _of_task(_baseline),
    ),
    _finding(
        "comparable", "V-B", "Most trainings with compression end near the quality of the baseline.",
        "more than half of codecs and tasks are within 0.5 points of FP16 (2 % for perplexity)", _comparable,
    ),
    _finding(
        "above", "V-B", "Some end slightly above it.",
        f"all seeds of a codec above all of FP16, {SEEDS} each at least", _above,
    ),
    _finding(
        "no-winner", "V-B and V-F", "No method beats all others in all scenarios.",
        f"over tasks with at least {FEW} codecs, the best quality is not always the same codec's", _no_winner,
    ),
    _finding(
        "not-everywhere", "V-B", "No method does well on all benchmarks.",
        "no codec is as good as FP16 (0.5 points, 2 %) in every task", _everywhere_good,
    ),
    _finding(
        "no-correlation", "V-B", "Throughput and quality are not strongly correlated.",
        f"Spearman's correlation of best accuracy and modelled throughput on ResNet-9 below {speed.STRONG:g}",
        speed.correlated,
    ),
    _finding(
        "bound", "V-B", "Models that compute much lose by compression, models that communicate much gain.",
        "modelled share of codecs that beat FP32 is larger for VGG19 than for ResNet-50, where several lose",
        speed.bound,
    ),
    _finding(
        "ncf-loss", "V-B", "Recommendation has a trade-off: up to 10 % of quality for 1.5 to 4.5 times the speed.",
        f"a codec loses at least {LARGE_LOSS:g} point of hit rate on NCF; its speed is not checked", _trade_off,
    ),
    _finding(
        "ncf-degree", "V-B", "There, heavier compression by the same codec means lower quality.",
        "each codec with several degrees is better at its lightest than at its heaviest", _heavier_is_worse,
    ),
    _finding(
        "cifar-degree", "V-B", "On CIFAR-10 QSGD and Top-k have about the same quality at all degrees.",
        f"their degrees lie within {BALLPARK:g} point", _of_task(_ballpark),
    ),
    _finding(
        "ef-sparse", "V-B and V-F", "Error feedback improves sparsification.",
        "better with it than without, by more than seeds differ, for more than half of sparse codecs, outside NCF",
        _helps(SPARSE, "a sparse codec", True),
    ),
    _finding(
        "ef-table", "table I, V-B", "Error feedback improves the methods that table I marks.",
        "better with it than without, by more than seeds differ, for more than half of them, outside NCF",
        _helps(grace.WITH_EF, "one of the methods that table I marks", True, listed=True),
    ),
    _finding(
        "ef-harms", "V-B", "Error feedback harms SignSGD, SIGNUM, QSGD and TernGrad.",
        "worse with it than without, by more than seeds differ, for more than half of them, outside NCF",
        _helps(grace.WITHOUT_EF, "SignSGD, SIGNUM, QSGD or TernGrad", False, listed=True),
    ),
    _finding(
        "ef-ncf", "V-B", "On recommendation alone, error feedback makes Top-k, 8-bit and Natural worse.",
        "worse on NCF for all that we have, and worse on no other task", _only_ncf,
    ),
    _finding(
        "volume", "V-C and V-F", "More data is not always higher quality, but very little tends to be lower.",
        f"codecs below {HEAVY:g} bit an element are worse on average, and some codec is worse than one that sends less",
        _volume,
    ),
    _finding(
        "overhead", "V-D and V-F", "Encoding and decoding cost time that cannot be neglected.",
        f"more than half of codecs take over {speed.COSTLY:.0%} of a ResNet-50 step, modelled", speed.overhead,
    ),
    _finding(
        "rarely-pays", "V-F", "From 10 Gbit/s on, not compressing is mostly faster.",
        f"at most half of models and codecs are {WIN - 1:.0%} faster than FP32, modelled", speed.rarely_pays,
    ),
    _finding(
        "slow-links", "V-E, figure 10", "At 1 Gbit/s many compressors are faster than the baseline.",
        "more than half of models and codecs, and more than at 10 Gbit/s, modelled", speed.slow_links_pay,
    ),
    _finding(
        "25gbit", "V-A", "25 Gbit/s in place of 10 brings 1.3 % on average.",
        f"at most {speed.MILD:.0%} on average over models and codecs, modelled", speed.faster_links,
    ),
    _finding(
        "transport", "V-E", "RDMA is faster than TCP for all compressors, and toolkits matter little.",
        "-", _never("we have neither RDMA nor a second toolkit"),
    ),
)  # fmt: skip
