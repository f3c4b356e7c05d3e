"""Accordion's claims about batches and their gradients, and what trainings of its chapter have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradwire.core.records import Record
from gradwire.laboratory.reproduce import accordion
from gradwire.laboratory.reproduce.accordion import COMMON, EPOCHS, EQUAL, LARGEST, LINES, SAME, Line
from gradwire.laboratory.reproduce.claim import Judged, at_least, at_most, judge, left_open
from gradwire.laboratory.reproduce.evidence import CURVATURE, SUPPORTS, Evidence, Trained
from gradwire.planner.seeds import Group
from gradwire.planner.spec import same

BATCH = "accordion_batch"  # the controller
HUGE = 16_384  # the larger of the two batches that are published; the other one is 4096
APART = 5.0  # points lost with large batches where the study loses less than two
FELL_APART = "longer trainings: in these the large batch fell apart, and the study's did not"


def longest_first(evidence: Evidence, line: Line | None = None) -> list[Trained]:
    """Of the line's task, or of all: the longer a shortened schedule is, the nearer it is to the published one."""
    return sorted((t for t in evidence.all if line is None or t.name == line.task), key=epochs, reverse=True)


def epochs(trained: Trained) -> int:
    return int(trained.groups[0].first.what["epochs"])


def time(group: Group) -> str:
    return max(r.record.time for r in group.runs)


def length(group: Group) -> str:
    return f"{group.first.what['epochs']} epochs of {EPOCHS}"


def shorter(group: Group) -> str:
    """How a training differs from the published one; empty: as long, so that it can contradict it."""
    epochs = int(group.first.what["epochs"])
    return "" if epochs >= EPOCHS else f"{epochs} epochs of {EPOCHS}"


def _largest(group: Group) -> int:
    """Of the batches of all workers together that a run took."""
    return max((int(b) for r in group.runs for b in r.record.outcome.get("batch_sizes") or ()), default=0)


def batch(evidence: Evidence) -> Judged:
    return _grown(evidence, lambda largest: largest < HUGE, 0.0)


def huge_batch(evidence: Evidence) -> Judged:
    return _grown(evidence, lambda largest: largest >= HUGE, -accordion.LARGE_BATCH_LOSS)


def _grown(evidence: Evidence, sized: Callable[[int], bool], published: float) -> Judged:
    """A training whose batch Accordion chooses, up to a size that is asked for, against the small batch throughout."""
    found = [
        (trained, plain, group)
        for trained in evidence.all
        if (plain := trained.fp32 or trained.fp16) is not None
        for group in trained.steered(BATCH)
        if sized(_largest(group))
    ]
    if not found:
        return left_open("a training whose batch Accordion chooses, up to this size, beside the small one throughout")
    trained, plain, steered = max(found, key=lambda each: (epochs(each[0]), time(each[2])))
    gain = trained.gain(steered, plain)
    ends = ", ".join(f"{r.record.outcome['final']:.2f}" for r in steered.runs)  # the best may be of small batches alone
    told = (
        f"{trained.name}: {trained.quality(steered)} at best, {ends} at the end, against {trained.quality(plain)}: "
        f"{trained.told(gain)} ({length(steered)})"
    )
    if gain < -APART:
        return left_open(FELL_APART, told, trained.files)
    return _as_much(trained, steered, plain, published, told, trained.files)


def _as_much(trained: Trained, group: Group, plain: Group, published: float, told: str, files: Iterable[str]) -> Judged:
    """Whether a difference is the published one, to what counts as equal; where that is none, better will do."""
    gain, noise = trained.gain(group, plain), trained.noise(group, plain)
    holds = at_most(abs(gain - published), EQUAL, noise) if published else at_least(gain, -EQUAL, noise)
    wanted = f"{published:+.2g} points, give or take {EQUAL:g}," if published else f"At most {EQUAL:g} points less"
    why = f"{wanted} was wanted."
    return judge(holds, told, why, files, differs=shorter(group))


