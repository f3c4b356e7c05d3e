"""docs/findings.md: what four papers found, one by one, and what our records say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import figures

from gradwire import planner
from gradwire.core.baselines import FP16
from gradwire.core.codec import codecs
from gradwire.core.records import Record
from gradwire.laboratory.bench.studies import FACTORS
from gradwire.laboratory.report.accuracy import quality_cell, setup_words, within
from gradwire.laboratory.reproduce import accordion, grace, throughput
from gradwire.laboratory.reproduce.catalogue import PAPERS, build
from gradwire.laboratory.reproduce.claim import Basis, Claim, Judged, Verdict, tally
from gradwire.laboratory.reproduce.claims import accordion as of_accordion
from gradwire.laboratory.reproduce.claims import mixed
from gradwire.laboratory.reproduce.contradictions import UTILITY
from gradwire.laboratory.reproduce.evidence import Evidence, Trained, checked, gathered
from gradwire.laboratory.reproduce.throughput import BERT, STAND_IN, VGG19, Setting
from gradwire.planner.clock import Modelled
from gradwire.planner.quality import kind_of, seed_noise
from gradwire.planner.seeds import by_rate
from gradwire.planner.spec import short
from gradwire.planner.tta import LOSSY_NOTE, Utility, slack, utility
from gradwire.planner.workload import shipped

HARDWARE = "h200"
CLUSTER = {"gpus": 16, "gpus_per_node": 1, "bandwidth": "10gbit", "hardware": HARDWARE}  # of the utility table
INTRO = """
Four papers say when compression helps. Below is each of their claims in our words, every table and figure among them,
with what we found and what becomes of it:

- **reproduced**: it holds by what we measured or computed, by more than noise.
- **contradicted**: it fails by more than noise in the paper's own set-up, or by the paper's own formula.
- **not reproduced**: it fails where our set-up differs, and the sentence says how. A published measurement that only a
  formula or a model speaks against is of this kind.
- **open**: no record can tell, or what there is lies nearer to the limit than seeds or the model's usual error.

What was fitted to published numbers, or follows from other published ones, is counted apart. Verdicts are rules over
records, named with each claim, and never typed in; the rules are in `gradwire.laboratory.reproduce.claims`, and
`gradwire reproduce ID` applies one. Accuracy is measured: real trainings, all workers computed on one device as the
distributed run computes them. Times are not: they are modelled, or their published throughput is set beside our rounds,
and each claim says so. On the only published throughputs of GPUs that it can be held against, the model is
{off:.0%} off in the median ([throughputs.md](throughputs.md)); what is nearer to a limit than that is open.

What is not alike, here and there, and to be kept in mind:

- All codecs have the baseline's learning rate, but votes (signsgd, signum), which go at 1e-3 and without momentum;
  codecs that keep momentum themselves meet none in the optimizer. GRACE trains images with plain SGD under PowerSGD and
  Random-k; ours have momentum, so they do not count where GRACE's methods are compared.
- A codec that our error feedback scales, so that it does not diverge, is no evidence about error feedback.
- THC that saturates keeps no memory, THC with exact sums does: they differ in both.
- Most codecs have one seed. Two runs that differ in nothing but their seed differ in 95 of 100 pairs by less than
  {noise}, by the median over codecs (those that fail spread more): what is nearer than that to its limit is open.
- A seed may be lucky for all codecs: it is taken to be where at least six have its luck in common, by their median and
  its interval ({luck}). Luck is taken off before codecs are compared.
