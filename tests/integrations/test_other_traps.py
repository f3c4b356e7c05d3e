"""Traps of hooks that no other file is about: docs/traps.md lists them all."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from given import message
from ranks import Pool
from test_fsdp import REPLICAS, Net, batch, sharded
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import gradwire
from gradwire.collectives.executor import Executor
from gradwire.collectives.link import measuring
from gradwire.conformance import lockstep
from gradwire.core.codec import codecs
from gradwire.core.moments import moment, seconds_between
from gradwire.integrations import fsdp_parts
from gradwire.tracing import trace

# ---------------------------------------------------------------- sharded models


def accumulate(rank: int, how: str) -> int:
    """Three backward passes of which the first two are not to be exchanged, as `how` has it."""
    model, handle = sharded("topk(ratio=0.1)", REPLICAS)
    for part in range(3):
        getattr(model, how)(part == 2)
        x, y = batch(rank, part)
        nn.functional.cross_entropy(model(x).float(), y).backward()
    return handle.stats()["steps"]


@pytest.mark.dist
@pytest.mark.parametrize("how, steps", [("set_requires_gradient_sync", 1), ("set_requires_all_reduce", 3)])
def test_only_gradient_sync_holds_an_exchange_back(pool: Pool, how: str, steps: int) -> None:
    """Torch calls the hook whatever `set_requires_all_reduce` says, on a mesh of one dimension: the page tells so."""
    assert pool.run(4, accumulate, how) == [steps] * 4


def attach_to_replicated(rank: int) -> str:
    from torch.distributed._composable.replicate_with_fsdp import replicate

    model = Net()
    replicate(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return message(gradwire.Incompatible, gradwire.attach, model, "topk")


@pytest.mark.dist
def test_a_model_that_torch_replicates_is_refused(pool: Pool) -> None:
    for told in pool.run(2, attach_to_replicated):
        assert told == (
            "attach: ReplicateNet is replicated by torch (`replicate`), which all-reduces before any hook is called. "
            "Wrap the model in DistributedDataParallel instead."
        )


def attach_to_several_groups(rank: int) -> str:
    model, _ = sharded()
    groups = fsdp_parts._groups
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsdp_parts, "_groups", lambda module: groups(module) * 2)
        return message(gradwire.Incompatible, gradwire.attach, model, "topk")


@pytest.mark.dist
def test_a_module_on_several_meshes_is_refused(pool: Pool) -> None:
    told = pool.run(2, attach_to_several_groups)[0]
    assert told.endswith(
        "has parameters on several meshes, and torch has no hook for each. Call fully_shard on the modules of each "
        "mesh by themselves."
    )


# ---------------------------------------------------------------- a GPU that is there, and not used


def watch_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on there is a GPU, and whoever touches it fails."""

    class Touched:
        def __init__(self, *args: object, **options: object) -> None:
            raise AssertionError("nobody asked for the GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("synchronize", "current_stream", "current_device", "set_stream", "Event", "Stream"):
        monkeypatch.setattr(torch.cuda, name, Touched)


@pytest.mark.parametrize("codec", ["topk", "powersgd", "qsgd", "efsignsgd", "dgc"])
def test_a_gpu_in_the_machine_is_left_alone_by_gradients_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """`if torch.cuda.is_available(): torch.cuda.synchronize(x.device)` fails for tensors on the CPU of a GPU host."""
    watch_the_gpu(monkeypatch)
    cluster = gradwire.VirtualCluster(2, codec)
    for _ in range(3):
        cluster.reduce({"w": [torch.randn(64, 64) for _ in range(2)]})
    assert cluster.engine.step == 3


def test_lanes_clocks_and_links_of_the_cpu_leave_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_the_gpu(monkeypatch)
    cpu = torch.device("cpu")
    lane = Executor("lane", cpu)
    assert lane.call(lambda: 3) == 3
    lane.close()
    assert seconds_between(moment(cpu), moment(cpu)) >= 0
    assert lockstep.run([measuring(2, cpu) for _ in range(2)])[0].bits_per_second > 0


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize("codec", codecs.names())
def test_no_codec_sends_more_than_the_gradient(codec: str) -> None:
    """By default, matrices and vectors together, however small: indices of 64 bits or unpacked codes would."""
    for shapes in ([("w", (64, 64)), ("b", (64,))], [("w", (8, 4)), ("b", (3,))]):
        sent, plain = (trace(spec, shapes, workers=2).payload_bytes for spec in (codec, "none"))
        assert sent <= plain
