"""The state of a sharded model on another mesh: what all ranks owe is put together, and cut anew.

In the reduce-scatter each rank keeps what was lost of whole parameters, between replicas what was lost of its shards.
In both, the model is owed the mean over those who average, so that is what goes on: each new rank is given the mean,
or its shard of it. What all replicas of a shard have alike (factors of PowerSGD, say) goes on where the shards are the
same, and starts anew elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.checkpoint import averaged
from gradwire.core.errors import StateMismatch
from gradwire.core.layout import Layout
from gradwire.integrations.fsdp_parts import Parameter
from gradwire.memory.base import ERROR
from gradwire.saved_state import sealed

State = Mapping[str, Any]
AT = ("place", "shard", "rank", "workers")  # which rank of which mesh a state is of
REDUCE_SCATTER, REPLICAS = "reduce-scatter", "replicas"  # where a codec is at work


def saved_by(state: State) -> int:
    """How many ranks saved together with the one that this state is of: all shards of all replicas, or all workers.

    Args:
        state: of any handle.
    """
    return sum(map(len, _members(state))) if "place" in state else int(state.get("workers", 1))


def own(states: Sequence[State], at: State) -> State | None:
    """The state that this very rank has saved, on a mesh of this form; None if it must be made of those of all.

    Args:
        states: of one rank or more.
        at: which rank of which mesh this is.
    """
    for state in states:
        if any(key not in state for key in AT):
            raise StateMismatch(
                "gradwire: this state was saved by a model that was not sharded, and this one is; start without it"
            )
        if all(state[key] == at[key] for key in AT):
            return state
    saved = [(s["shard"][0], s["rank"]) for s in states]
    if sorted(saved) == sorted(member for members in _members(states[0]) for member in members):
        return None
    ranks = saved_by(states[0])
    raise StateMismatch(
        f"gradwire: this state was saved by {_told(states[0])}, and this rank is {_told(at)}. Load this rank's own, "
        f"or, after a change of the mesh, pass the list of all {ranks} ranks' state dicts (with DCP: "
        f"RankState(handle, saved_by={ranks}))."
    )


def resharded(
    states: Sequence[State], at: State, layouts: Sequence[Layout], parameters: Mapping[str, Parameter]
) -> dict[str, Any]:
    """One state for this rank, made of those of all ranks of another mesh.

    Args:
        states: of all ranks that saved.
        at: which rank of which mesh this is.
        layouts: the units of this rank.
        parameters: of the model, by name.
    """
    first = states[0]
    by_rank = {(s["shard"][0], s["rank"]): s for s in states}
    means = [averaged([by_rank[m] for m in members], at["rank"] == 0) for members in _members(first)]
    before, after = first["shard"][1], at["shard"][1]
    moves = first["place"] != at["place"]
    kept: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in {kind for mean in means for kind in mean["state"]}:
        for name in {n for mean in means for n in mean["state"].get(kind, {})}:
            if name not in parameters:
                raise StateMismatch(f"gradwire: this state is of a model with a parameter {name!r}, which this has not")
            if moves and kind != ERROR:
                raise StateMismatch(
                    f"gradwire: this state holds {kind!r} of {name!r}, which has no meaning in the {at['place']}; "
                    f"compress in the {first['place']} as before, or start without it"
                )
            pieces = [mean["state"][kind][name] for mean in means if name in mean["state"].get(kind, {})]
            whole = _cut_anew(_joined(pieces), parameters[name], before, after)
            low, high = _held(name, layouts)
            kept.setdefault(kind, {})[name] = {"tensor": _between(whole, low, high), "start": low}
    same = not moves and before == after
    common = means[at["shard"][0]]["common"] if same and at["place"] == REPLICAS else {}
    return sealed({**first, **at, "state": kept, "common": common})


def _members(state: State) -> list[list[tuple[int, int]]]:
    """Shard and rank of all that saved, and who of them averaged the same elements."""
    if state["place"] == REDUCE_SCATTER:
        return [[(rank, rank) for rank in range(state["workers"])]]
    return [[(shard, rank) for rank in range(state["workers"])] for shard in range(state["shard"][1])]


def _joined(pieces: Sequence[Mapping[str, Any]]) -> Tensor:
    """Elements of one parameter, in the order of its shards."""
    found = torch.zeros(max(piece["start"] + piece["tensor"].numel() for piece in pieces))
    for piece in pieces:
        found[piece["start"] : piece["start"] + piece["tensor"].numel()] = piece["tensor"].reshape(-1)
    return found


def _cut_anew(flat: Tensor, parameter: Parameter, before: int, after: int) -> Tensor:
    """From the order of so many shards to that of so many; it is the parameter's own where the first dimension is cut.

    Other dimensions are cut into equal shards, torch sees to that.
    """
    flat = _between(flat, 0, math.prod(parameter.shape))  # without padding
    if parameter.dim == 0:
        return flat
    shape = [n // before if d == parameter.dim else n for d, n in enumerate(parameter.shape)]
    whole = torch.cat(list(flat.view(before, *shape)), parameter.dim)
    return torch.stack(whole.chunk(after, parameter.dim)).flatten()


def _held(name: str, layouts: Sequence[Layout]) -> tuple[int, int]:
    """Which elements of a parameter this rank keeps something for."""
    segments = [s for layout in layouts for s in layout.segments if s.name == name]
    if not segments:
        raise StateMismatch(
            f"gradwire: this state holds what is owed for {name!r}, and in this run it travels as it is, so that would "
            "be lost; attach with tensors='all'"
        )
    return min(s.start for s in segments), max(s.stop for s in segments)


def _between(flat: Tensor, low: int, high: int) -> Tensor:
    """Elements `low` to `high`; zeros behind the end."""
    found = flat[low:high]
    return torch.nn.functional.pad(found, (0, high - low - found.numel()))


def _told(at: State) -> str:
    shard, shards = at["shard"]
    ranks = f"replica {at['rank']} of {at['workers']} of " if at["place"] == REPLICAS else ""
    return f"{ranks}shard {shard} of {shards}, with a codec in the {at['place']}"
