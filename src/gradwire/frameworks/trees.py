"""Gradients as users hold them, in lists, tuples, dicts or what JAX registers, as a flat list with names, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as torch_trees

from gradwire.core.errors import ConfigError, Incompatible
from gradwire.frameworks.arrays import Framework, Jax, framework_of, needed


@dataclass(frozen=True, eq=False)
class Tree:
    """The arrays of a tree, all of one framework, and how it is put together again."""

    framework: Framework
    names: tuple[str, ...]
    arrays: list[Any]
    build: Callable[[Sequence[Any]], Any]  # the same tree of other arrays

    @classmethod
    def of(cls, tree: Any, who: str) -> Tree:
        """Take a tree apart. A leaf that is None, a variable without a gradient, stays where it is and is no array.

        Args:
            tree: of arrays.
            who: the caller's name in messages.

        Example:
            >>> import numpy
            >>> found = Tree.of({"w": numpy.ones(2), "more": [numpy.zeros(1), None]}, "me")
            >>> found.framework.name, found.names
            ('NumPy', ("['w']", "['more'][0]"))
            >>> found.build(["first", "second"])
            {'w': 'first', 'more': ['second', None]}
        """
        names, leaves, build = _leaves(tree)
        if not leaves:
            raise ConfigError(f"{who}: there are no arrays in this {type(tree).__name__}; hand in the gradients")
        frameworks = [framework_of(leaf) for leaf in leaves]
        for name, framework in zip(names, frameworks, strict=True):
            if framework is not frameworks[0]:
                raise Incompatible(
                    f"{who}: {names[0]} is an array of {frameworks[0].name} and {name} of {framework.name}; hand in "
                    "arrays of one framework"
                )
        return cls(frameworks[0], names, [frameworks[0].dense(leaf) for leaf in leaves], build)


def _leaves(tree: Any) -> tuple[tuple[str, ...], list[Any], Callable[[Sequence[Any]], Any]]:
    found, spec = torch_trees.tree_flatten_with_path(tree)
    if "jax" in sys.modules and any(_is_for_jax(leaf) for _, leaf in found):
        return _leaves_by_jax(tree)
    held = [(path, leaf) for path, leaf in found if leaf is not None]
    holes = [leaf is None for _, leaf in found]

    def build(arrays: Sequence[Any]) -> Any:
        left = iter(arrays)
        return torch_trees.tree_unflatten([None if hole else next(left) for hole in holes], spec)

    return tuple(torch_trees.keystr(path) for path, _ in held), [leaf for _, leaf in held], build


def _is_for_jax(leaf: Any) -> bool:
    """An array of JAX, or a container that torch does not know."""
    try:
        return leaf is not None and isinstance(framework_of(leaf), Jax)
    except Incompatible:
        return True


def _leaves_by_jax(tree: Any) -> tuple[tuple[str, ...], list[Any], Callable[[Sequence[Any]], Any]]:
    trees = needed("jax.tree_util")
    found, spec = trees.tree_flatten_with_path(tree)
    names = tuple(trees.keystr(path) for path, _ in found)
    return names, [leaf for _, leaf in found], lambda arrays: trees.tree_unflatten(spec, list(arrays))
