"""Multi-head self-attention, shared by the transformers.

Query, key and value are separate matrices, because low-rank codecs see the shapes.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention with its output layer; causal: a place sees itself and what stands before it."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.rate, self.causal = heads, dropout, causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def _split(self, x: Tensor) -> Tensor:
        """(batch, length, width) to (batch, heads, length, width of a head)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        rate = self.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate, is_causal=self.causal)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out
