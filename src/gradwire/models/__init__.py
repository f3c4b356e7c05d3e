"""The models of the papers by name, as plain torch modules.

``build(name)`` gives a module without memory (torch's "meta" device), enough to count bytes;
``build(name, device="cuda")`` gives one that can be trained. A name of the form ``module:factory``
calls your own factory instead. ``info(name)`` tells what was published about a model and how our
count compares. Importing this package builds nothing.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable

import torch
from torch import nn

from gradwire.core.errors import ConfigError, UnknownName
from gradwire.models import bert, densenet, gpt, lstm, ncf, resnet, unet, vgg
from gradwire.models.catalogue import Input, ModelInfo

__all__ = ["Input", "ModelInfo", "build", "info", "names"]

_FAMILIES = (bert, densenet, gpt, lstm, ncf, resnet, unet, vgg)
_MODELS: dict[str, ModelInfo] = {entry.name: entry for family in _FAMILIES for entry in family.MODELS}


def names() -> list[str]:
    """All names of the catalogue, sorted."""
    return sorted(_MODELS)


def info(name: str) -> ModelInfo:
    """What is known about a model of the catalogue."""
    if name not in _MODELS:
        raise UnknownName(f"no model named {name!r}; {_near(name)}gradwire size --help")
    return _MODELS[name]


def build(name: str, device: str | torch.device = "meta") -> nn.Module:
    """The model called `name`, or what ``module:factory`` returns, on `device`.

    On "meta" no memory is taken and the global random state stays as it was.
    """
    place = _device(device)
    factory = _own_factory(name) if ":" in name else info(name).factory
    # The catalogue draws nothing on meta; somebody's own factory might.
    with torch.random.fork_rng(devices=[], enabled=place.type == "meta"), place:
        model = factory()
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model {name!r}: the factory must return an nn.Module, got {type(model).__name__}; return the model itself"
        )
    return model


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, _MODELS, n=2)
    return f"did you mean {' or '.join(near)}? All names: " if near else "all names: "


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError:
        raise ConfigError(
            f"build: `device` must be a torch device such as 'meta', 'cpu' or 'cuda:0', got {device!r}"
        ) from None


def _own_factory(name: str) -> Callable[[], object]:
    """Find the factory behind ``module:factory``; every way to miss it has its own sentence."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ConfigError(f"model {name!r} cannot be read; write module:factory, for example my_package.nets:small")
    try:
        module = importlib.import_module(module_name)
    except ImportError as problem:
        raise ConfigError(
            f"model {name!r}: module {module_name!r} cannot be imported ({problem}); "
            "check its spelling and that it is on the Python path"
        ) from problem
    factory: object = getattr(module, attribute, None)
    if factory is None:
        raise ConfigError(
            f"model {name!r}: module {module_name!r} has no {attribute!r}; name a function or class in it"
        )
    if not callable(factory):
        raise ConfigError(
            f"model {name!r}: a function or class was wanted, got {type(factory).__name__}; "
            "name something that returns the model when called"
        )
    if _needs_arguments(factory):
        raise ConfigError(
            f"model {name!r}: the factory must work without arguments; wrap it in a function that takes none"
        )
    return factory


def _needs_arguments(factory: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some built-in callables do not tell; calling them will
        return False
    try:
        signature.bind()
    except TypeError:
        return True
    return False
