"""GRACE's findings about quality and volume, by our trainings.

Where a finding is about the methods that GRACE runs, they count with its optimiser alone (`alike`); benchmarks of ours
are its own where model, data and epochs are those of its table II (`unlike` says what is not).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradwire.core.intervals import median
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
from gradwire.laboratory.reproduce.evidence import Evidence, Trained
from gradwire.laboratory.reproduce.grace import Benchmark
from gradwire.planner.seeds import Group, tuned
from gradwire.planner.spec import keeps
from gradwire.planner.training import NO_MEMORY
from gradwire.planner.tta import slack

FEW = 8  # codecs that a task needs, to be counted among benchmarks
SEEDS = 2  # of codec and baseline, to tell a small difference from chance
BALLPARK = 1.0  # points between degrees of compression of one codec
HEAVY = 1.0  # bits an element below which compression is heavy
CHOSEN = 2  # times the noise of seeds that the best of many has to be better by
FACTOR = 2.0  # a loss is like a published one from half of it to twice it

Check = Callable[[Evidence], Judged]


def base(group: Group) -> str:
    """The codec's name, without parameters."""
    return group.first.codec.partition("(")[0]


def alike(trained: Trained) -> list[Group]:
    """The methods that GRACE runs, each with its memory and, on images, its optimiser; of several rates `tuned`."""
    found: dict[str, list[Group]] = {}
    for group in trained.groups:
        run, name = group.first, base(group)
        if run.controller is not None or name not in grace.METHODS or (run.memory != NO_MEMORY) is not keeps(run.codec):
            continue
        if name in grace.PLAIN_SGD and trained.name.endswith("cifar10") and run.what.get("momentum"):
            continue
        found.setdefault(run.codec, []).append(group)
    return [tuned(each) for each in found.values()]


def own(trained: Trained) -> bool:
    """Whether a task is one of GRACE's benchmarks, at its length."""
    known = {b.task: b for b in grace.TABLE_II if b.task}
    return trained.name in known and int(trained.groups[0].first.what["epochs"]) >= known[trained.name].epochs


def unlike(tasks: Iterable[Trained]) -> str:
    """How our tasks differ from GRACE's; empty: they do not, and end where GRACE's do without compression."""
    told = []
    for trained in tasks:
        row = next((b for b in grace.TABLE_II if b.task == trained.name), None)
        if row is None or not own(trained):
            told.append(f"{trained.name} is {'shorter' if row else 'none of the benchmarks'}")
        elif ends_there(trained, row) is False:
            plain = trained.fp32 or trained.fp16
            assert plain is not None, "it ends somewhere"
            told.append(f"{row.name} ends at {plain.best:.2f} without compression by our recipe, not {row.quality:g}")
    return "; ".join(dict.fromkeys(told))


def ends_there(trained: Trained, row: Benchmark) -> Sure:
    """Whether ours ends where GRACE's does, without compression: neither below nor above; None: too near to tell."""
    plain = trained.fp32 or trained.fp16
    if plain is None:
        return None
    scale = 1.0 if trained.unit == "%" else abs(row.quality)
    off, noise = abs(plain.best - row.quality), scale * trained.noise(plain, plain)
    return at_most(off, slack(row.quality, trained.unit), noise)


def files(tasks: Iterable[Trained]) -> list[str]:
    return [file for t in tasks for file in t.files]


def benchmarks(evidence: Evidence) -> list[Trained]:
    """Tasks with enough codecs to compare."""
    return [t for t in evidence.tasks.values() if t.baseline is not None and len(t.codecs) >= FEW]


def ncf(evidence: Evidence) -> Trained | None:
    found = evidence.of_model("ncf")
    return found if found is not None and found.baseline is not None else None


# -------------------------------------------------------------------- table II


def baseline(row: Benchmark) -> Check:
    """Whether ours ends where GRACE's does."""

    def check(evidence: Evidence) -> Judged:
        trained = evidence.task(row.task, ("none",)) if row.task else None
        group = (trained.fp32 or trained.fp16) if trained is not None else None
        if trained is None or group is None:
            return left_open(f"{row.name} without compression")
        run = group.first.what
        recipe = f"our recipe, learning rate {run['learning_rate']:g} and {run['precision']}"
        short = f", {run['epochs']} epochs of {row.epochs}" if run["epochs"] < row.epochs else ""
        why = f"{row.quality:g}, give or take {slack(row.quality, trained.unit):.3g}, was wanted."
        found = trained.quality(group)
        return judge(ends_there(trained, row), found, why, trained.files, differs=recipe + short)

    return check


