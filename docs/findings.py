"""docs/findings.md: what four papers found, one by one, and what our records say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import figures
from prediction import STEPS

from gradwire import planner
from gradwire.core.codec import codecs
from gradwire.core.errors import GradwireError
from gradwire.core.records import Record, load
from gradwire.core.registry import to_spec
from gradwire.laboratory.report.accuracy import quality_cell, setup_words, within
from gradwire.laboratory.reproduce import accordion, grace, throughput
from gradwire.laboratory.reproduce.finding import OPEN, VERDICTS, Evidence, Finding, Judged, Trained
from gradwire.laboratory.reproduce.findings import accordion as of_accordion
from gradwire.laboratory.reproduce.findings import grace as of_grace
from gradwire.laboratory.reproduce.findings import mixed
from gradwire.laboratory.reproduce.findings import throughput as of_throughput
from gradwire.laboratory.reproduce.findings import utility as of_utility
from gradwire.laboratory.reproduce.study import Study
from gradwire.laboratory.reproduce.throughput import BERT, STAND_IN, VGG19, Setting
from gradwire.planner import model as perf
from gradwire.planner.clock import Modelled
from gradwire.planner.quality import seed_noise
from gradwire.planner.simulated_buckets import buckets
from gradwire.planner.spec import short
from gradwire.planner.tta import Utility, slack, utility
from gradwire.planner.workload import OVERLAP, Exchange, Unit, Workload, shipped
from gradwire.tracing import trace

HARDWARE = "h200"
CLUSTER = {"gpus": 16, "gpus_per_node": 1, "bandwidth": "10gbit", "hardware": HARDWARE}  # of the utility table
INTRO = """
Four papers say when compression helps. Below is each of their findings in our words, with what we measured and what
becomes of it: **confirmed**, **contradicted**, or **open** where no record of ours can decide yet. Verdicts are rules
over records, named with each finding, and never typed in; the rules are in
`gradwire.laboratory.reproduce.findings`. Accuracy is measured: real trainings, all workers computed on one device as
the distributed run computes them. Times are not: they are modelled, or their published throughput is set
beside our rounds, and each finding says so.

What is not alike, here and there, and to be kept in mind:

- All codecs have the baseline's learning rate, but votes (signsgd, signum), which go at 1e-3 and without momentum;
  codecs that keep momentum themselves meet none in the optimizer. GRACE trains images with plain SGD under PowerSGD and
  Random-k; ours have momentum.
- THC that saturates keeps no memory, THC with exact sums does: they differ in both.
- Most codecs have one seed. Two runs that differ in nothing but their seed differ by less than {noise:.2f} points in 95
  of 100 pairs, so a mark "within 0.5" that is nearer than that to its limit may be luck.
- The stand-in for BERT is small, is trained for 756 steps, and is near where training breaks:
  [plain FP32 at twice its rate](../results/rates_h200_2026-11-15.jsonl) does not learn.
