"""The models of the papers by name, as plain torch modules.

``build(name)`` gives a module without memory (torch's "meta" device), enough to count bytes;
``build(name, device="cuda")`` gives one that can be trained. A name of the form ``module:factory``
calls your own factory instead. ``info(name)`` tells what was published about a model and how our
count compares. Importing this package builds nothing.
"""

from __future__ import annotations

import difflib
from functools import cache

import torch
from torch import Tensor, nn

from gradwire.core.errors import ConfigError, UnknownName
from gradwire.models import bert, densenet, gpt, lstm, ncf, own, resnet, unet, vgg
from gradwire.models.catalogue import Input, ModelInfo, seeded

__all__ = ["Input", "ModelInfo", "build", "example", "guessed", "info", "names", "remark", "trained"]

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
    factory = own.factory(name) if ":" in name else info(name).factory
    # The catalogue draws nothing on meta; somebody's own factory might.
    with torch.random.fork_rng(devices=[], enabled=place.type == "meta"), place:
        model = factory()
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model {name!r}: the factory must return an nn.Module, got {type(model).__name__}; return the model itself"
        )
    return model


def trained(name: str, module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the parameters of `module`, the model called `name`, that have gradients; refuses none."""
    found = [(n, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad]
    if not found:
        raise ConfigError(f"model {name!r} has no parameter that is trained, so there is nothing to send")
    return found


def example(name: str, module: nn.Module, batch: int, device: str | torch.device = "cpu") -> tuple[Tensor, ...]:
    """Inputs for one forward pass of `module`, which is the model called `name`."""
    if ":" not in name:
        return info(name).example(batch, device=device)
    told = own.told(name, module, batch)
    return seeded((guessed(name),), batch, device) if told is None else tuple(x.to(device) for x in told)


@cache
def guessed(name: str) -> Input:
    """The input that was found for a model of your own that does not tell any."""
    return own.guessed(name, build(name))


def remark(name: str) -> str | None:
    """A sentence about inputs that had to be guessed; None where they did not."""
    if ":" not in name or own.told(name, build(name), 2) is not None:
        return None
    line = own.line(guessed(name))
    return f"{name} does not tell its inputs, so they are guessed; write this where it is made, with your sizes: {line}"


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
