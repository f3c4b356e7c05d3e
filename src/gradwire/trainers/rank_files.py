"""A file of each rank in the folder of a checkpoint: trainers save what rank 0 has, and a memory differs by rank."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire.core.errors import StateMismatch
from gradwire.integrations.dcp import Stateful, read_state
from gradwire.integrations.resharding import saved_by

NAME = "gradwire_rank{rank}.pt"


def save(handle: Stateful, folder: str | Path) -> None:
    """Save this rank's state; all ranks must call this. A file that is there is replaced when the new one is whole.

    Args:
        handle: what `attach` returned.
        folder: of the checkpoint; made if it is not there.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    file = path / NAME.format(rank=dist.get_rank())
    draft = file.with_suffix(".draft")
    try:
        torch.save(handle.state_dict(), draft)
        draft.replace(file)
    except (OSError, RuntimeError) as problem:  # of a full disk torch only says that a position is not as expected
        draft.unlink(missing_ok=True)
        free = shutil.disk_usage(path).free
        raise OSError(
            f"gradwire: {file.name} could not be written to {path}, which has {free:,} bytes left ({problem}); make "
            "room and save again. What was saved there before is unchanged."
        ) from problem


def load(handle: Stateful, folder: str | Path) -> None:
    """Continue from what was saved: by this rank, or, after a change of their number or their mesh, by all ranks.

    Args:
        handle: what `attach` returned.
        folder: of the checkpoint.
    """
    path = Path(folder)
    files = [path / NAME.format(rank=0)]
    if files[0].exists():  # it says how many there were
        files = [path / NAME.format(rank=rank) for rank in range(saved_by(_read(files[0])))]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise StateMismatch(
            f"gradwire: {path} has no {', '.join(missing)}, so what the ranks still owed is lost; resume from a "
            "checkpoint that was saved with gradwire attached"
        )
    if len(files) == dist.get_world_size():
        mine = _read(files[dist.get_rank()])
        with suppress(StateMismatch):  # of another mesh of as many ranks; if those of all do not fit, that is told
            handle.load_state_dict(mine)
            return
    handle.load_state_dict([_read(file) for file in files])


def _read(file: Path) -> dict[str, Any]:
    return read_state(file, str(file))
