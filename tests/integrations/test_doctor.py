"""Jobs with a planted cause each, on real ranks: the doctor names it, and changes nothing."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch
from given import agree, batch, message, network, train, weights
from ranks import Pool
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, dataloader

import gradwire
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.diagnosis.watcher import Watcher
from gradwire.integrations.ddp_hook import compress_hook
from gradwire.session import Session

pytestmark = pytest.mark.dist
PAUSE = 0.03  # seconds: sleeping is the same on a busy machine
WIDTH = 32


class Sleepy(nn.Module):
    """Layers, and a pause in the forward pass."""

    def __init__(self, pause: float, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        self.pause = pause

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.pause)
        return self.layers(x)


class Slow(Dataset):
    """A sample takes a while."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(PAUSE)
        return torch.ones(WIDTH)


def trained(model: DistributedDataParallel, data: Any = None, steps: int = 16) -> Any:
    """What the doctor says after some steps."""
    watched = gradwire.doctor(model, steps=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(data) if data is not None else None
    for _ in range(steps):
        x = torch.ones(2, WIDTH) if batches is None else next(batches)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert watched.done
    return watched.report()


def nothing_wrong(rank: int) -> Any:
    return trained(DistributedDataParallel(Sleepy(5 * PAUSE)))


def straggler(rank: int) -> Any:
    return trained(DistributedDataParallel(Sleepy(4 * PAUSE if rank == 2 else PAUSE)))


def tiny_buckets(rank: int) -> Any:
    return trained(DistributedDataParallel(Sleepy(0.0, layers=100), bucket_cap_mb=0.0001))


def data_loader(rank: int) -> Any:
    return trained(DistributedDataParallel(Sleepy(PAUSE)), DataLoader(Slow(), batch_size=2))


@pytest.mark.parametrize(
    "job, ranks, cause",
    [
        (nothing_wrong, 2, "nothing"),
        (straggler, 3, "straggler"),
        (tiny_buckets, 2, "tiny buckets"),
        (data_loader, 2, "data loading"),
    ],
)
def test_the_planted_cause_is_named(pool: Pool, job: Any, ranks: int, cause: str) -> None:
    reports = pool.run(ranks, job)
    for report in reports:  # whoever asks
        assert report.cause == cause, report
        assert report.account.ranks == ranks
    first = reports[0]
    if cause == "straggler":
        assert (first.account.lag.rank, first.account.lag.part) == (2, "the forward pass")
        assert first.account.lag.seconds > 2 * PAUSE
    if cause == "tiny buckets":
        assert len(first.account.bucket_bytes) == 200
    if cause == "data loading":
        assert first.settings == ("the data loader has num_workers=0: samples are made while nothing else happens",)
    if cause == "nothing":
        assert first.account.share("compute") > 0.7
        assert "Do not compress" in first.verdict


def compressed(rank: int) -> Any:
    model = DistributedDataParallel(Sleepy(4 * PAUSE if rank == 0 else PAUSE))
    gradwire.attach(model, "eightbit")
    return trained(model)


def test_what_gradwires_own_hook_waits_for_is_no_compute(pool: Pool) -> None:
    for report in pool.run(2, compressed):
        assert (report.cause, report.account.lag.rank) == ("straggler", 0)
        assert f"Gradients go through the hook {compress_hook.__name__} already; " in report.remarks[-1]
        assert len(report.remarks) == 1


# ---------------------------------------------------------------- the job is as if nobody watched


def patched() -> list[Any]:
    return [dataloader._BaseDataLoaderIter.__next__, DistributedDataParallel._sync_buffers, Session.wait]


def train_watched(rank: int, watch: bool) -> tuple[Tensor, bool]:
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = patched()
    watched = gradwire.doctor(model, steps=4) if watch else None
    for step in range(14):
        x, y = batch(rank, step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert watched is None or (watched.done)
    return weights(model), patched() == before and not model._forward_pre_hooks


def test_the_job_computes_the_same_to_the_last_bit_and_nothing_is_left_behind(pool: Pool) -> None:
    watched, alone = pool.run(3, train_watched, True), pool.run(3, train_watched, False)
    assert agree([w for w, _ in (*watched, *alone)])
    assert all(left for _, left in watched)


def accumulate(rank: int) -> Any:
    """Two of three micro-batches are not exchanged; buffers are sent around; one rank leaves early."""
    model = DistributedDataParallel(nn.Sequential(Sleepy(PAUSE), nn.BatchNorm1d(WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watcher = Watcher(model, 100)
    for _ in range(12):
        with model.no_sync():
            for _ in range(2):
                model(torch.ones(2, WIDTH)).square().mean().backward()
        model(torch.ones(2, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(torch.ones(2, WIDTH))
    own = watcher.watch()
    watcher.end()
    return own


def test_micro_batches_count_as_compute_and_a_job_that_ends_early_tells_what_it_has(pool: Pool) -> None:
    for watch in pool.run(2, accumulate):
        assert (watch.micro_batches, watch.wanted) == (3, 100)
        assert 3 <= len(watch.steps) < 12
        for step in watch.steps:
            assert 2.5 * PAUSE < step.compute < step.seconds


class Partly(Sleepy):
    """Leaves its last layer out."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.pause)
        return self.layers[:-1](x)


def look_for_unused(rank: int) -> list[tuple[str, ...]]:
    models = (Sleepy(PAUSE), Partly(PAUSE))
    return [trained(DistributedDataParallel(m, find_unused_parameters=True)).settings for m in models]


def test_unused_parameters_are_looked_for_without_need_or_not(pool: Pool) -> None:
    for without_need, with_need in pool.run(2, look_for_unused):
        assert without_need[0].startswith("find_unused_parameters=True, and every parameter was used in every step: ")
        assert with_need == ()


def fail_inside(rank: int) -> Tensor:
    """What is wrong with watching must not end a job."""
    model = DistributedDataParallel(network())
    watcher = Watcher(model, 4)
    watcher._book = None  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(14))
    assert watcher.done
    assert Session.wait.__name__ == "wait"
    return weights(model)


def test_a_job_goes_on_when_watching_fails(pool: Pool) -> None:
    assert agree(pool.run(2, fail_inside))


def compiled(rank: int) -> Any:
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch, about itself, while it compiles
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    return trained(torch.compile(model, backend="eager")).account


def test_a_compiled_model_is_watched_as_the_model_in_it(pool: Pool) -> None:
    for account in pool.run(2, compiled):
        assert account.ranks == 2
        assert account.forward_seconds > 0


def refused(rank: int) -> list[str]:
    model = DistributedDataParallel(network())
    return [
        message(Incompatible, gradwire.doctor, network()),
        message(ConfigError, gradwire.doctor, model, steps=1),
    ]


def test_refusals(pool: Pool) -> None:
    (found, _) = pool.run(2, refused)
    assert found[0] == (
        "doctor: the model must be wrapped in DistributedDataParallel, got Sequential. "
        "Wrap it first: model = DistributedDataParallel(model)."
    )
    assert found[1].startswith("doctor: `steps` must be ")


# ---------------------------------------------------------------- sharded models


def sharded(rank: int, reduced_in: torch.dtype | None) -> tuple[bool, str, int]:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced_in)
    fully_shard(model[0], mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    watched = gradwire.doctor(model)
    found = watched.report()
    return watched.done, str(found), len(found.settings)


def test_of_a_sharded_model_settings_are_told(pool: Pool) -> None:
    elements = 64 * 64 + 64 + 64 * 8 + 8
    for done, told, count in pool.run(2, sharded, torch.float32):
        assert (done, count) == (True, 1)
        assert "its steps are not watched. Settings that cost were found." in told
        assert f"reduced in float32, {4 * elements / 1000:.1f} kB where" in told
    for _, told, count in pool.run(2, sharded, torch.bfloat16):
        assert count == 0
        assert told.endswith("None of its settings is known to cost.")
