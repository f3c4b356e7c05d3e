"""A process group whose other ranks hand in what this one does: an exchange costs nothing but its copy in memory.

    with echo(workers=4):
        model = DistributedDataParallel(net)      # one process, told that it is one of four

What training costs beside the network can then be measured in one process, DDP's own work and hooks included.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
    HashStore,
    _create_work_from_future,
)

from gradwire.core.errors import ConfigError

NAME = "echo"
_registered = threading.Event()


class EchoGroup(dist.ProcessGroup):
    """Rank 0 of so many. Sums and maxima stay as they are; other answers are copies of what was handed in.

    The names are torch's, and so is the order of the arguments.
    """

    def getBackendName(self) -> str:
        return NAME

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        return _done(tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        return _done(tensors)

    def barrier(self, opts: Any = None) -> Any:
        return _done([torch.zeros(1)])

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        for rows, row in zip(outputs, inputs, strict=True):
            for out in rows:
                out.copy_(row)
        return _done([out for rows in outputs for out in rows])

    def _allgather_base(self, output: Tensor, row: Tensor, opts: Any = None) -> Any:
        output.view(self.size(), -1).copy_(row.reshape(1, -1))
        return _nothing_more()

    def alltoall_base(self, output: Tensor, rows: Tensor, into: list[int], out_of: list[int], opts: Any = None) -> Any:
        output.copy_(rows.reshape(output.shape))
        return _nothing_more()

    # their names from torch 2.13 on
    all_gather_single = _allgather_base  # type: ignore[assignment]
    all_to_all_single = alltoall_base  # type: ignore[assignment]


def _done(tensors: Sequence[Tensor]) -> Any:
    """Work that is launched: whoever waits for it goes on, on the same stream."""
    devices: list[Any] = sorted({t.device for t in tensors if t.device.type == "cuda"}, key=str)
    future: torch.futures.Future[Any] = torch.futures.Future(devices=devices or None)
    future.set_result(list(tensors))
    return _create_work_from_future(future)


@cache
def _nothing_more() -> Any:
    """The same, of which nobody asks the result: one will do."""
    return _done([])


def _make(store: object, rank: int, workers: int, timeout: object) -> Any:
    group: Any = EchoGroup
    return group(rank, workers)


@contextmanager
def echo(workers: int) -> Iterator[None]:
    """Inside, this process is rank 0 of `workers`, and the default process group echoes."""
    if dist.is_initialized():
        raise ConfigError("echo: this process has a process group already; run it in one of its own")
    if not _registered.is_set():
        dist.Backend.register_backend(NAME, _make, devices=["cpu", "cuda"])
        _registered.set()
    dist.init_process_group(NAME, store=HashStore(), rank=0, world_size=workers)
    try:
        yield
    finally:
        dist.destroy_process_group()