"""

Source = Callable[[Path, Record], str]


def page(root: Path, source: Source) -> str:
    """The whole page from results/."""
    found = evidence(root)
    return write(found) + _sources(root, found.records, source)


@cache
def evidence(root: Path) -> Evidence:
    """All records under results/ that claims are checked against."""
    return gathered(checked(root / "results"))


def write(evidence: Evidence) -> str:
    """The page without its sources."""
    judged = {id: paper.judged(evidence) for id, paper in PAPERS.items()}
    tables = {
        "grace": _resnet9(evidence) + _rates(evidence),
        "throughput": f"\n{_stand_ins()}\n{_errors(evidence)}{_rounds(evidence)}",
        "accordion": _table_3_1(evidence),
        "utility": "\nAll numbers are in [utility.md](utility.md).\n",
    }
    parts = [f"\n## {p.title}\n\n{p.cites}.\n{tables[id]}{_list(judged[id])}" for id, p in PAPERS.items()]
    intro = INTRO.format(noise=_noise(evidence), luck=_luck(evidence), off=evidence.model_error)
    return (
        f"# Findings of four papers, checked\n{intro}\n{_tally(judged)}{''.join(parts)}"
        f"{_contradictions(evidence)}{_utilities(evidence)}"
    )


def _noise(evidence: Evidence) -> str:
    """Of seeds, by kind of task."""
    known = {kind_of(trained.name): (seed_noise(trained.name), trained.unit) for trained in evidence.all}
    told = {kind: (noise, "points" if unit == "%" else "%") for kind, (noise, unit) in known.items() if noise}
    return ", ".join(f"{noise:.2f} {unit} ({kind})" for kind, (noise, unit) in told.items())


def _luck(evidence: Evidence) -> str:
    known = [f"{trained.name}: {trained.luck}" for trained in evidence.all if trained.luck.raised]
    return "; ".join(known) or "of none yet"


def _tally(judged: dict[str, list[tuple[Claim, Judged]]]) -> str:
    """Verdicts by paper; what was fitted or derived stands apart."""
    heads = ("paper", *Verdict, "apart: fitted or derived")
    rows, total = [], Counter[str]()
    for id, pairs in judged.items():
        counts = tally(pairs)
        apart = counts[Basis.FITTED] + counts[Basis.DERIVED]
        cells = {**{v: counts[Basis.TESTED][v] for v in Verdict}, heads[-1]: apart.total()}
        total.update(cells)
        told = ", ".join(f"{n} {v}" for v, n in apart.items())
        rows.append([PAPERS[id].title, *(str(cells[v]) for v in Verdict), f"{apart.total()}: {told}" if told else "0"])
    rows.append(["all", *(str(total[head]) for head in heads[1:])])
    return _table(heads, rows)


def _list(judged: Sequence[tuple[Claim, Judged]]) -> str:
    return "\n### One by one\n\n" + "".join(_point(claim, found) for claim, found in judged)


def _point(claim: Claim, found: Judged) -> str:
    """One claim, in a paragraph."""
    basis = "" if claim.basis == Basis.TESTED else f" ({claim.basis}, not counted)"
    numbers = "" if found.found == "-" else f" Found: {found.found}."
    rule = "" if claim.rule == "-" else f" Rule: {claim.rule}."
    files = ", ".join(f"[{name}](../results/{name})" for name in found.files)
    records = f" Records: {files}." if files else ""
    why = found.why[:1].upper() + found.why[1:]
    return f"- `{claim.id}`, **{found.verdict}**{basis}. {claim.says} ({claim.where}.) {why}{numbers}{rule}{records}\n"


def _contradictions(evidence: Evidence) -> str:
    """Of all papers but the one that has a page of its own."""
    exhibit = build("contradictions", evidence)
    rows = [[str(cell) for cell in row] for row in exhibit.rows if row[0] != UTILITY]
    text = "Those of the study on utility are on [its page](utility.md)."
    return f"\n## Where these papers contradict themselves\n\n{text}\n\n{_table(exhibit.columns, rows)}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return "\n".join([*lines, *(f"| {' | '.join(c.replace('|', '/') for c in row)} |" for row in rows)]) + "\n"


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def _none_yet(what: str) -> str:
    return f"\nOpen: no record yet of {what}.\n"


# -------------------------------------------------------------------- GRACE


def _resnet9(evidence: Evidence) -> str:
    """Every codec on ResNet-9, with and without error feedback."""
    title = f"\n### ResNet-9 on CIFAR-10: every codec beside GRACE's {grace.BASELINE} %\n"
    trained = evidence.task(grace.TASK)
    if trained is None or trained.baseline is None:
        return title + _none_yet(grace.TASK)
    table = utility([r for g in trained.groups for r in g.runs], None, baseline=trained.baseline.first.codec)
    order = sorted(table.rows, key=lambda r: -r.best)
    rows = [
        [
            row.group.first.controller or short(row.group.first.codec),
            row.group.first.memory,
            quality_cell(row),
            str(len(row.group.runs)),
            f"{row.difference:+.2f}",
            within(row, table),
            f"{row.best - grace.BASELINE:+.2f}",
            _number(row.bits_per_element),
            _number(row.nmse),
        ]
        for row in order
    ]
    over = f"to {table.baseline.upper()}"
    near = sum(within(row, table) == "yes" for row in order)
    limit = slack(trained.baseline.best, trained.unit)
    missing = sorted(set(codecs.names()) - {row.group.first.codec.partition("(")[0] for row in order})
    gap = f" Not trained yet: {', '.join(f'`{name}`' for name in missing)}." if missing else ""
    heads = ("codec", "memory", "best, %", "seeds", over, f"within {limit:g}", "to GRACE's", "bits/element", "NMSE")
    return (
        f"{title}\n{setup_words(table)}. {near} of {len(order)} are within {limit:g} points of our own baseline. "
        f"Bits are what a worker hands over, packed.{gap}\n\n{_table(heads, rows)}"
    )


def _rates(evidence: Evidence) -> str:
    """Codecs that were trained at several learning rates."""
    trained = evidence.task(grace.TASK)
    tried = [each for each in by_rate(trained.groups) if len(each) == len(FACTORS)] if trained is not None else []
    best = {each[0].first.codec: max(g.best for g in each) for each in tried}
    if FP16 not in best:
        return ""
    rows = []
    for each in sorted(tried, key=lambda each: -best[each[0].first.codec]):
        codec, slow_to_fast = each[0].first.codec, sorted(each, key=lambda g: float(g.first.what["learning_rate"]))
        cells = [f"{g.best:.2f}" + f" ({len(g.runs)} seeds)" * (len(g.runs) > 1) for g in slow_to_fast]
        rows.append([short(codec), *cells, f"{best[codec] - best[FP16]:+.2f}"])
    heads = ("codec", *(f"{factor:g} times the rate" for factor in FACTORS), "best, to FP16's best")
    return (
        "\n### ResNet-9 on CIFAR-10: each codec at three learning rates\n\nThe best accuracy in percent, in the mean "
        "of seeds where there are several. [Some runs](../results/README.md) were made twice with one seed: they are "
        "not the same, as a GPU adds in no fixed order.\n\n"
        f"{_table(heads, rows)}"
    )


# -------------------------------------------------------------------- Beyond Throughput


def _stand_ins() -> str:
    bert, vgg = throughput.MODELS[BERT], throughput.MODELS[VGG19]
    return (
        "They train VGG19 on TinyImageNet and BERT-large on WikiText-103 on four A100 GPUs; here "
        f"`{STAND_IN[VGG19]}` and `{STAND_IN[BERT]}` stand in for them. Throughput is modelled for their testbed "
        f"(2 nodes of 2 GPUs, 100 Gbit/s; `{vgg[0]}` at batch {vgg[1]}, `{bert[0]}` at batch {bert[1]}): bytes are "
        f"traced, codecs cost what they do in profile `{HARDWARE}`, as there is none of an A100, and forward and "
        "backward pass take as long as the fastest round that they report, which is an upper bound. Time to accuracy "
        "is our rounds over their rounds a second. Curves of figures 1 to 3 are not in the text that we have."
    )


def _errors(evidence: Evidence) -> str:
    """Tables 2 and 5."""
    rows = []
    for setting in (*throughput.TOPK, *throughput.TOPKC, *throughput.PERMUTED):
        ours = [_nmse(mixed.found(evidence, name), setting) for name in (BERT, VGG19)]
        rows.append([setting.label, f"`{setting.codec}`", _number(setting.nmse), *ours])
    heads = ("setting", "ours", "theirs, BERT-large", STAND_IN[BERT], STAND_IN[VGG19])
    return f"\n### NMSE of the reduced gradient (tables 2 and 5)\n\n{_table(heads, rows)}"


def _nmse(trained: Trained | None, setting: Setting) -> str:
    group = trained.find(setting.codec) if trained is not None else None
    found = [r.nmse for r in group.runs if r.nmse is not None] if group is not None else []
    return _number(sum(found) / len(found)) if found else "open"


def _rounds(evidence: Evidence) -> str:
    """Tables 1, 3, 6 and 7, and what figures 1 to 3 show."""
    heads = (
        "setting",
        "table",
        "b",
        "rounds/s, theirs",
        "modelled",
        "best quality",
        "difference",
        "rounds to",
        "TTA/FP16",
    )
    text = ""
    for name in (BERT, VGG19):
        trained = mixed.found(evidence, name)
        goal = f" Target: {mixed.target(trained):g} {trained.unit}." if trained is not None else ""
        rows = [_row(evidence, name, trained, s) for s in throughput.SETTINGS if name in s.rounds_per_second]
        text += (
            f"\n### {name}, and {STAND_IN[name]} in its place (tables 1, 3, 6, 7; figures 1 to 3)\n\n"
            f"b and rounds a second are of {name}, the rest of {STAND_IN[name]}. The last column is FP16's time over "
            f"the setting's, to FP16's final quality: above 1 it is there sooner.{goal} *: the codec's cost is "
            f"inferred from other parameters.{_limits(name, trained)}\n\n{_table(heads, rows)}"
        )
    return text + _shown(evidence, "The curves, our rounds over their rounds a second", figures.THROUGHPUT)


def _limits(name: str, trained: Trained | None) -> str:
    """What times of a stand-in cannot tell, and what the stand-in of BERT cannot, beside their numbers."""
    if trained is None or trained.fp16 is None:
        return ""
    runs = [run for group in trained.groups for run in group.runs]
    note = utility(runs, None, targets=[mixed.target(trained)]).schedule_note
    told = f" Mind that {note}." if note else ""
    if name != BERT:
        return told
    run, seeds = trained.fp16.first, sorted({len(group.runs) for group in trained.groups})
    return (
        f"{told} **Read with care**: the stand-in has {run.outcome['parameters'] / 1e6:.1f} M parameters where {name} "
        f"has {shipped().shape(throughput.MODELS[BERT][0]).elements / 1e6:.0f} M, is trained for "
        f"{run.outcome['rounds'][-1]:,} steps, and ends at a perplexity of {trained.fp16.best:.0f} with FP16. It is "
        "near where training breaks: plain FP32 at twice its rate "
        "[does not learn](../results/rates_h200_2026-11-15.jsonl). "
        f"Its rate was chosen for FP32 alone. Seeds of a setting: {' or '.join(map(str, seeds))}."
    )


def _row(evidence: Evidence, name: str, trained: Trained | None, setting: Setting) -> list[str]:
    model = evidence.throughput(name, setting)
    ours = "-" if model is None else f"{model[0]:.2f}{'' if model[1] else ' *'}"
    row = [setting.label, setting.table, f"{setting.bits[name]:g}", f"{setting.rounds_per_second[name]:g}", ours]
    group = trained.find(setting.codec) if trained is not None else None
    if trained is None or group is None or trained.fp16 is None:
        return [*row, "open", "-", "-", "-"]
    needed, ratio = mixed.rounds(trained, setting), mixed.speed_up(trained, setting, name)
    reached = "never" if needed in (None, float("inf")) else f"{needed:,.0f}"
    gain = trained.told(trained.gain(group, trained.fp16))
    return [*row, trained.quality(group), gain, reached, "-" if not ratio else f"{ratio:.2f}"]


# -------------------------------------------------------------------- Accordion


def _table_3_1(evidence: Evidence) -> str:
    """Theirs beside ours."""
    rows, lengths = [], set()
    for line in accordion.LINES:
        trained, found = of_accordion.lookup(evidence, line)
        lengths |= set() if found is None else {found[2].first.what["epochs"]}
        for number, label in enumerate((line.low, line.high, "Accordion")):
            group = found[number] if found is not None else None
            ours = ["open", "-", "-"]
            if trained is not None and found is not None and group is not None:
                sent = group.first.floats
                ours = [trained.quality(group), "-" if sent is None else f"{sent / 1e6:,.1f}"]
                ours.append(_times(found[0].first.floats, sent))
            theirs = (
                f"{line.accuracy[number]:g}",
                f"{line.floats[number]:,.1f}",
                f"{line.floats[0] / line.floats[number]:.2f}",
            )
            rows.append([f"{line.network}, {line.table}", f"`{label}`" if "(" in label else label, *theirs, *ours])
    heads = ("network", "setting", "accuracy, %", "M floats", "times less", "ours: best", "M floats", "times less")
    length = f" Ours: {' and '.join(map(str, sorted(lengths)))}." if lengths else ""
    return (
        f"\n### Tables 3.1 and 3.2\n\nTheirs: {accordion.EPOCHS} epochs.{length} Floats are those that one worker "
        f"hands over, so that shares compare and totals do not.\n\n{_table(heads, rows)}"
        f"{_shown(evidence, 'The curves, and how many tensors have each level', ['accordion'])}"
    )


def _shown(evidence: Evidence, what: str, names: Iterable[str]) -> str:
    """Links to the pictures that there are."""
    drawn = figures.figures(evidence)
    links = "\n".join(f"![{name}](figures/{name}.svg)" for name in names if name in drawn)
    return f"\n{what}:\n\n{links}\n" if links else ""


def _times(low: float | None, sent: float | None) -> str:
    return f"{low / sent:.2f}" if low and sent else "-"


# -------------------------------------------------------------------- Utility


def _utilities(evidence: Evidence) -> str:
    """The table of each task for one cluster of ours, where the model knows the task's times."""
    text = ""
    for trained in evidence.tasks.values():
        if trained.fp16 is not None:
            clock = Modelled(planner.predict, CLUSTER)
            if clock.times(trained.fp16.first).seconds is not None:
                text += _utility(utility([r for g in trained.groups for r in g.runs], clock))
    if not text:
        return ""
    return (
        "\n## Time to accuracy on a cluster of today\n\nNo claim of anybody: what our records and our model say "
        f"together. `gradwire tta` makes it for any other cluster.\n{text}"
    )


