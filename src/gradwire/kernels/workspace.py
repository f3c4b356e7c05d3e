"""Room that a kernel needs in every step, kept from step to step: fresh pages cost as much as the work itself.

Room belongs to a unit of compression, a purpose and a thread. A thread treats one step of a unit at a time, and what it
put into a room is used up before the next one. Accelerators have allocators that keep memory by themselves.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

UNITS = 64  # whose room a thread keeps: those used last
_kept = threading.local()


def room(
    unit: str, purpose: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """An uninitialised tensor, the same one whenever the same is asked for."""
    if torch.device(device).type != "cpu":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    units: OrderedDict[str, dict[str, Tensor]] = _kept.__dict__.setdefault("units", OrderedDict())
    rooms = units.setdefault(unit, {})
    units.move_to_end(unit)
    if len(units) > UNITS:
        units.popitem(last=False)
    found = rooms.get(purpose)
    if found is None or found.shape != tuple(shape) or found.dtype != dtype:
        found = rooms[purpose] = torch.empty(tuple(shape), dtype=dtype)
    return found
