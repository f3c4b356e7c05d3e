"""GRACE's vocabulary: its six helper functions, and an adapter that runs its compressors unchanged.

Xu et al., GRACE: A Compressed Communication Framework for Distributed Machine Learning, ICDCS 2021, section IV.
"""

from gradwire.grace.adapter import adapt
from gradwire.grace.vocabulary import dequantize, desparsify, pack, quantize, sparsify, unpack

__all__ = ["adapt", "dequantize", "desparsify", "pack", "quantize", "sparsify", "unpack"]