def _utility(table: Utility) -> str:
    rows = []
    for row in table.rows:
        cells = [str(row.rank), row.name, quality_cell(row)]
        cells.append("-" if row.seconds_per_round is None else f"{1e3 * row.seconds_per_round:.3g}")
        for target in table.targets:
            reached, ratio = row.to_target[target], row.speed_up[target]
            cells.append(
                "-" if reached is None else f"{reached.seconds:.3g} s" + ("" if ratio is None else f", {ratio:.2f}x")
            )
        rows.append(cells)
    heads = ("rank", "codec", f"best, {table.unit}", "ms a round", *(f"to {t:g}" for t in table.targets))
    lossy = LOSSY_NOTE if any(row.lossy for row in table.rows) else ""
    notes = "".join(f"- {a}\n" for a in (lossy, table.schedule_note, *table.assumptions) if a)
    return f"\n### {table.setup['task']}, {table.time_label}\n\n{setup_words(table)}.\n\n{_table(heads, rows)}\n{notes}"


# -------------------------------------------------------------------- sources


def _sources(root: Path, records: Sequence[tuple[str, Record]], source: Source) -> str:
    """Where the trainings come from: each command at each commit once."""
    lines = dict.fromkeys(f"- {source(root / 'results' / name, record)}" for name, record in records)
    told = (
        "".join(lines)
        or "No training is recorded yet: `gradwire bench accuracy --record results/accuracy_NAME.jsonl`.\n"
    )
    return f"\n## Made by\n\n{told}"
