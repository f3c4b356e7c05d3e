"""An attached model can be pickled, copied and averaged: the copy is plain DDP. What has threads behind it cannot."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from given import batch, message, network, train, weights
from ranks import Pool
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import gradwire

pytestmark = pytest.mark.dist


def pickled(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def averaged(model: nn.Module) -> nn.Module:
    average = AveragedModel(model)
    average.update_parameters(model)
    return average.module


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "pickled": pickled,
    "copied": copy.deepcopy,
    "averaged": averaged,
}


def gradient(model: nn.Module) -> torch.Tensor:
    """Of one step, as it is after the exchange."""
    model.zero_grad()
    x, y = batch(dist.get_rank(), 9)
    nn.functional.cross_entropy(model(x), y).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def copy_while_attached(rank: int, way: str, then: str) -> list:
    """Train, copy, go on; and the same without a copy. Whether both agree, and what the copy does."""
    ends = []
    for copies in (True, False):
        model = DistributedDataParallel(network())
        handle = gradwire.attach(model, None if then == "autopilot" else "topk(ratio=0.05)")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train(model, optimizer, range(2))
        if then == "detached":
            handle.detach()
        if copies:
            taken = WAYS[way](model)
            plain = DistributedDataParallel(copy.deepcopy(model.module))
            found = [list(taken._comm_hooks), gradient(taken).equal(gradient(plain))]
            again = gradwire.attach(taken, "efsignsgd")
            found.append(not gradient(taken).equal(gradient(plain)))
            found.append(again.stats()["codec"])
        if then == "attached":
            train(model, optimizer, range(2, 4))
            ends.append((weights(model), handle.state_dict()["state"]["error"]["0.weight"]["tensor"]))
    return [*found, all(torch.equal(a, b) for a, b in zip(*ends, strict=True)) if ends else None]


@pytest.mark.parametrize(
    "way, then",
    [*((way, "attached") for way in WAYS), ("pickled", "detached"), ("copied", "detached"), ("copied", "autopilot")],
)
def test_the_copy_of_an_attached_model_is_plain_ddp(pool: Pool, way: str, then: str) -> None:
    for hooks, as_plain, compressed_again, codec, undisturbed in pool.run(2, copy_while_attached, way, then):
        assert hooks == []
        assert as_plain
        assert compressed_again
        assert codec == "efsignsgd"
        assert undisturbed is (True if then == "attached" else None)


def copy_the_surface(rank: int) -> str:
    model = DistributedDataParallel(network())
    gradwire.attach(model, "topk")
    return gradwire.attach(copy.copy(model), "qsgd").stats()["codec"]


def test_a_copy_of_the_surface_can_be_attached_too(pool: Pool) -> None:
    assert pool.run(2, copy_the_surface) == ["qsgd", "qsgd"]


def copy_with_another_hook(rank: int) -> list:
    """A hook that is not ours stays in the list of a copy, as torch has it."""
    model = DistributedDataParallel(network())
    gradwire.attach(model, "topk").detach()
    model._comm_hooks.append((plain_hook, None))
    return [hook.__name__ for hook, _ in copy.deepcopy(model)._comm_hooks]


def plain_hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    raise AssertionError("never called")


def test_other_hooks_are_copied_as_torch_does(pool: Pool) -> None:
    assert pool.run(2, copy_with_another_hook) == [["plain_hook"]] * 2


def copy_handles(rank: int) -> list[str]:
    model = DistributedDataParallel(network())
    single = network()
    things = [
        gradwire.attach(model, "topk"),
        gradwire.LocalSteps(single, torch.optim.SGD(single.parameters(), 0.1), "qsparse", steps=2),
        gradwire.VirtualCluster(2, "topk"),
    ]
    ways = copy.copy, copy.deepcopy, pickle.dumps
    return [message(gradwire.Incompatible, way, thing) for thing in things for way in ways]


def test_a_handle_says_what_to_save_instead(pool: Pool) -> None:
    found = pool.run(2, copy_handles)[0]
    for kind, told in zip(["Handle"] * 3 + ["LocalSteps"] * 3 + ["VirtualCluster"] * 3, found, strict=True):
        assert told == (
            f"gradwire: this {kind} belongs to its process and cannot be copied or pickled. Save what it keeps, by its "
            "state_dict(s), and load that into a new one; a model can be copied without it."
        )
