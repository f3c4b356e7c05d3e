"""Local steps over gloo ranks: against virtual workers, plain averaging, and a run that was never interrupted."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from given import agree, batch, kept, message, network, same, weights
from ranks import Pool
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import checkpoint
from gradwire.core.codec import Codec, Combine, Traits
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.integrations.local_steps import LocalSteps
from gradwire.saved_state import sealed

pytestmark = pytest.mark.dist
RATE = 0.1


def named(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def take(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """One step of this rank by itself."""
    x, y = batch(dist.get_rank(), step, next(model.parameters()).dtype)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).float(), y).backward()
    optimizer.step()


def start(codec: Any, steps: int, momentum: float = 0.0, **options: Any) -> tuple:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    return model, optimizer, LocalSteps(model, optimizer, codec, steps=steps, **options)


# ---------------------------------------------------------------- against virtual workers


def differences(rank: int, codec: str, strategy: str) -> list[tuple]:
    """Of each step: the gradients, the anchor, the difference, the new parameters, and what is owed."""
    model, optimizer, local = start(codec, 1, strategy=strategy, tensors="all", seed=7)
    out = []
    for step in range(4):
        anchor = named(model)
        take(model, optimizer, step)
        difference = {n: anchor[n] - p for n, p in named(model).items()}
        gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        assert local.step()
        owed = {n: checkpoint.owed(local.engine, n, p.shape) for n, p in model.named_parameters()}
        out.append((gradients, anchor, difference, named(model), owed))
    return out


CASES = [
    ("topk(ratio=0.05)", "all_gather"),
    ("topk(ratio=0.05)", "scatter_reduce_gather"),
    ("qsparse(ratio=0.1)", "all_gather"),
    ("efsignsgd(block=64)", "scatter_reduce_gather"),
    ("randomk(ratio=0.2)", "all_reduce"),
    ("powersgd(rank=2)", "auto"),
]


@pytest.mark.parametrize("codec, strategy", CASES)
def test_one_step_is_gradient_compression_with_the_rate_folded_in(pool: Pool, codec: str, strategy: str) -> None:
    ranks = pool.run(3, differences, codec, strategy)
    cluster = gradwire.VirtualCluster(3, codec, strategy=strategy, seed=7)
    exact = strategy not in ("all_reduce", "auto")  # the library does the summing, not the backend
    for at_step in zip(*ranks, strict=True):
        gradients, anchor, given, new, _ = at_step[0]
        for name, gradient in gradients.items():
            torch.testing.assert_close(given[name], RATE * gradient, rtol=1e-4, atol=1e-7)
        mean = cluster.reduce({n: [rank[2][n] for rank in at_step] for n in given})
        for name in given:
            wanted = anchor[name] - mean[name]
            assert same(new[name], wanted) or (not exact and torch.allclose(new[name], wanted, rtol=1e-4, atol=1e-6))
            for rank, owed in zip(at_step, cluster.memory(name), strict=True):
                torch.testing.assert_close(rank[4][name], owed, rtol=1e-4, atol=0 if exact else 1e-6)


# ---------------------------------------------------------------- replicas


def synchronise(rank: int, codec: str, momentum: float) -> list[tuple[bool, Tensor]]:
    """Whether each of ten steps exchanged, and the parameters after it; ranks start apart."""
    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    local = LocalSteps(model, optimizer, codec, steps=3)
    out = [(True, weights(model))]
    for step in range(10):
        take(model, optimizer, step)
        out.append((local.step(), weights(model)))
    local.sync()
    return [*out, (True, weights(model))]


@pytest.mark.parametrize(
    "codec, momentum", [("none", 0.0), ("qsparse(ratio=0.1)", 0.9), ("threelc", 0.0), ("fp16", 0.9)]
)
def test_replicas_agree_bit_for_bit_after_each_exchange_and_only_then(pool: Pool, codec: str, momentum: float) -> None:
    ranks = pool.run(3, synchronise, codec, momentum)
    assert torch.equal(ranks[0][0][1], weights(network()))  # all start as the first rank
    for i, at_step in enumerate(zip(*ranks, strict=True)):
        exchanged = [e for e, _ in at_step]
        assert exchanged == [i % 3 == 0 or i == 11] * 3
        assert agree([w for _, w in at_step]) == exchanged[0]


def average(rank: int) -> tuple[Tensor, Tensor]:
    """This rank's parameters after four steps alone, and after the exchange."""
    model, optimizer, local = start("none", 4)
    for step in range(4):
        take(model, optimizer, step)
        alone = weights(model)
        exchanged = local.step()
    assert exchanged
    return alone, weights(model)


