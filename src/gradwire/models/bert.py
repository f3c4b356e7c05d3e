"""BERT (Devlin et al. 2018) in the two sizes that the papers train, and a small one for WikiText-2.

* ``bert-base`` (Utility): 12 layers of 768 with the pooler and no task head. 109,482,240 parameters.
* ``bert-large`` (Beyond Throughput): 24 layers of 1,024 for masked language modelling, without the
  pooler; the decoder is the word embedding itself. 335,174,458 parameters.
* ``bert-small`` (ours): 4 layers of 256 over WikiText-2's 33,278 words and a mask, texts of up to 128
  words, otherwise as ``bert-large``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.models.attention import Attention
from gradwire.models.catalogue import ModelInfo, tokens

VOCABULARY = 30_522
POSITIONS = 512
_EPSILON = 1e-12
_INIT_STD = 0.02


@dataclass(frozen=True)
class BertSize:
    """The sizes that tell one BERT from another."""

    layers: int
    width: int
    heads: int
    vocabulary: int = VOCABULARY
    dropout: float = 0.1
    positions: int = POSITIONS

    @property
    def inner(self) -> int:
        return 4 * self.width


BASE = BertSize(layers=12, width=768, heads=12)
LARGE = BertSize(layers=24, width=1024, heads=16)
SMALL_LENGTH = 128
SMALL = BertSize(layers=4, width=256, heads=4, vocabulary=33_279, positions=SMALL_LENGTH)


class Embeddings(nn.Module):
    """Word, position and segment vectors, added and normalised."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.word = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Embedding(size.positions, size.width)
        self.segment = nn.Embedding(2, size.width)
        self.norm = nn.LayerNorm(size.width, eps=_EPSILON)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, words: Tensor, segments: Tensor | None) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        segments = torch.zeros_like(words) if segments is None else segments
        total = self.word(words) + self.position(places) + self.segment(segments)
        out: Tensor = self.dropout(self.norm(total))
        return out


class Layer(nn.Module):
    """Attention and a two-layer network, each followed by a sum and a normalisation."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.attention = Attention(size.width, size.heads, size.dropout)
        self.norm1 = nn.LayerNorm(size.width, eps=_EPSILON)
        self.up = nn.Linear(size.width, size.inner)
        self.down = nn.Linear(size.inner, size.width)
        self.norm2 = nn.LayerNorm(size.width, eps=_EPSILON)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        out: Tensor = self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return out


def _small_normal(module: nn.Module) -> None:
    """BERT's own starting point: every matrix from N(0, 0.02), every bias zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_INIT_STD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class BertEncoder(nn.Module):
    """Embeddings and layers: one vector per token.

    `mask` is boolean, (batch, length), True where there is a token and False where there is padding.
    """

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.embeddings = Embeddings(size)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))

    def forward(self, words: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        visible = None if mask is None else mask[:, None, None, :]
        x: Tensor = self.embeddings(words, segments)
        for layer in self.layers:
            x = layer(x, visible)
        return x


class Bert(nn.Module):
    """Encoder and pooler: one vector per sequence."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.encoder = BertEncoder(size)
        self.pooler = nn.Linear(size.width, size.width)
        self.apply(_small_normal)

    def forward(self, words: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        first = self.encoder(words, segments, mask)[:, 0]
        return torch.tanh(self.pooler(first))


class BertMaskedLM(nn.Module):
    """Encoder and language-model head: a score for every word at every place, or at `places` (batch, count) alone."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.encoder = BertEncoder(size)
        self.transform = nn.Linear(size.width, size.width)
        self.norm = nn.LayerNorm(size.width, eps=_EPSILON)
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))
        self.apply(_small_normal)

    def forward(
        self,
        words: Tensor,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        x: Tensor = self.encoder(words, segments, mask)
        if places is not None:
            x = x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        x = self.norm(F.gelu(self.transform(x)))
        # The decoder is the word embedding: one gradient tensor for both uses.
        return F.linear(x, self.encoder.embeddings.word.weight, self.bias)


def bert_base() -> Bert:
    return Bert(BASE)


def bert_large() -> BertMaskedLM:
    return BertMaskedLM(LARGE)


def bert_small() -> BertMaskedLM:
    return BertMaskedLM(SMALL)


MODELS = (
    ModelInfo(
        name="bert-base",
        description="BERT-base with its pooler, no task head; gives one vector of 768 per sequence",
        parameters=109_482_240,
        tensors=None,
        source="Utility of Gradient Compression, section 3 (418 MB)",
        classes=None,
        inputs=tokens(128, VOCABULARY),
        factory=bert_base,
        note="418 MB are MiB: 109,482,240 x 4 bytes = 417.6 MiB. The same paper also writes 490 MB for "
        "this model, which is neither its MiB nor its MB (437.9).",
    ),
    ModelInfo(
        name="bert-large",
        description="BERT-large for masked language modelling, decoder tied to the word embedding",
        parameters=335_174_458,
        tensors=None,
        source="Beyond Throughput and Compression Ratios, Table 7",
        classes=VOCABULARY,
        inputs=tokens(128, VOCABULARY),
        factory=bert_large,
        note="The source gives no count but PowerSGD's bits per coordinate, 0.0797/0.217/0.764/2.95 at "
        "rank 1/4/16/64. Without pooler and with a tied decoder this network gives "
        "0.0796/0.216/0.764/2.952, within 0.3 %.",
    ),
    ModelInfo(
        name="bert-small",
        description="Small BERT for masked language modelling on WikiText-2, decoder tied to the word embedding",
        parameters=11_811_839,
        tensors=None,
        source="ours: BERT's masked language model in a size that trains in minutes",
        classes=SMALL.vocabulary,
        inputs=tokens(SMALL_LENGTH, SMALL.vocabulary),
        factory=bert_small,
    ),
)