# -------------------------------------------------------------------- over codecs


def comparable(evidence: Evidence) -> Judged:
    tasks = [t for t in evidence.tasks.values() if own(t) and t.baseline is not None and alike(t)]
    answers = [t.close(g, t.baseline) for t in tasks for g in alike(t)]  # type: ignore[arg-type]
    if not answers:
        return left_open("GRACE's methods on one of its benchmarks, beside FP16")
    told = (
        f"{answers.count(True)} of {len(answers)} of GRACE's methods and settings are within what counts as equal to "
        f"the baseline, {answers.count(None)} too near to tell ({', '.join(t.name for t in tasks)})"
    )
    return judge(more_than_half(answers), told, "More than half were wanted.", files(tasks), differs=unlike(tasks))


def above(evidence: Evidence) -> Judged:
    """That some are: yes by one of several seeds, clearly, since it is the best of many; no only if all were tried, and
    none can be."""
    found, maybe, tried = [], [], set()
    tasks = [t for t in evidence.tasks.values() if t.baseline is not None and len(t.baseline.runs) >= SEEDS]
    for trained in tasks:
        for group in alike(trained):
            assert trained.baseline is not None, "asked for above"
            better, gain = trained.better(group, trained.baseline), trained.gain(group, trained.baseline)
            tried.add(base(group))
            if gain > CHOSEN * trained.noise(group, trained.baseline) and len(group.runs) >= SEEDS:
                found.append(f"{group.name} on {trained.name}, {trained.told(gain)}")
            elif better is not False:
                maybe.append(f"{group.name} on {trained.name}")
    if not tried:
        return left_open(f"GRACE's methods beside FP16 with {SEEDS} seeds")
    missing = len(set(grace.METHODS) - tried)
    told = "; ".join(found) or f"none for sure; {len(maybe)} may be above by their seeds, {missing} methods not tried"
    if not found and (maybe or missing):
        return left_open("seeds that tell: no method is above the baseline by more than noise", told, files(tasks))
    why = f"One above the baseline by more than {CHOSEN} times what seeds differ by was wanted."
    return judge(bool(found), told, why, files(tasks), differs=unlike(tasks))


def no_winner(evidence: Evidence) -> Judged:
    """A winner is a codec that ran everywhere and is nowhere clearly worse than the best one."""
    tasks = benchmarks(evidence)
    if len(tasks) < 2:
        return left_open(f"two tasks with at least {FEW} codecs each; there are {len(tasks)}")
    shared = set.intersection(*({g.first.codec for g in t.codecs} for t in tasks))
    if not shared:
        return left_open("a codec that was trained on every task", files=files(tasks))
    winners, leaders = set(shared), []
    for task in tasks:
        best = max(task.codecs, key=lambda g, t=task: t.gain(g, t.baseline))  # type: ignore[misc]
        leaders.append(f"{task.name}: {best.first.codec}")
        winners -= {g.first.codec for g in task.codecs if task.gain(best, g) > CHOSEN * task.noise(best, g)}
    told = f"best: {'; '.join(leaders)}; nowhere clearly worse than the best: {', '.join(sorted(winners)) or 'none'}"
    why = f"Of {len(shared)} codecs that ran everywhere, none should be as good as the best everywhere."
    return judge(not winners, told, why, files(tasks), differs=unlike(tasks))


def not_everywhere(evidence: Evidence) -> Judged:
    tasks = [t for t in benchmarks(evidence) if alike(t)]
    if len(tasks) < 2:
        return left_open(f"two tasks with at least {FEW} codecs each; there are {len(tasks)}")
    close: dict[str, list[Sure]] = {}
    for task in tasks:
        for group in alike(task):
            close.setdefault(group.first.codec, []).append(task.close(group, task.baseline))  # type: ignore[arg-type]
    everywhere = {codec: all_of(found) for codec, found in close.items() if len(found) == len(tasks)}
    if not everywhere:
        return left_open("one of GRACE's methods on every task", files=files(tasks))
    good = sorted(codec for codec, found in everywhere.items() if found)
    maybe = sum(found is None for found in everywhere.values())
    told = (
        f"{len(good)} of {len(everywhere)} that ran everywhere: {', '.join(good) or 'none'}; {maybe} too near to tell"
    )
    holds = False if good else None if maybe else True
    why = "No method of GRACE should equal the baseline in every task."
    return judge(holds, told, why, files(tasks), differs=unlike(tasks))


