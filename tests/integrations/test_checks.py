"""`attach(..., check=True)`: a planted fault of each kind is found, a healthy run has none, and no bit changes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from given import SHAPES, SimpleTopK, agree, gradients, message, network, reduced, train, weights, wrap
from ranks import Pool
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.codecs.baseline.none import NoCompression
from gradwire.core.errors import ConfigError
from gradwire.core.exchange import Payload
from gradwire.core.layout import Layout
from gradwire.core.traits import Traits
from gradwire.integrations.checks import Checks, _holder, contraction, error_limit, odd_one_out, owed_bound
from gradwire.memory.error_feedback import ErrorFeedback
from gradwire.memory.momentum_correction import MomentumCorrection

pytestmark = pytest.mark.dist
STEPS = 12


def seen_by(handle: Any, model: Any, rank: int, steps: int = STEPS, same: bool = False) -> tuple[list[str], dict]:
    """The warnings of a few steps on this rank, and what the checks saw."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            reduced(model, gradients(SHAPES, rank, 0 if same else step))
    return [str(w.message) for w in caught], handle.stats()["checks"]


# ---------------------------------------------------------------- healthy runs


def healthy(rank: int, codec: str, mode: str, strategy: str) -> tuple[list[str], dict]:
    model = wrap()
    handle = gradwire.attach(model, codec, mode=mode, strategy=strategy, check=2)
    return seen_by(handle, model, rank)


@pytest.mark.parametrize(
    "codec, mode, strategy",
    [
        ("none", "overlap", "auto"),
        ("none", "after_backward", "auto"),
        ("fp16", "overlap", "auto"),
        ("eightbit", "overlap", "auto"),
        ("topk(ratio=0.01)", "overlap", "auto"),
        ("topk(ratio=0.01)", "after_backward", "all_gather"),
        ("powersgd(rank=2)", "overlap", "auto"),
        ("efsignsgd", "overlap", "auto"),
        ("qsgd", "overlap", "auto"),
        ("terngrad", "overlap", "auto"),
        ("dgc", "overlap", "auto"),
        ("blockint", "overlap", "hierarchical(per_node=2)"),
    ],
)
def test_a_healthy_run_warns_of_nothing(pool: Pool, codec: str, mode: str, strategy: str) -> None:
    for told, seen in pool.run(4, healthy, codec, mode, strategy):
        assert told == []
        assert (seen["steps"], seen["warnings"]) == (6, {})
        if codec == "none":
            assert seen["error"] is None
        else:
            assert seen["error"] >= 0
        if codec in ("topk(ratio=0.01)", "efsignsgd"):
            assert 0 < seen["owed"] < seen["bound"]


def train_checked(rank: int, codec: str, check: Any) -> tuple[Tensor, Any]:
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    handle = gradwire.attach(model, codec, check=check)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(10))
    return weights(model), handle.stats().get("checks")


@pytest.mark.parametrize("codec", ["none", "topk(ratio=0.05)", "eightbit", "powersgd(rank=2)"])
def test_training_is_the_same_to_the_last_bit(pool: Pool, codec: str) -> None:
    plain, checked = pool.run(3, train_checked, codec, False), pool.run(3, train_checked, codec, 3)
    assert agree([w for w, _ in (*plain, *checked)])
    assert all(seen is None for _, seen in plain)
    assert all(seen["steps"] == 4 for _, seen in checked)
    assert pool.run(2, train_checked, codec, True)[0][1]["steps"] == 1  # every 100 steps


