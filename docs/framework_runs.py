"""Trainings of examples/train_keras.py on real data, by 1, 2 and 4 processes, into records.

    python docs/framework_runs.py results/FILE.jsonl --cifar10 FOLDER --ml1m FOLDER

One process trains with the codec `none` and the whole batch; the others divide each batch among them. The first back
end's trainings are long, and one process makes them from three seeds: how far apart these end is the noise to judge by.
On the other back ends they are short.
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

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_keras.py"
KIND = "framework training"
CODECS = ("none", "blockint(bits=8)", "topk(ratio=0.1)")
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
    """All of the first back end's; of the others' with four processes `none` alone."""
    found = []
    for backend in backends:
        long = backend == backends[0]
        for model, (examples, epochs) in (LONG if long else SHORT).items():
            alone = [("none", 1, 0, SEEDS[0]), *(("none", 1, epochs, seed) for seed in (SEEDS if long else SEEDS[:1]))]
            workers = [(codec, n) for codec in CODECS for n in (2, 4) if long or n == 2 or codec == "none"]
            together = [(codec, n, epochs, SEEDS[0]) for codec, n in workers]
            found += [Case(backend, model, c, w, examples, e, s) for c, w, e, s in [*alone, *together]]
    return found


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
    told = options.parse_args()
    folders = {"conv": told.cifar10, "ncf": told.ml1m}
    for case in cases(told.backends):
        found = recorded(case, folders[case.model])
        records.append(told.record, [found])
        print(case, found.samples[0], flush=True)


if __name__ == "__main__":
    main()
