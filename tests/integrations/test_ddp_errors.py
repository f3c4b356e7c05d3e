"""Bad input, and ranks that fail in the middle: each refusal with its whole message, and nothing hangs."""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from given import SHAPES, Given, SimpleTopK, buckets, gradients, kept, message, reduced, same, wrap
from packaging.version import Version
from ranks import Failure, Pool
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

import gradwire
from gradwire.core.exchange import Payload
from gradwire.core.random import Random

pytestmark = pytest.mark.dist

# ---------------------------------------------------------------- what attach refuses


def test_a_model_without_ddp_is_refused() -> None:
    assert message(gradwire.Incompatible, gradwire.attach, nn.Linear(2, 2), "topk") == (
        "attach: the model must be wrapped in DistributedDataParallel, got Linear. "
        "Wrap it first: model = DistributedDataParallel(model)."
    )


def refuse_arguments(rank: int) -> list[tuple[str, dict, str, str]]:
    """Each set of arguments with the refusal it gets; the model then still trains like plain DDP."""
    model = wrap()
    cases: list[tuple[str, dict]] = [
        ("powersg", {}),
        ("topk(ratio=5)", {}),
        ("topk", {"mode": "later"}),
        ("topk", {"tensors": "some"}),
        ("topk", {"nmse_every": -1}),
        ("topk", {"strategy": "all_reduce"}),
        ("powersgd", {"strategy": "all_gather"}),
        ("signsgd", {"memory": "error_feedback"}),
        ("topk", {"memory": "error_feedback(by_learning_rate=True)"}),
    ]
    told = []
    for codec, options in cases:
        try:
            gradwire.attach(model, codec, **options)
        except gradwire.GradwireError as problem:
            told.append((codec, options, type(problem).__name__, str(problem)))
    plain = wrap()
    assert same(*(reduced(m, gradients(SHAPES, rank, 0)) for m in (plain, model)))
    gradwire.attach(model, "none")
    return told


REFUSALS = [
    ("powersg", {}, "UnknownName", "no codec named 'powersg'; did you mean powersgd?"),
    ("topk(ratio=5)", {}, "ConfigError", "topk: `ratio` must be the share kept, in (0, 1], got 5"),
    ("topk", {"mode": "later"}, "ConfigError", "attach: `mode` must be 'overlap' or 'after_backward', got 'later'"),
    ("topk", {"tensors": "some"}, "ConfigError", "gradwire: `tensors` must be 'matrices' or 'all', got 'some'"),
    (
        "topk",
        {"nmse_every": -1},
        "ConfigError",
        "gradwire: `nmse_every` must be 0 (never) or a number of steps, got -1",
    ),
    (
        "topk",
        {"strategy": "all_reduce"},
        "Incompatible",
        "topk cannot run under all_reduce: its payloads cannot be added up. "
        "Use strategy='auto' or one of: all_gather, scatter_reduce_gather.",
    ),
    (
        "powersgd",
        {"strategy": "all_gather"},
        "Incompatible",
        "powersgd cannot run under all_gather: it runs its own rounds of exchanges. Leave the strategy at 'auto'.",
    ),
    (
        "signsgd",
        {"memory": "error_feedback"},
        "Incompatible",
        "signsgd cannot run under error_feedback: it claims neither a contraction nor a bounded variance, so the "
        "memory would grow without bound. Use memory='none', or a contracting codec such as efsignsgd.",
    ),
    (
        "topk",
        {"memory": "error_feedback(by_learning_rate=True)"},
        "ConfigError",
        "attach: memory 'error_feedback(by_learning_rate=True)' follows the learning rate; pass optimizer=...",
    ),
]


def test_bad_arguments_are_refused_and_leave_the_model_as_it_was(pool: Pool) -> None:
    for told in pool.run(2, refuse_arguments):
        assert told == REFUSALS


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3, dtype=torch.complex64)


