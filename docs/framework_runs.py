"""Trainings of examples/train_keras.py on real data, by 1, 2 and 4 processes, into records.

    python docs/framework_runs.py results/FILE.jsonl --cifar10 FOLDER --ml1m FOLDER
    python docs/framework_runs.py results/FILE.jsonl --cifar10 FOLDER --ml1m FOLDER --missing   # has no record yet

One process trains with the codec `none` and the whole batch; the others divide each batch among them. The first back
end's trainings are long, and one process makes them from three seeds: how far apart these end is the noise to judge by.
On the other back ends they are short. Most rows of NCF's embeddings are in no batch: of 157,000 elements of a gradient
about 2,100 are not zero with two processes, and 1,600 with four. A thousandth of all is about a tenth of these.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gradwire.core import environment, records
from gradwire.core.records import Quantiles, Record

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE, RESULTS = ROOT / "examples" / "train_keras.py", ROOT / "results"
KIND = "framework training"
CODECS = {
    "conv": ("none", "blockint(bits=8)", "topk(ratio=0.1)"),
    "ncf": ("none", "blockint(bits=8)", "topk(ratio=0.001)"),
}
SEEDS = (0, 1, 2)
LONG, SHORT = {"conv": (25600, 3), "ncf": (65536, 2)}, {"conv": (12800, 1), "ncf": (16384, 1)}  # examples, epochs


@dataclass(frozen=True)
class Case:
    """One training."""

    backend: str
    model: str
    codec: str
    workers: int
    examples: int
    epochs: int  # 0: the loss before training
    seed: int

    def words(self) -> list[str]:
        """What the example is told, but for the folder of the data."""
        words = ["--backend", self.backend, "--model", self.model, "--codec", self.codec]
        return [*words, "--examples", str(self.examples), "--epochs", str(self.epochs), "--seed", str(self.seed)]

    def command(self) -> str:
        """That makes it again."""
        words = " ".join(f'"{word}"' if "(" in word else word for word in self.words())
        return (
            f"torchrun --standalone --nproc-per-node {self.workers} examples/train_keras.py {words} --data-dir FOLDER"
        )


def cases(backends: list[str]) -> list[Case]:
    """All of them."""
    found = []
    for backend in backends:
        long = backend == backends[0]
        for model, (examples, epochs) in (LONG if long else SHORT).items():
            alone = [("none", 1, 0, SEEDS[0]), *(("none", 1, epochs, seed) for seed in (SEEDS if long else SEEDS[:1]))]
            together = [(codec, n, epochs, SEEDS[0]) for codec in CODECS[model] for n in (2, 4)]
            found += [Case(backend, model, c, w, examples, e, s) for c, w, e, s in [*alone, *together]]
    return found


def known() -> list[Case]:
    """Those that have a record."""
    return [
        Case(**record.what) for path in sorted(RESULTS.glob("frameworks-training_*")) for record in records.load(path)
    ]


def trained(case: Case, folder: str) -> tuple[float, float, float]:
    """Loss on the data, sum of the weights' magnitudes, and bytes that a rank sent in a step."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.workers)]
    done = subprocess.run(
        [*launch, str(EXAMPLE), *case.words(), "--data-dir", folder],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    found = re.search(r"loss ([\d.]+), weights ([\d.]+), (\d+) bytes", done.stdout)
    assert found is not None, done.stdout
    return float(found[1]), float(found[2]), float(found[3])


def recorded(case: Case, folder: str) -> Record:
    """Train, and tell what came of it."""
    loss, weights, sent = trained(case, folder)
    commit, dirty = environment.commit()
    versions = {name: version(name) for name in ("keras", case.backend)}
    return Record(
        kind=KIND,
        what=vars(case),
        command=case.command(),
        time=environment.now(),
        commit=commit,
        dirty=dirty,
        environment={**environment.fingerprint("gloo over loopback"), **versions},
        unit="loss on the data that it was trained on",
        quantiles=Quantiles.of([loss]),
        samples=(loss,),
        outcome={"weights": weights, "sent_bytes": sent},
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("record", type=Path)
    options.add_argument("--cifar10", required=True, help="folder of CIFAR-10")
    options.add_argument("--ml1m", required=True, help="folder of MovieLens-1M")
    options.add_argument("--backends", nargs="+", default=["tensorflow", "jax", "torch"])
    options.add_argument("--missing", action="store_true", help="only what no record in results/ has")
    told = options.parse_args()
    there = known() if told.missing else []
    folders = {"conv": told.cifar10, "ncf": told.ml1m}
    for case in [case for case in cases(told.backends) if case not in there]:
        found = recorded(case, folders[case.model])
        records.append(told.record, [found])
        print(case, found.samples[0], flush=True)


if __name__ == "__main__":
    main()
