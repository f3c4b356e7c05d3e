"""What a model's step costs on one device without any exchange: forward, backward, optimizer, memory.

`precision` is "fp32" (on a GPU without TF32), "tf32", or "bf16" (autocast; parameters and gradients stay FP32).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gradwire import models
from gradwire.core import environment
from gradwire.core.errors import ConfigError
from gradwire.core.records import Quantiles, Record, quantile
from gradwire.core.registry import Check

KIND = "compute"
PARTS = ("forward", "backward", "optimizer")
PRECISIONS = ("fp32", "tf32", "bf16")
WARM = 5
REPEATS = 20
RATE = 1e-3  # learning rate


def measure(
    name: str, batch: int, *, device: str = "cpu", precision: str = "fp32", repeats: int = REPEATS, command: str = ""
) -> Record:
    """Time one model, of the catalogue or of your own, at one batch size."""
    check = Check("calibrate")
    check.integer("batch", batch, 1)
    check.integer("repeats", repeats, 3)
    check.one_of("precision", precision, PRECISIONS)
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"calibrate: there is no device {device!r} here; use cpu")
    torch.manual_seed(0)
    module = models.build(name, device=device)
    inputs = models.example(name, module, batch, device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=0.9)
    with arithmetic(precision):
        samples = [_step(module, inputs, optimizer, device, precision) for _ in range(WARM + repeats)][WARM:]
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else None
    commit, dirty = environment.commit()
    return Record(
        kind=KIND,
        what={"model": name, "batch": batch, "device": device, "precision": precision, "repeats": repeats},
        command=command
        or f"gradwire calibrate --model {name} --batch {batch} --device {device} --precision {precision}",
        time=environment.now(),
        commit=commit,
        dirty=dirty,
        environment=environment.fingerprint("none"),
        unit="seconds a step without exchange",
        quantiles=Quantiles.of([sum(s) for s in samples]),
        samples=tuple(sum(s) for s in samples),
        outcome={
            "parts_seconds": {p: quantile([s[i] for s in samples], 0.5) for i, p in enumerate(PARTS)},
            "parameters": sum(p.numel() for p in module.parameters()),
            "peak_bytes": memory,
        },
    )


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Inside, float32 is multiplied as this precision says."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """For the forward pass of a model."""
    return torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def _step(
    module: torch.nn.Module, inputs: Sequence[Tensor], optimizer: torch.optim.Optimizer, device: str, precision: str
) -> tuple[float, ...]:
    """Seconds of each part."""
    optimizer.zero_grad()
    marks = [_now(device)]
    with autocast(device, precision):
        output = module(*inputs)
        scores = output[0] if isinstance(output, tuple) else output
        loss = scores.float().square().mean()
    marks.append(_now(device))
    loss.backward()
    marks.append(_now(device))
    optimizer.step()
    marks.append(_now(device))
    return tuple(end - start for start, end in pairwise(marks))


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
