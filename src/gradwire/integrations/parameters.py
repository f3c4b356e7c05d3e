"""Which gradients DDP reduces, and whether they can be compressed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.core.exchange import Sum
from gradwire.core.gradient import check_gradient, sparse_gradient


def reduced_parameters(model: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters whose gradients DDP reduces, in the model's order."""
    named = model.module.named_parameters()
    return {n: p for n, p in named if p.requires_grad and n not in model.parameters_to_ignore}


def plain_bytes(parameters: Iterable[torch.Tensor], workers: int) -> int:
    """What plain DDP sends of these gradients, in a step from each rank.

    Args:
        parameters: whose gradients it reduces.
        workers: how many ranks there are.
    """
    sums = [Sum(torch.empty((1, p.numel()), dtype=p.dtype, device="meta")) for p in parameters]
    return sum(one.sent_bytes(workers, 0) for one in sums)


def check_model(model: DistributedDataParallel) -> None:
    """Refuse gradients that cannot be compressed, by name."""
    names = reduced_parameters(model)
    for name, parameter in names.items():
        check_gradient(name, parameter)
    for prefix, module in model.module.named_modules():
        name = f"{prefix}.weight" if prefix else "weight"
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and name in names:
            raise sparse_gradient(name)
