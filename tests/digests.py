"""What 20 steps of every codec give under every strategy on four workers, as digests.

``python tests/digests.py`` writes them to tests/digests.json; `test_digests.py` holds the code to that file. A digest
is the hash of all bits, and eight projections of all results and of what is owed at the end. Bits are the same on every
machine for codecs whose sums have a defined order. Where a machine's own order of sums shows (matrix products, torch's
reductions), the projections are compared, to within rounding. All is computed by one thread: their number is a part of
that order.

The file was made before workers became rows and codecs got a fast form. Written anew since, and why:

- natural, qsgd, lpc, terngrad, thc, qsparse, stochastic blockint: their rounding draws from `quick_words`
  (tests/kernels/test_random.py); qsgd and lpc under error feedback also have a tighter bound, and lpc sends scales in
  place of steps (tests/codecs/test_quantization.py: one bound for one quantiser).
- powersgd: bases by Cholesky factors (tests/codecs/test_lowrank.py: bases span what QR's do); powersgd and gradzip:
  products of all workers' matrices in one batch round otherwise.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import gradwire
from gradwire.collectives.choose import possible
from gradwire.core.codec import codecs

FILE = Path(__file__).with_suffix(".json")
STEPS, WORKERS = 20, 4
SHAPES = {"a": (64, 48), "b": (17,), "c": (300, 41), "d": (8, 5, 3, 3), "e": (1200,)}


def cases() -> dict[str, tuple[str, str, str]]:
    """Key -> (codec, memory, strategy)."""
    found = {}
    for name in codecs.names():
        for spec in [name, *codecs.cls(name).variants]:
            codec = gradwire.codec(spec)
            for strategy in possible(codec) or ["auto"]:
                memories = ["default"]
                if codec.traits.memory == "none" and (codec.traits.omega is not None or codec.traits.delta is not None):
                    memories.append("error_feedback")
                for memory in memories:
                    found[f"{spec} | {memory} | {strategy}"] = (spec, memory, strategy)
    return found


def gradients(step: int) -> dict[str, list[torch.Tensor]]:
    """Made of integers, so that they are the same bits on every machine."""
    out = {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        numel = torch.Size(shape).numel()
        place = torch.arange(numel, dtype=torch.int64)
        rows = []
        for worker in range(WORKERS):
            h = (place + 1) * 2654435761 + (step * 7919 + i * 104729 + worker * 1299709 + 1) * 40503
            h = (h ^ (h >> 15)) * 2246822519 & 0xFFFFFFFF
            h = (h ^ (h >> 13)) & 0xFFFFFF
            x = (h - 0x800000).float() * 2.0**-23
            rows.append((x * x * x * 0.125).view(shape))
        out[name] = rows
    return out


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def machine() -> str:
    """How this machine's linear algebra rounds: the hash of the eigenvectors of some matrix."""
    matrix = gradients(0)["a"][0]
    return hashlib.blake2b(torch.linalg.eigh(matrix.T @ matrix)[1].numpy().tobytes(), digest_size=8).hexdigest()


@one_thread()
def digest(spec: str, memory: str, strategy: str) -> dict[str, object]:
    """Run the steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codecs of large variance are scaled, and say so
        cluster = gradwire.VirtualCluster(WORKERS, spec, memory, strategy, seed=3)
    exact, projections = hashlib.blake2b(digest_size=8), torch.zeros(8, dtype=torch.float64)

    def take(tensor: torch.Tensor, weight: int) -> None:
        exact.update(tensor.contiguous().view(torch.int32).numpy().tobytes())
        flat = tensor.reshape(-1).double()
        place = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
        for k in range(8):
            projections[k] += weight * (flat * torch.cos(place * (0.37 + 0.61 * k) + weight)).sum()

    sent = 0
    for step in range(STEPS):
        for out in cluster.reduce(gradients(step)).values():
            take(out, step + 1)
        sent += cluster.sent_bytes
    for name in SHAPES:
        for owed in cluster.memory(name):
            if owed is not None:
                take(owed, STEPS + 1)
    return {"bits": exact.hexdigest(), "projections": [float(p) for p in projections], "sent_bytes": sent}


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    found = {key: digest(*case) for key, case in cases().items()}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