def test_without_compression_the_models_are_averaged(pool: Pool) -> None:
    ranks = pool.run(3, average)
    mean = torch.stack([alone for alone, _ in ranks]).double().mean(0)
    torch.testing.assert_close(ranks[0][1].double(), mean, rtol=0, atol=1e-7)
    assert not torch.allclose(ranks[0][0].double(), mean, rtol=0, atol=1e-4)
    assert agree([both for _, both in ranks])


def train_normalised(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation, frozen and half-precision parameters: the means, the frozen ones, the others."""
    model = nn.Sequential(nn.Linear(24, 40), nn.BatchNorm1d(40), nn.Linear(40, 10, dtype=torch.bfloat16))
    model[0].bias.requires_grad_(False)
    with torch.no_grad():
        model[0].bias.fill_(rank + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    local = LocalSteps(model, optimizer, "topk(ratio=0.2)", steps=2)
    for step in range(4):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model[2](model[1](model[0](x)).bfloat16()).float(), y).backward()
        optimizer.step()
        local.step()
    assert [unit.anchor.dtype for unit in local._units] == [torch.float32, torch.bfloat16]
    trained = torch.cat([p.detach().float().flatten() for p in model.parameters() if p.requires_grad])
    return model[1].running_mean, model[0].bias.detach(), trained


def test_buffers_stay_with_their_rank_and_all_parameters_agree(pool: Pool) -> None:
    ranks = pool.run(2, train_normalised)
    assert not torch.equal(ranks[0][0], ranks[1][0])
    assert (ranks[1][1] == 1).all()
    assert torch.equal(ranks[0][2], ranks[1][2])


def poison(rank: int) -> tuple[bool, bool, int]:
    """One rank's parameters overflow: is the result finite, is the memory as before, and how many were skipped."""
    model, optimizer, local = start("topk(ratio=0.1)", 1)
    take(model, optimizer, 0)
    local.step()
    before = kept(local.state_dict())
    if rank == 1:
        with torch.no_grad():
            model[0].weight[3, 4] = float("inf")
    local.step()
    return (
        bool(weights(model).isfinite().all()),
        same(before, kept(local.state_dict())),
        local.stats()["skipped_syncs"],
    )


def test_non_finite_parameters_are_seen_by_all_and_remembered_by_none(pool: Pool) -> None:
    assert pool.run(2, poison) == [(False, True, 1)] * 2


# ---------------------------------------------------------------- state and statistics


def save_and_restore(rank: int, codec: str) -> tuple[Tensor, Tensor, int]:
    """The parameters after 11 steps in one go, and after 6, a restart, and 5."""
    model, optimizer, local = start(codec, 4, momentum=0.9)
    for step in range(11):
        if step == 6:
            file = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict(), local.state_dict()], file)
        take(model, optimizer, step)
        local.step()
    straight = weights(model)

    model = nn.Sequential(*(layer for layer in network()))
    with torch.no_grad():
        model[0].weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    local = LocalSteps(model, optimizer, codec, steps=4)
    file.seek(0)
    for part, state in zip((model, optimizer, local), torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    for step in range(6, 11):
        take(model, optimizer, step)
        local.step()
    return straight, weights(model), local.stats()["syncs"]


@pytest.mark.parametrize("codec", ["topk(ratio=0.05)", "powersgd(rank=2)", "none"])
def test_a_run_continues_from_the_middle_of_its_local_steps(pool: Pool, codec: str) -> None:
    for straight, resumed, syncs in pool.run(3, save_and_restore, codec):
        assert torch.equal(straight, resumed)
        assert syncs == 2


def train_and_save(rank: int) -> tuple[dict, dict]:
    model, optimizer, local = start("topk(ratio=0.05)", 2)
    for step in range(4):
        take(model, optimizer, step)
        local.step()
    return local.state_dict(), named(model)


def load_and_continue(rank: int, states: list[dict], parameters: dict) -> tuple[dict, Tensor]:
    model, optimizer, local = start("topk(ratio=0.05)", 2)
    model.load_state_dict(parameters)
    local.load_state_dict(states)
    owed = {n: checkpoint.owed(local.engine, n, p.shape) for n, p in parameters.items()}
    for step in range(2):
        take(model, optimizer, step)
        local.step()
    return owed, weights(model)


def test_another_number_of_ranks_takes_over_what_is_owed(pool: Pool) -> None:
    saved = pool.run(4, train_and_save)
    states = [state for state, _ in saved]
    ranks = pool.run(2, load_and_continue, states, saved[0][1])
    for name, owed in ranks[0][0].items():
        before = [s["state"].get("error", {}).get(name) for s in states]
        if before[0] is not None:
            mean = torch.stack([e["tensor"] for e in before]).mean(0).view(owed.shape)
            torch.testing.assert_close(torch.stack([r[0][name] for r in ranks]).mean(0), mean)
            assert mean.any()
    assert agree([w for _, w in ranks])


def measure(rank: int) -> list[dict]:
    model, optimizer, local = start("topk(ratio=0.05)", 3, tensors="all")
    stats = [local.stats()]
    for step in range(7):
        take(model, optimizer, step)
        local.step()
        stats.append(local.stats())
    return stats


def test_statistics_count_the_bytes_of_the_exchanges(pool: Pool) -> None:
    """Seven steps, two exchanges: a seventh of the payload of every step."""
    payload = gradwire.codec("topk(ratio=0.05)").payload_bytes(weights(network()).numel())
    for stats in pool.run(2, measure):
        assert [s["syncs"] for s in stats] == [0, 0, 0, 1, 1, 1, 2, 2]
        assert [s["steps"] for s in stats] == list(range(8))
        last = stats[-1]
        assert last["payload_bytes"] == last["sent_bytes"] == 2 * payload  # one other rank to send to
        assert last["sent_bytes_per_sync"] == payload
        assert last["residual_norm"] > 0
        assert stats[0]["residual_norm"] is None
        assert (last["codec"], last["memory"], last["workers"]) == ("topk(ratio=0.05)", "error_feedback", 2)


# ---------------------------------------------------------------- refusals


def refusals(rank: int) -> dict[str, str]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    other = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3))], lr=RATE)
    wrong = [
        ("wrapped", gradwire.Incompatible, DistributedDataParallel(model), optimizer, {"steps": 2}),
        ("steps", gradwire.ConfigError, model, optimizer, {"steps": 0}),
        ("strangers", gradwire.Incompatible, model, other, {"steps": 2}),
        ("empty", gradwire.Incompatible, nn.Tanh(), optimizer, {"steps": 2}),
        ("lazy", gradwire.Incompatible, nn.LazyLinear(3), optimizer, {"steps": 2}),
        ("complex", gradwire.Incompatible, nn.Linear(3, 3, dtype=torch.cfloat), optimizer, {"steps": 2}),
        (
            "rate",
            gradwire.Incompatible,
            model,
            optimizer,
            {"steps": 2, "memory": "error_feedback(by_learning_rate=True)"},
        ),
        ("apart", gradwire.Incompatible, model, optimizer, {"steps": 2 + rank}),
    ]
    said = {key: message(error, LocalSteps, m, o, "topk", **options) for key, error, m, o, options in wrong}
    outsider = dist.new_group([0])
    if rank == 1:
        said["outside"] = message(
            gradwire.Incompatible, LocalSteps, model, optimizer, "topk", steps=2, process_group=outsider
        )
    local = LocalSteps(model, optimizer, "topk", steps=2)
    state = local.state_dict()
    del state["anchor"]["0.weight"]
    said["state"] = message(gradwire.StateMismatch, local.load_state_dict, sealed(state))
    said["nothing"] = message(gradwire.StateMismatch, local.load_state_dict, [])
    return said


