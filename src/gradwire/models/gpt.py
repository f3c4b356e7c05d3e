"""A GPT for WikiText-2: a decoder that predicts the next word (Radford et al. 2019), in a size that trains in minutes.

* ``gpt-wikitext2`` (ours): 8 layers of 512 over WikiText-2's 33,278 words, texts of up to 256 words. Normalisation
  comes before attention and before the two-layer network; the last layer is the word embedding itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.models.attention import Attention
from gradwire.models.catalogue import ModelInfo, tokens

_INIT_STD = 0.02


@dataclass(frozen=True)
class GptSize:
    """The sizes that tell one GPT from another."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    dropout: float


WIKITEXT2 = GptSize(layers=8, width=512, heads=8, vocabulary=33_278, length=256, dropout=0.2)


class Layer(nn.Module):
    """Attention to the words so far and a two-layer network, each added to what came in."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.width)
        self.attention = Attention(size.width, size.heads, size.dropout, causal=True)
        self.norm2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        return out


class Gpt(nn.Module):
    """A score for every word at every place, given the words up to there."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.word = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Embedding(size.length, size.width)
        self.dropout = nn.Dropout(size.dropout)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self._start()

    def _start(self) -> None:
        """Matrices from N(0, 0.02), those that end in a sum smaller, so that many sums do not grow; biases zero."""
        smaller = _INIT_STD / math.sqrt(2 * len(self.layers))
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                ends_in_sum = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, std=smaller if ends_in_sum else _INIT_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        x: Tensor = self.dropout(self.word(words) + self.position(places))
        for layer in self.layers:
            x = layer(x)
        # The decoder is the word embedding: one gradient tensor for both uses.
        return F.linear(self.norm(x), self.word.weight)


def gpt_wikitext2() -> Gpt:
    return Gpt(WIKITEXT2)


MODELS = (
    ModelInfo(
        name="gpt-wikitext2",
        description="GPT of 8 layers of 512 over the words of WikiText-2, decoder tied to the word embedding",
        parameters=42_389_504,
        tensors=None,
        source="ours: a GPT in a size that trains in minutes",
        classes=WIKITEXT2.vocabulary,
        inputs=tokens(WIKITEXT2.length, WIKITEXT2.vocabulary),
        factory=gpt_wikitext2,
    ),
)
