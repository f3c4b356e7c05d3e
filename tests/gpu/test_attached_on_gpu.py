"""On a GPU: the autopilot decides, the doctor reads the device's clock, a sharded model trains as on a CPU."""

from __future__ import annotations

import os

import pytest
import torch

import gradwire

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.dist,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = 30


def join(rank, workers, folder):
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=workers)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 255), torch.nn.Tanh(), torch.nn.Linear(255, 255), torch.nn.Tanh())


def step(model, optimizer, data):
    optimizer.zero_grad()
    device = next(model.parameters()).device
    model(torch.randn(32, 64, generator=data).to(device)).square().mean().backward()
    optimizer.step()


def watched(rank, workers, folder):
    """The autopilot's whole trial, and then the doctor on what plain DDP is left."""
    from torch.nn.parallel import DistributedDataParallel

    join(rank, workers, folder)
    model = DistributedDataParallel(network().cuda(), bucket_cap_mb=0.1)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.05), torch.Generator().manual_seed(1 + rank)
    handle = gradwire.attach(model)
    steps = 0
    while (found := handle.stats()["autopilot"])["phase"] == "trial" and steps < 2000:
        step(model, optimizer, data)
        steps += 1
    plain = DistributedDataParallel(network().cuda(), bucket_cap_mb=0.1)
    doctor, optimizer = gradwire.doctor(plain, steps=10), torch.optim.SGD(plain.parameters(), lr=0.05)
    while not doctor.done:
        step(plain, optimizer, data)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    account = doctor.report().account
    torch.save((flat, found, steps, account.ranks, account.step_seconds), f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_the_autopilot_decides_and_the_doctor_answers_with_two_ranks_on_one_device(tmp_path):
    import torch.multiprocessing as mp

    mp.spawn(watched, (2, str(tmp_path)), 2)
    (flat, found, steps, ranks, seconds), other = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1)
    )
    assert flat.equal(other[0])
    assert flat.isfinite().all()
    assert (found["choice"], steps) == (other[1]["choice"], other[2])
    assert len(found["seconds"]) > 1
    assert all(s > 0 for s in found["seconds"].values())
    assert ranks == 2
    assert seconds > 0


def sharded(rank, folder, device):
    """Two replicas on one device. Shards there would need gathers of CUDA tensors, which gloo cannot do."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    join(rank, 2, folder)
    model = network().to(device)
    mesh = init_device_mesh(device, (2, 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model[2], mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    handle = gradwire.attach(model, "blockint(bits=4)", replicas=mesh["replicate"])
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.05), torch.Generator().manual_seed(1 + rank)
    for _ in range(STEPS):
        step(model, optimizer, data)
    flat = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()]).cpu()
    torch.save((flat, handle.stats()), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_replicas_of_shards_train_as_on_a_cpu(tmp_path):
    import torch.multiprocessing as mp

    results = {}
    for device in ("cuda", "cpu"):
        folder = tmp_path / device
        folder.mkdir()
        mp.spawn(sharded, (str(folder), device), 2)
        both = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
        assert both[0][0].equal(both[1][0])
        results[device] = both[0]
    (gpu, told), (cpu, _) = results["cuda"], results["cpu"]
    assert told["steps"] == STEPS
    begin = torch.cat([p.detach().flatten() for p in network().parameters()])
    # Sums of matrix products differ in their last bits, and a rounding may then fall to the other side.
    assert (gpu - cpu).norm() < 0.02 * (cpu - begin).norm()
