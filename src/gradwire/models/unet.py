"""The small industrial U-Net (after Ronneberger et al. 2015) for DAGM2007: 1,850,305 parameters.

Down through 32, 32, 64 and 128 channels, a bottleneck of 256, and up again with skips; greyscale in,
one defect logit per pixel out. No normalisation. Image sides must be multiples of 16.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.models.catalogue import ModelInfo, image
from gradwire.models.weights import he_normal

_STEM = 32
_WIDTHS = (32, 64, 128)
_BOTTOM = 256


def _pair(inputs: int, middle: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with a ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, middle, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(middle, outputs, 3, padding=1),
        nn.ReLU(),
    )


class Up(nn.Module):
    """Two convolutions, then a learned doubling of the image."""

    def __init__(self, inputs: int, middle: int, outputs: int, doubled: int) -> None:
        super().__init__()
        self.convs = _pair(inputs, middle, outputs)
        self.enlarge = nn.ConvTranspose2d(outputs, doubled, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.enlarge(self.convs(x)))


class UNet(nn.Module):
    """Encoder, bottleneck and decoder with one skip per scale."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (_STEM, *_WIDTHS)
        self.down = nn.ModuleList(
            _pair(before, width, width) for before, width in zip((1, *sizes), sizes, strict=False)
        )
        self.bottom = Up(_WIDTHS[-1], _BOTTOM, _BOTTOM, _BOTTOM // 2)
        # What arrives from below has as many channels as the skip it joins, hence twice the width.
        self.up = nn.ModuleList(Up(2 * w, w, w // 2, w // 2) for w in reversed(_WIDTHS))
        self.top = _pair(_WIDTHS[0] // 2 + _STEM, _STEM, _STEM)
        self.head = nn.Conv2d(_STEM, 1, 1)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for stage in self.down:
            full = stage(x)
            skips.append(full)
            x = F.max_pool2d(full, 2)
        x = self.bottom(x)
        for stage in self.up:
            x = stage(torch.cat([x, skips.pop()], dim=1))
        logits: Tensor = self.head(self.top(torch.cat([x, skips.pop()], dim=1)))
        return logits


def unet() -> UNet:
    return UNet()


MODELS = (
    ModelInfo(
        name="unet",
        description="Small U-Net for defect segmentation on DAGM2007, one logit per pixel",
        parameters=1_850_305,
        tensors=46,
        source="GRACE, Table II",
        classes=None,
        inputs=image(512, channels=1),
        factory=unet,
    ),
)
