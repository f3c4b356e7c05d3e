"""Accordion's claims, by trainings under our controllers, and by bytes that follow from shapes.

Trainings that are shorter than the published 300 epochs reproduce a claim or do not; they contradict none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gradwire.laboratory.reproduce import accordion
from gradwire.laboratory.reproduce.accordion import COMMON, EPOCHS, EQUAL, FEWER, LINES, SAME, STEPS, Line
from gradwire.laboratory.reproduce.claim import (
    Basis,
    Claim,
    Judged,
    Sure,
    all_of,
    at_least,
    at_most,
    judge,
    left_open,
    never,
)
from gradwire.laboratory.reproduce.claims.accordion_batch import (
    batch,
    hessian,
    huge_batch,
    large_batch,
    length,
    longest_first,
    shorter,
    supports,
    time,
)
from gradwire.laboratory.reproduce.evidence import Evidence, Trained
from gradwire.planner.seeds import Group
from gradwire.planner.spec import parameters, same
from gradwire.planner.workload import AFTER, shipped

CONTROLLER, ADAQS = "accordion", "adaqs"
LIKE = 0.25  # of a published loss that ours may differ by
Check = Callable[[Evidence], Judged]
Compared = tuple[Trained, Group, Group, Group]  # low compression, Accordion, another way


def _triple(trained: Trained, line: Line) -> tuple[Group, Group | None, Group] | None:
    """Low, high, and the latest under Accordion; None where low or Accordion is missing."""
    low, high = trained.find(line.low), trained.find(line.high)
    steered = [g for g in trained.steered(CONTROLLER) if _between(g, line.low, line.high)]
    return (low, high, max(steered, key=time)) if low is not None and steered else None


def lookup(evidence: Evidence, line: Line) -> tuple[Trained | None, tuple[Group, Group | None, Group] | None]:
    """The longest trainings of the line's task that have its three settings, or at least two of them."""
    there = [(t, _triple(t, line)) for t in longest_first(evidence, line)]
    order = sorted(there, key=lambda pair: (pair[1] is None, pair[1] is not None and pair[1][1] is None))
    return order[0] if order else (None, None)


def _between(group: Group, low: str, high: str) -> bool:
    """Whether the controller's levels are these; of one that names no levels, nothing is asked."""
    named = dict(parameters(group.first.controller or "none")[1])
    return all(same(str(named[k]), v) for k, v in (("low", low), ("high", high)) if k in named)


def floats(model: str, codec: str) -> float:
    """Millions that a worker sends in a published training: from the traces of shapes, without a run."""
    workload = shipped().workload(model, codec, "auto", AFTER, 4)
    return sum(e.num_bytes for u in workload.units for e in u.exchanges) / 4 * STEPS * EPOCHS / 1e6


def _sent(group: Group) -> float | None:
    found = [r.floats for r in group.runs if r.floats is not None]
    return sum(found) / len(found) if found else None


def _asked(line: Line, check: Callable[[Trained, Group, Group | None, Group], Judged]) -> Check:
    def answer(evidence: Evidence) -> Judged:
        trained, found = lookup(evidence, line)
        if trained is None or found is None:
            return left_open(f"{line.task} with {line.low} and under Accordion")
        judged = check(trained, *found)
        how = "" if judged.found == "-" else f" ({found[2].first.controller}, {length(found[2])})"
        return replace(judged, found=judged.found + how)

    return answer


def _equal(trained: Trained, low: Group, high: Group | None, steered: Group) -> Judged:
    gain = trained.gain(steered, low)
    told = (
        f"{trained.quality(steered)} under Accordion, {trained.quality(low)} at low compression: {trained.told(gain)}"
    )
    why = f"At most {EQUAL:g} points less was wanted."
    return judge(trained.better(steered, low, -EQUAL), told, why, trained.files, differs=shorter(steered))


def _saves(trained: Trained, low: Group, high: Group | None, steered: Group) -> Judged:
    some, all_of_it = _sent(steered), _sent(low)
    if not some or not all_of_it:
        return left_open("floats sent in these records", files=trained.files)
    told = f"{some / 1e6:.1f} M floats against {all_of_it / 1e6:.1f} M: {all_of_it / some:.2f} times less"
    why = f"At most {FEWER:g} of low compression's floats were wanted; the schedule's length moves the share."
    return judge(some <= FEWER * all_of_it, told, why, trained.files, differs=shorter(steered))


def _high(line: Line) -> Callable[[Trained, Group, Group | None, Group], Judged]:
    """High compression throughout loses as much as published, to half a point or a quarter of it."""
    published = line.accuracy[1] - line.accuracy[0]
    limit = _limit(published)

    def check(trained: Trained, low: Group, high: Group | None, steered: Group) -> Judged:
        if high is None:
            return left_open("a training at high compression", files=trained.files)
        gain = trained.gain(high, low)
        told = f"{trained.quality(high)} against {trained.quality(low)}: {trained.told(gain)}"
        holds = at_most(abs(gain - published), limit, trained.noise(high, low))
        why = f"{published:+.1f} points, give or take {limit:.2g}, were wanted."
        return judge(holds, told, why, trained.files, differs=shorter(high))

    return check


