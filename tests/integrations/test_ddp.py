"""The numbers that DDP's hook produces: against plain DDP, virtual workers, and the mean in one process."""

from __future__ import annotations

import pytest
import torch
from given import SHAPES, agree, buckets, gradients, network, owed, reduced, same, train, weights, wrap
from ranks import Pool
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.collectives.choose import possible
from gradwire.core.codec import Combine, codecs

pytestmark = pytest.mark.dist
MODES = ["overlap", "after_backward"]

# ---------------------------------------------------------------- against plain DDP


def train_plain_and_attached(rank: int, codec: str, dtype: torch.dtype, options: dict) -> tuple:
    """The weights after 20 steps of plain DDP, and of DDP with a codec in both modes; the number of buckets."""
    ends = []
    for mode in (None, *MODES):
        model = DistributedDataParallel(network(dtype), bucket_cap_mb=0.001, **options)
        if mode is not None:
            gradwire.attach(model, codec, mode=mode)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), range(20))
        ends.append(weights(model))
    return ends[0], ends[1:], len(buckets(model))


VIEWS = {"gradient_as_bucket_view": True}


@pytest.mark.parametrize(
    "dtype, options",
    [(torch.float32, o) for o in ({}, {"static_graph": True}, {"find_unused_parameters": True}, VIEWS)]
    + [(torch.float16, {}), (torch.float16, VIEWS), (torch.bfloat16, {}), (torch.float64, {})],
    ids=lambda value: "".join(value) or "plain" if isinstance(value, dict) else str(value),
)
def test_none_trains_bit_identically_to_plain_ddp(pool: Pool, dtype: torch.dtype, options: dict) -> None:
    results = pool.run(3, train_plain_and_attached, "none", dtype, options)
    for plain, attached, bucket_count in results:
        assert all(torch.equal(plain, w) for w in attached)
        assert bucket_count >= 3
    assert not torch.equal(results[0][0], weights(network(dtype)))


# ---------------------------------------------------------------- against virtual workers


def reduce_given(rank: int, codec: str, strategy: str, mode: str, steps: int) -> list[tuple]:
    """Of each step: DDP's buckets, the units of compression, the reduced gradients, and what is owed."""
    model = wrap()
    handle = gradwire.attach(model, codec, strategy=strategy, mode=mode, seed=7)
    out = []
    for step in range(steps):
        result = reduced(model, gradients(SHAPES, rank, step))
        out.append((buckets(model), handle.state_dict()["plan"], result, owed(handle, SHAPES)))
    return out


def strategies(codec: str) -> list[str]:
    return ["auto", *possible(codecs.build(codec))]


def sums_by_itself(codec: str, strategy: str) -> bool:
    """Whether the library does the summing, not the backend."""
    if strategy == "auto":
        return codecs.build(codec).traits.combine is Combine.GATHER
    return strategy != "all_reduce"


# relative to the largest gradient: half precision sums round at each hop, power iteration amplifies rounding
ROUNDING = {"none": 1e-6, "randomk": 1e-5, "powersgd": 1e-4, "fp16": 2**-9, "topkc": 2**-9}
COARSE = 2**-6  # bfloat16


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec, strategy", [(c, s) for c in codecs.names() for s in strategies(c)])
def test_ranks_match_virtual_workers(pool: Pool, codec: str, strategy: str, mode: str) -> None:
    steps = 5
    ranks = pool.run(4, reduce_given, codec, strategy, mode, steps)
    cluster = gradwire.VirtualCluster(4, codec, strategy=strategy, seed=7, compress="matrices")
    exact = sums_by_itself(codec, strategy)
    for step in range(steps):
        given = [gradients(SHAPES, r, step) for r in range(4)]
        ddp_buckets, units, result, _ = ranks[0][step]
        if mode == "overlap" or codec == "none":
            assert units == ddp_buckets
            assert len(units) >= 3 or step == 0
        else:
            assert sorted(units[0]) == sorted(SHAPES)
        expected = cluster.reduce({n: [g[n] for g in given] for n in SHAPES}, units=units)
        assert agree([r[step][2] for r in ranks]), "the replicas differ"
        for name in SHAPES:
            pairs = [(result[name], expected[name])]
            pairs += [(r[step][3][name], m) for r, m in zip(ranks, cluster.memory(name), strict=True) if m is not None]
            for got, wanted in pairs:
                assert same(got, wanted) if exact else close(got, wanted, ROUNDING.get(codec, COARSE)), (step, name)


