"""Codecs by what they are, not by how they are written: ``topk`` is ``topk(ratio=0.01)``. Without torch.

Defaults are those of the shipped traces, which hold every codec of the catalogue with all its parameters.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gradwire.core.registry import parse
from gradwire.planner.workload import shipped

Parameters = tuple[tuple[str, Any], ...]


@cache
def parameters(spec: str) -> tuple[str, Parameters]:
    """The name and every parameter, sorted; of a codec that nobody ships, those that are written.

    >>> parameters("powersgd") == parameters("powersgd(4)") == parameters("powersgd( rank=4, warm=True)")
    True
    """
    name, positional, named = parse(spec, "codec")
    defaults = _defaults(name)
    given = {**dict(zip(defaults, positional, strict=False)), **named}
    # a parameter that is younger than the traces is left out where it is switched off
    young = {k for k in given if defaults and k not in defaults and given[k] in (False, None)}
    return name, tuple(sorted((k, v) for k, v in {**defaults, **given}.items() if k not in young))


def same(one: str, other: str) -> bool:
    """Whether two specs build the same thing.

    >>> same("topk", "topk(ratio=0.01)"), same("topk", "topk(ratio=0.1)"), same("none", "none()")
    (True, False, True)
    """
    return parameters(one) == parameters(other)


def short(spec: str) -> str:
    """As people write it: without what is usual.

    >>> short("powersgd(rank=4, warm=True)"), short("thc(bits=2, rotation='partial')"), short("none()")
    ('powersgd', 'thc(bits=2)', 'none')
    """
    name, found = parameters(spec)
    usual = _defaults(name)
    told = ", ".join(f"{k}={v!r}" for k, v in _in_order(usual, dict(found)).items() if usual.get(k, found) != v)
    return f"{name}({told})" if told else name


def keeps(codec: str) -> bool:
    """Whether it keeps a memory by its own choice; with parameters that nobody ships, as with its usual ones.

    >>> keeps("topk"), keeps("topk(ratio=0.5)"), keeps("qsgd")
    (True, True, False)
    """
    known = _written()
    return bool(known.get(short(codec), known.get(parameters(codec)[0], {"keeps": False}))["keeps"])


def _in_order(usual: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    return {k: found[k] for k in dict.fromkeys((*usual, *found)) if k in found}


@cache
def _defaults(name: str) -> dict[str, Any]:
    """By the longest way in which the codec is written with its usual parameters."""
    written = _written().get(name, {"written": []})["written"]
    return parse(max(written, key=len), "codec")[2] if written else {}


@cache
def _written() -> dict[str, Any]:
    found: dict[str, Any] = shipped().content()["codecs"]
    return found
