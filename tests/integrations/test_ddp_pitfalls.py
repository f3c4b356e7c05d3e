"""What makes communication hooks wrong in real training, one test each."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy
import pytest
import torch
import torch.distributed as dist
from given import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    SimpleTopK,
    agree,
    batch,
    buckets,
    gradients,
    kept,
    message,
    network,
    owed,
    reduced,
    same,
    sample,
    weights,
    wrap,
)
from ranks import Failure, Pool
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import checkpoint
from gradwire.codecs.lowrank.powersgd import PowerSGD
from gradwire.core.codec import Context, Reduced, codecs
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.integrations import ddp_hook
from gradwire.memory.base import ERROR

pytestmark = pytest.mark.dist
MODES = ["overlap", "after_backward"]
BUCKETS = [{}, {"static_graph": True}, {"find_unused_parameters": True}]
REMEMBERING = [  # every way in which something is kept from one step to the next
    ("topk(ratio=0.05)", "all_gather"),
    ("topk(ratio=0.05)", "scatter_reduce_gather"),
    ("efsignsgd(block=64)", "all_gather"),
    ("efsignsgd(block=64)", "scatter_reduce_gather"),
    ("powersgd(rank=2)", "auto"),
    ("randomk(ratio=0.1)", "all_reduce"),
    ("topkc(ratio=0.1)", "auto"),
]
FORGETTING = [c for c in codecs.names() if codecs.build(c).traits.memory == "none"]


# ---------------------------------------------------------------- registration


def test_the_hook_has_the_signature_that_ddp_inspects() -> None:
    parameter = inspect.signature(ddp_hook.compress_hook).parameters["bucket"]
    assert parameter.annotation is dist.GradBucket
    assert inspect.signature(ddp_hook.compress_hook).return_annotation == torch.futures.Future[Tensor]


def test_the_hook_has_no_name_that_ddp_treats_specially() -> None:
    assert ddp_hook.compress_hook.__name__ not in vars(default_hooks)


def call_hook_with_tuple(rank: int) -> str:
    model = wrap()
    gradwire.attach(model, "topk")
    (hook, state), *others = model._comm_hooks
    assert hook is ddp_hook.compress_hook
    assert not others
    return message(gradwire.Incompatible, hook, state, (torch.ones(3), [torch.ones(3)]))


def test_the_python_reducer_is_refused(pool: Pool) -> None:
    assert pool.run(2, call_hook_with_tuple) == 2 * [
        "gradwire: torch.compile's python_reducer ignores what a hook returns. Set "
        "torch._dynamo.config.optimize_ddp = True, or compile without it."
    ]


# ---------------------------------------------------------------- buckets and parameters


def conserve(rank: int, codec: str, strategy: str, mode: str, options: dict, absent: dict) -> tuple:
    """Sums of what was applied and of this rank's gradients, what is owed, and DDP's buckets at each step.

    `absent` names, for some steps, (rank, parameter) pairs that take no part; rank None means all.
    """
    model = wrap(**options)
    handle = gradwire.attach(model, codec, strategy=strategy, mode=mode)
    applied = {n: torch.zeros(s, dtype=torch.float64) for n, s in SHAPES.items()}
    given = {n: torch.zeros(s, dtype=torch.float64) for n, s in SHAPES.items()}
    seen = []
    for step in range(8):
        mine = gradients(SHAPES, rank, step)
        for who, name in absent.get(step, ()):
            if who in (None, rank):
                del mine[name]
        for name, gradient in mine.items():
            given[name] += gradient
        for name, gradient in reduced(model, mine).items():
            applied[name] += gradient
        seen.append(buckets(model))
    names = [piece.name for piece in handle.engine.store.pieces(ERROR)]
    assert len(names) == len(set(names)), "what is owed by a bucket that was would never be repaid"
    return applied, given, owed(handle, SHAPES), seen


def check_conserved(results: list[tuple], codec: str) -> None:
    """What was applied and what is owed add up to what was given."""
    assert agree([r[0] for r in results])
    for name in SHAPES:
        given = torch.stack([r[1][name] for r in results]).mean(0)
        left = torch.stack([r[2][name].double() for r in results]).mean(0)
        assert torch.allclose(results[0][0][name] + left, given, rtol=0, atol=rounding(codec)), name


def rounding(codec: str) -> float:
    """Of sums over several steps; topkc lets the backend add in half precision."""
    return 1e-2 if "topkc" in codec else 1e-4


@pytest.mark.parametrize(
    "mode, options", [("overlap", o) for o in BUCKETS] + [("after_backward", {})], ids=lambda o: "".join(o) or "plain"
)
@pytest.mark.parametrize("codec, strategy", REMEMBERING)
def test_rebuilt_buckets_lose_nothing(pool: Pool, codec: str, strategy: str, mode: str, options: dict) -> None:
    results = pool.run(3, conserve, codec, strategy, mode, options, {})
    seen = results[0][3]
    rebuilt = [a != b for a, b in itertools.pairwise(seen)]
    assert sum(rebuilt) == (0 if "find_unused_parameters" in options else 1)
    check_conserved(results, codec)


def test_what_an_owner_owes_is_repaid_although_its_own_shard_stays() -> None:
    """Parameter b moves to another owner, and worker 0 goes on to own the same piece of a."""
    cluster = gradwire.VirtualCluster(4, "topk(ratio=0.5)", strategy="scatter_reduce_gather")
    shapes = {"a": (1050,), "b": (6,)}
    given = {n: [gradients(shapes, rank, 0)[n] for rank in range(4)] for n in shapes}
    zeros = {n: [torch.zeros(s)] * 4 for n, s in shapes.items()}
    results = [cluster.reduce(given, units=[["a"], ["b"]])["b"]]
    results += [cluster.reduce(zeros, units=[["a", "b"]])["b"] for _ in range(20)]
    assert torch.allclose(sum(results), torch.stack(given["b"]).mean(0), atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec, strategy", REMEMBERING)
def test_parameters_without_a_gradient_lose_nothing(pool: Pool, codec: str, strategy: str, mode: str) -> None:
    absent = {
        2: [(None, "c"), (None, "g")],
        3: [(None, "c")],
        4: [(None, "c"), (0, "a"), (1, "h")],  # on some ranks alone: the others' gradients count
        6: [(None, "a"), (None, "c"), (None, "g")],  # nothing that is compressed
        7: [(None, "c"), (None, "b")],
    }
    check_conserved(pool.run(3, conserve, codec, strategy, mode, {"find_unused_parameters": True}, absent), codec)


@pytest.mark.parametrize("codec, strategy", REMEMBERING)
def test_a_parameter_that_is_never_used_loses_nothing_in_a_static_graph(pool: Pool, codec: str, strategy: str) -> None:
    absent = {step: [(None, "c")] for step in range(8)}
    check_conserved(pool.run(3, conserve, codec, strategy, "overlap", {"static_graph": True}, absent), codec)


def skip_a_branch(rank: int, codec: str) -> tuple[list[set[str]], list[Tensor]]:
    """Which parameters get a gradient at each step, and the owed of the branch."""
    model = wrap(find_unused_parameters=True)
    handle = gradwire.attach(model, codec)
    got, held = [], []
    for step in range(4):
        mine = gradients(SHAPES, rank, step)
        if step in (1, 2):
            del mine["c"]
        got.append(set(reduced(model, mine)))
        held.append(checkpoint.owed(handle.engine, "c", SHAPES["c"]))
    return got, held


def test_an_unused_branch_gets_no_gradient_and_keeps_its_memory(pool: Pool) -> None:
    for got, held in pool.run(3, skip_a_branch, "efsignsgd"):
        assert got == [set(SHAPES), set(SHAPES) - {"c"}, set(SHAPES) - {"c"}, set(SHAPES)]
        assert torch.equal(held[0], held[1])
        assert torch.equal(held[1], held[2])
        assert not torch.equal(held[2], held[3])


def reduce_convolution(rank: int, codec: str | None, memory_format: torch.memory_format) -> list[Tensor]:
    shape = (16, 8, 5, 3)
    model = Given({"w": shape})
    model.w = nn.Parameter(torch.ones(shape).to(memory_format=memory_format))
    wrapped = DistributedDataParallel(model)
    if codec is not None:
        gradwire.attach(wrapped, codec)
    return [reduced(wrapped, gradients({"w": shape}, rank, step))["w"] for step in range(4)]


def test_channels_last_weights_pass_none_unchanged(pool: Pool) -> None:
    plain = pool.run(3, reduce_convolution, None, torch.channels_last)
    assert agree(plain + pool.run(3, reduce_convolution, "none", torch.channels_last))


@pytest.mark.parametrize("codec", ["topk(ratio=0.1)", "signsgd"])
def test_channels_last_weights_get_the_gradients_of_contiguous_ones(pool: Pool, codec: str) -> None:
    plain = pool.run(3, reduce_convolution, codec, torch.contiguous_format)
    last = pool.run(3, reduce_convolution, codec, torch.channels_last)
    assert last[0][0].is_contiguous(memory_format=torch.channels_last)
    assert agree(plain + last)


def reduce_rank_one(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    left, right = torch.randn(16, 1, generator=generator), torch.randn(1, 120, generator=generator)
    exact = (left @ right).view(16, 8, 5, 3)
    model = Given({"w": exact.shape})
    model.w = nn.Parameter(torch.ones(exact.shape).to(memory_format=torch.channels_last))
    wrapped = DistributedDataParallel(model)
    gradwire.attach(wrapped, "powersgd(rank=1)")
    return reduced(wrapped, {"w": exact * (rank + 1)})["w"], exact * 2


def test_low_rank_factors_of_channels_last_weights_fit_their_places(pool: Pool) -> None:
    for got, exact in pool.run(3, reduce_rank_one):
        assert torch.allclose(got, exact, atol=1e-5)


MIXED = {"a": torch.bfloat16, "b": torch.bfloat16, "g": torch.float64, "h": torch.float16}


def reduce_mixed(rank: int, codec: str | None, mode: str) -> list[dict]:
    model, handle = wrap(dtypes=MIXED), None
    if codec is not None:
        handle = gradwire.attach(model, codec, mode=mode)
    out = []
    for step in range(4):
        given = {n: g.to(MIXED.get(n, torch.float32)) for n, g in gradients(SHAPES, rank, step).items()}
        out.append(reduced(model, given))
    for unit in handle.state_dict()["plan"] if handle else ():
        assert len({MIXED.get(name, torch.float32) for name in unit}) == 1, "all would travel as the widest"
    return out


@pytest.mark.parametrize("mode", MODES)
def test_mixed_dtypes_pass_none_unchanged(pool: Pool, mode: str) -> None:
    assert same(pool.run(3, reduce_mixed, None, ""), pool.run(3, reduce_mixed, "none", mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec", ["topk(ratio=1.0)", "powersgd(rank=64)"])
def test_mixed_dtypes_are_kept_by_a_codec(pool: Pool, codec: str, mode: str) -> None:
    plain, results = pool.run(3, reduce_mixed, None, ""), pool.run(3, reduce_mixed, codec, mode)
    assert agree(results)
    for exact, got in zip(plain[0], results[0], strict=True):
        for name in SHAPES:
            assert got[name].dtype == MIXED.get(name, torch.float32)
            assert torch.allclose(got[name].double(), exact[name].double(), atol=2**-6)


def train_tied(rank: int, codec: str | None) -> Tensor:
    model = nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40))
    for p in model.parameters():
        nn.init.constant_(p, 0.01)
    model[2].weight = model[0].weight
    wrapped = DistributedDataParallel(model)
    if codec is not None:
        gradwire.attach(wrapped, codec)
    for step in range(4):
        x = torch.randn(3, 40, generator=torch.Generator().manual_seed(10 * step + rank))
        wrapped(x).square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_shared_parameters_are_reduced_once(pool: Pool) -> None:
    assert agree(pool.run(3, train_tied, None) + pool.run(3, train_tied, "none"))
    assert torch.allclose(pool.run(3, train_tied, None)[0], pool.run(3, train_tied, "topk(ratio=1.0)")[0], rtol=1e-4)


# ---------------------------------------------------------------- accumulation


def accumulate(rank: int, codec: str | None, mode: str, skip: bool) -> tuple:
    """Gradients of 3 rounds of 3 micro-batches, with or without no_sync; what is owed, and the stats."""
    model = wrap()
    handle = None if codec is None else gradwire.attach(model, codec, mode=mode)
    out = []
    for round_ in range(3):
        model.zero_grad()
        for micro in range(3):
            held = skip and micro < 2
            with model.no_sync() if held else contextlib.nullcontext():
                model(gradients(SHAPES, rank, 3 * round_ + micro)).backward()
        out.append({n: p.grad.clone() for n, p in model.module.named_parameters()})
    return out, handle and owed(handle, SHAPES), handle and handle.stats()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("skip", [True, False], ids=["no_sync", "sync"])
def test_accumulated_gradients_pass_none_unchanged(pool: Pool, mode: str, skip: bool) -> None:
    plain, attached = pool.run(3, accumulate, None, mode, skip), pool.run(3, accumulate, "none", mode, skip)
    assert same([r[0] for r in plain], [r[0] for r in attached])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("skip, steps", [(True, 3), (False, 9)], ids=["no_sync", "sync"])
def test_accumulation_counts_exchanges_and_loses_nothing(pool: Pool, mode: str, skip: bool, steps: int) -> None:
    results = pool.run(3, accumulate, "topk(ratio=0.05)", mode, skip)
    assert [r[2]["steps"] for r in results] == 3 * [steps]
    for name in SHAPES:
        applied = sum(r[name].double() for r in results[0][0])
        left = torch.stack([r[1][name].double() for r in results]).mean(0)
        given = sum(gradients(SHAPES, r, s)[name].double() for r in range(3) for s in range(9)) / 3
        assert torch.allclose(applied + left, given, rtol=0, atol=1e-4), name


# ---------------------------------------------------------------- threads and order


@dataclass(frozen=True)
class Uneven(PowerSGD):
    """PowerSGD whose ranks take different time between its exchanges."""

    name: ClassVar[str] = "uneven"

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        inner = super().reduce(x, ctx)
        answer = None
        work = random.Random(f"{ctx.rng.step} {ctx.rng.unit} {ctx.ranks[0]}")
        while True:
            try:
                request = inner.send(answer)
            except StopIteration as done:
                return done.value
            for _ in range(work.randrange(20)):
                torch.ones(64, 64) @ torch.ones(64, 64)
            answer = yield request


def reduce_in_many_buckets(rank: int, codec: object, strategy: str) -> tuple[int, list]:
    shapes = {f"p{i}": (40, 40) for i in range(8)}
    model = wrap(shapes, bucket_cap_mb=0.001)
    gradwire.attach(model, codec, strategy=strategy)
    results = [reduced(model, gradients(shapes, rank, step)) for step in range(12)]
    return len(buckets(model)), results


@pytest.mark.parametrize(
    "codec, strategy",
    [(Uneven(), "auto"), ("topkc", "auto"), ("topk", "scatter_reduce_gather"), ("qsgd", "scatter_reduce_gather")],
    ids=str,
)
def test_two_rounds_in_many_buckets_neither_hang_nor_mix(pool: Pool, codec: object, strategy: str) -> None:
    results = pool.run(4, reduce_in_many_buckets, codec, strategy)
    assert results[0][0] == 8
    assert agree(results)


@dataclass(frozen=True)
class Watched(SimpleTopK):
    """Top-k that notes the state of the thread it runs in."""

    name: ClassVar[str] = "watched"
    seen: ClassVar[list[tuple]] = []

    def pick(self, x: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
        self._note(x)
        return super().pick(x, rng)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        out = super().combine(payload, numel, rng, groups)
        self._note(out)
        return out

    def _note(self, x: Tensor) -> None:
        product = (x[:, :4].mT @ x[:, :4]).dtype
        thread = threading.current_thread().name
        self.seen.append((thread, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), x.requires_grad, product))


def watch_threads(rank: int) -> set[tuple]:
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    gradwire.attach(model, Watched())
    Watched.seen.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire.session.TINY", 0)  # each unit for itself
        for step in range(3):
            x, y = batch(rank, step)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                nn.functional.cross_entropy(model(x), y).backward()
    return set(Watched.seen)


def test_codecs_run_in_threads_of_their_own_without_gradients_and_autocast(pool: Pool) -> None:
    wanted = {(f"gradwire-{lane}", False, False, False, torch.float32) for lane in range(2)}
    assert pool.run(3, watch_threads) == 3 * [wanted]


# ---------------------------------------------------------------- values that are not finite


# a first bucket in which nothing is compressed
VECTOR_FIRST = {"z": (3001,)} | SHAPES


def meet_a_bad_gradient(
    rank: int, codec: str, strategy: str, mode: str, bad: float, where: str, memory: str = "default"
) -> tuple:
    """Of each step the results; the states before and after the step in which one element on rank 1 is bad."""
    model = wrap(VECTOR_FIRST)
    handle = gradwire.attach(model, codec, strategy=strategy, mode=mode, memory=memory)
    results, states = [], []
    for step in range(6):
        given = gradients(VECTOR_FIRST, rank, step)
        if step == 3:
            states.append(kept(handle.state_dict()))
            if rank == 1:
                given[where].view(-1)[17] = bad
        results.append(reduced(model, given))
        if step == 3:
            states.append(kept(handle.state_dict()))
    return results, states, handle.stats(), buckets(model)[0]


@pytest.mark.parametrize(
    "mode, bad, where", [("overlap", "inf", "c"), ("overlap", "inf", "z"), ("after_backward", "nan", "h")]
)
@pytest.mark.parametrize("codec, strategy", [*REMEMBERING, *((c, "auto") for c in FORGETTING)])
def test_one_bad_element_is_seen_by_all_and_remembered_by_none(
    pool: Pool, codec: str, strategy: str, mode: str, bad: str, where: str
) -> None:
    check_forgotten(pool.run(3, meet_a_bad_gradient, codec, strategy, mode, float(bad), where))


@pytest.mark.parametrize(
    "codec, strategy", [("powersgd(rank=2)", "auto"), ("qsgd", "scatter_reduce_gather(owner_memory=True)")]
)
def test_one_bad_element_is_not_remembered_by_what_is_kept_without_a_memory(
    pool: Pool, codec: str, strategy: str
) -> None:
    ranks = pool.run(3, meet_a_bad_gradient, codec, strategy, "overlap", float("inf"), "z", "none")
    assert all(before for _, (before, _), _, _ in ranks)
    check_forgotten(ranks)


def check_forgotten(ranks: list[tuple]) -> None:
    assert agree([r[0] for r in ranks])
    for results, (before, after), stats, first_bucket in ranks:
        assert first_bucket == ["z"]
        finite = [all(g.isfinite().all() for g in result.values()) for result in results]
        assert finite == [True, True, True, False, True, True]
        assert same(before, after)
        assert stats["steps"] == 6
        assert stats["skipped_steps"] == 1 or not before


def scale_the_loss(rank: int, codec: str, strategy: str, mode: str, scales: list[float], off: set[int]) -> list[dict]:
    """Results in units of the gradient, under a loss scale that changes; a branch is off at some steps."""
    model = wrap(find_unused_parameters=bool(off))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))  # before the first loss it has no scale that could be set
    gradwire.attach(model, codec, strategy=strategy, mode=mode, scaler=scaler)
    out = []
    for step, scale in enumerate(scales):
        scaler.update(scale)
        model.zero_grad()
        given = gradients(SHAPES, rank, step)
        used = {n: g for n, g in given.items() if n != "c" or step not in off}
        scaler.scale(model(used)).backward()
        out.append({n: p.grad / scale for n, p in model.module.named_parameters() if p.grad is not None})
    return out


@pytest.mark.parametrize(
    "codec, strategy, off",
    [(*r, set()) for r in REMEMBERING] + [(*r, {2, 3}) for r in REMEMBERING if "gather" in r[1]],
    ids=lambda value: ("a_branch_off" if value else "all_used") if isinstance(value, set) else value,
)
def test_what_is_owed_follows_the_loss_scale(pool: Pool, codec: str, strategy: str, off: set[int]) -> None:
    scales = [1024.0, 1024.0, 512.0, 2048.0, 2048.0, 64.0]
    plain = pool.run(3, scale_the_loss, codec, strategy, "overlap", [1.0] * 6, off)
    scaled = pool.run(3, scale_the_loss, codec, strategy, "overlap", scales, off)
    assert agree(scaled)
    for step, (a, b) in enumerate(zip(plain[0], scaled[0], strict=True)):
        assert same(a, b), f"step {step}"


def train_with_scaler(rank: int, scaled: bool, codec: str, strategy: str) -> tuple[list[Tensor], list[float], dict]:
    """12 optimizer steps; at the 6th rank 1 overflows if the loss is scaled, and all leave that step out if not."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3, enabled=scaled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    handle = gradwire.attach(model, codec, strategy=strategy, scaler=scaler)
    seen, scales = [], []
    for step in range(12):
        if step == 5 and not scaled:
            continue
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss * float("inf") if step == 5 and rank == 1 else loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if step != 5:
            seen.append(weights(model))
            scales.append(scaler.get_scale())
    return seen, scales, handle.stats()


