"""What a step wrote, taken back where the step was not finite: decided on the device, so that the host never waits."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import run
from gradwire.kernels.commit import reference


def take_back(new: Tensor, old: Tensor | None, finite: Tensor) -> None:
    """`new` becomes `old`, or zero where that is None, unless the boolean scalar `finite` holds.

    Args:
        new: what was written, of any shape.
        old: what was there before, of the same shape.
        finite: on the same device.
    """
    run(reference.take_back, new, old, finite)
