"""FSDP2: the reduce-scatter and the replicas' average through codecs, beside torch's own."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Failure, Pool
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

import gradwire

pytestmark = pytest.mark.dist
REPLICAS, SCATTER = "replicas", "reduce-scatter"
STEPS = 12
LOSSY = ["topk(ratio=0.1)", "efsignsgd"]
CODECS = ["bf16", "blockint(bits=8)", "blockint(bits=4)", *LOSSY]


class Net(nn.Module):
    """Sizes that no number of ranks divides; `extra` is used in some steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.extra = nn.Linear(33, 65), nn.Linear(65, 65), nn.Linear(65, 65)
        self.norm, self.last = nn.LayerNorm(65), nn.Linear(65, 7)

    def forward(self, x: Tensor, extra: bool = True) -> Tensor:
        hidden = self.second(self.first(x).tanh())
        return self.last(self.norm(self.extra(hidden) if extra else hidden))


def sharded(codec=None, place=SCATTER, policy=None, offload=None, **options):
    """A model, and its handle; None instead of a codec: torch alone."""
    torch.manual_seed(0)
    model, world = Net(), dist.get_world_size()
    if place == REPLICAS:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        over = mesh if codec is None else mesh["shard"]
        options = {"replicas": mesh["replicate"], **options}
    else:
        over = init_device_mesh("cpu", (world,))
    how = {"mesh": over, "mp_policy": policy or MixedPrecisionPolicy(), "offload_policy": offload or OffloadPolicy()}
    fully_shard(model.second, **how)
    fully_shard(model, **how)
    return model, None if codec is None else gradwire.attach(model, codec, **options)


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 33, generator=generator)
    return x, x[:, :7].argmax(dim=1)


def train(model, rank, steps=range(STEPS), micro=1, clip=None, **how):
    warnings.filterwarnings("ignore", "mkldnn_matmul")  # torch's, on CPUs without bf16
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        for part in range(micro):
            model.set_requires_gradient_sync(part == micro - 1)
            x, y = batch(rank, micro * step + part)
            loss = nn.functional.cross_entropy(model(x, **how).float(), y)
            loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return loss


def whole(model):
    return torch.cat([p.full_tensor().detach().flatten().float() for p in model.parameters()])


def outcome(rank, codec, place, made=None, trained=None, attached=None):
    model, handle = sharded(codec, place, **(made or {}), **((attached or {}) if codec else {}))
    loss = train(model, rank, **(trained or {})).detach().clone()
    dist.all_reduce(loss)
    return whole(model), float(loss) / dist.get_world_size(), None if handle is None else handle.stats()


