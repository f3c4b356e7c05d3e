"""The numbers that DDP's hook produces: against plain DDP, virtual workers, and the mean in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from given import (
    SHAPES,
    agree,
    buckets,
    gradients,
    network,
    owed,
    reduced,
    same,
    sample,
    sweep_unless,
    train,
    weights,
    wrap,
)
from ranks import Pool
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.collectives.choose import possible
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, codecs
from gradwire.core.exchange import Max, Payload
from gradwire.core.random import Random

pytestmark = pytest.mark.dist
MODES = ["overlap", "after_backward"]
SAMPLE = sample()  # these in every way; the other codecs in one, and the rest of theirs are sweeps
STEPS = 3  # DDP rebuilds its buckets after the first

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


def reduce_given(
    rank: int, codec: str | Codec, memory: str, strategy: str, mode: str, tiny: int = 0
) -> list[tuple[Any, ...]]:
    """Of each step: DDP's buckets, the units of compression, the reduced gradients, and what is owed."""
    model, out = wrap(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire.session.TINY", tiny)  # bytes; units of more travel each for itself, in lanes
        handle = gradwire.attach(model, codec, memory=memory, strategy=strategy, mode=mode, seed=7)
        for step in range(STEPS):
            result = reduced(model, gradients(SHAPES, rank, step))
            out.append((buckets(model), handle.state_dict()["plan"], result, owed(handle, SHAPES)))
    return out


# relative to the largest gradient: sums in half precision round at each hop, iterations amplify rounding
ROUNDING = {"none": 1e-6, "randomk": 1e-5, "fp16": 2**-9, "topkc": 2**-9, "bf16": 2**-6}
SUMMED = 1e-4  # by the backend, in float32

CASES = [(c, "default", s) for c in codecs.names() for s in possible(codecs.build(c)) or ["auto"]]
CASES += [
    ("qsgd(levels=127, norm='l2')", "error_feedback", "scatter_reduce_gather"),
    ("topk(ratio=0.05)", "momentum_correction", "all_gather"),
    ("efsignsgd", "error_feedback(beta=0.9, gamma=0.5)", "scatter_reduce_gather(down='fp16')"),
    ("qsgd", "none", "scatter_reduce_gather(owner_memory=True)"),
]
FIRST = {case[0]: case for case in reversed(CASES)}  # of each codec's strategies
LAST = {case[0]: case for case in CASES}


@pytest.mark.parametrize(
    "codec, memory, strategy, mode",
    [sweep_unless(case[0] in SAMPLE or case is FIRST[case[0]], *case, "overlap") for case in CASES]
    + [sweep_unless(case[0] in SAMPLE, *case, "after_backward") for case in LAST.values()],
)
def test_ranks_match_virtual_workers(pool: Pool, codec: str, memory: str, strategy: str, mode: str) -> None:
    ranks = pool.run(4, reduce_given, codec, memory, strategy, mode)
    by_bucket = mode == "overlap" or codec == "none"
    exact = strategy not in ("all_reduce", "auto")  # the library does the summing, not the backend
    compare(ranks, codec, memory, strategy, by_bucket, None if exact else ROUNDING.get(codec, SUMMED))


@pytest.mark.parametrize("codec", SAMPLE)
def test_tiny_units_that_travel_together_have_the_same_results(pool: Pool, codec: str) -> None:
    apart, joined = (pool.run(3, reduce_given, codec, "default", "auto", "overlap", tiny) for tiny in (0, 1 << 20))
    assert len(joined[0][-1][1]) >= 3
    for one, other in zip(apart, joined, strict=True):
        for (_, _, results, memories), (_, _, others, kept) in zip(one, other, strict=True):
            for name in SHAPES:
                assert close(results[name], others[name], SUMMED)
                assert (memories[name] is None) == (kept[name] is None)
                assert memories[name] is None or close(memories[name], kept[name], SUMMED)


def compare(
    ranks: list[list[tuple]],
    codec: str | Codec,
    memory: str,
    strategy: str,
    by_bucket: bool,
    tolerance: float | None,
) -> None:
    """The ranks agree with each other, and with virtual workers: to the last bit without a `tolerance`."""
    cluster = gradwire.VirtualCluster(len(ranks), codec, memory, strategy, seed=7, tensors="matrices")
    for step in range(STEPS):
        ddp_buckets, units, result, _ = ranks[0][step]
        if by_bucket:
            assert units == ddp_buckets
            assert len(units) >= 3 or step == 0
        else:
            assert [sorted(unit) for unit in units] == [sorted(SHAPES)]
        given = [gradients(SHAPES, r, step) for r in range(len(ranks))]
        expected = cluster.reduce({n: [g[n] for g in given] for n in SHAPES}, units=units)
        assert agree([r[step][2] for r in ranks]), "the replicas differ"
        for name in SHAPES:
            pairs = [(result[name], expected[name])]
            pairs += [(r[step][3][name], m) for r, m in zip(ranks, cluster.memory(name), strict=True)]
            for got, wanted in pairs:
                assert same(got, wanted) or (tolerance and close(got, wanted, tolerance)), (step, name)


def close(got: Tensor, wanted: Tensor, tolerance: float) -> bool:
    scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    return torch.allclose(got, wanted, rtol=0, atol=tolerance * scale)


# ---------------------------------------------------------------- exchanges that no built-in codec uses


@dataclass(frozen=True)
class Ragged(Codec):
    """Elements beyond a threshold, with their indices: as many bytes as there are, often none."""

    name: ClassVar[str] = "ragged"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "none"
    threshold: float = 3.0

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, fixed_size=False, memory="error_feedback", delta=0.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        rows = []
        for row in x:
            kept = (row.abs() > self.threshold).nonzero()[:, 0]
            rows.append(torch.cat([kept.int().view(torch.uint8), row[kept].view(torch.uint8)]))
        lengths = torch.tensor([r.numel() for r in rows])
        width = int(lengths.max())
        return Payload(torch.stack([torch.nn.functional.pad(r, (0, width - r.numel())) for r in rows]), lengths)

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        out = torch.zeros(payload.rows, numel)
        for row, data, length in zip(out, payload.data, payload.lengths.tolist(), strict=True):
            kept, values = data[:length].clone().view(2, -1).unbind()
            row[kept.clone().view(torch.int32).long()] = values.clone().view(torch.float32)
        return out

    def payload_bytes(self, numel: int) -> int:
        return 8 * numel


@pytest.mark.parametrize("threshold", [1.0, 3.0, 100.0], ids=["much", "little", "nothing"])
@pytest.mark.parametrize("strategy", ["all_gather", "scatter_reduce_gather"])
def test_payloads_of_any_size_arrive_whole(pool: Pool, strategy: str, threshold: float) -> None:
    codec = Ragged(threshold)
    ranks = pool.run(4, reduce_given, codec, "default", strategy, "overlap")
    compare(ranks, codec, "default", strategy, True, None)


@dataclass(frozen=True)
class Largest(Codec):
    """The largest magnitude over all workers, element by element."""

    name: ClassVar[str] = "largest"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "none"

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.ROUNDS)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        return (yield Max(x.abs())), None


def test_a_maximum_is_that_of_all_ranks(pool: Pool) -> None:
    ranks = pool.run(4, reduce_given, Largest(), "none", "auto", "overlap")
    compare(ranks, Largest(), "none", "auto", True, None)


# ---------------------------------------------------------------- against the mean in one process


def reduce_once(rank: int, codec: str, strategy: str) -> dict[str, Tensor]:
    model = wrap()
    gradwire.attach(model, codec, strategy=strategy, tensors="all")
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
    gradwire.attach(model, codec, mode=mode, tensors="all")
    seen: list[Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(model, optimizer, range(5), lambda step: seen.append(weights(model)))
    return seen


@pytest.mark.parametrize(
    "codec, mode", [sweep_unless(c in SAMPLE or m == "overlap", c, m) for c in codecs.names() for m in MODES]
)
def test_replicas_stay_bit_identical_at_every_step(pool: Pool, codec: str, mode: str) -> None:
    seen = pool.run(2, train_and_watch, codec, mode)
    assert agree(seen)
    assert all(w.isfinite().all() for w in seen[0])
    assert not torch.equal(seen[0][0], seen[0][-1])
