"""Runs at the start of every Python process of a job under `gradwire doctor`, and waits for DDP to be imported.

Nothing is imported here that the process would not import by itself: most processes of a job never see torch. When DDP
is, its models are handed to `gradwire.diagnosis.rank` as they are made. A `sitecustomize` of the user's own runs, too.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

DDP = "torch.nn.parallel.distributed"
HERE = os.path.dirname(os.path.abspath(__file__))


class _Loader(importlib.abc.Loader):
    """The real loader, and then the patch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        _patch(module.DistributedDataParallel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find DDP, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != DDP:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _patch(cls: Any) -> None:
    original = cls.__init__

    def __init__(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        try:
            from gradwire.diagnosis.rank import made

            made(self)
        except Exception as problem:  # the job goes on as if nobody watched
            _note(f"{type(problem).__name__}: {problem}")

    __init__.__wrapped__ = original  # type: ignore[attr-defined]
    cls.__init__ = __init__


def _note(problem: str) -> None:
    """Leave a word for the command, where it looks for what ranks saw."""
    try:
        with open(os.path.join(os.environ["GRADWIRE_DOCTOR"], f"{os.getpid()}.problem"), "w", encoding="utf-8") as file:
            file.write(problem)
    except OSError:  # on another host
        print(f"gradwire doctor: this rank cannot be watched: {problem}", file=sys.stderr)


def _users_own() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    places = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "GRADWIRE_DOCTOR" in os.environ:
    sys.meta_path.insert(0, _Finder())
    _users_own()
