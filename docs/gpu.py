"""docs/gpu.md: what codecs cost on a GPU, beside aims, other ways to do the same, and whole iterations under DDP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gradwire.cli.bench.overlap import cells
from gradwire.core.baselines import PLAIN
from gradwire.core.intervals import ratio
from gradwire.core.records import Record, load
from gradwire.laboratory.bench import encode, iteration, overlap

Source = Callable[[Path, Record], str]
AIMS = {  # ms of the whole codec, four workers
    "resnet50": {
        "efsignsgd": 0.16,
        "signsgd": 0.16,
        "blockint": 0.16,
        "qsgd": 0.22,
        "terngrad": 0.22,
        "natural": 0.25,
        "eightbit": 0.25,
        "topkc": 0.2,
        "randomk": 0.2,
        "topk": 0.45,
        "dgc": 0.45,
        "threshold": 0.45,
        "powersgd": 0.35,
        "thc": 0.4,
    },
    "bert-base": {"blockint": 0.55, "topk": 1.6, "powersgd": 1.2},
}
ADDED = {"elementwise": 0.03, "powersgd": 0.05}  # aims: shares of DDP's iteration
ELEMENTWISE = ("blockint", "efsignsgd", "qsgd")  # of those that were measured
SHOWN = 5  # kernels of a codec that misses its aim
INTRO = """
Times of one worker of four, beside the network, with error feedback: the gradients of a whole model as one unit. "As
graphs" is what a step takes of a GPU that is busy with the backward pass; "launched" is kernel by kernel while the GPU
waits, so that the host counts. Kernels are held to the bits of their plain form (of matrix products, to what the tests
state) in Triton's interpreter, and on an H200 as far as the [records of tests](../results/README.md) say.
"""
ITERATIONS = """
The aim is that a codec adds at most 3 % to an iteration where it treats elements one by one, and PowerSGD 5 %. What
counts is the time that the GPU works: by the clock, hosts differ more from one iteration to the next.
"""
OVERLAP = """
Both are CUDA graphs in two streams, so that the GPU alone decides; exchanges are echoes. Where nothing hides, a step
costs what the codec takes, whether it overlaps or not; below 0 the two would be in each other's way.
"""


def page(root: Path, source: Source) -> str:
    """All of it, from the newest records of an H200."""
    path = max(p for p in (root / "results").glob("encode_h200*.jsonl") if _has_graphs(p))
    records = load(path)
    return (
        f"# On a GPU\n{INTRO}\n{source(path, records[-1])}\n"
        f"## Aims\n\n{_aims(records)}\n"
        f"## Beside other ways\n\n{_beside(records, 'resnet50')}\n"
        f"## Whole iterations\n{ITERATIONS}\n{_iterations(root, source, records)}"
        f"## Beside the backward pass\n{_overlap(root, source)}"
    )


def _has_graphs(path: Path) -> bool:
    return any("graphs_seconds" in r.outcome for r in load(path))


def _aims(records: Sequence[Record]) -> str:
    """What was wanted and what is; of what misses its aim, where the time goes."""
    lines = ["| model | codec | aim, ms | as graphs, ms | launched, ms | |", "|---|---|---|---|---|---|"]
    missed = []
    for model, aims in AIMS.items():
        for codec, aim in aims.items():
            record = _find(records, model, codec)
            if record is None:
                continue
            (m,) = encode.from_records([record])
            ms = 1e3 * m.median("total", "graphs" if m.graphs is not None else "kernels")
            graphs = "–" if m.graphs is None else f"{ms:.3f}"
            verdict = "met" if ms <= aim else f"missed by {100 * (ms / aim - 1):.1f} %"
            lines.append(f"| {model} | {codec} | {aim:g} | {graphs} | {1e3 * m.median('total'):.3f} | {verdict} |")
            if ms > aim:
                missed.append((model, codec, _profiled(records, record)))
    text = "\n".join(lines) + "\n"
    for model, codec, record in missed:
        works = record.outcome.get("kernels", [])[:SHOWN]
        if works:
            parts = ", ".join(f"{_short(name)} {1e6 * s:.0f}" + f" ({n})" * (n > 1) for name, n, s in works)
            text += f"\n- {codec} on {model}, its longest kernels, us, echoes of exchanges included: {parts}."
            text += _why(codec, record)
    return text + "\n"


def _why(codec: str, record: Record) -> str:
    """What the kernels' times do not say."""
    if codec == "blockint":
        (m,) = encode.from_records([record])
        copies = f"{1e6 * _copies(m.copy_seconds, 4):.0f} us"
        return f" Copies of as many bytes as its three kernels read and write would take {copies}."
    if codec == "threshold":
        return " The rest is the host's time: it must know how much to send, so nothing can be captured."
    return ""


def _copies(copy_seconds: float, bits: int) -> float:
    """Seconds of copying as many bytes as blockint reads and writes in all, four workers, codes of so many bits."""
    codes = bits / 32  # of a gradient
    encode = 3 + codes  # gradient, error and new error; codes
    own_shard = codes + 2 / 4 + codes / 4  # codes from everybody, its error and new error, its codes
    return copy_seconds * (encode + own_shard + codes + 1) / 2  # a copy reads and writes one gradient


def _short(kernel: str) -> str:
    """The name of a kernel without its types; those of torch and CUDA are copies here."""
    return "a copy" if "copy" in kernel.lower() or "memcpy" in kernel.lower() else kernel.split("<")[0]


