"""Masked language modelling: a small BERT fills gaps in WikiText-2, scored by the perplexity of the hidden words.

A text of 128 words has 19 gaps (15 %). What stands there is the mask in 80 % of cases, a random word in 10 % and the
word itself in 10 %. Every epoch draws its gaps, and where its texts start, anew; the validation text keeps one fixed
set of gaps, so that all evaluations answer the same questions.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.laboratory.bench.data import text
from gradwire.laboratory.bench.tasks import language
from gradwire.laboratory.bench.tasks.base import Batch, Carry, Metric, Recipe, Task
from gradwire.laboratory.bench.tasks.common import build
from gradwire.laboratory.bench.tasks.passages import Passages
from gradwire.models import bert

LENGTH = bert.SMALL_LENGTH
GAPS = round(0.15 * LENGTH)
MASK = bert.SMALL.vocabulary - 1
_VALIDATION = 2_018  # seed of the validation text's gaps


class MaskedData(Passages):
    """A text with gaps."""

    at_once = 64

    def __init__(self, data: text.Text, device: torch.device) -> None:
        super().__init__(data, device, LENGTH)
        self.words = data.words
        self.valid = self.questions(self.cut(data.valid.long()), torch.Generator().manual_seed(_VALIDATION))

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
        words, places, hidden = batch
        scores: Tensor = model(words, places=places)
        return F.cross_entropy(scores.flatten(0, 1), hidden.flatten()), ()

    def questions(self, passages: Tensor, source: torch.Generator) -> Batch:
        """Passages with gaps, where these are, and what stood there."""
        places = torch.rand(passages.shape, generator=source).topk(GAPS).indices
        hidden = passages.gather(1, places)
        luck = torch.rand(places.shape, generator=source)
        other = torch.randint(self.words, places.shape, generator=source)
        shown = torch.where(luck < 0.8, MASK, torch.where(luck < 0.9, other, hidden))
        return tuple(part.to(self.device) for part in (passages.scatter(1, places, shown), places, hidden))


class BertWikiText2(Task):
    """Perplexity of a BERT of four layers."""

    name = "bert-small-wikitext2"
    model_name = "bert-small"
    metric = Metric("perplexity of hidden words", "perplexity", higher_is_better=False)
    recipe = Recipe(batch=16, epochs=40, optimizer="adam", learning_rate=1e-3, warmup=0.1, decay="linear", clip=1.0)

    def model(self, seed: int) -> nn.Module:
        return build(self.model_name, seed)

    def open(self, directory: Path | None, device: torch.device) -> MaskedData:
        return MaskedData(text.load("wikitext2", directory), device)

    def synthetic(self, device: torch.device) -> MaskedData:
        return MaskedData(language.synthetic(length=24_000), device)