"""

Source = Callable[[Path, Record], str]


def page(root: Path, source: Source) -> str:
    """The whole page from results/."""
    study = Study(records=[r for name in STEPS for r in load(root / "results" / name)])
    found = evidence(root)
    return write(found, study) + _sources(root, found.records, source)


def evidence(root: Path) -> Evidence:
    """All trainings under results/."""
    paths = sorted((root / "results").glob("accuracy_*.jsonl"))
    return Evidence([(path.name, record) for path in paths for record in load(path)], planner.predict, modelled)


def write(evidence: Evidence, study: Study) -> str:
    """The page without its sources."""
    judged = {
        paper: [(f, f.check(evidence)) for f in findings]
        for paper, findings in (
            ("GRACE", of_grace.FINDINGS),
            ("Beyond Throughput", of_throughput.FINDINGS),
            ("Accordion", of_accordion.FINDINGS),
        )
    }
    claims = of_utility.lines(study)
    counts = {paper: Counter(j.verdict for _, j in found) for paper, found in judged.items()}
    counts["Utility"] = Counter(verdict for _, _, _, verdict, _ in claims)
    return (
        f"# Findings of four papers, checked\n{INTRO.format(noise=seed_noise())}\n{_tally(counts)}"
        f"\n## GRACE\n\n{grace.PAPER}.\n{_resnet9(evidence)}{_list(judged['GRACE'])}"
        f"\n## Beyond Throughput and Compression Ratios\n\n{throughput.PAPER}. {_stand_ins()}\n"
        f"{_errors(evidence)}{_rounds(evidence)}{_list(judged['Beyond Throughput'])}"
        f"\n## Accordion\n\n{accordion.PAPER}.\n{_table_3_1(evidence)}{_list(judged['Accordion'])}"
        f"\n## On the Utility of Gradient Compression\n\n{of_utility.PAPER}. All numbers are in "
        f"[utility.md](utility.md).\n\n{_claims(claims)}{_utilities(evidence)}"
    )


def _tally(counts: dict[str, Counter[str]]) -> str:
    lines = "".join(f"| {paper} | {' | '.join(str(found[v]) for v in VERDICTS)} |\n" for paper, found in counts.items())
    return f"| paper | {' | '.join(VERDICTS)} |\n|---|---|---|---|\n{lines}"


def _list(judged: Sequence[tuple[Finding, Judged]]) -> str:
    return "\n### One by one\n\n" + "".join(_point(finding, found) for finding, found in judged)


def _point(finding: Finding, found: Judged) -> str:
    if found.verdict == OPEN:
        return f"- `{finding.id}`, **open: {found.why}.** {finding.says} ({finding.where}.){_numbers(found)}\n"
    files = ", ".join(f"[{name}](../results/{name})" for name in found.files)
    records = f" Records: {files}." if files else ""
    return (
        f"- `{finding.id}`, **{found.verdict}.** {finding.says} ({finding.where}.) Found: {found.measured}. "
        f"Rule: {finding.rule}. {found.why}{records}\n"
    )


def _numbers(found: Judged) -> str:
    return "" if found.measured == "-" else f" So far: {found.measured}."


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


@cache
def modelled(name: str, setting: Setting) -> tuple[float, bool] | None:
    """Rounds a second on their testbed, and whether the codec's own cost was measured."""
    model, batch = throughput.MODELS[name]
    backward = throughput.compute_seconds(name) * 2 / 3  # forward is taken as half of it
    asked: dict[str, Any] = {"model": model, "batch": batch, "hardware": HARDWARE, "backward": backward}
    try:
        spec = to_spec(codecs.build(setting.codec))
        workload = None
        if not shipped().has(model, spec, "auto"):
            workload = _traced(model, spec, throughput.TESTBED["gpus"])
        found = perf.predict(codec=spec, workload=workload, **asked, **throughput.TESTBED)
    except GradwireError:
        return None
    cost = next(i for i in found.inputs if i.name == "encode and decode")
    return 1 / found.step_seconds, not cost.source.startswith("inferred")


def _traced(model: str, codec: str, workers: int) -> Workload:
    """What `gradwire.planner.own_workloads` would trace of it, for one number of workers and one mode alone."""
    shape = shipped().shape(model)
    units = [_unit(codec, tuple(shape.shapes[i] for i in bucket), workers) for bucket in buckets(shape.shapes)]
    timed = tuple(replace(u, ready=ready) for u, ready in zip(units, shape.ready(), strict=True))
    return Workload(model, codec, "auto", OVERLAP, workers, timed)


@cache
def _unit(codec: str, shapes: tuple[tuple[int, ...], ...], workers: int) -> Unit:
    """Of one bucket; a model's are often alike."""
    found = trace(codec, [(f"{i}", shape) for i, shape in enumerate(shapes)], workers=workers)
    exchanges = tuple(Exchange(e.kind, e.round, e.handed_bytes) for e in found.exchanges)
    return Unit(found.elements, found.compressed, found.strategy, exchanges)


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
            f"inferred from other parameters.\n\n{_table(heads, rows)}"
        )
    return text + _shown(evidence, "The curves, our rounds over their rounds a second", figures.THROUGHPUT)


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


def _claims(claims: Sequence[tuple[str, str, str, str, str]]) -> str:
    return "".join(f"- `{id}`, **{verdict}.** {says} ({where}). {why}\n" for id, says, where, verdict, why in claims)


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
        cells = [str(row.rank), row.label, quality_cell(row)]
        cells.append("-" if row.seconds_per_round is None else f"{1e3 * row.seconds_per_round:.3g}")
        for target in table.targets:
            reached, ratio = row.to_target[target], row.speed_up[target]
            cells.append(
                "-" if reached is None else f"{reached.seconds:.3g} s" + ("" if ratio is None else f", {ratio:.2f}x")
            )
        rows.append(cells)
    heads = ("rank", "codec", f"best, {table.unit}", "ms a round", *(f"to {t:g}" for t in table.targets))
    notes = "".join(f"- {a}\n" for a in table.assumptions)
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
