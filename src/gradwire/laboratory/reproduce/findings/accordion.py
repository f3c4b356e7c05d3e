"""Accordion's findings, by trainings under our controllers, and by bytes that follow from shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gradwire.laboratory.reproduce import accordion
from gradwire.laboratory.reproduce.accordion import EPOCHS, EQUAL, FEWER, LINES, STEPS, Line
from gradwire.laboratory.reproduce.finding import OPEN, Evidence, Finding, Judged, Trained, judge, left_open
from gradwire.planner.spec import parameters, same
from gradwire.planner.tta import Group
from gradwire.planner.workload import AFTER, shipped

CONTROLLER, BATCH, ADAQS = "accordion", "accordion_batch", "adaqs"
HUGE = 16_384  # the larger of the two batches that are published; the other one is 4096
APART = 5.0  # points lost with large batches where the study loses less than two
FELL_APART = "longer trainings: in these the large batch fell apart, and the study's did not"
Check = Callable[[Evidence], Judged]
Compared = tuple[Trained, Group, Group, Group]  # low compression, Accordion, another way


def _triple(trained: Trained, line: Line) -> tuple[Group, Group | None, Group] | None:
    """Low, high, and the latest under Accordion; None where low or Accordion is missing."""
    low, high = trained.find(line.low), trained.find(line.high)
    steered = [g for g in trained.steered(CONTROLLER) if _between(g, line.low, line.high)]
    return (low, high, max(steered, key=_time)) if low is not None and steered else None


def lookup(evidence: Evidence, line: Line) -> tuple[Trained | None, tuple[Group, Group | None, Group] | None]:
    """The longest trainings of the line's task that have its three settings, or at least two of them."""
    there = [(t, _triple(t, line)) for t in _longest_first(evidence, line)]
    order = sorted(there, key=lambda pair: (pair[1] is None, pair[1] is not None and pair[1][1] is None))
    return order[0] if order else (None, None)


def _longest_first(evidence: Evidence, line: Line | None = None) -> list[Trained]:
    """Of the line's task, or of all: the longer a shortened schedule is, the nearer it is to the published one."""
    return sorted((t for t in evidence.all if line is None or t.name == line.task), key=_epochs, reverse=True)


def _epochs(trained: Trained) -> int:
    return int(trained.groups[0].first.what["epochs"])


def _between(group: Group, low: str, high: str) -> bool:
    """Whether the controller's levels are these; of one that names no levels, nothing is asked."""
    named = dict(parameters(group.first.controller or "none")[1])
    return all(same(str(named[k]), v) for k, v in (("low", low), ("high", high)) if k in named)


def _time(group: Group) -> str:
    return max(r.record.time for r in group.runs)


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
        judged, run = check(trained, *found), found[2].first
        length = f"{run.what['epochs']} epochs of {EPOCHS}, {run.controller}"
        return judged if judged.verdict == OPEN else replace(judged, measured=f"{judged.measured} ({length})")

    return answer


def _equal(trained: Trained, low: Group, high: Group | None, steered: Group) -> Judged:
    gain = trained.gain(steered, low)
    told = (
        f"{trained.quality(steered)} under Accordion, {trained.quality(low)} at low compression: {trained.told(gain)}"
    )
    return judge(gain >= -EQUAL, told, f"At most {EQUAL:g} points less was wanted.", trained.files)


def _saves(trained: Trained, low: Group, high: Group | None, steered: Group) -> Judged:
    some, all_of_it = _sent(steered), _sent(low)
    if not some or not all_of_it:
        return left_open("floats sent in these records", files=trained.files)
    told = f"{some / 1e6:.1f} M floats against {all_of_it / 1e6:.1f} M: {all_of_it / some:.2f} times less"
    why = f"At most {FEWER:g} of low compression's floats were wanted; the schedule's length moves the share."
    return judge(some <= FEWER * all_of_it, told, why, trained.files)


def _high_loses(trained: Trained, low: Group, high: Group | None, steered: Group) -> Judged:
    if high is None:
        return left_open("a training at high compression", files=trained.files)
    gain = trained.gain(high, low)
    told = f"{trained.quality(high)} against {trained.quality(low)}: {trained.told(gain)}"
    return judge(gain < -EQUAL, told, f"A loss of more than {EQUAL:g} points was wanted.", trained.files)