def _limit(published: float) -> float:
    return max(EQUAL, LIKE * abs(published))


def _volumes(evidence: Evidence) -> Judged:
    found = [
        (line, floats(line.model, codec), published)
        for line in LINES
        for codec, published in ((line.low, line.floats[0]), (line.high, line.floats[1]))
    ]
    told = "; ".join(f"{line.model}: {ours:.1f} M (published {published:g})" for line, ours, published in found)
    holds = all(abs(ours / published - 1) <= accordion.EXACT for _, ours, published in found)
    return judge(holds, told, f"Within {accordion.EXACT:.2%} was wanted; from shapes, 98 steps and 300 epochs.")


def _schedule(evidence: Evidence) -> Judged:
    line = LINES[2]
    low, high = (floats(line.model, c) for c in (line.low, line.high))
    epochs = EPOCHS * (line.floats[2] - high) / (low - high)
    told = f"{epochs:.2f} epochs at low compression"
    why = f"{accordion.SCHEDULE:g} were wanted to {accordion.NEAR:g}: epochs 0 to 20, 152 to 170 and 252 to 270."
    return judge(abs(epochs - accordion.SCHEDULE) <= accordion.NEAR, told, why)


def _compared(
    evidence: Evidence, lines: Sequence[Line], other: Callable[[Trained, Line], list[Group]]
) -> list[Compared]:
    """Of each line the longest trainings with Accordion and another way."""
    found = []
    for line in lines:
        for trained in longest_first(evidence, line):
            ours, others = _triple(trained, line), other(trained, line)
            if ours is not None and others:
                found.append((trained, ours[0], ours[2], max(others, key=time)))
                break
    return found


def _told(trained: Trained, group: Group) -> str:
    sent = _sent(group)
    return trained.quality(group) + ("" if sent is None else f" and {sent / 1e6:.1f} M floats")


def _keeps_up(trained: Trained, low: Group, steered: Group) -> Sure:
    """Whether Accordion itself is as good as low compression: where it is not, nothing follows for others."""
    return trained.better(steered, low, -EQUAL)


def _adaqs(line: Line) -> Check:
    """AdaQS sends more than Accordion, and loses accuracy where Accordion does not."""

    def check(evidence: Evidence) -> Judged:
        found = _compared(evidence, [line], lambda trained, line: trained.steered(ADAQS))
        if not found:
            return left_open(f"AdaQS beside Accordion on {line.task}")
        trained, low, ours, other = found[0]
        told = (
            f"{_told(trained, other)} with AdaQS, {_told(trained, ours)} with Accordion, {_told(trained, low)} at low "
            f"compression ({length(other)})"
        )
        if not any(r.record.outcome.get("switches") for r in other.runs):
            return left_open("a training in which AdaQS compresses less at some time", told, trained.files)
        keeps_up = _keeps_up(trained, low, ours)
        if keeps_up is False:
            return left_open("trainings in which Accordion itself keeps up with low compression", told, trained.files)
        noise = trained.noise(other, low)
        holds = all_of(
            [
                keeps_up,
                (_sent(other) or 0.0) > (_sent(ours) or 0.0),
                at_least(trained.gain(low, other), 0.0, noise),
                at_least(trained.gain(ours, other), 0.0, noise),
            ]
        )
        why = (
            "AdaQS should send more than Accordion, and end below it and below low compression, which Accordion "
            f"keeps up with to {EQUAL:g} points."
        )
        return judge(holds, told, why, trained.files, differs=shorter(other))

    return check


def _swapped(evidence: Evidence) -> Judged:
    """Accordion with its levels swapped compresses much in critical regimes, and little elsewhere."""
    tried = _compared(
        evidence,
        LINES,
        lambda trained, line: [g for g in trained.steered(CONTROLLER) if _between(g, line.high, line.low)],
    )
    if not tried:
        return left_open("Accordion with its levels swapped, beside Accordion")
    told = "; ".join(
        f"{t.name}: {_told(t, other)} with the levels swapped, {_told(t, ours)} as it should be, {_told(t, low)} at "
        f"low compression ({length(other)})"
        for t, low, ours, other in tried
    )
    files = [file for trained, *_ in tried for file in trained.files]
    found = [each for each in tried if _keeps_up(*each[:3]) is not False]
    if not found:
        return left_open("trainings in which Accordion itself keeps up with low compression", told, files)
    answers = [t.better(low, other, EQUAL) for t, low, _, other in found]
    answers += [t.better(ours, other) for t, _, ours, other in found]
    answers += [_keeps_up(*each[:3]) for each in found]
    lengths = list(dict.fromkeys(filter(None, (shorter(other) for *_, other in found))))
    differs = ", ".join([*lengths, "low compression outside critical regimes, where the study has none"])
    why = f"A loss of more than {EQUAL:g} points, and a larger one than Accordion's, was wanted in each."
    return judge(all_of(answers), told, why, files, differs=differs)


