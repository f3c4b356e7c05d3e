"""Which implementation of a kernel runs: the compiled one for the CPU where Numba is installed, else plain torch.

``GRADWIRE_KERNELS=reference`` chooses plain torch everywhere, for comparisons.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from torch import Tensor

_NUMBA = find_spec("numba") is not None


def compiled(*tensors: Tensor) -> bool:
    """Whether the Numba kernels can treat these tensors."""
    return _NUMBA and all(t.device.type == "cpu" for t in tensors) and os.environ.get("GRADWIRE_KERNELS") != "reference"
