"""Torch's distributed checkpoints (DCP): each rank's state of a handle, under a key of its own.

    dcp.save({"model": model.state_dict(), "gradwire": RankState(handle)}, checkpoint_id=folder)
    dcp.load({"model": state, "gradwire": RankState(handle)}, checkpoint_id=folder)
    dcp.load({..., "gradwire": RankState(handle, saved_by=4)}, checkpoint_id=folder)     # the job had 4 ranks then

DCP takes a tensor that several ranks have under one name for the same tensor, and saves it once. What a memory owes is
another on every rank. So a rank's state travels as bytes, and its key says whose it is.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
import torch.distributed as dist

from gradwire.core.errors import ConfigError, StateMismatch


class Stateful(Protocol):
    """What has a state: the handle that `attach` returns, or LocalSteps."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None: ...


class RankState:
    """A handle, as DCP wants it.

    Args:
        handle: what `attach` returned.
        saved_by: how many ranks the job had that saved, to load where there are more or fewer now; None: as many.

    Example:
        >>> import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, tempfile, gradwire
        >>> from torch.nn.parallel import DistributedDataParallel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> handle = gradwire.attach(DistributedDataParallel(torch.nn.Linear(4, 2)), "topk(ratio=0.01)")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = dcp.save({"gradwire": RankState(handle)}, checkpoint_id=folder)
        ...     dcp.load({"gradwire": RankState(handle)}, checkpoint_id=folder)
        >>> dist.destroy_process_group()
    """

    def __init__(self, handle: Stateful, saved_by: int | None = None) -> None:
        if saved_by is not None and (isinstance(saved_by, bool) or not isinstance(saved_by, int) or saved_by < 1):
            raise ConfigError(f"RankState: `saved_by` must be a number of ranks, at least 1, got {saved_by!r}")
        self._handle, self._saved_by = handle, saved_by

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; to load those of other ranks, a key for each of them."""
        if self._saved_by is None:
            return {_key(dist.get_rank()): _packed(self._handle.state_dict())}
        return {_key(rank): b"" for rank in range(self._saved_by)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what DCP has read.

        Args:
            state: by key.
        """
        if self._saved_by is not None:
            self._handle.load_state_dict([_unpacked(state, rank) for rank in range(self._saved_by)])
        else:
            self._handle.load_state_dict(_unpacked(state, dist.get_rank()))


def _key(rank: int) -> str:
    return f"rank{rank}"


def _packed(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def _unpacked(state: Mapping[str, Any], rank: int) -> dict[str, Any]:
    packed = state.get(_key(rank))
    if not isinstance(packed, bytes) or not packed:
        raise StateMismatch(
            f"RankState: the checkpoint has no state of rank {rank}, only {', '.join(sorted(state)) or 'nothing'}; "
            "pass saved_by=N where it was saved by another number of ranks"
        )
    return read_state(io.BytesIO(packed), f"the state of rank {rank} in the checkpoint")


def read_state(file: Path | BinaryIO, name: str) -> dict[str, Any]:
    """A state from a file; refused where it was cut short, or holds more than tensors and plain values.

    Args:
        file: its path, or itself.
        name: what it is called in messages.
    """
    try:
        return dict(torch.load(file, weights_only=True, map_location="cpu"))
    except (RuntimeError, ValueError, TypeError, EOFError, OSError, pickle.UnpicklingError) as problem:
        told = (str(problem) or "it ends too soon").splitlines()[0]
        raise StateMismatch(
            f"gradwire: {name} cannot be read ({told}): it was cut short, or is no saved state; resume from another "
            "checkpoint"
        ) from problem
