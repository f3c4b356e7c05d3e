"""Residual networks: the four kinds that the papers train.

* ``resnet18-cifar10`` and ``-cifar100`` (Accordion): 3x3 stem, no max-pool, four stages of two basic
  blocks, shortcuts of 1x1 convolution and normalisation. 11,173,962 and 11,220,132 parameters.
* ``resnet20`` (GRACE): the CIFAR ResNet with pre-activation blocks, 269,467 parameters.
* ``resnet9`` (GRACE): the fast CIFAR network of the DAWNBench contest, 6,573,120 parameters.
* ``resnet50`` and ``resnet101`` (Utility, GRACE): ImageNet, bottleneck blocks with the stride on the
  3x3 convolution. 25,557,032 and 44,549,160 parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.models.catalogue import ModelInfo, image
from gradwire.models.weights import he_normal


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Identity where the shapes agree, otherwise 1x1 convolution and normalisation."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.downsample(x))


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up by four, around a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.downsample(x))


class ResNet(nn.Module):
    """Four stages of residual blocks; `large` takes 224-pixel images, otherwise 32-pixel ones."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int], classes: int, *, large: bool
    ) -> None:
        super().__init__()
        self.conv1 = _conv(3, 64, 7, 2) if large else _conv(3, 64, 3)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        self._channels = 64
        self.layer1 = self._stage(block, 64, depths[0], 1)
        self.layer2 = self._stage(block, 128, depths[1], 2)
        self.layer3 = self._stage(block, 256, depths[2], 2)
        self.layer4 = self._stage(block, 512, depths[3], 2)
        self.fc = nn.Linear(self._channels, classes)
        he_normal(self)

    def _stage(self, block: type[BasicBlock] | type[Bottleneck], width: int, depth: int, stride: int) -> nn.Sequential:
        blocks = []
        for index in range(depth):
            blocks.append(block(self._channels, width, stride if index == 0 else 1))
            self._channels = width * block.expansion
        return nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


class ShiftNorm(nn.Module):
    """Batch normalisation with a learned shift and no learned scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = self.norm(x) + self.bias[:, None, None]
        return shifted


class PreActivationBlock(nn.Module):
    """Normalise, convolve, normalise, convolve; the shortcut has no parameters.

    The first normalisation has no scale: that is what makes GRACE's 51 tensors and 269,467 parameters.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = ShiftNorm(inputs)
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs, 3)
        self.stride = stride
        self.extra = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        # Thinned to the new size, with zero channels on both sides.
        shortcut = x[:, :, :: self.stride, :: self.stride]
        side = self.extra // 2
        shortcut = F.pad(shortcut, (0, 0, 0, 0, side, self.extra - side))
        total: Tensor = out + shortcut
        return total


class ResNet20(nn.Module):
    """Three stages of three pre-activation blocks, 16, 32 and 64 channels wide."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = _conv(3, 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, 1)
        self.layer2 = self._stage(16, 32, 2)
        self.layer3 = self._stage(32, 64, 2)
        self.bn2 = ShiftNorm(64)
        self.fc = nn.Linear(64, classes)
        he_normal(self)

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        rest = (PreActivationBlock(outputs, outputs, 1) for _ in range(2))
        return nn.Sequential(PreActivationBlock(inputs, outputs, stride), *rest)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.layer3(self.layer2(self.layer1(x)))))
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


def _unit(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
    """Convolution, normalisation, ReLU and, if asked, a 2x2 max-pool."""
    tail = [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(_conv(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU(), *tail)


class Residual(nn.Module):
    """Two units around an identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_unit(channels, channels), _unit(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.body(x)
        return total


class ResNet9(nn.Module):
    """Eight convolutions and a bias-free head whose scores are damped by eight."""

    scale = 0.125

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.prep = _unit(3, 64)
        self.layer1 = nn.Sequential(_unit(64, 128, pool=True), Residual(128))
        self.layer2 = _unit(128, 256, pool=True)
        self.layer3 = nn.Sequential(_unit(256, 512, pool=True), Residual(512))
        self.fc = nn.Linear(512, classes, bias=False)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.prep(x))))
        scores: Tensor = self.fc(x.amax(dim=(2, 3))) * self.scale
        return scores


def resnet18_cifar10() -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), 10, large=False)


def resnet18_cifar100() -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), 100, large=False)


def resnet20() -> ResNet20:
    return ResNet20(11)


def resnet9() -> ResNet9:
    return ResNet9(10)


def resnet50() -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), 1000, large=True)


def resnet50_1001() -> ResNet:
    """GRACE's ResNet-50: the same network with one more output."""
    return ResNet(Bottleneck, (3, 4, 6, 3), 1001, large=True)


def resnet101() -> ResNet:
    return ResNet(Bottleneck, (3, 4, 23, 3), 1000, large=True)


MODELS = (
    ModelInfo(
        name="resnet18-cifar10",
        description="ResNet-18 with a 3x3 stem for 32-pixel images, 10 classes",
        parameters=11_173_962,
        tensors=None,
        source="Accordion (dissertation), Table 3.1",
        classes=10,
        inputs=image(32),
        factory=resnet18_cifar10,
        note="The source gives no count but the floats sent per step at rank r, 36,325 r + 9,610, "
        "which this network reproduces.",
    ),
    ModelInfo(
        name="resnet18-cifar100",
        description="ResNet-18 with a 3x3 stem for 32-pixel images, 100 classes",
        parameters=11_220_132,
        tensors=None,
        source="Accordion (dissertation), Table 3.2",
        classes=100,
        inputs=image(32),
        factory=resnet18_cifar100,
        note="The source gives no count but the floats sent per step at rank r, 36,415 r + 9,700, "
        "which this network reproduces.",
    ),
    ModelInfo(
        name="resnet20",
        description="ResNet-20 with pre-activation blocks for CIFAR-10",
        parameters=269_467,
        tensors=51,
        source="GRACE, Table II",
        classes=11,
        inputs=image(32),
        factory=resnet20,
        note="Exact. The head has 11 outputs (class 0 is background; 10 would save 65) and the ten "
        "normalisations before a block or the head have a shift and no scale (a scale would add 352).",
    ),
    ModelInfo(
        name="resnet9",
        description="Nine-layer residual network for fast CIFAR-10 training",
        parameters=6_573_120,
        tensors=25,
        source="GRACE, Table II",
        classes=10,
        inputs=image(32),
        factory=resnet9,
    ),
    ModelInfo(
        name="resnet50",
        description="ResNet-50 for ImageNet",
        parameters=25_557_032,
        tensors=161,
        source="Utility of Gradient Compression, section 3 (97 MB); tensors from GRACE, Table II",
        classes=1000,
        inputs=image(224),
        factory=resnet50,
        note="97 MB are MiB: 25,557,032 x 4 bytes = 97.5 MiB. GRACE publishes 25,559,081, which is 2,049 "
        "more: a 1,001st output (2,048 weights and a bias) for a background class. "
        "gradwire.models.resnet:resnet50_1001 builds that one.",
    ),
    ModelInfo(
        name="resnet101",
        description="ResNet-101 for ImageNet",
        parameters=44_549_160,
        tensors=None,
        source="Utility of Gradient Compression, section 3 (170 MB)",
        classes=1000,
        inputs=image(224),
        factory=resnet101,
        note="170 MB are MiB: 44,549,160 x 4 bytes = 169.9 MiB.",
    ),
)
