"""Starting weights shared by the convolutional families (He et al. 2015, normal form)."""

from __future__ import annotations

import math

from torch import nn


def he_normal(model: nn.Module) -> None:
    """Draw the convolutions from N(0, 2 / fan-in) and set their biases to zero.

    The plain VGGs have no normalisation to repair a bad scale: from torch's own defaults the signal
    fades over 16 layers and training does not start. Linear layers keep those defaults, so that the
    first scores are small.
    """
    for layer in model.modules():
        if isinstance(layer, nn.ConvTranspose2d):
            # Kernel equals stride here, so one output pixel sees every input channel exactly once.
            fan_in = layer.in_channels
        elif isinstance(layer, nn.Conv2d):
            fan_in = layer.weight[0].numel()
        else:
            continue
        nn.init.normal_(layer.weight, std=math.sqrt(2 / fan_in))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