@pytest.mark.parametrize("codec, strategy", [REMEMBERING[i] for i in (0, 1, 3, 4)])
def test_training_with_a_loss_scaler_is_training_without(pool: Pool, codec: str, strategy: str) -> None:
    plain = pool.run(3, train_with_scaler, False, codec, strategy)
    scaled = pool.run(3, train_with_scaler, True, codec, strategy)
    assert agree([seen for seen, _, _ in plain + scaled])
    for _, scales, stats in scaled:
        assert set(scales) == {2.0**12, 2.0**13, 2.0**14}
        assert (stats["steps"], stats["skipped_steps"]) == (12, 1)


def clip(rank: int, codec: str, strategy: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    model = wrap()
    gradwire.attach(model, codec, strategy=strategy)
    out = []
    for step in range(4):
        result = reduced(model, gradients(SHAPES, rank, step))
        before = torch.cat([g.flatten() for g in result.values()])
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        out.append((norm, before, torch.cat([p.grad.flatten() for p in model.parameters()])))
    return out


@pytest.mark.parametrize(
    ("codec", "strategy"), [*((codec, "auto") for codec in sample()), ("efsignsgd", "scatter_reduce_gather")]
)
def test_clipping_sees_the_same_decompressed_gradient_on_all_ranks(pool: Pool, codec: str, strategy: str) -> None:
    results = pool.run(3, clip, codec, strategy)
    assert agree(results)
    for norm, before, after in results[0]:
        assert torch.allclose(norm, before.norm())
        assert torch.allclose(after, before / before.norm(), atol=1e-6)


# ---------------------------------------------------------------- randomness


@contextlib.contextmanager
def untouched_generators() -> Iterator[None]:
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    yield
    assert torch.equal(before[0], torch.get_rng_state()), "torch's generator has moved"
    assert before[1] == random.getstate(), "Python's generator has moved"
    assert (before[2] == numpy.random.get_state()[1]).all(), "NumPy's generator has moved"


def reduce_untouched(rank: int, codec: str) -> None:
    model = wrap()
    with untouched_generators():
        gradwire.attach(model, codec, tensors="all")
        for step in range(3):
            reduced(model, gradients(SHAPES, rank, step))


@pytest.mark.parametrize("codec", sample())
def test_global_generators_are_untouched(pool: Pool, codec: str) -> None:
    pool.run(2, reduce_untouched, codec)


def reduce_with_seed(rank: int, codec: str, seed: int) -> list[dict]:
    torch.manual_seed(rank)
    model = wrap()
    gradwire.attach(model, codec, seed=seed)
    return [reduced(model, gradients(SHAPES, 0, 0)) for _ in range(2)]


@pytest.mark.parametrize("codec", ["qsgd", "randomk(ratio=0.1)"])
def test_the_seed_decides_and_steps_draw_anew(pool: Pool, codec: str) -> None:
    first, again, other = (pool.run(2, reduce_with_seed, codec, seed)[0] for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)
    assert not same(first[0], first[1])


# ---------------------------------------------------------------- uneven inputs


def run_out_of_data(rank: int, codec: str | None, strategy: str, mode: str, initial: bool = True) -> tuple:
    """Rank r has 3 + r batches. Results, what is owed, and steps, in the end. The mode may be "detached"."""
    model = wrap()
    handle = None
    if codec is not None:
        handle = gradwire.attach(model, codec, strategy=strategy, mode="overlap" if mode == "detached" else mode)
        if mode == "detached":
            handle.detach()
    out = []
    with model.join(divide_by_initial_world_size=initial):
        for step in range(3 + rank):
            out.append(reduced(model, gradients(SHAPES, rank, step)))
    return out, handle and owed(handle, SHAPES), handle.stats()["steps"] if handle else 0


@pytest.mark.parametrize("mode", MODES)
def test_uneven_inputs_pass_none_unchanged(pool: Pool, mode: str) -> None:
    plain = pool.run(3, run_out_of_data, None, "", "")
    attached = pool.run(3, run_out_of_data, "none", "auto", mode)
    assert same([r[0] for r in plain], [r[0] for r in attached])
    assert [r[2] for r in attached] == [5, 5, 5]


@pytest.mark.parametrize("mode", ["overlap", "detached"])
def test_a_mean_over_the_ranks_that_are_left_is_refused(pool: Pool, mode: str) -> None:
    """DDP divides by the number of ranks that still have data, of which a hook learns nothing."""
    for outcome in pool.outcomes(3, run_out_of_data, "none", "auto", mode, False):
        assert isinstance(outcome, Failure)
        assert (outcome.kind, outcome.message) == (
            "Incompatible",
            "gradwire: join(divide_by_initial_world_size=False) averages over the ranks that still have data, and a "
            "hook cannot know them. Use join(divide_by_initial_world_size=True).",
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec, strategy", REMEMBERING)
def test_uneven_inputs_lose_nothing(pool: Pool, codec: str, strategy: str, mode: str) -> None:
    results = pool.run(3, run_out_of_data, codec, strategy, mode)
    longest = results[2][0]
    assert all(same(got, longest[: len(got)]) for got, _, _ in results)
    assert all(g.isfinite().all() for result in longest for g in result.values())
    for name in SHAPES:
        applied = sum(r[name].double() for r in longest)
        left = torch.stack([r[1][name].double() for r in results]).mean(0)
        given = sum(gradients(SHAPES, r, s)[name].double() for r in range(3) for s in range(3 + r)) / 3
        assert torch.allclose(applied + left, given, rtol=0, atol=rounding(codec)), name


@pytest.mark.parametrize("codec", sample())
def test_gradients_of_zeros_give_zeros_or_votes(pool: Pool, codec: str) -> None:
    """No scale of an all-zero tensor is NaN; only a vote, which has no zero, makes something of nothing."""
    for result in pool.run(3, reduce_zeros, codec):
        for gradient in result.values():
            assert gradient.isfinite().all()
            assert not codecs.build(codec).traits.is_mean or not gradient.any()


def reduce_zeros(rank: int, codec: str) -> dict[str, Tensor]:
    model = wrap()
    gradwire.attach(model, codec, tensors="all")
    return reduced(model, {n: torch.zeros(s) for n, s in SHAPES.items()})


# ---------------------------------------------------------------- gradient_as_bucket_view


def reduce_views(rank: int, codec: str, mode: str, views: bool) -> list[dict]:
    model = DistributedDataParallel(Given(SHAPES), bucket_cap_mb=SMALL_BUCKETS, gradient_as_bucket_view=views)
    gradwire.attach(model, codec, mode=mode)
    return [reduced(model, gradients(SHAPES, rank, step)) for step in range(4)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec", ["topk(ratio=0.05)", "powersgd(rank=2)"])
def test_gradients_that_are_views_of_buckets_are_the_same(pool: Pool, codec: str, mode: str) -> None:
    assert agree(pool.run(3, reduce_views, codec, mode, False) + pool.run(3, reduce_views, codec, mode, True))
