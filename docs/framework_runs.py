"""Trainings of examples/train_keras.py on real data, by 1, 2 and 4 processes, into records.

    python docs/framework_runs.py FOLDER results/FILE.jsonl [BACKEND]     # FOLDER holds MovieLens-1M

One process trains with the codec `none` and the whole batch; the others divide each batch among them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from gradwire.core import environment, records
from gradwire.core.records import Quantiles, Record

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_keras.py"
RUNS = {"ncf": ("--examples", "32768", "--epochs", "1")}
CODECS = ("none", "blockint(bits=8)", "topk(ratio=0.1)")


def trained(folder: str, ranks: int, options: list[str]) -> tuple[float, float, float]:
    """Loss on the data, sum of the weights' magnitudes, and bytes that a rank sent in a step."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*launch, str(EXAMPLE), *options, "--data-dir", folder],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )
    found = re.search(r"loss ([\d.]+), weights ([\d.]+), (\d+) bytes", done.stdout)
    assert found is not None, done.stdout
    return float(found[1]), float(found[2]), float(found[3])


def main(folder: str, target: str, backend: str = "torch") -> None:
    for model, size in RUNS.items():
        cases = [("none", 1, ("--epochs", "0")), ("none", 1, ()), *((c, n, ()) for c in CODECS for n in (2, 4))]
        for codec, ranks, more in cases:
            options = ["--backend", backend, "--model", model, "--codec", codec, *size, *more]
            loss, weights, sent = trained(folder, ranks, options)
            what = {"backend": backend, "model": model, "codec": codec, "workers": ranks}
            what |= {"examples": int(size[1]), "epochs": 0 if more else int(size[3])}
            commit, dirty = environment.commit()
            words = " ".join(f'"{o}"' if "(" in o else o for o in [*options, "--data-dir", "FOLDER"])
            found = Record(
                kind="framework training",
                what=what,
                command=f"torchrun --standalone --nproc-per-node {ranks} examples/train_keras.py {words}",
                time=environment.now(),
                commit=commit,
                dirty=dirty,
                environment=environment.fingerprint("gloo over loopback"),
                unit="loss on the training data",
                quantiles=Quantiles.of([loss]),
                samples=(loss,),
                outcome={"weights": weights, "sent_bytes": sent},
            )
            records.append(Path(target), [found])
            print(model, codec, ranks, loss, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