def close(got: Tensor, wanted: Tensor, tolerance: float) -> bool:
    scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    return torch.allclose(got, wanted, rtol=0, atol=tolerance * scale)


# ---------------------------------------------------------------- against the mean in one process


def reduce_once(rank: int, codec: str, strategy: str) -> dict[str, Tensor]:
    model = wrap()
    gradwire.attach(model, codec, strategy=strategy, compress="all")
    return reduced(model, gradients(SHAPES, rank, 0))


EXACT = [  # with these parameters nothing is dropped
    ("none", "auto", 1e-6),
    ("none", "scatter_reduce_gather", 1e-6),
    ("topk(ratio=1.0)", "all_gather", 1e-6),
    ("topk(ratio=1.0)", "scatter_reduce_gather", 1e-6),
    ("randomk(ratio=1.0)", "all_reduce", 1e-6),
    ("powersgd(rank=64)", "auto", 1e-5),
    ("topkc(ratio=1.0)", "auto", 2**-9),
    ("fp16", "scatter_reduce_gather", 2**-9),
]


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("codec, strategy, tolerance", EXACT)
def test_the_mean_of_odd_sizes(pool: Pool, codec: str, strategy: str, tolerance: float, workers: int) -> None:
    results = pool.run(workers, reduce_once, codec, strategy)
    assert agree(results)
    given = [gradients(SHAPES, r, 0) for r in range(workers)]
    for name in SHAPES:
        mean = torch.stack([g[name].double() for g in given]).mean(0)
        assert close(results[0][name].double(), mean, tolerance), name


def reduce_large(rank: int, codec: str, strategy: str, dtype: torch.dtype) -> Tensor:
    model = wrap({"w": (40, 50), "b": (3,)}, dtypes={"w": dtype, "b": dtype})
    gradwire.attach(model, codec, strategy=strategy)
    given = {"w": torch.full((40, 50), 5e4, dtype=dtype), "b": torch.full((3,), 5e4, dtype=dtype)}
    return torch.cat([g.flatten() for g in reduced(model, given).values()])


@pytest.mark.parametrize(
    "codec, strategy, dtype",
    [("fp16", s, torch.float32) for s in ("all_reduce", "all_gather", "scatter_reduce_gather")]
    + [(c, "auto", torch.float16) for c in ("none", "fp16", "bf16", "topk(ratio=1.0)", "powersgd", "qsgd")],
)
def test_a_representable_mean_does_not_overflow(pool: Pool, codec: str, strategy: str, dtype: torch.dtype) -> None:
    for result in pool.run(4, reduce_large, codec, strategy, dtype):
        assert result.dtype == dtype
        assert torch.allclose(result.float(), torch.tensor(5e4), rtol=2**-7)


# ---------------------------------------------------------------- replicas, and what travels


def train_and_watch(rank: int, codec: str, mode: str) -> list[Tensor]:
    """The weights after each step."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    gradwire.attach(model, codec, mode=mode, compress="all")
    seen: list[Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(model, optimizer, range(8), lambda step: seen.append(weights(model)))
    return seen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec", codecs.names())
def test_replicas_stay_bit_identical_at_every_step(pool: Pool, codec: str, mode: str) -> None:
    seen = pool.run(4, train_and_watch, codec, mode)
    assert agree(seen)
    assert all(w.isfinite().all() for w in seen[0])
    assert not torch.equal(seen[0][0], seen[0][-1])
