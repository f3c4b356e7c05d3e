"""Saving an engine's state and continuing from it.

What a worker keeps belongs to its rank, and, where several ranks share a node, to the parts of tensors that this rank
owns. A state of the same rank in a set-up of the same form is taken as it is. For any other, all ranks' states are
averaged, so that what is owed in sum stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.collectives.hierarchical import Ownership
from gradwire.collectives.link import Link
from gradwire.collectives.scatter_reduce_gather import OWNER_ERROR
from gradwire.core.codec import Codec
from gradwire.core.errors import StateMismatch
from gradwire.core.exchange import Max, Program
from gradwire.core.registry import to_spec
from gradwire.core.slots import Entry, Piece
from gradwire.core.state import Store
from gradwire.engine import Engine
from gradwire.memory.base import ERROR, Memory
from gradwire.saved_state import FORMAT_VERSION, check_whole, sealed
from gradwire.setup import Group

Kept = Mapping[str, Mapping[str, Mapping[str, Any]]]  # kind, parameter, "tensor" and "start"


def save(engine: Engine, rank: int | None = None) -> dict[str, Any]:
    """The state of one worker of the engine, the first unless told: tensors and plain values, by parameter name."""
    rank = engine.ranks[0] if rank is None else rank
    group, row = _home(engine, rank)
    state: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "codec": engine.codec.spec,
        "memory": to_spec(engine.memory),
        "seed": engine.seed,
        "rank": rank,
        "workers": engine.workers,
        "per_node": engine.per_node,
        "owners": {name: [list(part) for part in parts] for name, parts in engine.owners.parts.items()},
        "step": engine.step,
        "skipped_steps": engine.skipped_steps,
        "scale": float(engine.kept_scale),
        "link": [] if engine.link is None else [engine.link.latency_seconds, engine.link.bits_per_second],
        "state": {kind: _joined(group.store.pieces(kind), row) for kind in sorted(group.store.kinds)},
        "common": {
            kind: {name: {"tensor": e.tensor.clone(), "start": e.start} for name, e in kept.items()}
            for kind, kept in group.store.named.items()
        },
        "steering": {} if engine.steering is None else engine.steering.state_dict(engine.ranks.index(rank)),
    }
    return sealed(state)


def load(engine: Engine, saved: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Continue from a saved state: the worker's own, or the list of all workers' after their number changed."""
    states = [saved] if isinstance(saved, Mapping) else list(saved)
    controller = None if engine.steering is None else engine.steering.controller.spec
    check_set_up(states, engine.codec, engine.memory, controller)
    per_node, fresh = engine.per_node, [Store() for _ in engine.groups]
    first = states[0]
    owners: Mapping[str, Any] = {}
    for rank in engine.ranks:
        mine = own(states, rank, engine.workers, per_node)
        group, row = _home(engine, rank)
        first, owners = mine or first, mine.get("owners", {}) if mine else owners
        place = rank // per_node
        store = fresh[engine.groups.index(group)]
        _restore(store, mine if mine is not None else averaged(states, place == 0), row)
        if engine.steering is not None:
            engine.steering.load_state_dict((mine or first)["steering"], engine.ranks.index(rank), len(engine.ranks))
    for group, store in zip(engine.groups, fresh, strict=True):
        group.store.replace(store)
    engine.owners = Ownership(per_node, {name: tuple(map(tuple, parts)) for name, parts in owners.items()})
    engine.seed, engine.step = first["seed"], first["step"]
    engine.restore(first["skipped_steps"], first["scale"])
    if engine.measured and first.get("link"):  # else a resumed run might choose otherwise
        engine.link = Link(*first["link"])


def same_step(engine: Engine, device: torch.device) -> Program[None]:
    """Refuse to go on where ranks have loaded the states of different checkpoints, or only some of them one."""
    here = [engine.step, engine.seed % 2**31]
    found = (yield Max(torch.tensor([[*here, *(-n for n in here)]], device=device)))[0].tolist()
    if found[:2] != [-n for n in found[2:]]:
        raise StateMismatch(
            f"gradwire: the ranks go on from different states: this one from step {here[0]}, all of them from steps "
            f"{-found[2]} to {found[0]}; load the states of one checkpoint on all ranks, or on none"
        )


def owed(engine: Engine, name: str, shape: Sequence[int], rank: int | None = None) -> Tensor | None:
    """What a worker still owes for one parameter, owner's error included at n-fold weight.

    The mean of this over the workers is what separates the results so far from the sum of mean gradients. What is
    owed for a node, which one of its ranks keeps, has the weight of all of them.
    """
    if not engine.memory.has_state:
        return None
    group, row = _home(engine, engine.ranks[0] if rank is None else rank)
    total = torch.zeros(math.prod(shape))
    for kind, weight in ((ERROR, engine.per_node), (OWNER_ERROR, engine.workers)):
        for piece in group.store.pieces(kind):
            if (piece.row, piece.name) == (row, name):
                kept = piece.entry
                total = total.to(kept.tensor.device)
                total[kept.start : kept.stop] += weight * kept.tensor.reshape(-1)
    return total.view(tuple(shape))