def test_the_tensor_that_holds_an_element_is_named() -> None:
    layout = Layout.of([("a", (3,)), ("b", (2, 1))])
    assert [_holder(layout, position) for position in range(6)] == ["a", "a", "a", "b", "b", "padding"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_owed_is_compared_in_todays_units_and_in_float32(dtype: torch.dtype) -> None:
    """The loss scale has doubled since it was kept; the gradient's squares are beyond the range of half precision."""
    cluster = gradwire.VirtualCluster(1, "topk(ratio=0.5)")
    gradient = torch.tensor([4000.0, 3000.0], dtype=dtype)
    cluster.reduce({"w": [gradient]})  # 3000 is left
    cluster.engine.begin_step(loss_scale=2.0)
    session: Any = SimpleNamespace(
        engine=cluster.engine, device=torch.device("cpu"), squares=[None], raise_error=lambda: None
    )
    checks = Checks(session, dict, 1)
    checks.begin()
    checks.look_at(2 * gradient, Layout.of([("w", (2,))]))
    checks.finish([("w",)])
    assert checks.seen["owed"] == pytest.approx(3000 / 5000)


# ---------------------------------------------------------------- planted faults


@dataclass(frozen=True)
class Lying(NoCompression):
    """Says that it is lossless, and is off by the last bit of one element."""

    name: ClassVar[str] = "lying"

    def decode_to(self, payload: Payload, target: Any, shard: int, rng: Any, factor: float = 1.0) -> Any:
        flag = super().decode_to(payload, target, shard, rng, factor)
        target.buffer[0, 5] = torch.nextafter(target.buffer[0, 5], torch.tensor(torch.inf))
        return flag


def lie(rank: int) -> tuple[list[str], dict]:
    model = wrap()
    return seen_by(gradwire.attach(model, Lying(), check=3), model, rank)


def test_a_lossless_codec_that_is_not_what_ddp_computes_is_found(pool: Pool) -> None:
    (first, seen), (second, _) = pool.run(2, lie)
    (told,) = first
    assert second == []  # what all see, rank 0 tells
    assert told.startswith("gradwire check, step 0: codec lying says that it loses nothing, and 1 of ")
    assert "elements of a unit are not what torch computes, the first in '" in told
    assert told.endswith("(handle.detach()), and report the codec.")
    assert seen["warnings"] == {"lossless": told}


def drift_apart(rank: int) -> tuple[list[str], dict]:
    model = wrap()
    handle = gradwire.attach(model, "eightbit", check=2)
    told, _ = seen_by(handle, model, rank, 4)
    assert told == []
    with torch.no_grad():  # no sum of the elements shows it
        model.module.c.view(-1)[:2] = torch.tensor([1.5, 1.25] if rank == 1 else [1.25, 1.5])
    return seen_by(handle, model, rank)


def test_replicas_that_drift_apart_are_found_by_rank_and_tensor(pool: Pool) -> None:
    outcomes = pool.run(3, drift_apart)
    assert [len(told) for told, _ in outcomes] == [1, 1, 0]  # rank 0, and the one it is about
    told = outcomes[0][0][0]
    assert told.startswith(
        "gradwire check, step 4: rank 1 has another 'c' than most ranks (1 of 8 tensors differ somewhere): "
    )
    assert told.endswith("find it, and start all ranks again from one checkpoint.")
    assert [list(seen["warnings"]) for _, seen in outcomes] == [["replicas"]] * 3


@dataclass(frozen=True)
class Silent(SimpleTopK):
    """Claims to keep half of everything, and sends nothing."""

    name: ClassVar[str] = "silent"
    ratio: float = 0.5

    def encode(self, x: Tensor, rng: Any) -> Payload:
        return super().encode(torch.zeros_like(x), rng)


def owe(rank: int) -> tuple[list[str], dict]:
    model = wrap()
    handle = gradwire.attach(model, Silent(), strategy="all_gather", check=2)
    return seen_by(handle, model, rank, same=True)


def test_a_memory_that_grows_without_bound_is_found_on_each_rank(pool: Pool) -> None:
    for rank, (told, seen) in enumerate(pool.run(2, owe)):
        (one,) = [text for text in told if "owes" in text]
        assert one.startswith(f"gradwire check, step 6: rank {rank} owes ")
        assert (
            "times its largest gradient, more than the 5.66 that codec silent may leave behind, most of it of '" in one
        )
        assert one.endswith("or use memory='none' with a codec that is unbiased.")
        assert seen["owed"] > seen["bound"] == pytest.approx(5.657, abs=1e-3)


@dataclass(frozen=True)
class Breaking(SimpleTopK):
    """Fine at first; after forty encodings, what it sends is noise."""

    name: ClassVar[str] = "breaking"
    ratio: float = 0.9
    encoded: ClassVar[list[int]] = [0]

    def encode(self, x: Tensor, rng: Any) -> Payload:
        self.encoded[0] += 1
        return super().encode(x if self.encoded[0] <= 40 else 30 * x.roll(1, dims=1), rng)


def break_down(rank: int) -> tuple[list[str], dict]:
    Breaking.encoded[0] = 0
    model = wrap()
    handle = gradwire.attach(model, Breaking(), strategy="all_gather", memory="none", check=2)
    return seen_by(handle, model, rank, 30)


def test_an_error_that_is_no_longer_what_it_was_is_found(pool: Pool) -> None:
    (first, seen), (second, _) = pool.run(2, break_down)
    (told,) = first
    assert second == []
    assert told.startswith("gradwire check, step ")
    assert ": the error of the result is " in told
    assert " of the exact mean's square, and was 0.0" in told
    assert "; most of it is in '" in told
    assert "Either codec breaking is broken, or the mean gradient has become small" in told
    assert list(seen["warnings"]) == ["error"]


# ---------------------------------------------------------------- decisions on plain numbers


def test_what_a_memory_may_owe_follows_from_what_the_codec_claims() -> None:
    traits = gradwire.codec("topk(ratio=0.5)").traits
    assert owed_bound(traits, ErrorFeedback()) == pytest.approx(2 * 2 * 0.5**0.5 / 0.5)
    assert owed_bound(gradwire.codec("eightbit").traits, ErrorFeedback()) == 3  # at least
    assert owed_bound(gradwire.codec("powersgd").traits, ErrorFeedback()) == 100  # nothing is claimed
    assert owed_bound(traits, MomentumCorrection(momentum=0.9)) == pytest.approx(
        10 * owed_bound(traits, ErrorFeedback())
    )
    unbiased = Traits(combine=traits.combine, omega=0.25)
    assert contraction(unbiased) == 0.75
    assert contraction(Traits(combine=traits.combine, omega=3.0)) == 0.25


def test_the_rank_that_disagrees_with_most_is_named() -> None:
    assert odd_one_out([[1, 2], [1, 2]], ["a", "b"]) is None
    assert odd_one_out([[9, 2], [1, 2], [1, 2]], ["a", "b"]) == (0, "a", 1)
    assert odd_one_out([[1, 2], [9, 3]], ["a", "b"]) == (1, "a", 2)
    assert error_limit([1e-4] * 3) == 0.5
    assert error_limit([2.0] * 3) == 20


def refused(rank: int) -> str:
    return message(ConfigError, gradwire.attach, wrap(), "none", check=0)


def test_a_period_that_is_none_is_refused(pool: Pool) -> None:
    assert pool.run(2, refused)[0] == "attach: `check` must be a whole number of at least 1, got 0"
