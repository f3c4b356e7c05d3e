"""Shapes: tell ten outlines apart in small noisy images, with a convolutional net of 1.06 million parameters.

Every image is drawn by this file: one shape of random place, size, angle and contrast on a tilted grey ground, under
Gaussian noise. Nothing is downloaded, and the same seed gives the same images again. The net is light to compute and
heavy to send (4.2 MB of float32 gradient), so that communication shows in a training step on a laptop.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

SIDE = 32  # pixels
NOISE = 0.25  # standard deviation; the contrast of a shape lies between 0.5 and 1


def _polygon(corners: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A regular polygon with its corners on the unit circle."""

    def distance(u: Tensor, v: Tensor) -> Tensor:
        half = math.pi / corners
        angle = torch.atan2(v, u).remainder(2 * half) - half
        return torch.hypot(u, v) * angle.cos() - math.cos(half)

    return distance


def _star(u: Tensor, v: Tensor) -> Tensor:
    return torch.hypot(u, v) - 0.65 - 0.35 * (5 * torch.atan2(v, u)).cos()


def _disc(u: Tensor, v: Tensor) -> Tensor:
    return torch.hypot(u, v) - 0.9


def _ring(u: Tensor, v: Tensor) -> Tensor:
    return (torch.hypot(u, v) - 0.75).abs() - 0.2


def _bar(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(u.abs() - 1.0, v.abs() - 0.3)


def _plus(u: Tensor, v: Tensor) -> Tensor:
    return torch.minimum(_bar(u, v), _bar(v, u))


def _half_disc(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(_disc(u, v), u)


def _crescent(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(_disc(u, v), 0.7 - torch.hypot(u - 0.45, v))


def _pair(u: Tensor, v: Tensor) -> Tensor:
    return torch.hypot(u.abs() - 0.55, v) - 0.4


# Distance to the outline, negative inside, in units of the shape's radius.
SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": _disc,
    "ring": _ring,
    "triangle": _polygon(3),
    "square": _polygon(4),
    "star": _star,
    "bar": _bar,
    "plus": _plus,
    "half disc": _half_disc,
    "crescent": _crescent,
    "pair": _pair,
}


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """`count` images, float32 of shape (count, 1, 32, 32), and their labels. Leaves the global generator alone."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)

    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    axis = torch.linspace(-1, 1, SIDE)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    radius, angle = uniform(0.5, 0.7), uniform(-0.5, 0.5)
    y, x = (rows - uniform(-0.2, 0.2)) / radius, (columns - uniform(-0.2, 0.2)) / radius
    u, v = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    distance = torch.empty(count, SIDE, SIDE)
    for label, shape in enumerate(SHAPES.values()):
        chosen = labels == label
        distance[chosen] = shape(u[chosen], v[chosen])
    ink = torch.sigmoid(-distance * radius * SIDE)  # the edge is about one pixel wide
    ground = uniform(-0.3, 0.3) * rows + uniform(-0.3, 0.3) * columns
    noise = NOISE * torch.randn(count, SIDE, SIDE, generator=generator)
    return (uniform(0.5, 1.0) * ink + ground + noise).unsqueeze(1), labels


def model(seed: int) -> nn.Module:
    """The net, with starting weights that follow from the seed alone."""
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 512),
        nn.ReLU(),
        nn.Linear(512, len(SHAPES)),
    )
    generator = torch.Generator().manual_seed(seed)
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):  # torch's default start wastes the first hundred steps here
            nn.init.kaiming_normal_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return net