def test_what_cannot_work_is_refused_with_the_reason(pool: Pool) -> None:
    first, second = pool.run(2, refusals)
    assert "wrapped in DistributedDataParallel" in first["wrapped"]
    assert first["steps"] == "LocalSteps: `steps` must be a whole number of at least 1, got 0"
    assert "the optimizer trains 1 parameters that are not the model's" in first["strangers"]
    assert "no parameters that require a gradient" in first["empty"]
    assert "has no shape yet" in first["lazy"]
    assert "complex" in first["complex"]
    assert "follows the learning rate" in first["rate"]
    assert "local steps 2" in first["apart"]
    assert "local steps 3" in first["apart"]
    assert second["outside"] == "LocalSteps: rank 1 is not in the process group it was given"
    assert "holds nothing for '0.weight', and this model has torch.float32[64, 24]" in first["state"]
    assert "empty list" in first["nothing"]


def test_without_a_process_group_it_says_how_to_get_one() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(gradwire.Incompatible, match=r"no process group.*init_process_group"):
        LocalSteps(model, torch.optim.SGD(model.parameters(), lr=RATE), "topk", steps=2)


def thaw(rank: int) -> str:
    model = network()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    local = LocalSteps(model, optimizer, "topk", steps=1)
    take(model, optimizer, 0)
    local.step()
    model[0].weight.requires_grad_(True)
    return message(gradwire.Incompatible, local.step)


