"""Segmentation: a U-Net marks the defects of DAGM 2007's class 1, scored by intersection over union.

Trained on the defective images alone, as GRACE's benchmark does, in all eight ways to flip and turn a square. The loss
is the mean of cross entropy and of what the soft Dice score lacks. Quality pools the pixels of all test images, those
without a defect included: what is marked rightly over what is marked or defective. (The code behind GRACE's 96.4 %
averages a Dice score over images, which is kinder: an image without defect and marks counts as 100 %.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.laboratory.bench.data import dagm
from gradwire.laboratory.bench.tasks.base import Batch, Carry, Data, Metric, Published, Recipe, Task
from gradwire.laboratory.bench.tasks.common import build, generator, num_steps, shuffled

_EVALUATE = 8  # images


class SurfaceData(Data):
    """Images and masks on one device, as uint8 of shape (count, side, side)."""

    def __init__(self, data: dagm.Surfaces, device: torch.device) -> None:
        self.origin = data.title
        self.device = device
        defective = data.train_masks.flatten(1).any(1).bool()
        self.images, self.masks = data.train[defective].to(device), data.train_masks[defective].to(device)
        deviation, mean = torch.std_mean(self.images.float(), correction=0)
        self.mean, self.scale = mean, 1 / deviation.clamp(min=1.0)
        self.test, self.test_masks = data.test.to(device), data.test_masks.to(device)

    def steps(self, workers: int, batch: int) -> int:
        return num_steps(len(self.images), workers, batch)

    def epoch(self, seed: int, epoch: int, workers: int, batch: int) -> Iterator[list[Batch]]:
        source = generator(seed, epoch)
        order = shuffled(len(self.images), workers, batch, source)
        turns = torch.randint(2, (3, order.numel()), generator=source).bool().to(self.device)
        chosen = order.flatten().to(self.device)
        images = torch.split(self._finished(_turned(self.images[chosen], turns)), batch)
        masks = torch.split(_turned(self.masks[chosen], turns).unsqueeze(1).float(), batch)
        batches = list(zip(images, masks, strict=True))
        for first in range(0, len(batches), workers):
            yield list(batches[first : first + workers])

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
        images, masks = batch
        scores: Tensor = model(images).float()
        guess = scores.sigmoid()
        dice = (2 * (guess * masks).sum() + 1) / (guess.sum() + masks.sum() + 1)
        return (F.binary_cross_entropy_with_logits(scores, masks) + 1 - dice) / 2, ()

    def evaluate(self, model: nn.Module) -> float:
        both = torch.zeros((), dtype=torch.int64, device=self.device)
        either = both.clone()
        parts = (torch.split(part, _EVALUATE) for part in (self.test, self.test_masks))
        for images, masks in zip(*parts, strict=True):
            marked, wanted = model(self._finished(images))[:, 0] > 0, masks.bool()
            both += (marked & wanted).sum()
            either += (marked | wanted).sum()
        return 100.0 * float(both / either.clamp(min=1))

    def _finished(self, images: Tensor) -> Tensor:
        """Normalised, (count, 1, side, side); on a GPU the channels are innermost in memory."""
        normal = ((images.float() - self.mean) * self.scale).unsqueeze(1)
        layout = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        return normal.contiguous(memory_format=layout)


def _turned(images: Tensor, turns: Tensor) -> Tensor:
    """Flip each image or not in three ways: left to right, upside down, over its diagonal."""
    across, over, diagonal = turns[:, :, None, None]
    images = torch.where(across, images.flip(2), images)
    images = torch.where(over, images.flip(1), images)
    return torch.where(diagonal, images.transpose(1, 2), images)


def synthetic(count: int = 48, side: int = 64) -> dagm.Surfaces:
    """Grey noise with one bright spot; every fourth test image has none."""
    source = torch.Generator().manual_seed(0)
    centre = side * (0.25 + 0.5 * torch.rand(2, count, 1, generator=source))
    axis = torch.arange(side)
    y, x = (axis - centre[0])[:, :, None], (axis - centre[1])[:, None]
    masks = (y**2 + x**2 < (side / 8) ** 2).to(torch.uint8)
    masks[32::4] = 0
    grey = 100 + 20 * torch.randn(count, side, side, generator=source) + 60 * masks
    images = grey.clamp(0, 255).to(torch.uint8)
    return dagm.Surfaces("synthetic: bright spots", images[:32], masks[:32], images[32:], masks[32:])


class UNetDagm(Task):
    """Intersection over union of a small U-Net."""

    name = "unet-dagm"
    model_name = "unet"
    metric = Metric("intersection over union", "%", higher_is_better=True)
    # 625 epochs of four steps are the 2,500 iterations of GRACE's scripts (its table calls them epochs).
    recipe = Recipe(
        batch=2, epochs=625, optimizer="rmsprop", learning_rate=1e-4, momentum=0.8, weight_decay=1e-5, decay="linear"
    )
    published = Published(96.4, "GRACE, Table II")

    def model(self, seed: int) -> nn.Module:
        return build(self.model_name, seed)

    def open(self, directory: Path | None, device: torch.device) -> SurfaceData:
        return SurfaceData(dagm.load(directory), device)

    def synthetic(self, device: torch.device) -> SurfaceData:
        return SurfaceData(synthetic(), device)
