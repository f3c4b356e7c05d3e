"""Things by name, and the one-line specs that build them: ``"topk(ratio=0.01)"``.

A spec is a name, or a name with literal arguments, in Python's own call syntax. The arguments are
the fields of the frozen dataclass registered under that name, so a misspelt one fails by itself.
Third parties add codecs through the entry-point group ``gradwire.codecs``: each entry point loads
to a Codec subclass and is imported when a name is not found among the built-in ones. So are the modules that
`gradwire --import` or the environment variable GRADWIRE_IMPORT names.
"""

from __future__ import annotations

import ast
import dataclasses
import warnings
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from gradwire.core import own_modules
from gradwire.core.errors import ConfigError, UnknownName, suggestion

T = TypeVar("T")


class Registry(Generic[T]):
    """Name -> frozen dataclass, filled by importing `catalogue` and, if given, an entry-point group."""

    def __init__(self, kind: str, catalogue: str, *, entry_point_group: str | None = None) -> None:
        self.kind = kind
        self._catalogue = catalogue
        self._group = entry_point_group
        self._classes: dict[str, type[T]] = {}
        self._broken: set[str] = set()  # entry points that cannot be loaded, told once

    def register(self, cls: type[T]) -> type[T]:
        """Class decorator: make `cls` reachable under its ``name``."""
        name = str(getattr(cls, "name", ""))
        if not name.isidentifier():
            raise ConfigError(f"{cls.__qualname__}: a {self.kind} needs a class attribute `name`, got {name!r}")
        taken = self._classes.setdefault(name, cls)
        if (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(
                f"{self.kind} name {name!r} is taken by {taken.__module__}.{taken.__qualname__}; choose another"
            )
        self._classes[name] = cls
        return cls

    def names(self) -> list[str]:
        """All names, third-party ones included."""
        import_module(self._catalogue)
        if self._group is not None:
            for module in own_modules.announced():
                own_modules.load(module, own_modules.VARIABLE)
            self._load_entry_points(self._group)
        return sorted(self._classes)

    def _load_entry_points(self, group: str) -> None:
        """One package that cannot be loaded does not take the others with it."""
        for point in entry_points(group=group):
            if point.name not in self._classes and point.value not in self._broken:
                try:
                    self.register(point.load())
                except Exception as problem:
                    self._broken.add(point.value)
                    package = "" if point.dist is None else f" of the package {point.dist.name}"
                    warnings.warn(
                        f"gradwire: the {self.kind} {point.name!r}{package} cannot be loaded from {point.value!r} "
                        f"({type(problem).__name__}: {problem}); mend or uninstall it",
                        stacklevel=2,
                    )

    def cls(self, name: str) -> type[T]:
        """The class registered under `name`."""
        import_module(self._catalogue)
        if name not in self._classes and name not in self.names():
            hint = suggestion(name, self._classes)
            own = self._group is not None and hint.startswith("known")
            more = f". A {self.kind} of yours: import its module first, or name it with --import" if own else ""
            raise UnknownName(f"no {self.kind} named {name!r}; {hint}{more}")
        return self._classes[name]

    def build(self, spec: str) -> T:
        """Build what a spec such as ``"powersgd(rank=4)"`` describes."""
        name, positional, named = parse(spec, self.kind)
        cls = self.cls(name)
        fields = [f.name for f in dataclasses.fields(cls) if f.init]  # type: ignore[arg-type]
        if len(positional) > len(fields):
            raise ConfigError(f"{name}: takes at most {len(fields)} arguments, got {len(positional)} in {spec!r}")
        arguments = dict(zip(fields, positional, strict=False))
        for key, value in named.items():
            if key in arguments:
                raise ConfigError(f"{name}: `{key}` is given twice in {spec!r}")
            if key not in fields:
                hint = suggestion(key, fields) if fields else "it takes none"
                raise ConfigError(f"{name}: has no parameter `{key}`; {hint}")
            arguments[key] = value
        return cls(**arguments)


def parse(spec: str, kind: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name, positional and named arguments of a spec; what a `kind` of thing it is, errors tell.

    >>> parse("topk(0.1, value_bits=16)", "codec")
    ('topk', [0.1], {'value_bits': 16})
    """
    malformed = ConfigError(
        f"{kind} spec {spec!r} cannot be read; write a name, or a name with literal "
        'arguments such as "topk(ratio=0.01)"'
    )
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, [], {}
        if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
            raise malformed
        positional = [ast.literal_eval(a) for a in tree.args]
        named = {k.arg: ast.literal_eval(k.value) for k in tree.keywords if k.arg}
        if len(named) != len(tree.keywords):
            raise malformed
    except (SyntaxError, ValueError) as problem:
        if problem is malformed:
            raise
        raise malformed from None
    return tree.func.id, positional, named


def to_spec(thing: Any) -> str:
    """The spec that builds `thing` again: its name and the fields that differ from their defaults."""
    changed = (
        f"{f.name}={getattr(thing, f.name)!r}"
        for f in dataclasses.fields(thing)
        if f.init and getattr(thing, f.name) != f.default
    )
    arguments = ", ".join(changed)
    return f"{thing.name}({arguments})" if arguments else str(thing.name)


class Check:
    """Parameter checks for one named thing, for its `__post_init__`; each failure is a whole sentence.

    Args:
        name: who speaks.

    Example:
        >>> Check("my_int8").integer("levels", 200, 1, 127)
        Traceback (most recent call last):
        gradwire.core.errors.ConfigError: my_int8: `levels` must be a whole number from 1 to 127, got 200
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def fail(self, field: str, wanted: str, value: object) -> None:
        """Say what was wanted, and what came.

        Args:
            field: the parameter's name.
            wanted: what it must be.
            value: what came.
        """
        raise ConfigError(f"{self.name}: `{field}` must be {wanted}, got {value!r}")

    def integer(self, field: str, value: object, low: int, high: int | None = None) -> None:
        """A whole number in [low, high]; without `high`, of at least `low`.

        Args:
            field: the parameter's name.
            value: what came.
            low: the least.
            high: the most.
        """
        wanted = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            self.fail(field, wanted, value)

    def share(self, field: str, value: object) -> None:
        """A share of the whole: in (0, 1].

        Args:
            field: the parameter's name.
            value: what came.
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            self.fail(field, "the share kept, in (0, 1]", value)

    def number(self, field: str, value: object, low: float, high: float, wanted: str) -> None:
        """A finite number in [low, high], described by `wanted`.

        Args:
            field: the parameter's name.
            value: what came.
            low: the least.
            high: the most.
            wanted: how the sentence tells it.
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.fail(field, wanted, value)

    def seconds(self, field: str, value: object) -> None:
        """A limit of time: up to a day."""
        self.number(field, value, 0, 86_400, "seconds from 0 to 86400")

    def one_of(self, field: str, value: object, allowed: tuple[object, ...]) -> None:
        """One of these values.

        Args:
            field: the parameter's name.
            value: what came.
            allowed: the values.
        """
        if value not in allowed:
            self.fail(field, " or ".join(repr(a) for a in allowed), value)