def _high_small(trained: Trained, low: Group, high: Group | None, steered: Group) -> Judged:
    if high is None:
        return left_open("a training at high compression", files=trained.files)
    gain = trained.gain(high, low)
    told = f"{trained.quality(high)} against {trained.quality(low)}: {trained.told(gain)}"
    return judge(-EQUAL <= gain < 0, told, f"A loss, of at most {EQUAL:g} points, was wanted.", trained.files)


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


def _largest(group: Group) -> int:
    """Of the batches of all workers together that a run took."""
    return max((int(b) for r in group.runs for b in r.record.outcome.get("batch_sizes") or ()), default=0)


def _length(group: Group) -> str:
    return f"{group.first.what['epochs']} epochs of {EPOCHS}"


def _batch(evidence: Evidence) -> Judged:
    return _grown(
        evidence, lambda largest: largest < HUGE, lambda gain: gain >= -EQUAL, f"At most {EQUAL:g} points less"
    )


def _huge_batch(evidence: Evidence) -> Judged:
    wanted = f"A loss of more than {EQUAL:g} points"
    return _grown(evidence, lambda largest: largest >= HUGE, lambda gain: gain < -EQUAL, wanted)


def _grown(evidence: Evidence, sized: Callable[[int], bool], holds: Callable[[float], bool], wanted: str) -> Judged:
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
    trained, plain, steered = max(found, key=lambda each: (_epochs(each[0]), _time(each[2])))
    gain = trained.gain(steered, plain)
    ends = ", ".join(f"{r.record.outcome['final']:.2f}" for r in steered.runs)  # the best may be of small batches alone
    told = (
        f"{trained.name}: {trained.quality(steered)} at best, {ends} at the end, against {trained.quality(plain)}: "
        f"{trained.told(gain)} ({_length(steered)})"
    )
    if gain < -APART:
        return left_open(FELL_APART, told, trained.files)
    return judge(holds(gain), told, f"{wanted} was wanted.", trained.files)


def _large_batch(evidence: Evidence) -> Judged:
    """The largest batch of a task with several, against the smallest, in trainings of one length."""
    alike: dict[tuple[str, int], dict[int, Trained]] = {}
    for trained in _longest_first(evidence):
        if trained.fp32 is not None:
            found = alike.setdefault((trained.name, _epochs(trained)), {})
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
        f"({_length(large.fp32)})"
    )
    files = [*small.files, *large.files]
    if gain < -APART:
        return left_open(FELL_APART, told, files)
    return judge(gain < -EQUAL, told, f"A loss of more than {EQUAL:g} points was wanted.", files)


def _compared(evidence: Evidence, other: Callable[[Trained, Line], list[Group]]) -> list[Compared]:
    """Of each line the longest trainings with Accordion and another way."""
    found = []
    for line in LINES:
        for trained in _longest_first(evidence, line):
            ours, others = _triple(trained, line), other(trained, line)
            if ours is not None and others:
                found.append((trained, ours[0], ours[2], max(others, key=_time)))
                break
    return found


def _told(trained: Trained, group: Group) -> str:
    sent = _sent(group)
    return trained.quality(group) + ("" if sent is None else f" and {sent / 1e6:.1f} M floats")


def _adaqs(evidence: Evidence) -> Judged:
    found = _compared(evidence, lambda trained, line: trained.steered(ADAQS))
    if not found:
        return left_open("AdaQS beside Accordion on one task")
    idle = [(t, g) for t, _, _, g in found if not any(r.record.outcome.get("switches") for r in g.runs)]
    files = [file for trained, *_ in found for file in trained.files]
    if idle:
        kept = "; ".join(f"{t.name}: AdaQS stays at its first level, {t.quality(g)} ({_length(g)})" for t, g in idle)
        return left_open("a training in which AdaQS compresses less at some time", kept, files)
    told = "; ".join(
        f"{t.name}: {_told(t, other)} with AdaQS, {_told(t, ours)} with Accordion, {_told(t, low)} at low compression "
        f"({_length(other)})"
        for t, low, ours, other in found
    )
    holds = all(
        (_sent(other) or 0.0) > (_sent(ours) or 0.0) and t.gain(other, low) < 0 for t, low, ours, other in found
    )
    why = "AdaQS should send more than Accordion and still lose accuracy against low compression, in each."
    return judge(holds, told, why, files)


