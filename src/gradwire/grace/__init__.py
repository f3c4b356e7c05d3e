"""GRACE's vocabulary: its six helper functions, and an adapter that runs its compressors unchanged.

Example:
    >>> import torch
    >>> from gradwire import grace
    >>> (values, indices), ctx = grace.sparsify(torch.tensor([3.0, 0.5, -4.0, 1.0]), ratio=0.5)
    >>> grace.desparsify((values, indices), ctx)
    tensor([ 3.,  0., -4.,  0.])

Xu et al., GRACE: A Compressed Communication Framework for Distributed Machine Learning, ICDCS 2021, section IV.
"""

from gradwire.grace.adapter import adapt
from gradwire.grace.vocabulary import dequantize, desparsify, pack, quantize, sparsify, unpack

__all__ = ["adapt", "dequantize", "desparsify", "pack", "quantize", "sparsify", "unpack"]
