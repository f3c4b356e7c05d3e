"""Which gradients can be compressed at all."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.errors import Incompatible


def check_gradient(name: str, tensor: Tensor) -> None:
    """Refuse a gradient that no codec can treat, with the reason."""
    if tensor.layout != torch.strided:
        raise sparse_gradient(name)
    if tensor.is_complex():
        raise Incompatible(
            f"gradwire: {name!r} is complex ({tensor.dtype}), and codecs work on real numbers. Store it as a real "
            "parameter (torch.view_as_real) or train it without compression."
        )
    if not tensor.is_floating_point():
        raise Incompatible(f"gradwire: {name!r} is of {tensor.dtype}; gradients must be floating point")


def sparse_gradient(name: str) -> Incompatible:
    """The refusal of a sparse gradient."""
    return Incompatible(
        f"gradwire: the gradient of {name!r} is sparse, and codecs work on dense gradients. Build the embedding "
        "with sparse=False, or keep this parameter out of the compressed model."
    )
