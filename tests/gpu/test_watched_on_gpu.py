"""`handle.watch` on a GPU: times by the device's clock, and the same training to the last bit."""

from __future__ import annotations

import os

import pytest
import torch

import gradwire

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def spawned(rank, workers, folder, every):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{every}", rank=rank, world_size=workers)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.Linear(256, 8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), bucket_cap_mb=0.1)
    handle, told = gradwire.attach(model, "eightbit"), {}
    if every:
        handle.watch(every, log=False, tracker=lambda step, values: told.update({step: values}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(1 + rank)
    for _ in range(31):
        optimizer.zero_grad()
        model(torch.randn(32, 64, generator=data).cuda()).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    torch.save((flat, told), f"{folder}/{every}_{rank}.pt")
    handle.detach()
    dist.destroy_process_group()


@pytest.mark.dist
def test_two_ranks_on_one_device_are_watched_and_train_as_without(tmp_path):
    import torch.multiprocessing as mp

    for every in (0, 10):
        mp.spawn(spawned, (2, str(tmp_path), every), 2)
    plain, told, other = (torch.load(tmp_path / f"{name}.pt", weights_only=False) for name in ("0_0", "10_0", "10_1"))
    assert plain[0].equal(told[0])
    assert told[0].equal(other[0])
    assert sorted(told[1]) == [10, 20, 30]
    assert other[1] == {}
    values = told[1][30]
    assert values["gradwire/step_seconds"] > values["gradwire/exposed_seconds"] >= 0
    assert values["gradwire/hidden_seconds"] >= 0
    assert values["gradwire/compression_ratio"] > 3
