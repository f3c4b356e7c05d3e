"""Models and helpers for the ranks: gradients that a test chooses, and a small network that really trains."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import checkpoint
from gradwire.codecs.sparsification.topk import TopK
from gradwire.core.codec import Codec, codecs

SMALL_BUCKETS = 0.01  # MB: the models here then have several
# matrices, vectors, a scalar, a tiny and an empty one; sizes that nothing divides
SHAPES = {"a": (41, 53), "b": (53,), "c": (37, 67), "d": (), "e": (5, 3), "f": (0, 4), "g": (1031, 3), "h": (1031,)}


def sample() -> list[str]:
    """One codec of each family and way of combining: for what virtual workers show of all of them."""
    found = {}
    for codec in map(codecs.build, codecs.names()):
        traits = codec.traits
        found[codec.family, traits.combine, traits.fixed_size, traits.is_mean] = codec.name
    return sorted(found.values())


def sweep_unless(kept: bool, *values: Any) -> Any:
    """A case, which `make test` leaves to `make test-all` unless it is to be kept."""
    return pytest.param(*values, marks=[] if kept else pytest.mark.sweep)


class Given(nn.Module):
    """A model whose loss is sum(w * g): the gradient of w is the g it is given, to the last bit.

    It uses its parameters in the reverse of the order that DDP expects, so that rebuilt buckets differ from the first.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, torch.dtype] | None = None) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.ones(tuple(shape), dtype=(dtypes or {}).get(name))))

    def forward(self, gradients: Mapping[str, Tensor]) -> Tensor:
        used = [(p, gradients[n]) for n, p in reversed(list(self.named_parameters())) if n in gradients]
        return torch.stack([(p * g).sum().float() for p, g in used]).sum()


@dataclass(frozen=True)
class SimpleTopK(TopK):
    """Top-k without its fast form: for codecs of tests that change what it does."""

    name: ClassVar[str] = "simple_topk"
    encode_own = Codec.encode_own
    encode_from = Codec.encode_from
    decode_to = Codec.decode_to
    combine_to = Codec.combine_to
    reduce_and_encode = Codec.reduce_and_encode


def gradients(shapes: Mapping[str, Sequence[int]], rank: int, step: int) -> dict[str, Tensor]:
    """Normal numbers; for what is not compressed (vectors, tiny ones) multiples of 1/8, whose sums are exact."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    draws = {n: torch.randn(tuple(s), generator=generator) for n, s in shapes.items()}
    return {n: g if g.dim() > 1 and g.numel() >= 1024 else (g * 8).round() / 8 for n, g in draws.items()}


def wrap(shapes: Mapping[str, Sequence[int]] = SHAPES, **options: Any) -> DistributedDataParallel:
    """DDP over a `Given`, in several buckets."""
    dtypes = options.pop("dtypes", None)
    return DistributedDataParallel(Given(shapes, dtypes), **({"bucket_cap_mb": SMALL_BUCKETS} | options))


def reduced(model: DistributedDataParallel, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients that one backward pass leaves behind, for those parameters that got one."""
    model.zero_grad()
    model(given).backward()
    return {n: p.grad.clone() for n, p in model.module.named_parameters() if p.grad is not None}


def buckets(model: DistributedDataParallel) -> list[list[str]]:
    """The names of the parameters in each of DDP's buckets, as they are now."""
    names = {id(p): n for n, p in model.module.named_parameters()}
    return [[names[id(p)] for p in b.parameters()] for b in model.reducer._get_zeros_like_grad_buckets()]


def owed(handle: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """What this rank's memory holds for each parameter."""
    return {n: checkpoint.owed(handle.engine, n, s) for n, s in shapes.items()}


def kept(state: Mapping[str, Any]) -> dict[str, Any]:
    """All that a saved state holds by parameter: what the rank keeps for itself, and what all ranks have alike."""
    return state["state"] | state["common"]


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Alike on all ranks, whatever was drawn before."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 48), nn.LayerNorm(48), nn.Linear(48, 10)]
        return nn.Sequential(*layers).to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The data of one rank at one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 24, generator=generator).to(dtype)
    return x, torch.randint(10, (8,), generator=generator)


def train(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    steps: range,
    after: Callable[[int], None] = lambda step: None,
) -> None:
    """Plain training steps on this rank's data."""
    dtype = next(model.parameters()).dtype
    for step in steps:
        x, y = batch(dist.get_rank(), step, dtype)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        after(step)


def weights(model: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def agree(values: Sequence[Any]) -> bool:
    """Whether all ranks hold the same, bit for bit: tensors, or any nesting of them."""
    return all(same(a, b) for a, b in itertools.pairwise(values))


def same(a: Any, b: Any) -> bool:
    """Equality to the last bit of tensors in lists and dicts; NaN equals NaN."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def message(error: type[Exception], call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The text of the exception of type `error` that the call must raise."""
    try:
        call(*args, **options)
    except error as problem:
        return str(problem)
    raise AssertionError(f"no {error.__name__} was raised")