def _home(engine: Engine, rank: int) -> tuple[Group, int]:
    """Where worker `rank` of this process keeps its state: the group, and its row there."""
    indices = sorted({r % engine.per_node for r in engine.ranks})
    group = engine.groups[indices.index(rank % engine.per_node)]
    return group, group.ranks.index(rank // engine.per_node)


def _joined(pieces: Sequence[Piece], row: int) -> dict[str, dict[str, Any]]:
    """What one worker keeps, an entry for each parameter; zeros between the pieces of one."""
    found: dict[str, list[Entry]] = {}
    for piece in pieces:
        if piece.row == row:
            found.setdefault(piece.name, []).append(piece.entry)
    kept = {}
    for name, entries in found.items():
        start, stop = min(e.start for e in entries), max(e.stop for e in entries)
        tensor = entries[0].tensor.new_zeros(stop - start)
        for e in entries:
            tensor[e.start - start : e.stop - start] = e.tensor.reshape(-1)
        kept[name] = {"tensor": tensor, "start": start}
    return kept


def _restore(store: Store, state: Mapping[str, Any], row: int) -> None:
    """Put what a worker kept into its row."""
    for kind, entries in state["state"].items():
        for name, e in entries.items():
            store.put_piece(kind, Piece(row, name, Entry(e["tensor"].clone(), e["start"])))
    for kind, entries in state["common"].items():
        for name, e in entries.items():
            store.put(kind, name, Entry(e["tensor"].clone(), e["start"]))


def check_set_up(states: Sequence[Mapping[str, Any]], codec: Codec, memory: Memory, controller: str | None) -> None:
    """Refuse what is not whole, or what another version, codec, memory or controller has saved."""
    if not states:
        raise StateMismatch("gradwire: load_state_dict was given an empty list; pass the state dicts of all ranks")
    check_whole(states)
    for state in states:
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
        (name, kind): e["tensor"].numel()
        for kept_as in ("state", "common")
        for kind, kept in state.get(kept_as, {}).items()
        for name, e in kept.items()
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


def averaged(states: Sequence[Mapping[str, Any]], first: bool) -> dict[str, Any]:
    """One state for every rank of a new set-up: each gets the mean, so the sum that is owed stays the same.

    Where ranks share a node, each of them gets all of it, and drops what it turns out not to own. Owners' errors count
    fully in the mean of the workers, wherever they lie. They join the error of that mean, or, if the workers keep none,
    go to the `first` worker, or those of the first node, which pass it to the new owner in the next step.
    """
    nodes = len(states) // _per_node(states[0])
    kept = _means([s["state"] for s in states], nodes)
    pieces = [(n, e["start"], e["tensor"]) for s in states for n, e in s["state"].get(OWNER_ERROR, {}).items()]
    for name in {n for n, _, _ in pieces}:
        into = kept.get(ERROR, {}).get(name)
        if into is None:
            stop = max(start + piece.numel() for n, start, piece in pieces if n == name)
            into = {"tensor": torch.zeros(stop), "start": 0}
            if first:
                kept.setdefault(OWNER_ERROR, {})[name] = into
        for _, start, piece in (p for p in pieces if p[0] == name):
            at = start - into["start"]
            into["tensor"].view(-1)[at : at + piece.numel()] += piece
    return {"state": kept, "common": _means([s["common"] for s in states], nodes)}


def _means(states: Sequence[Kept], nodes: int) -> dict[str, dict[str, dict[str, Any]]]:
    """The mean over the nodes of each kind but the owners' errors, by parameter."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in {k for s in states for k in s} - {OWNER_ERROR}:
        for name in {n for s in states for n in s.get(kind, {})}:
            mean = _mean([s[kind][name] for s in states if name in s.get(kind, {})], nodes)
            if mean is not None:
                found.setdefault(kind, {})[name] = mean
    return found


def _mean(kept: Sequence[Mapping[str, Any]], nodes: int) -> dict[str, Any] | None:
    """The mean over the nodes of what their ranks keep for one tensor, piece by piece.

    None where several ranks of a node keep something that is no piece of the tensor, such as a factor of their piece:
    that starts anew.
    """
    if len({entry["start"] for entry in kept}) == 1 and len({entry["tensor"].shape for entry in kept}) == 1:
        if len(kept) > nodes:
            return None
        return {"tensor": torch.stack([e["tensor"] for e in kept]).sum(0) / nodes, "start": kept[0]["start"]}
    total = torch.zeros(max(entry["start"] + entry["tensor"].numel() for entry in kept))
    for entry in kept:
        total[entry["start"] : entry["start"] + entry["tensor"].numel()] += entry["tensor"].reshape(-1)
    return {"tensor": total / nodes, "start": 0}
