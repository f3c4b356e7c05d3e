"""VGG networks (Simonyan and Zisserman 2014) as the papers train them.

* ``vgg16-cifar10`` (GRACE): 13 convolutions without normalisation, one hidden layer of 512.
  14,982,987 parameters.
* ``vgg19bn-cifar10`` and ``-cifar100`` (Accordion): 16 convolutions with normalisation, two hidden
  layers of 512. 20,565,834 and 20,612,004 parameters.
* ``vgg16``: ImageNet, the network of VGG's own paper. 138,357,544 parameters.
* ``vgg19`` (GRACE): ImageNet, two hidden layers of 4,096. 143,671,337 parameters.
* ``vgg19-200`` (Beyond Throughput): the same with TinyImageNet's 200 classes, 140,389,640 parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gradwire.models.catalogue import ModelInfo, image
from gradwire.models.weights import he_normal

_WIDTHS = (64, 128, 256, 512, 512)
_DEPTHS_16 = (2, 2, 3, 3, 3)
_DEPTHS_19 = (2, 2, 4, 4, 4)


def _features(depths: Sequence[int], *, norm: bool) -> nn.Sequential:
    """Five groups of 3x3 convolutions, each closed by a 2x2 max-pool."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in zip(_WIDTHS, depths, strict=True):
        for _ in range(depth):
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            layers += [nn.BatchNorm2d(width)] if norm else []
            layers.append(nn.ReLU())
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _classifier(inputs: int, hidden: Sequence[int], classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.5)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


class VGG(nn.Module):
    """Convolutions, an average pool to `side` x `side` pixels, then linear layers."""

    def __init__(
        self, depths: Sequence[int], hidden: Sequence[int], classes: int, *, side: int, norm: bool = False
    ) -> None:
        super().__init__()
        self.features = _features(depths, norm=norm)
        self.avgpool = nn.AdaptiveAvgPool2d(side)
        self.classifier = _classifier(_WIDTHS[-1] * side * side, hidden, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        scores: Tensor = self.classifier(x.flatten(1))
        return scores


def vgg16_cifar10() -> VGG:
    return VGG(_DEPTHS_16, (512,), 11, side=1)


def vgg19bn_cifar10() -> VGG:
    return VGG(_DEPTHS_19, (512, 512), 10, side=1, norm=True)


def vgg19bn_cifar100() -> VGG:
    return VGG(_DEPTHS_19, (512, 512), 100, side=1, norm=True)


def vgg16() -> VGG:
    return VGG(_DEPTHS_16, (4096, 4096), 1000, side=7)


def vgg19() -> VGG:
    return VGG(_DEPTHS_19, (4096, 4096), 1001, side=7)


def vgg19_200() -> VGG:
    return VGG(_DEPTHS_19, (4096, 4096), 200, side=7)


MODELS = (
    ModelInfo(
        name="vgg16-cifar10",
        description="VGG-16 without normalisation for CIFAR-10, one hidden layer of 512",
        parameters=14_982_987,
        tensors=30,
        source="GRACE, Table II",
        classes=11,
        inputs=image(32),
        factory=vgg16_cifar10,
        note="Exact. The head has 11 outputs (class 0 is background; 10 would save 513).",
    ),
    ModelInfo(
        name="vgg19bn-cifar10",
        description="VGG-19 with normalisation for CIFAR-10, two hidden layers of 512",
        parameters=20_565_834,
        tensors=None,
        source="Accordion (dissertation), Table 3.1",
        classes=10,
        inputs=image(32),
        factory=vgg19bn_cifar10,
        note="The source gives no count but the floats sent per step at rank r, 53,029 r + 17,546, "
        "which this network reproduces.",
    ),
    ModelInfo(
        name="vgg19bn-cifar100",
        description="VGG-19 with normalisation for CIFAR-100, two hidden layers of 512",
        parameters=20_612_004,
        tensors=None,
        source="Accordion (dissertation), chapter 3",
        classes=100,
        inputs=image(32),
        factory=vgg19bn_cifar100,
        note="The source gives neither a count nor a volume; this is the CIFAR-10 network with 90 more "
        "outputs, 46,170 more parameters.",
    ),
    ModelInfo(
        name="vgg16",
        description="VGG-16 for ImageNet",
        parameters=138_357_544,
        tensors=32,
        source="Simonyan and Zisserman, ICLR 2015, configuration D",
        classes=1000,
        inputs=image(224),
        factory=vgg16,
        note="The paper says 138 million.",
    ),
    ModelInfo(
        name="vgg19",
        description="VGG-19 for ImageNet",
        parameters=143_671_337,
        tensors=38,
        source="GRACE, Table II",
        classes=1001,
        inputs=image(224),
        factory=vgg19,
        note="Exact. The head has 1,001 outputs (class 0 is background); with 1,000 it would be "
        "143,667,240, which is 4,097 fewer.",
    ),
    ModelInfo(
        name="vgg19-200",
        description="VGG-19 for TinyImageNet, 200 classes",
        parameters=140_389_640,
        tensors=None,
        source="Beyond Throughput and Compression Ratios, Table 7",
        classes=200,
        inputs=image(64),
        factory=vgg19_200,
        note="The source gives no count but PowerSGD's bits per coordinate, 0.0242/0.0872/0.339/1.36 at "
        "rank 1/4/16/64. This network gives 0.0242/0.0872/0.339/1.346: at rank 64 the published "
        "figure is 1 % above every way of counting these shapes (rank not cut to the matrix 1.347, small "
        "matrices sent whole 1.345).",
    ),
)
