"""A file of each rank in the folder of a checkpoint: trainers save what rank 0 has, and a memory differs by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from gradwire.core.errors import StateMismatch

NAME = "gradwire_rank{rank}.pt"


class Stateful(Protocol):
    """The handle that `attach` returns."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None: ...


def save(handle: Stateful, folder: str | Path) -> None:
    """Save this rank's state; all ranks must call this.

    Args:
        handle: what `attach` returned.
        folder: of the checkpoint; made if it is not there.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    torch.save(handle.state_dict(), path / NAME.format(rank=dist.get_rank()))


def load(handle: Stateful, folder: str | Path) -> None:
    """Continue from what was saved: by this rank, or, after a change of their number, by all ranks.

    Args:
        handle: what `attach` returned.
        folder: of the checkpoint.
    """
    path = Path(folder)
    count = len(list(path.glob(NAME.format(rank="*"))))
    wanted = range(count) if count != dist.get_world_size() else [dist.get_rank()]
    files = [path / NAME.format(rank=rank) for rank in wanted]
    missing = [file.name for file in files if not file.exists()]
    if missing or not files:
        raise StateMismatch(
            f"gradwire: {path} has no {', '.join(missing) or NAME.format(rank=0)}, so what the ranks still owed is "
            "lost; resume from a checkpoint that was saved with gradwire attached"
        )
    states = [torch.load(file, weights_only=True, map_location="cpu") for file in files]
    handle.load_state_dict(states[0] if count == dist.get_world_size() else states)