def _claim(id: str, where: str, says: str, rule: str, check: Check, basis: Basis = Basis.TESTED) -> Claim:
    return Claim(id=f"A-{id}", says=says, where=where, rule=rule, check=check, basis=basis)


def _of(line: Line) -> tuple[Claim, ...]:
    low, high, between = line.accuracy
    where, name = line.table, line.model
    return (
        _claim(
            f"{name}-accuracy", where,
            f"{line.network} on {line.data}: Accordion ends at {between:g} %, low compression at {low:g} %.",
            f"no more than {EQUAL:g} points below low compression", _asked(line, _equal),
        ),
        _claim(
            f"{name}-floats", where,
            f"{line.network} on {line.data}: Accordion sends {line.saved:.1f} times less than low compression.",
            f"at most {FEWER:g} of low compression's floats", _asked(line, _saves),
        ),
        _claim(
            f"{name}-high", where,
            f"{line.network} on {line.data}: high compression throughout ends at {high:g} %, low at {low:g} %.",
            f"that loss, give or take {_limit(high - low):.2g} points", _asked(line, _high(line)),
        ),
    )  # fmt: skip


CLAIMS = (
    *(claim for line in LINES for claim in _of(line)),
    *(
        _claim(
            f"{row.network.lower()}-{row.data.lower().replace('-', '')}", row.table,
            f"{row.network} on {row.data}: {row.accuracy[0]:g} % at low compression, {row.accuracy[1]:g} at high, "
            f"{row.accuracy[2]:g} under Accordion.",
            "-", never(f"{row.network} on {row.data}"),
        )
        for row in accordion.UNTRAINED
    ),
    _claim(
        "volumes", "tables 3.1 and 3.2", "Floats sent at fixed ranks: six numbers of ResNet-18 and VGG-19bn.",
        f"ours from shapes within {accordion.EXACT:.2%}", _volumes,
    ),
    _claim(
        "schedule", "table 3.2", "The volume of ResNet-18 on CIFAR-100 under Accordion implies 59 epochs at rank 2.",
        f"the volume, solved for epochs, within {accordion.NEAR:g}", _schedule, Basis.DERIVED,
    ),
    _claim(
        "seconds", "tables 3.1 and 3.2", "Accordion takes 1.03 to 1.12 times less seconds than low compression.",
        "-", never("seconds of four GPUs like the study's"),
    ),
    _claim(
        "critical", "section 3.2, figure 3.1",
        "What high compression in critical regimes loses, less compression elsewhere does not win back.",
        f"with its levels swapped, Accordion is more than {EQUAL:g} points below low compression, and below itself; "
        "asked where Accordion keeps up",
        _swapped,
    ),
    _claim(
        "hessian", "section 3.2, figure 3.2",
        "Critical regimes by the norm of the gradient are those by the eigenvalues of the Hessian.",
        f"of the windows that either calls critical, at least {SAME:g} by both, give or take one window", hessian,
    ),
    _claim(
        "overlap", "section 3.2.3, figure 3.3a",
        "Of the largest tenth of coordinates, more than 90 % are common to two stochastic gradients.",
        f"all pairs have more than {COMMON:g} in common; open where some have", supports,
    ),
    _claim(
        "batch", "section 3.3, figure 3.3b",
        "Small batches in critical regimes alone are as good as small ones throughout.",
        f"no more than {EQUAL:g} points below the small batch", batch,
    ),
    _claim(
        "large-batch", "section 3.2.3, figure 3.3b",
        f"A batch of 4096 throughout ends at {accordion.BATCHES[1]} %, one of 512 at {accordion.BATCHES[0]} % (logs).",
        f"that loss, give or take {EQUAL:g} points", large_batch,
    ),
    *(
        _claim(
            id, f"section 3.3, figure {figure}",
            f"{line.network} on {line.data}: AdaQS sends more than Accordion and loses accuracy; Accordion does not.",
            "more floats than Accordion, below it and below low compression; Accordion no more than "
            f"{EQUAL:g} points below that",
            _adaqs(line),
        )
        for id, figure, line in (
            ("adaqs", "3.5a", LINES[0]),
            ("adaqs-cifar100", "3.5b", LINES[2]),
        )
    ),
    _claim(
        "16384", "section 3.3, figure 3.6",
        f"At a batch of 16,384 Accordion loses {accordion.LARGE_BATCH_LOSS:g} points.",
        f"that loss against the small batch, give or take {EQUAL:g} points", huge_batch,
    ),
)  # fmt: skip
