"""Whose saved state an engine may continue from, and how that becomes state again.

What a worker keeps belongs to its rank, and, where several ranks share a node, to the parts of tensors that this rank
owns. A state of the same rank in a set-up of the same form is taken as it is. For any other, all ranks' states are
averaged, so that what is owed in sum stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradwire.collectives.scatter_reduce_gather import OWNER_ERROR
from gradwire.core.codec import Codec
from gradwire.core.errors import StateMismatch
from gradwire.core.registry import to_spec
from gradwire.core.state import Entry, Store
from gradwire.memory.base import ERROR, Memory

FORMAT_VERSION = 1


def check_set_up(states: Sequence[Mapping[str, Any]], codec: Codec, memory: Memory, controller: str | None) -> None:
    """Refuse what another version, codec, memory or controller has saved."""
    if not states:
        raise StateMismatch("gradwire: load_state_dict was given an empty list; pass the state dicts of all ranks")
    for state in states:
        if state.get("format_version") != FORMAT_VERSION:
            raise StateMismatch(
                f"gradwire: this state has format {state.get('format_version')!r}, and this version reads "
                f"{FORMAT_VERSION}; load it with the version that wrote it"
            )
        steered = state["steering"]["controller"]["controller"] if state.get("steering") else None
        if steered != controller:
            raise StateMismatch(
                f"gradwire: this state was saved under controller {steered or 'none'}, and this run has "
                f"{controller or 'none'}; attach with the saved one, or start without the state"
            )
        name = state["codec"].partition("(")[0]
        if name != codec.name or state["memory"].partition("(")[0] != memory.name:
            raise StateMismatch(
                f"gradwire: this state belongs to {state['codec']} with memory {state['memory']}, and this run uses "
                f"{codec.spec} with memory {to_spec(memory)}; attach with the saved ones, or start without it"
            )


def check_names(state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse the state of a model with other parameters."""
    held = {
        (name, kind): e["tensor"].numel() for kind, kept in state.get("state", {}).items() for name, e in kept.items()
    }
    whole = {name: max(high for _, high in parts) for name, parts in state.get("owners", {}).items()}
    for (name, kind), kept in held.items():
        if name not in shapes or (kind == ERROR and not whole and kept != math.prod(shapes[name])):
            raise _other_model(f"this state holds {kept} elements of {kind} for {name!r}", name, shapes)
    for name, numel in whole.items():  # a rank that shares a node holds pieces
        if name not in shapes or numel != math.prod(shapes[name]):
            raise _other_model(f"this state was saved with {numel} elements of {name!r}", name, shapes)


def _other_model(what: str, name: str, shapes: Mapping[str, tuple[int, ...]]) -> StateMismatch:
    ours = f"has {math.prod(shapes[name])} elements" if name in shapes else "does not exist"
    return StateMismatch(f"gradwire: {what}, which {ours} in this model; load the state that was saved with this model")


def own(states: Sequence[Mapping[str, Any]], rank: int, workers: int, per_node: int) -> Mapping[str, Any] | None:
    """This rank's own state; None if it must be made from those of all ranks, which then must be there."""
    for state in states:
        if (state["rank"], state["workers"], _per_node(state)) == (rank, workers, per_node):
            return state
    first = states[0]
    if sorted(s["rank"] for s in states) == list(range(first["workers"])):
        return None
    before, saved = _per_node(first), f"rank {first['rank']} of {first['workers']}"
    raise StateMismatch(
        f"gradwire: this state was saved by {saved}{_on_nodes(before)}, and this is rank {rank} of {workers}"
        f"{_on_nodes(per_node)}. Memories belong to a rank: load this rank's own file, or, after a change of the "
        f"number of workers{'' if before == per_node else ' or of those on a node'}, pass the list of all "
        f"{first['workers']} ranks' state dicts."
    )


def _per_node(state: Mapping[str, Any]) -> int:
    return int(state.get("per_node", 1))


def _on_nodes(per_node: int) -> str:
    return "" if per_node == 1 else f" ({per_node} on each node)"


def restored(state: Mapping[str, Any]) -> Store:
    """What the state holds."""
    store = Store()
    for kind, entries in state["state"].items():
        for name, entry in entries.items():
            store.put(kind, name, Entry(entry["tensor"].clone(), entry["start"]))
    return store


def averaged(states: Sequence[Mapping[str, Any]], first: bool) -> Store:
    """One store for every rank of a new set-up: each gets the mean, so the sum that is owed stays the same.

    Where ranks share a node, each of them gets all of it, and drops what it turns out not to own. Owners' errors count
    fully in the mean of the workers, wherever they lie. They join the error of that mean, or, if the workers keep none,
    go to the `first` worker, or those of the first node, who hand on what they will not own.
    """
    store = Store()
    nodes = len(states) // _per_node(states[0])
    for kind in {k for s in states for k in s["state"]} - {OWNER_ERROR}:
        for name in {n for s in states for n in s["state"].get(kind, {})}:
            kept = [s["state"][kind][name] for s in states if name in s["state"].get(kind, {})]
            mean = _mean(kept, nodes)
            if mean is not None:
                store.put(kind, name, mean)
    pieces = [(n, e["start"], e["tensor"]) for s in states for n, e in s["state"].get(OWNER_ERROR, {}).items()]
    for name in {n for n, _, _ in pieces}:
        into = store.get(ERROR, name)
        if into is None:
            stop = max(start + piece.numel() for n, start, piece in pieces if n == name)
            into = Entry(torch.zeros(stop))
            if first:
                store.put(OWNER_ERROR, name, into)
        for _, start, piece in (p for p in pieces if p[0] == name):
            into.tensor.view(-1)[start : start + piece.numel()] += piece
    return store


def _mean(kept: Sequence[Mapping[str, Any]], nodes: int) -> Entry | None:
    """The mean over the nodes of what their ranks keep for one tensor, piece by piece.

    None where several ranks of a node keep something that is no piece of the tensor, such as a factor of their piece:
    that starts anew.
    """
    if len({entry["start"] for entry in kept}) == 1 and len({entry["tensor"].shape for entry in kept}) == 1:
        if len(kept) > nodes:
            return None
        return Entry(torch.stack([entry["tensor"] for entry in kept]).sum(0) / nodes, kept[0]["start"])
    total = torch.zeros(max(entry["start"] + entry["tensor"].numel() for entry in kept))
    for entry in kept:
        total[entry["start"] : entry["start"] + entry["tensor"].numel()] += entry["tensor"].reshape(-1)
    return Entry(total / nodes)
