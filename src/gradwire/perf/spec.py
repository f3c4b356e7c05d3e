"""Codecs by what they are, not by how they are written: ``topk`` is ``topk(ratio=0.01)``. Without torch.

Defaults are those of the shipped traces, which hold every codec of the catalogue with all its parameters.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

from gradwire.core.errors import ConfigError
from gradwire.perf.workload import shipped

Parameters = tuple[tuple[str, Any], ...]


@cache
def parameters(spec: str) -> tuple[str, Parameters]:
    """The name and every parameter, sorted; of a codec that nobody ships, those that are written.

    >>> parameters("powersgd") == parameters("powersgd(4)") == parameters("powersgd( rank=4, warm=True)")
    True
    """
    name, positional, named = _parse(spec)
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


def _in_order(usual: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    return {k: found[k] for k in dict.fromkeys((*usual, *found)) if k in found}


def _parse(spec: str) -> tuple[str, list[Any], dict[str, Any]]:
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, [], {}
        assert isinstance(tree, ast.Call), "a spec is a name or a call"
        assert isinstance(tree.func, ast.Name), "of a name"
        named = {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
        return tree.func.id, [ast.literal_eval(a) for a in tree.args], named
    except (SyntaxError, ValueError, AssertionError) as problem:
        raise ConfigError(
            f'spec {spec!r} cannot be read; write a name, or a name with literal arguments such as "topk(ratio=0.01)"'
        ) from problem


@cache
def _defaults(name: str) -> dict[str, Any]:
    """By the longest way in which the codec is written with its usual parameters."""
    written = _written().get(name, {"written": []})["written"]
    return _parse(max(written, key=len))[2] if written else {}


@cache
def _written() -> dict[str, Any]:
    found: dict[str, Any] = shipped().content()["codecs"]
    return found