def refuse_parameters(rank: int) -> list[str]:
    def told(model: nn.Module) -> str:
        return message(gradwire.Incompatible, gradwire.attach, DistributedDataParallel(model), "topk")

    return [
        told(Complex()),
        told(nn.Sequential(nn.Embedding(7, 3, sparse=True))),
        told(nn.Embedding(7, 3, sparse=True)),
        told(nn.ModuleDict({"bag": nn.EmbeddingBag(7, 3, sparse=True, mode="sum")})),
    ]


def test_complex_parameters_and_sparse_gradients_are_refused(pool: Pool) -> None:
    sparse = (
        "gradwire: the gradient of {!r} is sparse, and codecs work on dense gradients. Build the embedding with "
        "sparse=False, or keep this parameter out of the compressed model."
    )
    for told in pool.run(2, refuse_parameters):
        assert told == [
            "gradwire: 'inner.weight' is complex (torch.complex64), and codecs work on real numbers. Store it as a "
            "real parameter (torch.view_as_real) or train it without compression.",
            sparse.format("0.weight"),
            sparse.format("weight"),
            sparse.format("bag.weight"),
        ]


def refuse_second_hooks(rank: int) -> dict[str, str]:
    told = {}
    hooked = wrap()
    hooked.register_comm_hook(None, default_hooks.allreduce_hook)
    told["hook"] = message(gradwire.Incompatible, gradwire.attach, hooked, "topk")
    model = wrap()
    gradwire.attach(model, "topk(ratio=0.5)")
    told["attach"] = message(gradwire.Incompatible, gradwire.attach, model, "qsgd")
    told["later"] = message(RuntimeError, model.register_comm_hook, None, default_hooks.allreduce_hook)
    return told


TAKEN = (
    "attach: this DDP model has a communication hook already (register_comm_hook, mixed_precision= or an optimizer in "
    "the backward pass put it there), and DDP takes one. Wrap the model in a new DistributedDataParallel without it."
)


def test_a_second_hook_is_refused(pool: Pool) -> None:
    for told in pool.run(2, refuse_second_hooks):
        assert told == {
            "hook": TAKEN,
            "attach": "attach: this model is compressed by topk(ratio=0.5) already; call handle.detach() first",
            "later": "register_comm_hook or register_builtin_comm_hook can only be called once.",
        }


def refuse_mixed_precision(rank: int) -> str | None:
    try:
        narrow = wrap(mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))
    except RuntimeError:  # it wants a stream: since torch 2.15 from a machine without a GPU, too
        return None
    return message(gradwire.Incompatible, gradwire.attach, narrow, "topk")


def test_the_hook_of_ddps_mixed_precision_is_refused(pool: Pool) -> None:
    told = pool.run(2, refuse_mixed_precision)
    if told == [None] * 2:
        assert Version(torch.__version__).release >= (2, 15)
        pytest.skip("this torch cannot build such a model without a GPU")
    assert told == [TAKEN] * 2


