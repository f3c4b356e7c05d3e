"""FSDP2: the reduce-scatter and the replicas' average through codecs, beside torch's own."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from given import message
from ranks import Failure, Pool
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

import gradwire

pytestmark = pytest.mark.dist
REPLICAS, SCATTER = "replicas", "reduce-scatter"
STEPS = 12
CODECS = ["bf16", "blockint(bits=8)", "blockint(bits=4)", "topk(ratio=0.1)", "efsignsgd"]


class Net(nn.Module):
    """Sizes that no number of ranks divides; `extra` is used in some steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.extra = nn.Linear(33, 65), nn.Linear(65, 65), nn.Linear(65, 65)
        self.norm, self.last = nn.LayerNorm(65), nn.Linear(65, 7)

    def forward(self, x: Tensor, extra: bool = True) -> Tensor:
        hidden = self.second(self.first(x).tanh())
        return self.last(self.norm(self.extra(hidden) if extra else hidden))


def sharded(codec=None, place=SCATTER, policy=None, offload=None, frozen=False, **options):
    """A model, and its handle; None instead of a codec: torch alone."""
    torch.manual_seed(0)
    model, world = Net(), dist.get_world_size()
    model.extra.requires_grad_(not frozen)
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
    declares = sharded(codec, place, **(made or {}), dry_run=True)[1].sent_bytes if codec else None
    loss = train(model, rank, **(trained or {})).detach().clone()
    dist.all_reduce(loss)
    return whole(model), float(loss) / dist.get_world_size(), None if handle is None else handle.stats(), declares


def outcomes(rank, codecs, place, made=None, trained=None):
    """Of torch alone, and of each codec: one process group for all."""
    return [outcome(rank, codec, place, made, trained) for codec in (None, *codecs)]


