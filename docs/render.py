"""Write the pages that are outputs: docs/codecs.md and docs/codecs/, docs/cli.md, docs/findings.md, and the demo's run
in README.md.

    python docs/render.py            # write them
    python docs/render.py --check    # exit with 1 if one of them is out of date

The run shown in the README is rebuilt from the newest record of a demo in results/. To show a new one:

    gradwire demo --record results/demo_<cpu>_<date>.jsonl && python docs/render.py
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from gradwire import planner
from gradwire.cli import tta
from gradwire.cli.app import command
from gradwire.cli.bench.encode import cells, headings
from gradwire.cli.codecs import describe, docstring
from gradwire.cli.demo import page
from gradwire.core.codec import Codec, codecs
from gradwire.core.records import Record, load
from gradwire.laboratory.bench import demo, encode
from gradwire.laboratory.bench.sweep import key
from gradwire.laboratory.reproduce.evidence import Evidence
from gradwire.planner.clock import Measured, Modelled
from gradwire.planner.training import Run
from gradwire.planner.tta import is_baseline, utility

sys.path.insert(0, str(Path(__file__).parent))
import autopilot
import doctor
import figures
import findings
import framework_tables
import long_runs
import markup
import network
import prediction
import throughputs

import gpu

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
ASKED: dict[str, Any] = {"model": "resnet50", "batch": 64, "gpus": 64, "gpus_per_node": 8, "bandwidth": "10gbit"}
GENERATED = "<!-- written by docs/render.py; run `make docs` after a change -->\n"
UNUSUAL = {
    "fixed_size": "size depends on the data",
    "is_mean": "votes",
    "odd": "not odd",
    "homogeneous": "absolute bounds",
}
FAMILIES = {
    "baseline": ("Baselines", "What any compression has to beat: fewer bits for each element, or the same."),
    "quantization": ("Quantization", "Every element is sent, in fewer bits."),
    "sparsification": ("Sparsification", "Few elements are sent, in full or nearly full precision."),
    "hybrid": ("Hybrid", "Few elements are sent, and in few bits."),
    "lowrank": ("Low rank", "Matrices are sent as products of thin ones."),
}
TRAINED = {"task": "resnet9-cifar10"}
CLUSTER: dict[str, Any] = {"gpus": 8, "bandwidth": "1gbit"}
CODECS_SHOWN = ("blockint(bits=8)", "blockint", "eightbit", "thc", "powersgd", "topk", "signum")
WIDTH = 120  # columns of the terminal that the README shows


def main(arguments: list[str]) -> int:
    made = pages()
    outdated = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    drawn = {FIGURES / f"{name}.svg": found for name, found in figures.figures(findings.evidence(ROOT)).items()}
    if "--check" in arguments:
        outdated += [path for path, found in drawn.items() if figures.outdated(path, found)]
        for path in outdated:
            print(f"{path.relative_to(ROOT)} is out of date; run: make docs", file=sys.stderr)
        return 1 if outdated else 0
    for path in outdated:
        path.write_text(made[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    for path, found in drawn.items():
        if figures.outdated(path, found):
            figures.write(path, found)
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


def pages() -> dict[Path, str]:
    """Every page, as it should be."""
    return {path: make() for path, make in makers().items()}


def makers() -> dict[Path, Callable[[], str]]:
    """What makes each page: some take long, and the tests make them one by one."""
    return {
        ROOT / "docs" / "codecs.md": codec_page,
        **{ROOT / "docs" / "codecs" / f"{name}.md": partial(family_page, name) for name in FAMILIES},
        ROOT / "docs" / "cli.md": cli_page,
        ROOT / "docs" / "encode.md": encode_page,
        ROOT / "docs" / "autopilot.md": partial(with_block, "autopilot", autopilot.block),
        ROOT / "docs" / "doctor.md": partial(with_block, "doctor", doctor.block),
        ROOT / "docs" / "faults.md": partial(
            with_blocks, "faults", faults=long_runs.block, mutants=long_runs.planted, checksums=long_runs.checksums
        ),
        ROOT / "docs" / "frameworks.md": partial(
            with_blocks, "frameworks", trainings=framework_tables.trainings, links=framework_tables.links
        ),
        ROOT / "docs" / "gpu.md": lambda: f"{GENERATED}\n{gpu.page(ROOT, _source)}",
        ROOT / "docs" / "network.md": lambda: f"{GENERATED}\n{network.page(ROOT, _source)}",
        ROOT / "docs" / "findings.md": lambda: f"{GENERATED}\n{findings.page(ROOT, _source)}",
        ROOT / "docs" / "prediction.md": lambda: f"{GENERATED}\n{prediction.prediction(ROOT)}",
        ROOT / "docs" / "throughputs.md": lambda: f"{GENERATED}\n{throughputs.page()}",
        ROOT / "docs" / "utility.md": lambda: f"{GENERATED}\n{prediction.utility(findings.evidence(ROOT))}",
        ROOT / "README.md": readme,
    }


# -------------------------------------------------------------------- codecs.md


def ours() -> list[Codec]:
    """The codecs of the catalogue, with their defaults."""
    return [codecs.build(n) for n in codecs.names() if codecs.cls(n).__module__.startswith("gradwire.")]


def codec_page() -> str:
    lines = [GENERATED, "# Codecs\n"]
    lines.append(
        "Bits per element: what one worker hands over of a 1024x1024 float32 matrix, among 8 workers, traced. Where "
        "the size depends on the data, it is that of Gaussian noise at 0.001, after a few steps with the codec's "
        "memory.\n\n"
        "Claims, each of them tested: unbiased with variance omega (E|C(x)-x|² <= omega |x|²) or contracting with "
        "delta (E|C(x)-x|² <= (1-delta) |x|²); sparse: sends some elements as they are, and nothing of the others.\n"
    )
    for family, (title, text) in FAMILIES.items():
        listed = [describe(codec) for codec in ours() if codec.family == family]
        lines.append(f"\n## [{title}](codecs/{family}.md)\n\n{text}\n")
        lines.append("| codec | bits/element | claims | memory | strategies | paper |")
        lines.append("|---|---|---|---|---|---|")
        lines += [_codec_row(one) for one in listed]
    return "\n".join(lines) + "\n"


def _codec_row(one: dict[str, Any]) -> str:
    about = "" if one["traits"]["fixed_size"] else "about "
    cells = (
        f"[`{one['name']}`](codecs/{one['family']}.md#{one['name']})",
        f"{about}{one['bits_per_element']:.4g}",
        _claims(one["traits"]),
        one["memory"].partition("(")[0],
        ", ".join(one["strategies"]) or "its own rounds",
        one["paper"],
    )
    return f"| {' | '.join(cells)} |"


def family_page(family: str) -> str:
    """The codecs of one family: what their modules and classes say."""
    title, text = FAMILIES[family]
    sections = [_codec_section(codec) for codec in ours() if codec.family == family]
    return f"{GENERATED}\n# {title}\n\n{text} All codecs: [overview](../codecs.md).\n{''.join(sections)}"


def _codec_section(codec: Codec) -> str:
    """The maths, then how it is called."""
    text, used = (markup.described(d) for d in (docstring(codec), inspect.getdoc(type(codec)) or ""))
    spec = f"{codec.name}({', '.join(f'{f.name}={f.default!r}' for f in dataclasses.fields(codec) if f.init)})"
    return f"\n## {codec.name}\n\n{text}\n\n**Use** `{spec.removesuffix('()')}`\n\n{used}\n"


def _claims(traits: dict[str, Any]) -> str:
    """What a codec claims, in words: what holds for most is left out."""
    words = []
    if traits["unbiased"]:
        words.append("unbiased")
    words += [f"{k} {traits[k]:.3g}" for k in ("omega", "delta") if traits[k] is not None]
    words += [k for k in ("lossless", "elementwise", "sparse", "stochastic", "oracle") if traits[k]]
    words += [w for k, w in UNUSUAL.items() if not traits[k]]
    return ", ".join(words)


# -------------------------------------------------------------------- cli.md


def cli_page() -> str:
    return f"{GENERATED}\n# Command line\n" + "".join(
        _help(title, entry) for title, entry in _entries("gradwire", command())
    )


def _entries(title: str, entry: Any) -> list[tuple[str, Any]]:
    """A command, and all below it."""
    below = getattr(entry, "commands", {})
    return [(title, entry), *(found for name, sub in below.items() for found in _entries(f"{title} {name}", sub))]


def _help(title: str, entry: Any) -> str:
    context = entry.make_context(title, [], resilient_parsing=True, terminal_width=100)
    return f"\n## {title}\n\n```text\n{entry.get_help(context).rstrip()}\n```\n"


# -------------------------------------------------------------------- encode.md


AIM = """
The aim is 4 GB/s of gradient on one core for signs and block integers, and 3 for stochastic rounding and selection,
with error feedback. It is not reached on the machines measured. Error feedback reads the gradient and the old error,
and writes the new one: three vectors, where a copy moves two. Under "memory error_feedback" a copy of 8 M elements runs
at between 5 and 6 GB/s, so encoding could reach 4 GB/s at most; it takes 2.6 copies (signs) to 3.8 (stochastic
rounding), and 8 for a threshold that sends 1.7 bytes an element. The rest is arithmetic on what is in the cache. Tables
of an earlier date are of kernels that read the gradient several times and drew their random numbers from a slower
generator.
"""


def encode_page() -> str:
    """What codecs cost on a CPU, from the newest record of each kind of machine."""
    sections = []
    for path in sorted((ROOT / "results").glob("encode_*.jsonl")):
        records = [r for r in load(path) if r.kind == encode.KIND]
        last = records[-1]
        where = last.environment["gpu"] if last.what["device"] == "cuda" else last.environment["cpu"]
        memory = "" if last.what["memory"] == "default" else f", memory {last.what['memory']}"
        latest = {key(r.what): r for r in records}  # measured again: the last counts
        others = len({(r.command, r.commit) for r in latest.values()}) - 1
        source = _source(path, last) + (f"{others} more commands are in it.\n" if others else "")
        sections.append(f"\n## {where}{memory}\n\n{source}\n{_encode_tables(list(latest.values()))}")
    text = (
        "Times of one worker beside the network: encode, reduce and decode as in `gradwire bench encode --help`, with "
        "each codec's own memory and strategy. Rates are bytes of float32 gradient a second. Ratios are within one "
        "run: the same codec in plain torch against the compiled kernels, and these against a copy of the gradient. On "
        "a GPU kernels are Triton's, launched one by one while the GPU waits, and as CUDA graphs behind other work; a "
        "dash says that a codec was not captured. Tables of 2026-11-15 are of plain torch.\n"
    )
    return f"{GENERATED}\n# What encoding costs\n\n{text}{AIM}{''.join(sections)}"


def _encode_tables(records: list[Record]) -> str:
    text = ""
    subjects = sorted({(r.what["elements"], r.what.get("model")) for r in records}, key=lambda s: (s[0], s[1] or ""))
    for elements, model in subjects:
        mine = [r for r in records if (r.what["elements"], r.what.get("model")) == (elements, model)]
        measured = sorted(encode.from_records(mine), key=lambda m: m.codec)
        shown = headings(measured)
        text += f"\n### {f'{model}, ' if model else ''}{elements:,} elements\n\n"
        text += f"| {' | '.join(h.replace(chr(10), ' ') for h in shown)} |\n"
        text += "|---" * len(shown) + "|\n"
        for m in measured:
            text += f"| {' | '.join(cells(m, measured))} |\n"
    return text


def _source(path: Path, record: Record) -> str:
    """Where numbers come from."""
    where, state = record.environment, " with uncommitted changes" if record.dirty else ""
    gpu = f"{where['gpu']}, " if where.get("gpu") else ""
    versions = f"Python {where['python']}, torch {where['torch']}, numba {where.get('numba') or 'not installed'}"
    return (
        f"[Record](../results/{path.name}) of {record.time[:10]}: `{record.command}`, commit `{record.commit[:12]}`"
        f"{state}, {gpu}{where['cpu']}, {where['cores']} cores, {where['os']}, {versions}.\n"
    )


# -------------------------------------------------------------------- README.md


def readme() -> str:
    path, records = newest()
    text = _filled((ROOT / "README.md").read_text(encoding="utf-8"), "demo", demo_block(path, records))
    text = _filled(text, "advice", advice_block())
    text = _filled(text, "tta", tta_block())
    said = prediction.for_readme(Evidence())
    held = "fails" if throughputs.fails() else "holds"
    text = re.sub(r"it \w+(?= on \[38 published throughputs\])", f"it {held}", text)
    return re.sub(r"(?<=in 6 of 200 set-ups).*(?=\[docs/utility)", said, text)


Block: TypeAlias = Callable[[Path, Callable[[Path, Record], str]], str]


def with_block(name: str, block: Block) -> str:
    """A page that people write, with one part from records."""
    return with_blocks(name, **{name: block})


def with_blocks(page: str, **blocks: Block) -> str:
    """A page that people write, with parts from records, by the names of their marks."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for name, block in blocks.items():
        text = _filled(text, name, block(ROOT, _source))
    return text