# -------------------------------------------------------------------- recommendation, and degrees


def trade_off(evidence: Evidence) -> Judged:
    trained = ncf(evidence)
    known = alike(trained) if trained is not None else []
    if trained is None or trained.baseline is None or not known:
        return left_open("trainings of NCF with GRACE's methods")
    reference = trained.baseline
    worst = min(known, key=lambda g: trained.gain(g, reference))
    scale = 100 / reference.best
    loss, noise = -scale * trained.gain(worst, reference), scale * trained.noise(worst, reference)
    least, most = 100 * grace.NCF_LOSS / FACTOR, 100 * grace.NCF_LOSS * FACTOR
    told = f"largest loss {loss:.1f} % of the baseline's {trained.quality(reference)}, with {worst.name}"
    holds = all_of([at_least(loss, least, noise), at_most(loss, most, noise)])
    why = f"From {least:g} to {most:g} % was wanted; the speed is not checked."
    return judge(holds, told, why, trained.files, differs=unlike([trained]))


def degrees(trained: Trained) -> dict[str, list[Group]]:
    """Codecs that were run with more than one degree of compression, the heaviest first."""
    found: dict[str, list[Group]] = {}
    for group in trained.codecs:
        if group.first.bits_per_element is not None:
            found.setdefault(base(group), []).append(group)
    order = {n: sorted(gs, key=lambda g: g.first.bits_per_element or 0.0) for n, gs in found.items()}
    return {n: gs for n, gs in order.items() if len(gs) > 1}


def heavier_is_worse(evidence: Evidence) -> Judged:
    trained = ncf(evidence)
    found = degrees(trained) if trained is not None else {}
    if trained is None or not found:
        return left_open("trainings of NCF with one codec at several degrees of compression")
    told = "; ".join(f"{n}: {trained.told(trained.gain(gs[-1], gs[0]))} from {len(gs)}" for n, gs in found.items())
    holds = all_of(trained.better(gs[-1], gs[0]) for gs in found.values())
    why = "The lightest degree of each codec should be better than the heaviest."
    return judge(holds, told, why, trained.files, differs=unlike([trained]))


def ballpark(evidence: Evidence) -> Judged:
    trained = evidence.task(grace.TASK)
    found = {n: gs for n, gs in degrees(trained).items() if n in ("qsgd", "topk")} if trained is not None else {}
    if trained is None or not found:
        return left_open(f"{grace.TASK} with QSGD or Top-k at several degrees of compression")
    told, answers = [], []
    for name, each in found.items():
        low, high = min(each, key=lambda g: g.best), max(each, key=lambda g: g.best)
        told.append(f"{name}: {len(each)} degrees within {high.best - low.best:.2f} points")
        answers.append(at_most(high.best - low.best, BALLPARK, trained.noise(low, high)))
    why = f"At most {BALLPARK:g} point apart was wanted."
    return judge(all_of(answers), "; ".join(told), why, trained.files, differs=unlike([trained]))


# -------------------------------------------------------------------- volume


def volume(evidence: Evidence) -> Judged:
    """More is not always better, and little is worse."""
    tasks = [t for t in benchmarks(evidence) if t.unit == "%"]
    gains: dict[bool, list[float]] = {True: [], False: []}
    exceptions = 0
    for task in tasks:
        for group in (g for g in task.codecs if g.first.bits_per_element):
            bits = group.first.bits_per_element or 0.0
            assert task.baseline is not None, "a benchmark has a baseline"
            gains[bits < HEAVY].append(task.gain(group, task.baseline))
            less = (o for o in task.codecs if 0 < (o.first.bits_per_element or 0.0) < bits)
            exceptions += any(task.gain(o, group) > CHOSEN * task.noise(o, group) for o in less)
    if min(map(len, gains.values())) < 2:
        return left_open(f"tasks with {FEW} codecs, some below and some above {HEAVY:g} bit an element")
    heavy, light = median(gains[True]), median(gains[False])
    lower = True if heavy.high < light.low else False if heavy.low > light.high else None
    told = (
        f"median difference to the baseline {heavy.middle:+.2f} points below {HEAVY:g} bit "
        f"({len(gains[True])} codecs), {light.middle:+.2f} above ({len(gains[False])}); {exceptions} codecs are "
        "clearly worse than one that sends less"
    )
    why = "Heavy compression should be worse, and exceptions be there."
    return judge(all_of([lower, exceptions > 0]), told, why, files(tasks), differs=unlike(tasks))