WAYS = [(SCATTER, 2), (SCATTER, 4), (REPLICAS, 4)]
VARIANTS = {
    "plain": ({}, {}),
    "bf16": ({"policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}, {}),
    "bf16 reduced": ({"policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)}, {}),
    "fp16 reduced": ({"policy": MixedPrecisionPolicy(reduce_dtype=torch.float16)}, {}),
    "accumulated": ({}, {"micro": 3}),
    "clipped": ({}, {"clip": 0.1}),
    "frozen": ({"frozen": True}, {}),
    "offloaded": ({"offload": CPUOffloadPolicy(pin_memory=False)}, {}),
}


@pytest.mark.parametrize("place, world", WAYS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_none_is_torch_bit_for_bit_and_a_codec_is_close_in_every_habit_of_training(pool: Pool, place, world, variant):
    found = pool.run(world, outcomes, ["none", "blockint(bits=8)"], place, *VARIANTS[variant], deadline=150.0)
    for (wanted, *_), (got, _, stats, _), _ in found:
        if (place, variant) == (REPLICAS, "fp16 reduced"):  # torch divides by other powers of two there
            assert torch.allclose(got, wanted, atol=1e-4)
        else:
            assert torch.equal(got, wanted)
        assert stats["skipped_steps"] == 0
    (_, loss, *_), _, (weights, codec_loss, stats, _) = found[0]
    assert codec_loss == pytest.approx(loss, rel=0.01)
    assert stats["steps"] == STEPS
    assert all(torch.equal(rank[2][0], weights) for rank in found)


@pytest.mark.parametrize("place, world", WAYS)
def test_codecs_train_beside_torch_and_send_less(pool: Pool, place, world):
    codecs = CODECS + (["powersgd(rank=4)"] if place == REPLICAS else [])
    found = pool.run(world, outcomes, codecs, place, deadline=300.0)
    plain = found[0][0]
    elements = plain[0].numel()
    whole_bytes = 4 * elements * (world - 1) / world if place == SCATTER else 4 * elements / (world // 2)
    for i, codec in enumerate(codecs, 1):
        weights, loss, stats, declared = found[0][i]
        assert all(torch.equal(rank[i][0], weights) for rank in found), codec
        gain = math.log(7) - plain[1]  # to guess one of seven costs log 7, and one that sends zeros guesses
        assert gain > 0.5
        assert loss < plain[1] + (0.02 if "int" in codec or codec == "bf16" else 0.4) * gain, codec
        assert stats["steps"] == STEPS
        assert stats["sent_bytes_per_step"] == declared, codec
        assert 0 < declared < 0.55 * whole_bytes, codec
        assert (stats["residual_norm"] is None) == (codec == "bf16")


def resumed(rank, codec, place, memory):
    model, handle = sharded(codec, place, memory=memory)
    train(model, rank, range(4))
    weights, state = {n: p.detach().clone() for n, p in model.named_parameters()}, handle.state_dict()
    train(model, rank, range(4, 8))
    again, other = sharded(codec, place, memory=memory)
    with torch.no_grad():
        for name, p in again.named_parameters():
            p.copy_(weights[name])
    other.load_state_dict(state)
    train(again, rank, range(4, 8))
    return torch.equal(whole(model), whole(again)), float(handle.stats()["residual_norm"])


@pytest.mark.parametrize("place, world, memory", [(SCATTER, 3, "error_feedback(bits=8)"), (REPLICAS, 4, "default")])
def test_a_saved_state_goes_on_bit_for_bit(pool: Pool, place, world, memory):
    for same, owed in pool.run(world, resumed, "topk(ratio=0.1)", place, memory):
        assert same
        assert owed > 0


def with_unused(rank, place, told):
    model, _ = sharded("blockint(bits=8)", place)
    if told:
        model.set_reduce_scatter_unused_params(True)
    train(model, rank, range(2))
    train(model, rank, range(2, 4), extra=False)
    return whole(model)


@pytest.mark.parametrize("place, world", [(SCATTER, 2), (REPLICAS, 4)])
def test_parameters_without_gradients_need_a_line(pool: Pool, place, world):
    if not hasattr(torch.distributed.fsdp.FSDPModule, "set_reduce_scatter_unused_params"):
        pytest.skip("needs torch 2.13")
    first, *others = pool.run(world, with_unused, place, True)
    assert all(torch.equal(first, other) for other in others)
    failures = pool.outcomes(world, with_unused, place, False)
    assert all(isinstance(f, Failure) and f.kind == "Incompatible" for f in failures)
    assert "Call model.set_reduce_scatter_unused_params(True)" in failures[0].message


class Odd(nn.Module):
    """What has gradients that cannot be compressed."""

    def __init__(self, dtype=torch.float32, sparse=False):
        super().__init__()
        self.embedded = nn.Embedding(8, 4, sparse=sparse)
        self.weight = nn.Parameter(torch.zeros(8, 4, dtype=dtype))


def fully_sharded(model, **how):
    fully_shard(model, mesh=how.pop("mesh", None) or init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def parted_inside(rank):
    """A model that is not sharded itself, but a module in it, as trainers have it."""
    torch.manual_seed(0)
    outer = nn.ModuleDict({"net": fully_sharded(Net())})
    handle = gradwire.attach(outer, "bf16")
    train(outer["net"], rank, range(2))
    outer["head"] = nn.Linear(7, 7)
    told = [message(gradwire.Incompatible, gradwire.attach, outer, "bf16")]
    fully_sharded(outer["head"])
    return handle.stats()["steps"], [*told, message(gradwire.Incompatible, gradwire.attach, outer, "bf16")]


def test_a_module_that_is_sharded_inside_of_another_is_found_and_must_be_all_of_it(pool: Pool):
    refused = (
        "attach: 'head.weight' is outside of 'net', on which fully_shard was called, so it is not reduced with the "
        "others. Call fully_shard on the whole model, too."
    )
    assert pool.run(2, parted_inside) == [(2, [refused] * 2)] * 2


def wrong_uses():
    """What is refused, and how."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    hooked, _ = sharded("topk", REPLICAS)
    flat, _ = sharded()
    attach = gradwire.attach
    return {
        "two dimensions": lambda: attach(fully_sharded(Net(), mesh=mesh), "topk"),
        "powersgd": lambda: attach(flat, "powersgd"),
        "powersgd, dry": lambda: attach(flat, "powersgd", dry_run=True),
        "twice": lambda: attach(hooked, "topk"),
        "sparse": lambda: attach(fully_sharded(Odd(sparse=True)), "topk"),
        "complex": lambda: attach(fully_sharded(Odd(torch.complex64)), "topk"),
        "autopilot": lambda: attach(flat),
        "mode": lambda: attach(flat, "topk", mode="after_backward", workers=3, dry_run=True),
        "controller": lambda: attach(flat, controller=gradwire.Warmup(codec="topk")),
        "error": lambda: attach(flat, "topk", nmse_every=3),
        "two meshes": lambda: attach(flat, "topk", replicas=mesh),
        "no optimizer": lambda: attach(flat, "topk", memory="error_feedback(by_learning_rate=True)"),
    }


def refusals(rank):
    told = {}
    for name, use in wrong_uses().items():
        with pytest.raises(gradwire.GradwireError) as problem:
            use()
        told[name] = f"{type(problem.value).__name__}: {problem.value}"
    return told


def test_wrong_use_gets_a_sentence(pool: Pool):
    told = pool.run(4, refusals)[1]
    assert told["two dimensions"].startswith(
        "Incompatible: attach: FSDPNet is on a mesh of two dimensions, where torch"
    )
    assert told["two dimensions"].endswith('gradwire.attach(model, codec, replicas=mesh["replicate"])')
    assert told["powersgd"] == told["powersgd, dry"]
    assert told["powersgd"].startswith("Incompatible: powersgd cannot run in a reduce-scatter: a shard of its gradient")
    assert (
        told["twice"]
        == "Incompatible: attach: FSDPNet has an all-reduce hook already; a model takes one. Take it away."
    )
    assert "embedded.weight" in told["sparse"]
    assert "'weight'" in told["complex"]
    assert "complex64" in told["complex"]
    assert told["autopilot"].endswith('the autopilot is for DDP; name a codec for a sharded model, such as "bf16"')
    assert told["mode"] == "ConfigError: attach: a sharded model has no 'mode' and no 'workers'; leave it out"
    assert told["controller"] == "ConfigError: attach: a sharded model has no 'controller'; leave it out"
    assert told["error"].startswith("ConfigError: attach: `nmse_every` measures the mean of replicas;")
    assert told["two meshes"].startswith("ConfigError: attach: `replicas` must be a mesh of one dimension, got ")
    assert told["no optimizer"].endswith("follows the learning rate; pass optimizer=...")


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
    assert len(blocks) == 3
    assert pool.run(4, page_by, blocks) == [("bf16", True)] * 4
