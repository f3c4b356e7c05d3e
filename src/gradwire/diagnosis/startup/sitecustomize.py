"""Runs at the start of every Python process of a job under `gradwire doctor`, and waits for DDP to be imported.

Nothing is imported here that the process would not import by itself: most processes of a job never see torch. When DDP
is, its models are handed to `gradwire.diagnosis.rank` as they are made. A `sitecustomize` of the user's own runs, too.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

DDP = "torch.nn.parallel.distributed"
HERE = os.path.dirname(os.path.abspath(__file__))


class _Loader(importlib.abc.Loader):
    """The real loader, and then the patch."""

    def __init__(self, loader):  # type: ignore[no-untyped-def]
        self._loader = loader

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return self._loader.create_module(spec)

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        self._loader.exec_module(module)
        _patch(module.DistributedDataParallel)

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Asks the others, once."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != DDP:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _patch(cls):  # type: ignore[no-untyped-def]
    original = cls.__init__

    def __init__(self, *args, **options):  # type: ignore[no-untyped-def]
        original(self, *args, **options)
        try:
            from gradwire.diagnosis.rank import made

            made(self)
        except Exception as problem:  # the job goes on as if nobody watched
            print(f"gradwire doctor: cannot watch this rank: {problem}", file=sys.stderr)

    cls.__init__ = __init__


def _users_own():  # type: ignore[no-untyped-def]
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
