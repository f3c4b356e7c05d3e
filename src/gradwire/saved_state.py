"""What a saved state says of itself: its format, whose it is, and what must be in it. Anything else is refused.

| format | what was new | here |
|---|---|---|
| 1 | one engine a worker | refused |
| 2 | all workers of a process in one engine | loaded |
| 3 | `outline`: the names and sizes of all that was saved; `parameters`: the model's names and shapes | written |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gradwire.core.errors import StateMismatch

State = Mapping[str, Any]
FORMAT_VERSION = 3
READ = (2, FORMAT_VERSION)
KEYS = (
    *("codec", "memory", "seed", "rank", "workers", "per_node", "owners", "step", "skipped_steps", "scale", "link"),
    *("state", "common", "steering"),
)
TOGETHER = ("step", "seed", "codec", "memory", "workers", "per_node")  # what states have in common that belong together
OUTLINE, VALUE = "outline", "a value"


def sealed(state: State) -> dict[str, Any]:
    """The state with an outline of all that is in it, so that nothing can get lost unseen.

    Args:
        state: of one worker; an outline that it has already is replaced.
    """
    inside = {key: value for key, value in state.items() if key != OUTLINE}
    return inside | {OUTLINE: _outline(inside)}


def _outline(value: Any) -> Any:
    """The keys of mappings, the shapes of tensors, and the lengths of lists."""
    if isinstance(value, Mapping):
        return {str(key): _outline(one) for key, one in value.items()}
    if isinstance(value, Tensor):
        return list(value.shape)
    return len(value) if isinstance(value, list) else VALUE


def check_whole(states: Sequence[State]) -> None:
    """Refuse what is no state, has another format, was cut short, or was put together from several checkpoints.

    Args:
        states: of one worker or more.
    """
    for state in states:
        _check_format(state)
        for key in (*KEYS, *((OUTLINE,) if state["format_version"] == FORMAT_VERSION else ())):
            if key not in state:
                raise _cut_short(f"has no {key!r}")
        if OUTLINE in state and (what := _difference(state[OUTLINE], sealed(state)[OUTLINE])):
            raise _cut_short(what)
    for state in states[1:]:
        for key in TOGETHER:
            if state[key] != states[0][key]:
                raise StateMismatch(
                    f"gradwire: these states were not saved together: {key!r} is {states[0][key]!r} in that of rank "
                    f"{states[0]['rank']}, and {state[key]!r} in that of rank {state['rank']}; load those of one "
                    "checkpoint"
                )


def check_model(state: State, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse the state of a model with other parameters.

    Args:
        state: of one worker. One that does not know its model is not refused.
        shapes: of this model's parameters, by name.
    """
    saved = {name: tuple(shape) for name, shape in state.get("parameters", {}).items()}
    ours = {name: tuple(shape) for name, shape in shapes.items()}
    different = sorted(name for name in saved.keys() | ours.keys() if saved.get(name) != ours.get(name))
    if saved and different:
        name = different[0]
        raise StateMismatch(
            f"gradwire: this state was saved with a model that {_told(saved.get(name))} {name!r}, and this one "
            f"{_told(ours.get(name))} it; load the state that was saved with this model, or start without it"
        )


def _told(shape: tuple[int, ...] | None) -> str:
    return "does not have" if shape is None else f"has {list(shape)} for"


def _check_format(state: State) -> None:
    if not isinstance(state, Mapping) or "format_version" not in state:
        what = f"has the keys {sorted(map(str, state))[:5]}" if isinstance(state, Mapping) else f"is a {type(state)}"
        raise StateMismatch(f"gradwire: what handle.state_dict() returned was wanted, and this {what}; load that")
    version, reads = state["format_version"], " and ".join(map(str, READ))
    if version not in READ:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        advice = "install the version that wrote it" if newer else "finish that run with the version that wrote it"
        raise StateMismatch(
            f"gradwire: this state has format {version!r}, and this version reads {reads}; {advice}, or start without "
            "the state"
        )


def _difference(saved: Any, here: Any, where: str = "") -> str | None:
    """What is not as it was saved, as the rest of a sentence."""
    if not isinstance(saved, Mapping) or not isinstance(here, Mapping):
        return None if saved == here else f"has {_size(here)} as {where!r}, and {_size(saved)} was saved"
    for key in sorted(saved.keys() | here.keys()):
        path = f"{where}/{key}" if where else key
        if key not in here:
            return f"has no {path!r}"
        if key not in saved:
            return f"has {path!r}, which was not saved with it"
        if found := _difference(saved[key], here[key], path):
            return found
    return None


def _size(outline: Any) -> str:
    return (
        "a dict" if isinstance(outline, Mapping) else "a value" if outline is None else f"something of size {outline}"
    )


def _cut_short(what: str) -> StateMismatch:
    return StateMismatch(
        f"gradwire: this state {what}: it was cut short, or put together from several; load another checkpoint, or "
        "start without the state"
    )
