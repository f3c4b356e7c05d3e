"""The mean of the negative and of the other elements of a block; and a bit an element, 0 for the negative ones.

Payloads are as they travel: the means of all negative classes, those of the other classes, then the bits of `signs`.
"""

from __future__ import annotations

from gradwire.kernels.fused import Fused


def fused(block: int) -> Fused:
    """The launches for such blocks."""
    return Fused(__name__, block)
