"""Elements beyond a threshold in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.window import Feedback, Window, padded
from gradwire.kernels.select import above


def take_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    threshold: float,
    value_bits: int,
    factor: float,
) -> list[tuple[Tensor, Tensor]]:
    x = source.read() if feedback is None else feedback.compensated(source)
    rows = padded(x, shards * shard).view(-1, shard)
    where, counts = above(rows, rows.new_full((len(rows),), threshold))
    chosen = [(row[None, at[:n]], at[None, :n]) for row, at, n in zip(rows, where, counts.tolist(), strict=True)]
    if feedback is not None:
        own = torch.zeros_like(rows)
        for row, (values, at) in zip(own, chosen, strict=True):
            row[at[0]] = (values[0] if value_bits == 32 else values[0].half().float()) * factor
        feedback.keep(own.view(source.rows, -1)[:, : source.numel])
    return chosen
