"""Values at indices that all workers draw alike: no index travels. On a GPU, a few launches each way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import run
from gradwire.kernels.support import reference


@dataclass(frozen=True)
class Support:
    """k distinct indices of a range that begins anywhere, and goes on at zero behind its end.

    Args:
        k: how many.
        turn: draws where the range begins.
        draw: draws one index from each of k strata of the range; None: the first k of it are taken.
    """

    k: int
    turn: Stream
    draw: Stream | None = None

    def indices(self, numel: int, device: torch.device) -> Tensor:
        """The indices, below `numel`."""
        return reference.indices(self, numel, device)


def take_from(
    source: Window, feedback: Feedback | None, support: Support, share: float, gain: float, back: float
) -> Tensor:
    """The compensated gradients on a support, times `share`, times `gain`: (rows, k).

    They are NaN for a row that is not finite. ``feedback.out`` holds the compensated gradients then, less what is sent
    times `back`.
    """
    return run(reference.take_from, source, feedback, support, share, gain, back)


def put_to(values: Tensor, support: Support, target: Window, factor: float) -> Flag:
    """(1, k) values on a support, times `factor`, to a window, and zeros elsewhere."""
    return run(reference.put_to, values, support, target, factor)