def _find(records: Sequence[Record], model: str, codec: str) -> Record | None:
    found = [r for r in records if r.kind == encode.KIND and r.what.get("model") == model and r.what["codec"] == codec]
    return found[-1] if found else None


def _profiled(records: Sequence[Record], record: Record) -> Record:
    """The record itself, or another one of the same, that has the times of kernels."""
    alike = [r for r in records if r.what == record.what and "kernels" in r.outcome]
    return alike[-1] if alike else record


def _beside(records: Sequence[Record], model: str) -> str:
    """A codec's plain form, and torch's own hooks."""
    lines = [
        "| codec | as graphs, ms | plain torch, ms | torch.compile, ms | copies of the gradient |",
        "|---|---|---|---|---|",
    ]
    rows = {r.what["codec"]: r for r in records if r.kind == encode.KIND and r.what.get("model") == model}
    for m in encode.from_records(list(rows.values())):
        ours = m.median("total", "graphs" if m.graphs is not None else "kernels")
        compiled = "–" if m.compiled is None else f"{1e3 * m.median('total', 'compiled'):.3g}"
        launched = "" if m.graphs is not None else " launched"
        plain = 1e3 * m.median("total", "reference")
        lines.append(
            f"| {m.codec} | {1e3 * ours:.3f}{launched} | {plain:.3g} | {compiled} | {ours / m.copy_seconds:.1f} |"
        )
    hooks = {(r.what["hook"], r.what["model"]): r.quantiles.p50 for r in records if r.kind == encode.HOOK}
    text = f"{model}.\n\n" + "\n".join(lines) + "\n"
    if hooks:
        said = "; ".join(f"{hook} on {where} {1e3 * seconds:.3g} ms" for (hook, where), seconds in hooks.items())
        text += f"\nTorch's own hooks, everything in one bucket, launched: {said}.\n"
    return text


def _iterations(root: Path, source: Source, costs: Sequence[Record]) -> str:
    text = ""
    for path in sorted((root / "results").glob("iteration_*.jsonl")):
        records = [r for r in load(path) if r.kind == iteration.KIND]
        for command in dict.fromkeys(r.command for r in records):
            group = [r for r in records if r.command == command]
            what = group[0].what
            ddp = next(r for r in group if r.what["configuration"] == PLAIN)
            plain = ddp.outcome["busy_seconds"]
            text += (
                f"### {what['model']}, batch {what['batch']}, {what['precision']}, {what['exchange']}\n\n"
                f"{source(path, group[-1])}\n"
                "| configuration | ms (p20-p80) | / fp32 DDP (95 %) | GPU at work, ms | / fp32 DDP |\n"
                "|---|---|---|---|---|\n"
            )
            for r in group:
                q, busy = r.quantiles, r.outcome["busy_seconds"]
                work = "– | –" if busy is None or plain is None else f"{1e3 * busy:.2f} | {busy / plain:.3f}"
                spread = f"{1e3 * q.p50:.2f} ({1e3 * q.p20:.2f}-{1e3 * q.p80:.2f})"
                text += f"| {r.what['configuration']} | {spread} | {ratio(r.samples, ddp.samples)} | {work} |\n"
            if what["exchange"] == "echo" and plain is not None:
                text += f"\n{_added(group, plain, costs)}\n"
            text += "\n"
    return text


def _added(group: Sequence[Record], plain: float, costs: Sequence[Record]) -> str:
    """What codecs add to the GPU's work, beside the aims; why it is missed, where it is."""
    ours = {r.what["configuration"]: r.outcome["busy_seconds"] / plain - 1 for r in group}
    elementwise = {c: added for c, added in ours.items() if c.partition("(")[0] in ELEMENTWISE}
    power = ours["powersgd(rank=4)"]
    worst = max(elementwise.values())
    low, high, times = (f"{100 * x:.1f}" for x in (min(elementwise.values()), worst, power))
    told = (
        f"{', '.join(elementwise)} add {low} to {high} %: the aim of 3 % is {_met(worst, 'elementwise')}; PowerSGD "
        f"{times} %: the aim of 5 % is {_met(power, 'powersgd')}."
    )
    cost = _find(costs, group[0].what["model"], "blockint(bits=8)")
    if worst > ADDED["elementwise"] and cost is not None:
        (m,) = encode.from_records([cost])
        copies = _copies(m.copy_seconds, 8)
        told += (
            f" Copies of as many bytes as blockint(bits=8) must read and write take {1e3 * copies:.2f} ms there, which "
            f"is {100 * copies / plain:.0f} % of what the GPU does under DDP: a gradient this large beside so little "
            "computing leaves no room for 3 %."
        )
    return told


def _met(added: float, kind: str) -> str:
    return "met" if added <= ADDED[kind] else "missed"


def _overlap(root: Path, source: Source) -> str:
    """A codec's work in a stream of its own, beside forward and backward pass."""
    text = OVERLAP
    for path in sorted((root / "results").glob("overlap_*.jsonl")):
        records = [r for r in load(path) if r.kind == overlap.KIND]
        text += f"\n{source(path, records[-1])}\n"
        text += "| model, batch | codec | ms a pass of the model | ms a step of the codec | side by side / one by one "
        text += "| share that hides (95 %) |\n|---|---|---|---|---|---|\n"
        for r in records:
            text += f"| {r.what['model']}, {r.what['batch']} | {' | '.join(cells(r))} |\n"
    return text
