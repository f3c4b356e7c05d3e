"""Tasks by name: a model, its data and its recipe. One kind of task a file, one line a task in the list below.

``task(name)`` gives a description; its `open` loads public data, and its `synthetic` makes some up.
"""

from __future__ import annotations

from importlib import import_module

from torch import nn

from gradwire.core.errors import UnknownName, suggestion
from gradwire.laboratory.bench.tasks.base import Task
from gradwire.models.attention import Attention

__all__ = ["names", "task", "without_dropout"]

# name -> file, class
_TASKS = {
    "resnet9-cifar10": ("images", "ResNet9Cifar10"),
    "resnet20-cifar10": ("images", "ResNet20Cifar10"),
    "densenet40-cifar10": ("images", "DenseNet40Cifar10"),
    "vgg16-cifar10": ("images", "VGG16Cifar10"),
    "vgg19bn-cifar10": ("images", "VGG19Cifar10"),
    "vgg19bn-cifar100": ("images", "VGG19Cifar100"),
    "resnet18-cifar10": ("images", "ResNet18Cifar10"),
    "resnet18-cifar100": ("images", "ResNet18Cifar100"),
    "ncf-ml1m": ("recommendation", "NcfMovieLens1M"),
    "ncf-ml20m": ("recommendation", "NcfMovieLens20M"),
    "bpr-ml1m": ("factors", "BprMovieLens1M"),
    "lstm-wikitext2": ("language", "LstmWikiText2"),
    "lstm-ptb": ("language", "LstmPennTreebank"),
    "bert-small-wikitext2": ("masked", "BertWikiText2"),
    "gpt-wikitext2": ("causal", "GptWikiText2"),
    "unet-dagm": ("segmentation", "UNetDagm"),
    "shapes": ("drawn", "Shapes"),
}


def names() -> list[str]:
    """All names, in the order of the list."""
    return list(_TASKS)


def task(name: str) -> Task:
    """The task called `name`."""
    if name not in _TASKS:
        raise UnknownName(f"no task named {name!r}; {suggestion(name, _TASKS)}")
    file, kind = _TASKS[name]
    found: Task = getattr(import_module(f"gradwire.laboratory.bench.tasks.{file}"), kind)()
    return found


def without_dropout(model: nn.Module) -> nn.Module:
    """The same model, now without dropout.

    Dropout draws from torch's global generator, which virtual workers share and ranks do not: where both have to
    compute the same numbers, it must be off.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, Attention):
            module.rate = 0.0
    return model
