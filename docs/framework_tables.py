"""docs/frameworks.md: trainings on real data, and steps on slow links, from the newest record of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from framework_runs import CODECS

from gradwire.core.baselines import COPIED, HANDED, HANDED_COMPILED, NOTHING
from gradwire.core.records import Record, load

Source = Callable[[Path, Record], str]
NAMES = {
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "torch": "torch",
    "keras-jax": "Keras on JAX",
    "keras-tensorflow": "Keras on TensorFlow",
    "keras-torch": "Keras on torch",
}
DATA = {"conv": "CIFAR-10", "ncf": "MovieLens-1M"}


def trainings(root: Path, source: Source) -> str:
    """Losses of 1, 2 and 4 processes, back end by back end; of each training the newest record."""
    paths = sorted((root / "results").glob("frameworks-training_*.jsonl"))
    found = [(path, r) for path in paths for r in load(path) if r.what["codec"] in CODECS[r.what["model"]]]
    records = list({tuple(record.what.values()): record for _, record in found}.values())
    last = dict(found)  # of each file
    rows = "".join(
        _training(*which, [r for r in records if (r.what["backend"], r.what["model"]) == which])
        for which in dict.fromkeys((r.what["backend"], r.what["model"]) for r in records)
    )
    return (
        "| Keras on | data | examples, epochs | before | one process | `none`, 2 and 4 | `blockint(bits=8)`, 2 and 4 "
        f"| `topk`, 2 and 4 |\n|---|---|---|---|---|---|---|---|\n{rows}\n"
        f"{''.join(source(path, r) for path, r in last.items())}{_versions(records)}"
    )


def _training(backend: str, model: str, records: Sequence[Record]) -> str:
    """One row."""
    what = records[-1].what
    (before,) = [r for r in records if not r.what["epochs"]]
    alone = [r for r in records if r.what["workers"] == 1 and r.what["epochs"]]
    seeds = ", ".join(_loss(r) for r in alone)
    cells = []
    for codec in CODECS[model]:
        found = {r.what["workers"]: _loss(r) for r in records if r.what["codec"] == codec and r.what["workers"] > 1}
        cells.append(", ".join(found.get(workers, "-") for workers in (2, 4)))
    size = f"{what['examples']:,}, {what['epochs']}"
    start = [NAMES[backend], DATA[model], size, _loss(before), seeds]
    return f"| {' | '.join([*start, *cells])} |\n"


def _loss(record: Record) -> str:
    return f"{record.samples[0]:.4f}"


def _versions(records: Sequence[Record]) -> str:
    names = ("keras", "tensorflow", "jax")
    found = {name: r.environment[name] for r in records for name in names if name in r.environment}
    return f"With {', '.join(f'{name} {version}' for name, version in found.items())}.\n"


def links(root: Path, source: Source) -> str:
    """Steps on two emulated hosts, and what the way to torch and back costs."""
    path = sorted((root / "results").glob("frameworks_*.jsonl"))[-1]
    records = load(path)
    found = {(r.what["framework"], r.what["configuration"]): r for r in records}
    frameworks = [name for name in NAMES if (name, NOTHING) in found]
    codecs = [c for c in dict.fromkeys(c for _, c in found) if c not in (COPIED, HANDED, HANDED_COMPILED)]
    passing = [name for name in frameworks if (name, HANDED) in found]
    steps = "".join(
        f"| {_named(c)} | {_sent(found[frameworks[0], c])} | {' | '.join(_time(found[f, c]) for f in frameworks)} |\n"
        for c in codecs
    )
    ways = {COPIED: "a plain copy in torch", HANDED: "to torch and back"}
    ways[HANDED_COMPILED] = "the same inside `jit`, `tf.function`"
    passed = "".join(
        f"| {text} | {' | '.join(_time(found[name, way], 1) for name in passing)} |\n" for way, text in ways.items()
    )
    return (
        f"| a step, ms | sent by a rank | {' | '.join(NAMES[name] for name in frameworks)} |\n"
        f"|---{'|---' * len(frameworks)}|---|\n{steps}\n"
        f"| the way to torch and back alone, ms | {' | '.join(NAMES[name] for name in passing)} |\n"
        f"|---{'|---' * len(passing)}|\n{passed}\n{source(path, records[-1])}"
    )


def _named(configuration: str) -> str:
    return configuration if configuration == NOTHING else f"`{configuration}`"


def _sent(record: Record) -> str:
    sent = record.outcome["sent_bytes"]
    return "-" if sent is None else f"{sent / 1e6:.2f} MB"


def _time(record: Record, digits: int = 0) -> str:
    q = record.quantiles
    middle, low, high = (f"{1000 * seconds:.{digits}f}" for seconds in (q.p50, q.p20, q.p80))
    return f"{middle} ({low}-{high})"
