"""Models that come wrapped: compiled ones train as others do, what cannot work gets a sentence."""

from __future__ import annotations

import os
import shutil
import warnings

import pytest
import torch
import torch.distributed as dist
from given import agree, message, network, same, train, weights
from ranks import Pool
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire


def train_compiled(rank: int, backend: str | None, inside: bool) -> tuple[Tensor, dict]:
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch, about itself, while it compiles
    module = network()
    if inside:
        module.compile(backend="eager")
    model = DistributedDataParallel(module)  # torch.compile wants buckets of a megabyte or more
    compiled = model if backend is None else torch.compile(model, backend=backend)
    handle = gradwire.attach(compiled, "eightbit", tensors="all")
    train(compiled, torch.optim.SGD(model.parameters(), lr=0.1), range(4))
    return weights(model), handle.stats()


@pytest.mark.dist
def test_a_compiled_ddp_model_trains_as_the_model_in_it(pool: Pool) -> None:
    plain = pool.run(2, train_compiled, None, False)
    found = pool.run(2, train_compiled, "aot_eager", False)
    assert agree([w for w, _ in found])
    assert same(found[0][0], plain[0][0])
    assert found[0][1]["steps"] == 4
    assert found[0][1]["sent_bytes"] == plain[0][1]["sent_bytes"] > 0


@pytest.mark.dist
def test_ddp_over_a_compiled_module_trains(pool: Pool) -> None:
    found = pool.run(2, train_compiled, None, True)
    assert agree([w for w, _ in found])
    assert found[0][1]["steps"] == 4


def train_compiled_shards(rank: int, codec: str | None, how: str) -> tuple[Tensor, int]:
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch, about itself, while it compiles
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    if how == "method":
        model.compile()
    compiled = torch.compile(model, backend="aot_eager") if how == "function" else model
    handle = None if codec is None else gradwire.attach(compiled, codec)
    train(compiled, torch.optim.SGD(model.parameters(), lr=0.1), range(4))
    weights = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    return weights, 0 if handle is None else handle.stats()["steps"]


def compiled_shards(rank: int, how: str) -> list[tuple[Tensor, int]]:
    return [train_compiled_shards(rank, codec, how) for codec in (None, "none", "topk(ratio=0.1)")]


@pytest.mark.dist
@pytest.mark.parametrize("how", [pytest.param("method", marks=pytest.mark.sweep), "function"])
def test_a_compiled_sharded_model_trains(pool: Pool, how: str) -> None:
    if how == "method" and shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("model.compile() needs a C++ compiler on a CPU, and there is none")
    (plain, _), (none, _), (codec, steps) = pool.run(2, compiled_shards, how, deadline=150.0)[0]
    assert torch.equal(plain, none)
    assert not torch.equal(plain, codec)
    assert steps == 4
    assert float((codec - plain).norm() / plain.norm()) < 0.1


def refuse_wrapped(rank: int) -> list[str]:
    inner = DistributedDataParallel(nn.Linear(2, 2))
    twice = nn.ModuleDict({"left": inner, "right": DistributedDataParallel(nn.Linear(2, 2))})
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    cases = [nn.Sequential(inner), twice, compiled, nn.DataParallel(nn.Linear(2, 2)), len]
    return [message(gradwire.Incompatible, gradwire.attach, model, "topk") for model in cases]


@pytest.mark.dist
def test_other_wrappers_get_a_sentence(pool: Pool) -> None:
    assert pool.run(1, refuse_wrapped)[0] == [
        "attach: Sequential is not DDP itself, but has DistributedDataParallel inside. Pass it: model.0.",
        "attach: ModuleDict is not DDP itself, but has DistributedDataParallel inside. Attach to each of them: "
        "model.left, model.right.",
        "attach: the compiled model must be wrapped in DistributedDataParallel, got Linear. Wrap it first: "
        "model = torch.compile(DistributedDataParallel(model)).",
        "attach: DataParallel has one process and sends no gradients. Start one process for each GPU (torchrun), and "
        "wrap the model in DistributedDataParallel instead.",
        "attach: the model must be wrapped in DistributedDataParallel, got builtin_function_or_method, which is no "
        "module. Pass the DDP model itself; a training step that was compiled as a whole keeps its hook.",
    ]


def refuse_sharded(rank: int) -> str:
    from torch.distributed.fsdp import FullyShardedDataParallel

    warnings.simplefilter("ignore")  # torch's, that one rank has nothing to shard
    model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    return message(gradwire.Incompatible, gradwire.attach, model, "topk")


@pytest.mark.dist
def test_fsdp1_gets_a_sentence(pool: Pool) -> None:
    assert pool.run(1, refuse_sharded)[0] == (
        "attach: FullyShardedDataParallel is FSDP1, whose hooks do not see what it shards. Call "
        "torch.distributed.fsdp.fully_shard on the model instead (FSDP2), or, where it fits on one device, wrap it in "
        "DistributedDataParallel."
    )