def _swapped(evidence: Evidence) -> Judged:
    """Accordion with its levels swapped compresses much in critical regimes, and little elsewhere."""
    found = _compared(
        evidence, lambda trained, line: [g for g in trained.steered(CONTROLLER) if _between(g, line.high, line.low)]
    )
    if not found:
        return left_open("Accordion with its levels swapped, beside Accordion")
    told = "; ".join(
        f"{t.name}: {_told(t, other)} with the levels swapped, {_told(t, ours)} as it should be, {_told(t, low)} at "
        f"low compression ({_length(other)})"
        for t, low, ours, other in found
    )
    holds = all(t.gain(other, low) < -EQUAL and t.gain(other, ours) < 0 for t, low, ours, other in found)
    why = f"A loss of more than {EQUAL:g} points, and a larger one than Accordion's, was wanted in each."
    return judge(holds, told, why, [file for trained, *_ in found for file in trained.files])


def _finding(id: str, where: str, says: str, rule: str, check: Check) -> Finding:
    return Finding(id=f"A-{id}", says=says, where=f"{accordion.PAPER}, {where}", rule=rule, check=check)


def _of(line: Line) -> tuple[Finding, ...]:
    low, high, between = line.accuracy
    where, name = line.table, f"{line.model}"
    small = abs(high - low) <= EQUAL
    loses = _finding(
        f"{name}-high", where, f"{line.network}: high compression throughout ends at {high:g} %, low at {low:g} %.",
        f"a loss of {'at most' if small else 'more than'} {EQUAL:g} points",
        _asked(line, _high_small if small else _high_loses),
    )  # fmt: skip
    return (
        _finding(
            f"{name}-accuracy", where,
            f"{line.network}: Accordion ends at {between:g} %, low compression at {low:g} %.",
            f"no more than {EQUAL:g} points below low compression", _asked(line, _equal),
        ),
        _finding(
            f"{name}-floats", where,
            f"{line.network}: Accordion sends {line.saved:.1f} times less than low compression.",
            f"at most {FEWER:g} of low compression's floats", _asked(line, _saves),
        ),
        loses,
    )  # fmt: skip


FINDINGS = (
    *(finding for line in LINES[:2] for finding in _of(line)),
    _finding(
        "volumes", "tables 3.1 and 3.2", "Floats sent at fixed ranks: six numbers of ResNet-18 and VGG-19bn.",
        f"ours from shapes within {accordion.EXACT:.2%}", _volumes,
    ),
    _finding(
        "schedule", "table 3.2", "The volume of ResNet-18 on CIFAR-100 under Accordion implies 59 epochs at rank 2.",
        f"the volume, solved for epochs, within {accordion.NEAR:g}", _schedule,
    ),
    _finding(
        "batch", "section 3.3, figure 3.3",
        "Small batches in critical regimes alone are as good as small ones throughout.",
        f"no more than {EQUAL:g} points below the small batch", _batch,
    ),
    _finding(
        "large-batch", "section 3.2.3, figure 3.3",
        f"A batch of 4096 throughout ends at {accordion.BATCHES[1]} %, one of 512 at {accordion.BATCHES[0]} % (logs).",
        f"a loss of more than {EQUAL:g} points", _large_batch,
    ),
    _finding(
        "adaqs", "section 3.3, figure 3.5",
        "AdaQS sends more than Accordion and loses accuracy against low compression.",
        "more floats than Accordion, and below low compression", _adaqs,
    ),
    _finding(
        "critical", "section 3.2, figure 3.1",
        "What high compression in critical regimes loses, low compression elsewhere does not win back.",
        f"with its levels swapped, Accordion is more than {EQUAL:g} points below low compression, and below itself",
        _swapped,
    ),
    _finding(
        "16384", "section 3.3, figure 3.6",
        f"At a batch of 16,384 Accordion loses {accordion.LARGE_BATCH_LOSS:g} points.",
        f"more than {EQUAL:g} points below the small batch", _huge_batch,
    ),
)  # fmt: skip
