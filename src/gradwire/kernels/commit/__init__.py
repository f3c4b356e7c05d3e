"""The end of a step: what it wrote is taken back where it was not finite, decided on the device.

The host never waits for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.kernels.backend import run
from gradwire.kernels.commit import reference
from gradwire.kernels.commit.reference import Written


def settle(flags: Sequence[Tensor], written: Sequence[Written], skipped: Tensor, kept: Tensor, scale: float) -> Tensor:
    """Whether a step is finite, a boolean scalar; if it is not, what it wrote becomes what was there before.

    Args:
        flags: scalars, 0 where a result is finite, else NaN.
        written: pairs: what was written, of any shape; what was there before, of the same shape, None for zeros.
        skipped: int64, counts the steps that are not finite.
        kept: float32, becomes `scale` if the step is finite.
        scale: the units of what was written.
    """
    return run(reference.settle, flags, written, skipped, kept, scale)