def refuse_optimizer_in_backward(rank: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it uses what torch itself has deprecated
        from torch.distributed.optim import _apply_optimizer_in_backward
    inner = Given(SHAPES)
    _apply_optimizer_in_backward(torch.optim.SGD, inner.parameters(), {"lr": 0.1})
    return message(gradwire.Incompatible, gradwire.attach, DistributedDataParallel(inner), "topk")


def test_an_optimizer_in_the_backward_pass_is_refused(pool: Pool) -> None:
    """(DDP registers its hook for it in the first forward pass, after attach.)"""
    assert pool.run(2, refuse_optimizer_in_backward) == [TAKEN, TAKEN]


class Mostly(nn.Module):
    """A matrix, and parameters that no codec can treat, which DDP is told to ignore."""

    def __init__(self) -> None:
        super().__init__()
        self.complex = nn.Linear(3, 3, dtype=torch.complex64)
        self.sparse = nn.Embedding(7, 3, sparse=True)
        self.given = Given({"w": (40, 40)})
        ignored = ["complex.weight", "complex.bias", "sparse.weight"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self, ignored)

    def forward(self, gradient: Tensor) -> Tensor:
        rest = self.complex.weight.abs().sum() + self.sparse(torch.tensor([2, 3])).sum()
        return self.given({"w": gradient}) + rest


def ignore_parameters(rank: int) -> tuple[Tensor, list]:
    model = DistributedDataParallel(Mostly())
    handle = gradwire.attach(model, "topk(ratio=1.0)")
    model(torch.full((40, 40), float(rank))).backward()
    return model.module.given.w.grad, handle.state_dict()["plan"]


def test_parameters_that_ddp_ignores_are_not_ours_to_refuse(pool: Pool) -> None:
    for gradient, plan in pool.run(3, ignore_parameters):
        assert torch.equal(gradient, torch.ones(40, 40))
        assert plan == [["given.w"]]


# ---------------------------------------------------------------- world size 1


def attach_alone(rank: int) -> tuple:
    threads = threading.active_count()
    model = wrap()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle = gradwire.attach(model, "topk", nmse_every=1)
    given = gradients(SHAPES, 0, 0)
    results = [reduced(model, given) for _ in range(3)]
    state = handle.state_dict()
    handle.load_state_dict(state)
    told = [(w.category, str(w.message), os.path.basename(w.filename)) for w in caught]
    groups = len(dist.distributed_c10d._world.pg_map)
    return told, all(same(r, given) for r in results), handle.stats(), threading.active_count() - threads, groups


def test_one_rank_alone_passes_gradients_through_and_says_so(pool: Pool) -> None:
    ((told, unchanged, stats, threads, groups),) = pool.run(1, attach_alone)
    assert told == [
        (
            UserWarning,
            "gradwire: the process group has one rank, so there is nothing to send; "
            "gradients pass through uncompressed",
            os.path.basename(__file__),
        )
    ]
    assert unchanged
    assert (stats["codec"], stats["workers"], stats["sent_bytes"], stats["nmse"]) == ("topk", 1, 0, None)
    assert threads == 0
    assert groups == 1


# ---------------------------------------------------------------- ranks that fail in the middle

TIMEOUT = 10.0  # s, of the process group


def die_at_step_3(rank: int, codec: str, strategy: str, mode: str) -> None:
    model = wrap()
    gradwire.attach(model, codec, strategy=strategy, mode=mode)
    for step in range(5):
        if step == 3 and rank == 1:
            os._exit(7)
        reduced(model, gradients(SHAPES, rank, step))


ADVICE = (
    ". A peer has most likely died or timed out; look for the first error among the other ranks' output, then restart "
    "from the last checkpoint."
)


def check_stopped(outcome: Any, rank: int, workers: int) -> str:
    """The rank has stopped with our message; returns the backend's reason in it."""
    assert isinstance(outcome, Failure)
    assert outcome.kind == "ExchangeFailed", outcome
    head, _, tail = outcome.message.partition(" did not finish: ")
    assert head in [f"rank {rank} of {workers}: {kind}" for kind in ("sum", "gather", "scatter")]
    reason, advice = tail[: -len(ADVICE)], tail[-len(ADVICE) :]
    assert advice == ADVICE
    return reason


@pytest.mark.parametrize("mode", ["overlap", "after_backward"])
@pytest.mark.parametrize(
    "codec, strategy",
    [("none", "auto"), ("topk", "all_gather"), ("topk", "scatter_reduce_gather"), ("powersgd", "auto")],
)
def test_the_others_stop_when_a_rank_dies(pool: Pool, codec: str, strategy: str, mode: str) -> None:
    outcomes = pool.outcomes(3, die_at_step_3, codec, strategy, mode, timeout=TIMEOUT)
    assert (outcomes[1].kind, outcomes[1].message) == ("Died", "exit code 7")
    for rank in (0, 2):  # at once: the connection broke, nobody waited for the time-out
        assert "Timed out" not in check_stopped(outcomes[rank], rank, 3)


@dataclass(frozen=True)
class Faulty(SimpleTopK):
    """Top-k that fails on rank 1 at step 3."""

    name: ClassVar[str] = "faulty"

    def pick(self, x: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
        if rng.ranks == (1,) and rng.step == 3:
            raise ZeroDivisionError("a bug in a codec")
        return super().pick(x, rng)


def fail_in_codec(rank: int, mode: str) -> None:
    model = wrap()
    gradwire.attach(model, Faulty(), mode=mode)
    for step in range(5):
        reduced(model, gradients(SHAPES, rank, step))


@pytest.mark.parametrize("mode", ["overlap", "after_backward"])
def test_the_others_stop_when_a_codec_fails_on_one_rank(pool: Pool, mode: str) -> None:
    outcomes = pool.outcomes(3, fail_in_codec, mode, timeout=TIMEOUT)
    assert (outcomes[1].kind, outcomes[1].message) == ("ZeroDivisionError", "a bug in a codec")
    for rank in (0, 2):  # at once: the connection broke, nobody waited for the time-out
        assert (outcomes[rank].kind, outcomes[rank].message) == (
            "ExchangeFailed",
            f"rank {rank} of 3: rank 1 has stopped (ZeroDivisionError: a bug in a codec), and this step cannot be "
            "finished without it. Mend what failed there, then restart all ranks from the last checkpoint.",
        )


def state_after_failure(rank: int) -> tuple[dict, dict]:
    """All ranks fail in the last bucket of a step, after the first ones have been reduced."""
    model = wrap()
    handle = gradwire.attach(model, FailsLate())
    for step in range(3):
        reduced(model, gradients(SHAPES, rank, step))
    assert len(buckets(model)) >= 3
    before = handle.state_dict()
    message(ZeroDivisionError, reduced, model, gradients(SHAPES, rank, 3))
    return before, handle.state_dict()


@dataclass(frozen=True)
class FailsLate(SimpleTopK):
    """Top-k that fails at step 3, for the unit with parameter g alone."""

    name: ClassVar[str] = "fails_late"

    def pick(self, x: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
        if rng.step == 3 and x.shape[1] == 3 * 1031:
            raise ZeroDivisionError("a bug in a codec")
        return super().pick(x, rng)


def test_a_step_that_fails_in_the_middle_leaves_the_memories_as_they_were(pool: Pool) -> None:
    for before, after in pool.run(3, state_after_failure):
        assert before["step"] == after["step"] == 3
        assert same(kept(before), kept(after))


@dataclass(frozen=True)
class Misshapen(SimpleTopK):
    """Top-k that loses the last element on the way."""

    name: ClassVar[str] = "misshapen"

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        return super().combine(payload, numel, rng, groups)[:, :-1]


def reduce_misshapen(rank: int) -> str:
    model = wrap({"w": (40, 50)})
    gradwire.attach(model, Misshapen())
    return message(gradwire.CodecError, reduced, model, gradients({"w": (40, 50)}, rank, 0))


def test_a_result_of_another_shape_is_not_handed_to_ddp(pool: Pool) -> None:
    told = (
        "misshapen: `combine` must return a tensor of shape (1, 2000) and dtype float32, got a tensor of shape (1, "
        "1999) and dtype float32; decode row by row, and keep both dimensions"
    )
    assert pool.run(2, reduce_misshapen) == [told, told]


def attach_differently(rank: int, first: dict, other: dict) -> str:
    options = first if rank == 0 else other
    return message(gradwire.Incompatible, gradwire.attach, wrap(), options.pop("codec"), **options)


def test_ranks_with_different_arguments_are_told_at_once(pool: Pool) -> None:
    told = pool.run(2, attach_differently, {"codec": "topk", "seed": 1}, {"codec": "topk(ratio=0.1)", "seed": 2})
    rest, last = "memory error_feedback, strategy auto, tensors matrices", "nmse_every 0, mode overlap"
    assert told == 2 * [
        f"attach: the ranks disagree. Rank 0 has codec topk, {rest}, seed 1, {last}; rank 1 has codec "
        f"topk(ratio=0.1), {rest}, seed 2, {last}. Call attach with the same arguments on all ranks."
    ]
