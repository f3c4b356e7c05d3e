"""DenseNet-40 with growth 12 (Huang et al. 2017) in the form that GRACE trained: 357,491 parameters.

The textbook network keeps all channels through its two transitions (160 and 304) and has about a
million parameters. The one GRACE measured narrows both transitions to 24 channels, twice the growth;
its convolutions carry biases. Only with both do the published count and the 158 tensors come out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.models.catalogue import ModelInfo, image
from gradwire.models.weights import he_normal

_STEM = 16
_LAYERS_PER_BLOCK = 12


class DenseLayer(nn.Module):
    """Normalise, ReLU, 3x3 convolution; the result is appended to the input's channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], dim=1)


class Transition(nn.Module):
    """Normalise, ReLU, 1x1 convolution, ReLU, 2x2 average pool."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(F.relu(self.conv(F.relu(self.norm(x)))), 2)


def _block(inputs: int, growth: int) -> nn.Sequential:
    return nn.Sequential(*(DenseLayer(inputs + i * growth, growth) for i in range(_LAYERS_PER_BLOCK)))


class DenseNet(nn.Module):
    """Three dense blocks of twelve layers with a transition after the first and the second."""

    def __init__(self, growth: int, narrow: int, classes: int) -> None:
        super().__init__()
        gained = _LAYERS_PER_BLOCK * growth
        self.conv1 = nn.Conv2d(3, _STEM, 3, padding=1)
        self.block1 = _block(_STEM, growth)
        self.transition1 = Transition(_STEM + gained, narrow)
        self.block2 = _block(narrow, growth)
        self.transition2 = Transition(narrow + gained, narrow)
        self.block3 = _block(narrow, growth)
        self.norm = nn.BatchNorm2d(narrow + gained)
        self.fc = nn.Linear(narrow + gained, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.transition1(self.block1(self.conv1(x)))
        x = self.transition2(self.block2(x))
        x = F.relu(self.norm(self.block3(x)))
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


def densenet40() -> DenseNet:
    return DenseNet(growth=12, narrow=24, classes=11)


MODELS = (
    ModelInfo(
        name="densenet40",
        description="DenseNet-40 with growth 12 for CIFAR-10, transitions narrowed to 24 channels",
        parameters=357_491,
        tensors=158,
        source="GRACE, Table II",
        classes=11,
        inputs=image(32),
        factory=densenet40,
        note="Exact. Not the textbook DenseNet-40: GRACE's code narrowed both transitions to 24 channels "
        "instead of keeping 160 and 304, gave every convolution a bias, and the head 11 outputs "
        "(class 0 is background; 10 would save 169).",
    ),
)
