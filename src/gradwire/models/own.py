"""Models that users bring: how ``module:factory`` is found, and what inputs such a model takes.

The module is looked for on the Python path and in the working directory. The factory takes no arguments. Where a step
is run, the model needs inputs. It may tell them:

    def net():
        model = MyNet()
        model.example = lambda batch: (torch.randn(batch, 3, 32, 32),)
        return model

A model without `example` is tried with inputs that fit its first layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from gradwire.core.errors import ConfigError
from gradwire.core.own_modules import load
from gradwire.models.catalogue import Input

SIDES = (32, 224, 28)  # of images that are tried
LENGTH = 32  # of sequences


def line(entry: Input) -> str:
    """What tells a model's input, in Python.

    >>> line(Input((32,), below=1000))
    'model.example = lambda batch: (torch.randint(1000, (batch, 32)),)'
    """
    shape = ", ".join(("batch", *map(str, entry.shape)))
    made = f"torch.randn({shape})" if entry.below is None else f"torch.randint({entry.below}, ({shape}))"
    return f"model.example = lambda batch: ({made},)"


ADVICE = f"add a line where it is made, such as: {line(Input((3, 32, 32)))}"


def factory(name: str) -> Callable[[], object]:
    """Find the factory behind ``module:factory``; every way to miss it has its own sentence."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ConfigError(f"model {name!r} cannot be read; write module:factory, for example my_package.nets:small")
    found: object = getattr(load(module_name, f"model {name!r}"), attribute, None)
    if found is None:
        raise ConfigError(
            f"model {name!r}: module {module_name!r} has no {attribute!r}; name a function or class in it"
        )
    if not callable(found):
        raise ConfigError(
            f"model {name!r}: a function or class was wanted, got {type(found).__name__}; "
            "name something that returns the model when called"
        )
    if _needs_arguments(found):
        raise ConfigError(
            f"model {name!r}: the factory must work without arguments; wrap it in a function that takes none"
        )
    return found


def _needs_arguments(function: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables do not tell; calling them will
        return False
    try:
        signature.bind()
    except TypeError:
        return True
    return False


def told(name: str, module: nn.Module, batch: int) -> tuple[Tensor, ...] | None:
    """What the model's own `example(batch)` returns; None if it has none."""
    example = getattr(module, "example", None)
    if example is None:
        return None
    try:
        inputs = example(batch)
    except TypeError as problem:
        raise ConfigError(
            f"model {name!r}: `example` must take the batch size and return the inputs ({problem}); {ADVICE}"
        ) from problem
    if not isinstance(inputs, tuple) or not all(isinstance(x, Tensor) for x in inputs):
        raise ConfigError(
            f"model {name!r}: `example(batch)` must return a tuple of tensors, got {type(inputs).__name__}; {ADVICE}"
        )
    return inputs


def guessed(name: str, module: nn.Module) -> Input:
    """An input with which the model runs, by its first layer; `module` is on the meta device.

    >>> guessed("net", nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 900, 10)).to("meta"))
    Input(shape=(3, 32, 32), below=None)
    """
    place = torch.device("meta")
    for tried in _fitting(module):
        try:
            with torch.no_grad():
                module(tried.make(2, place, torch.Generator()))
        except Exception:  # whatever somebody's model raises: the next may fit
            continue
        return tried
    raise ConfigError(
        f"model {name!r}: a step needs inputs, it has no `example(batch)`, and none that was tried fits; {ADVICE}"
    )


def _fitting(module: nn.Module) -> Iterator[Input]:
    """Inputs that may fit the first layer with weights."""
    layers = (m for m in module.modules() if list(m.parameters(recurse=False)) or isinstance(m, nn.MultiheadAttention))
    first = next(layers, None)
    if isinstance(first, nn.Conv2d):
        yield from (Input((first.in_channels, side, side)) for side in SIDES)
    elif isinstance(first, nn.Conv1d):
        yield Input((first.in_channels, LENGTH))
    elif isinstance(first, nn.Embedding):
        yield Input((LENGTH,), below=first.num_embeddings)
        yield Input((), below=first.num_embeddings)
    elif isinstance(first, nn.Linear):
        yield Input((first.in_features,))
        yield Input((LENGTH, first.in_features))
    elif isinstance(first, nn.MultiheadAttention):
        yield Input((LENGTH, first.embed_dim))
    elif isinstance(first, nn.RNNBase):
        yield Input((LENGTH, first.input_size))