def _filled(text: str, name: str, block: str) -> str:
    """With `block` between its two marks."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
    before, rest = text.split(begin)
    return before + begin + block + end + rest.split(end)[1]


def advice_block() -> str:
    """What `gradwire advise` says first."""
    found = planner.advise(**ASKED)
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in ASKED.items())
    assert found.bandwidth is not None
    said = [found.verdict.sentence, found.verdict.line or "", found.bandwidth.sentence]
    text = "\n".join(textwrap.fill(line, WIDTH) for line in said if line)
    return (
        f"```text\n$ gradwire advise {options}\n{text}\n```\n"
        "Ranked are codecs that kept their quality in our trainings. Costs: of an H200; the network is assumed.\n"
    )


def tta_block() -> str:
    """What `gradwire tta` says of the trainings on a GPU."""
    paths = sorted((ROOT / "results").glob("accuracy_h200_*.jsonl"))
    made = {path: [Run.of(r) for r in load(path) if r.what["task"] == TRAINED["task"]] for path in paths}
    runs = tta.named([run for each in made.values() for run in each], CODECS_SHOWN, [tta.DEFAULT])
    table = utility(runs, Modelled(planner.predict, {"hardware": "h200", "mode": "overlap", **CLUSTER}))
    screen = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    screen.print(tta.table_of(table))
    assert isinstance(screen.file, io.StringIO)
    shown = "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines()).strip("\n")
    options = " ".join(f"--{k} {v}" for k, v in {**TRAINED, **CLUSTER}.items())
    codec_options = " ".join(f"--codec {shlex.quote(c)}" for c in CODECS_SHOWN)
    files = ", ".join(f"[{path.stem[-10:]}](results/{path.name})" for path, each in made.items() if each)
    seeds = sorted({len(row.group.runs) for row in table.rows})
    commits = " and ".join(f"`{c[:12]}`" for c in dict.fromkeys(r.record.commit for r in runs))
    return (
        f"```text\n$ gradwire tta results/accuracy_h200_*.jsonl {options} --memory {tta.DEFAULT} {codec_options}\n"
        f"{shown}\n```\n"
        f"Records ({files}): ResNet-9 on CIFAR-10, 8 virtual workers, 24 epochs, "
        f"{' or '.join(map(str, seeds))} seeds, `gradwire bench accuracy --study grace-resnet9`, "
        f"{runs[0].record.environment['gpu']}, commits {commits}. "
        f"Accuracy is measured, the time of a step modelled.{_capital(table.schedule_note)}{measured_tta()}"
    )


def _capital(note: str) -> str:
    """As a sentence."""
    return f" {note[0].upper()}{note[1:]}." if note else ""


def measured_tta() -> str:
    """The same with a measured clock: the codec that is soonest on emulated hosts, task by task, of those not lossy."""
    told = []
    for path in sorted((ROOT / "results").glob("accuracy_*.jsonl")):
        runs = [Run.of(r) for r in load(path)]
        if not all(r.measured for r in runs):
            continue
        table = utility(runs, Measured.of(runs))
        target = max(table.targets)
        kept = [row for row in table.rows if not row.lossy and not is_baseline(row) and row.speed_up[target]]
        if not kept:
            continue
        best = max(kept, key=lambda row: row.speed_up[target] or 0.0)
        where = table.time_label.removeprefix("measured: ")
        name, times = best.label.partition(",")[0], best.speed_up[target]
        soon = f"{name} reaches {target:.1f} % {times:.1f} times as soon as FP16"
        told.append(f"{soon} on {where} (`--task {runs[0].task}`, [record](results/{path.name}))")
    return f" Measured all through: {'; '.join(told)}.\n" if told else "\n"


def newest() -> tuple[Path, list[Record]]:
    """The file whose last demo is the latest, and its records."""
    found = [(path, load(path)) for path in sorted((ROOT / "results").glob("demo_*.jsonl"))]
    if not found:
        sys.exit("no results/demo_*.jsonl; make one: gradwire demo --record results/demo_<cpu>_<date>.jsonl")
    return max(found, key=lambda pair: pair[1][-1].time)


def demo_block(path: Path, records: list[Record]) -> str:
    """The terminal's output again, and where its numbers come from."""
    screen = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    screen.print(page(demo.from_records(records)))
    assert isinstance(screen.file, io.StringIO)
    shown = "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines()).strip("\n")
    last = records[-1]
    where, state = last.environment, " with uncommitted changes" if last.dirty else ""
    return (
        f"```text\n$ gradwire demo\n{shown}\n```\n"
        f"[Record](results/{path.name}) of {last.time[:10]}: `{last.command}`, commit `{last.commit[:12]}`{state}, "
        f"{where['cpu']}, {where['cores']} cores, {where['os']}, Python {where['python']}, torch {where['torch']}, "
        f"{where['backend']}.\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
