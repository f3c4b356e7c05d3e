"""What the records say, in words: where compression pays, with which codec, where not, and what was not asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gradwire.core.baselines import WIN
from gradwire.core.records import Record, quantile
from gradwire.core.units import format_milliseconds
from gradwire.laboratory.report.load import Sourced, machine, of_kind
from gradwire.laboratory.report.page import Block, Fold, Section, Table, Text
from gradwire.laboratory.report.sections import demo, trainings
from gradwire.laboratory.report.steps import Run, SetUp, Wins, count, is_baseline, label, main_sweep, runs
from gradwire.planner.quality import IMAGES, SAFE, Standing, kind_of, standing

FEW = 4  # set-ups named one by one


def _percent(share: float) -> str:
    """Without a line break inside."""
    return f"{100 * share:.0f}\u00a0%"


SHARE = _percent(WIN - 1)
RULE = (
    f"A set-up is a model on so many hosts with links of one rate. To pay, a codec has to be at least {SHARE} faster "
    "than both FP32 DDP and FP16 DDP, which took turns with it in the same processes, and faster by more than noise: "
    "the 95 % interval of the ratio of medians lies above 1. A setting is one codec in one set-up."
)
HEADINGS = (
    "machine",
    "set-ups where it pays",
    "… with a codec that kept its quality",
    f"settings over FP16 by {SHARE}",
    "largest gain over DDP",
)


def section(sources: Sequence[Sourced]) -> Section:
    """The verdict; always there, also where there is little to say."""
    counted = main_sweep(runs(of_kind(sources, "step")))
    machines = dict.fromkeys(run.set_up.machine for run in counted)
    places = {where: [r for r in counted if r.set_up.machine == where] for where in machines}
    blocks: list[Block] = [Text([_headline(counted)], lead=True)]
    if counted:
        blocks += [Text([RULE, *_not_said(counted)]), Table(HEADINGS, [_line(w, found) for w, found in places.items()])]
    words: list[Block] = []
    for where, found in places.items():
        words += [Text([f"**{where}**"]), Text(_of_machine(found), points=True)]
    more = [
        *trainings.sentences(of_kind(sources, "training")),
        *_demos(of_kind(sources, "demo")),
        *_predictions(of_kind(sources, "prediction")),
    ]
    if more:
        words += [Text(["**Beside that**"]), Text(more, points=True)]
    blocks += [Fold("The verdict in more words", words)] if counted else words
    return Section("verdict", "Verdict", blocks, open=True)


def _line(where: str, found: Sequence[Run]) -> list[str]:
    """A machine in the table."""
    wins, safe = count(found), _kept(found)
    record, ratio = max((run.best for run in found if run.best), key=lambda best: best[1], default=(None, 0.0))
    return [
        where,
        f"{wins.set_ups_over_both} of {wins.set_ups}",
        f"{_paying(safe)} of {wins.set_ups}",
        f"{wins.over_half} of {wins.settings}",
        "-" if record is None else f"{ratio:.1f}× ({label(record)})",
    ]


def _headline(counted: Sequence[Run]) -> str:
    if not counted:
        return "These records hold no training steps of `bench step`, so they count no wins."
    wins = count(counted)
    won, all_of = wins.set_ups_over_both, wins.set_ups
    if 0 < won < all_of:
        told = f"pays in {won} of {all_of} set-ups measured, and in {all_of - won} it does not"
    elif all_of == 1:
        told = f"{'pays' if won else 'does not pay'} in the one set-up measured"
    else:
        told = f"pays in {'all' if won else 'none of the'} {all_of} set-ups measured"
    kept = f"With codecs that kept their quality in our trainings, it pays in {_paying(_kept(counted))}."
    return f"**Compression {told}.** {kept}"


def _of_machine(found: Sequence[Run]) -> list[str]:
    wins = count(found)
    counts = (
        f"Over {_plural(wins.set_ups, 'set-up')} and {_plural(wins.codecs, 'codec')}, **{wins.over_half} of "
        f"{wins.settings}** settings beat FP16 DDP by more than {SHARE}, {wins.over_plain} beat FP32 DDP by as much."
    )
    return [counts, _fastest(found), _quality(found), *_lost(found), *_hook(wins)]


def _fastest(found: Sequence[Run]) -> str:
    won = [(run, *run.best) for run in found if run.best and run.pays(run.best[0])]
    if not won:
        return "No codec wins anywhere."
    names = Counter(label(r) for _, r, _ in won).most_common()
    told = ", ".join(f"`{name}` in {n}" for name, n in names)
    run, record, ratio = max(won, key=lambda w: w[2])
    return (
        f"Fastest where it pays: {told}. At best `{label(record)}` makes a step {ratio:.1f} times as fast as DDP "
        f"({_short(run.set_up)})."
    )


def _quality(found: Sequence[Run]) -> str:
    """Which of these codecs may be recommended, by our trainings; of the fastest that may not, what they lost."""
    safe = _kept(found)
    names = list(dict.fromkeys(r.what["configuration"] for run in safe for r in run.ours))
    fastest = {run.best[0].what["configuration"]: _standing(run, run.best[0]) for run in found if run.best}
    doubtful = {name: told for name, told in fastest.items() if told.kind != SAFE}
    mind = "; ".join(f"`{name}`: {told.sentence}" for name, told in doubtful.items())
    told = f" Not recommended, though fastest somewhere: {mind}." if mind else ""
    if not names:
        return f"None of these codecs kept its quality in all our trainings and was tried on such tasks.{told}"
    won = _paying(safe)
    listed = ", ".join(f"`{name}`" for name in names)
    return f"With those that kept their quality in our trainings ({listed}) it pays in {won} of {len(found)}.{told}"


def _kept(found: Sequence[Run]) -> list[Run]:
    """The same runs with those codecs alone that kept their quality in our trainings."""
    return [
        replace(run, records=tuple(r for r in run.records if is_baseline(r) or _standing(run, r).kind == SAFE))
        for run in found
    ]


def _paying(found: Sequence[Run]) -> int:
    """In how many of them the fastest codec pays."""
    return sum(run.best is not None and run.pays(run.best[0]) for run in found)


def _standing(run: Run, record: Record) -> Standing:
    return standing(record.what["configuration"], kind_of(run.set_up.model))


def _lost(found: Sequence[Run]) -> list[str]:
    """Where no codec wins."""
    lost = sorted(((run, *run.best) for run in found if run.best and not run.pays(run.best[0])), key=lambda w: w[2])
    if not lost:
        return []
    shown = [f"{_short(run.set_up)} (best: `{label(r)}`, {ratio:.2f} times as fast as DDP)" for run, r, ratio in lost]
    more = f"; and {len(shown) - FEW} more, see the maps of step times" if len(shown) > FEW else ""
    return [f"Where it does not pay: {'; '.join(shown[:FEW])}{more}."]


def _hook(wins: Wins) -> list[str]:
    if not wins.power:
        return []
    return [
        f"Torch's own PowerSGD hook, in one bucket, beats FP16 DDP in {wins.power_over_half} of "
        f"{_plural(wins.power, 'set-up')}, and every codec here in {wins.power_over_all}."
    ]


def _short(set_up: SetUp) -> str:
    return f"{set_up.model}, {set_up.place}, {set_up.rate}"


def _plural(number: int, noun: str) -> str:
    """
    >>> _plural(1, "codec"), _plural(12, "codec")
    ('1 codec', '12 codecs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _demos(records: Sequence[Record]) -> list[str]:
    lines = []
    for run in demo.links(records):
        best, ratio = run.best
        times = f"{format_milliseconds(best.quantiles.p50)} a step against {format_milliseconds(run.ddp.quantiles.p50)}"
        pays = f"is {ratio:.1f} times as fast" if ratio >= WIN else f"is {ratio:.2f} times as fast, so it does not pay"
        lines.append(
            f"Demo, {machine(best)}, {run.link}: `{best.what['configuration']}` takes {times} of "
            f"{run.ddp.what['configuration']} and {pays}; in our trainings: "
            f"{standing(best.what['configuration'], IMAGES).sentence}."
        )
    return lines


def _predictions(records: Sequence[Record]) -> list[str]:
    lines = []
    for where in dict.fromkeys(map(machine, records)):
        errors = [abs(r.outcome["error"]) for r in records if machine(r) == where]
        lines.append(
            f"Predicted against measured, {where}: over {_plural(len(errors), 'setting')} the predicted step is off by "
            f"{_percent(quantile(errors, 0.5))} in the middle and by {_percent(max(errors))} at most."
        )
    return lines


def _not_said(counted: Sequence[Run]) -> list[str]:
    """What a reader might take these numbers for, though they are not that."""
    lines = []
    where = [r.environment for run in counted for r in run.records]
    if any("shaped" in str(w.get("backend")) for w in where):
        told = "Links are shaped by the kernel between emulated hosts of one machine."
        if not any(w.get("gpu") for w in where):
            told += " Steps are made on a CPU: a GPU computes and encodes far faster, and its links are faster too."
        lines.append(told)
    return lines