WAYS = [(SCATTER, 2), (SCATTER, 3), (REPLICAS, 4)]
VARIANTS = {
    "plain": ({}, {}),
    "bf16": ({"policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}, {}),
    "bf16 reduced": ({"policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)}, {}),
    "fp16 reduced": ({"policy": MixedPrecisionPolicy(reduce_dtype=torch.float16)}, {}),
    "accumulated": ({}, {"micro": 3}),
    "clipped": ({}, {"clip": 0.1}),
    "offloaded": ({"offload": CPUOffloadPolicy(pin_memory=False)}, {}),
}


@pytest.mark.parametrize("place, world", WAYS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_none_is_torch_bit_for_bit(pool: Pool, place, world, variant):
    made, trained = VARIANTS[variant]
    plain = pool.run(world, outcome, None, place, made, trained)
    ours = pool.run(world, outcome, "none", place, made, trained)
    for (wanted, *_), (got, _, stats) in zip(plain, ours, strict=True):
        if (place, variant) == (REPLICAS, "fp16 reduced"):  # torch divides by other powers of two there
            assert torch.allclose(got, wanted, atol=1e-4)
        else:
            assert torch.equal(got, wanted)
        assert stats["skipped_steps"] == 0


@pytest.mark.parametrize("place, world", WAYS)
@pytest.mark.parametrize("codec", CODECS)
def test_codecs_train_beside_torch_and_send_less(pool: Pool, codec, place, world):
    plain = pool.run(world, outcome, None, place)
    ours = pool.run(world, outcome, codec, place, deadline=150.0)
    assert all(torch.equal(weights, ours[0][0]) for weights, *_ in ours)
    assert ours[0][1] < plain[0][1] + (0.3 if codec in LOSSY else 0.02)
    stats = ours[0][2]
    elements = plain[0][0].numel()
    whole_bytes = 4 * elements * (world - 1) / world if place == SCATTER else 4 * elements / (world // 2)
    assert stats["steps"] == STEPS
    assert 0 < stats["sent_bytes_per_step"] < 0.55 * whole_bytes
    assert (stats["residual_norm"] is None) == (codec == "bf16")


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "plain"])
def test_in_every_habit_of_training(pool: Pool, variant):
    made, trained = VARIANTS[variant]
    for place, world in ((SCATTER, 2), (REPLICAS, 4)):
        plain = pool.run(world, outcome, None, place, made, trained)
        ours = pool.run(world, outcome, "blockint(bits=8)", place, made, trained)
        assert ours[0][1] == pytest.approx(plain[0][1], rel=0.01)
        assert ours[0][2]["steps"] == STEPS
        assert all(torch.equal(weights, ours[0][0]) for weights, *_ in ours)


def resumed(rank, codec, place):
    model, handle = sharded(codec, place)
    train(model, rank, range(4))
    weights, state = {n: p.detach().clone() for n, p in model.named_parameters()}, handle.state_dict()
    train(model, rank, range(4, 8))
    again, other = sharded(codec, place)
    with torch.no_grad():
        for name, p in again.named_parameters():
            p.copy_(weights[name])
    other.load_state_dict(state)
    train(again, rank, range(4, 8))
    return torch.equal(whole(model), whole(again)), float(handle.stats()["residual_norm"])


@pytest.mark.parametrize("place, world", [(SCATTER, 3), (REPLICAS, 4)])
def test_a_saved_state_goes_on_bit_for_bit(pool: Pool, place, world):
    for same, owed in pool.run(world, resumed, "topk(ratio=0.1)", place):
        assert same
        assert owed > 0


def loaded_elsewhere(rank):
    told = []
    _, scatter = sharded("topk", SCATTER)
    _, replicas = sharded("topk", REPLICAS)
    for handle, state in (
        (replicas, scatter.state_dict()),
        (scatter, [scatter.state_dict()]),
        (scatter, {k: v for k, v in scatter.state_dict().items() if k not in ("place", "shard")}),
    ):
        with pytest.raises(gradwire.StateMismatch) as problem:
            handle.load_state_dict(state)
        told.append(str(problem.value))
    return told


def test_a_state_of_another_mesh_is_refused(pool: Pool):
    first, second, third = pool.run(4, loaded_elsewhere)[3]
    assert first == (
        "gradwire: this state was saved by one with shard 3 of 4 and a codec in its reduce-scatter, and this rank is "
        "one with shard 1 of 2 and a codec in its replicas; resume on the mesh that saved it, or start without it"
    )
    assert second.endswith("each rank's own state, on the mesh that saved it; pass one")
    assert third.startswith("gradwire: this state was saved by a model that is not sharded, and this rank is one with")


def with_unused(rank, place, told):
    model, _ = sharded("blockint(bits=8)", place)
    if told:
        model.set_reduce_scatter_unused_params(True)
    train(model, rank, range(2))
    train(model, rank, range(2, 4), extra=False)
    return whole(model)


def test_parameters_without_gradients_need_a_line(pool: Pool):
    if not hasattr(torch.distributed.fsdp.FSDPModule, "set_reduce_scatter_unused_params"):
        pytest.skip("needs torch 2.13")
    first, second = pool.run(2, with_unused, SCATTER, True)
    assert torch.equal(first, second)
    failures = pool.outcomes(2, with_unused, SCATTER, False)
    assert all(isinstance(f, Failure) and f.kind == "Incompatible" for f in failures)
    assert "Call model.set_reduce_scatter_unused_params(True)" in failures[0].message


def refused(rank, what):
    world = dist.get_world_size()
    torch.manual_seed(0)
    model = Net()
    if what == "two dimensions":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh)
        gradwire.attach(model, "topk")
    elif what == "powersgd":
        sharded("powersgd")
    elif what == "twice":
        model, _ = sharded("topk", REPLICAS)
        gradwire.attach(model, "topk")


@pytest.mark.parametrize(
    "what, message",
    [
        ("two dimensions", 'gradwire.attach(model, codec, replicas=mesh["replicate"])'),
        ("powersgd", "powersgd cannot run in a reduce-scatter: a shard of its gradient cannot be encoded by itself"),
        ("twice", "has an all-reduce hook already; a model takes one"),
    ],
)
def test_wrong_use_gets_a_sentence(pool: Pool, what, message):
    for failure in pool.outcomes(4, refused, what):
        assert failure.kind == "Incompatible"
        assert message in failure.message


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, 'attach: the autopilot is for DDP; name a codec for a sharded model, such as "bf16"'),
        ({"codec": "topk", "check": True}, "attach: a sharded model has no 'check'; leave it out"),
        (
            {"codec": "topk", "mode": "after_backward", "nmse_every": 3},
            "attach: a sharded model has no 'mode' and no 'nmse_every'; leave it out",
        ),
    ],
)
def test_what_is_for_ddp_alone_is_refused(pool: Pool, options, message):
    for failure in pool.outcomes(2, attached_with, options):
        assert (failure.kind, failure.message) == ("ConfigError", message)


def attached_with(rank, options):
    model, _ = sharded()
    gradwire.attach(model, **options)


def back_to_torch(rank, place):
    model, handle = sharded("topk", place)
    train(model, rank, range(2))
    handle.detach()
    sent = handle.stats()["sent_bytes"]
    train(model, rank, range(2, 4))
    return sent == handle.stats()["sent_bytes"] > 0


def test_after_detach_torch_reduces_by_itself(pool: Pool):
    assert all(pool.run(2, back_to_torch, SCATTER))


def divided(rank, factor):
    model, _ = sharded("bf16")
    if factor is not None:
        model.set_gradient_divide_factor(factor)
        model.second.set_gradient_divide_factor(factor)
    x, y = batch(rank, 0)
    nn.functional.cross_entropy(model(x), y).backward()
    return torch.cat([p.grad.to_local().flatten() for p in model.parameters()])


def test_a_factor_that_divides_gradients_is_kept(pool: Pool):
    plain, divided_by_8 = pool.run(2, divided, None), pool.run(2, divided, 8.0)
    for whole_mean, quarter in zip(plain, divided_by_8, strict=True):
        assert torch.equal(whole_mean / 4, quarter)


def page_by(rank, blocks):
    names = {}
    for block in blocks:
        exec(block, names)
    model, flat = names["model"], names["flat"]
    x, y = batch(rank, 0)
    nn.functional.cross_entropy(model(x), y).backward()
    flat(x).sum().backward()
    return names["handle"].stats()["codec"], all(p.grad is not None for m in (model, flat) for p in m.parameters())


def test_the_page_is_right(pool: Pool):
    page = (Path(__file__).parents[2] / "docs" / "sharded.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    assert pool.run(4, page_by, blocks) == [("bf16", True)] * 4