def large_batch(evidence: Evidence) -> Judged:
    """The largest batch of a task with several, against the smallest, in trainings of one length."""
    alike: dict[tuple[str, int], dict[int, Trained]] = {}
    for trained in longest_first(evidence):
        if trained.fp32 is not None:
            found = alike.setdefault((trained.name, epochs(trained)), {})
            found[int(trained.fp32.first.what["batch"])] = trained
    several = [found for found in alike.values() if len(found) > 1]
    if not several:
        return left_open("one task without compression at two sizes of the batch")
    small, large = several[0][min(several[0])], several[0][max(several[0])]
    assert small.fp32 is not None, "looked up above"
    assert large.fp32 is not None, "looked up above"
    gain = small.gain(large.fp32, small.fp32)
    plain = [g.first for g in large.groups if g.first.controller is None]
    rates = {r.what["learning_rate"] for r in plain if same(r.what["codec"], large.fp32.first.what["codec"])}
    best = f", the best of {len(rates)} learning rates" if len(rates) > 1 else ""
    told = (
        f"{small.name}, {max(several[0])} against {min(several[0])} a worker: {small.told(gain)}{best} "
        f"({length(large.fp32)})"
    )
    files = [*small.files, *large.files]
    if gain < -APART:
        return left_open(FELL_APART, told, files)
    published = accordion.BATCHES[1] - accordion.BATCHES[0]
    return _as_much(small, large.fp32, small.fp32, published, told, files)


def supports(evidence: Evidence) -> Judged:
    """Whether gradients share their largest coordinates, whichever pairs of gradients are meant."""
    found = [(file, r) for file, r in evidence.records if r.kind == SUPPORTS and r.what["task"] == LINES[0].task]
    found = [(file, r) for file, r in found if r.what["data"] == LINES[0].data and r.what["share"] == LARGEST]
    if not found:
        return left_open("the largest tenth of coordinates of pairs of stochastic gradients")
    pairs: dict[str, list[float]] = {}
    for _, record in found:
        for kind, shares in record.outcome["pairs"].items():
            pairs.setdefault(kind, []).extend(shares)
    every = [share for shares in pairs.values() for share in shares]
    holds = True if min(every) > COMMON else False if max(every) <= COMMON else None
    told = "; ".join(f"{kind} {min(shares):.2f} to {max(shares):.2f}" for kind, shares in pairs.items())
    epochs = ", ".join(str(n + 1) for n in sorted({int(r.what["epoch"]) for _, r in found}))
    differs = f"epoch {epochs} of {EPOCHS}; the study does not say which"
    why = f"More than {COMMON:g} was wanted, by chance it is {LARGEST:g}."
    return judge(holds, told, why, [file for file, _ in found], differs=differs)


def hessian(evidence: Evidence) -> Judged:
    """Whether the gradient's norm and the Hessian's largest eigenvalue call the same epochs critical."""
    trainings: dict[str, list[tuple[str, Record]]] = {}
    for file, record in evidence.records:
        if (record.kind, record.what.get("task"), record.what.get("data")) == (CURVATURE, LINES[0].task, LINES[0].data):
            trainings.setdefault(record.command, []).append((file, record))
    if not trainings:
        return left_open("eigenvalues of the Hessian along a training")
    looks = max(trainings.values(), key=lambda found: int(found[0][1].what["epochs"]))
    windows = [record.outcome["critical"] for _, record in looks if record.outcome["critical"] is not None]
    by = {name: sum(window[name] for window in windows) for name in ("norm", "eigenvalue")}
    both = sum(window["norm"] and window["eigenvalue"] for window in windows)
    either = sum(by.values()) - both
    what = looks[0][1].what
    told = (
        f"of {len(windows)} windows of {what['every']} epochs {by['norm']} are critical by the norm, "
        f"{by['eigenvalue']} by the eigenvalue, {both} by both"
    )
    files = [file for file, _ in looks]
    if not either:
        return left_open("a training with a critical regime", told, files)
    one = 1 / either  # window more or less
    differs = "both by Accordion's rule; the study does not say how it judges eigenvalues"
    if int(what["epochs"]) < EPOCHS:
        differs = f"{what['epochs']} epochs of {EPOCHS}, {differs}"
    why = f"Of the windows that either calls critical, at least {SAME:g} were wanted to be so by both."
    return judge(at_least(both / either, SAME, one), told, why, files, differs=differs)