def test_parameters_unfrozen_later_are_refused(pool: Pool) -> None:
    assert all("'0.weight' requires a gradient by now" in said for said in pool.run(2, thaw))


def alone(rank: int) -> tuple[Tensor, Tensor, dict]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with pytest.warns(UserWarning, match="one rank"):
        local = LocalSteps(model, optimizer, "topk", steps=2)
    for step in range(2):
        take(model, optimizer, step)
        local.step()
    return weights(model), torch.cat([t.flatten() for t in local.state_dict()["anchor"].values()]), local.stats()


def test_one_rank_trains_alone(pool: Pool) -> None:
    [(trained, anchor, stats)] = pool.run(1, alone)
    assert torch.equal(trained, anchor)
    assert (stats["steps"], stats["sent_bytes"]) == (2, 0)


@dataclass(frozen=True)
class Broken(Codec):
    """Fails on one rank, before it sends anything."""

    name: ClassVar[str] = "broken"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "none"

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        if rng.ranks == (1,):
            raise ArithmeticError("broken on purpose")
        return Payload(x.view(torch.uint8))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return payload.data.view(torch.float32)

    def payload_bytes(self, numel: int) -> int:
        return 4 * numel


def break_down(rank: int) -> tuple[str, bool]:
    """What the first exchange says, and whether the second one says it again without trying."""
    model, optimizer, local = start(Broken(), 1)
    take(model, optimizer, 0)
    problems = []
    for _ in range(2):
        try:
            local.step()
        except Exception as problem:
            problems.append(problem)
    return str(problems[0]), problems[0] is problems[1]


def test_a_failure_stays(pool: Pool) -> None:
    """The rank that failed says why; the other one waits in vain, and is told."""
    first, second = pool.run(2, break_down)
    assert second == ("broken on purpose", True)
    assert first[0].startswith("rank 0 of 2: rank 1 has stopped (ArithmeticError: broken on purpose), and this step")
    assert first[1]
