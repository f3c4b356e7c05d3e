"""Masked language modelling: a small BERT fills gaps in WikiText-2, scored by the perplexity of the hidden words.

A text of 128 words has 19 gaps (15 %). What stands there is the mask in 80 % of cases, a random word in 10 % and the
word itself in 10 %. Every epoch draws its gaps, and where its texts start, anew; the validation text keeps one fixed
set of gaps, so that all evaluations answer the same questions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.laboratory.bench.data import text
from gradwire.laboratory.bench.tasks import language
from gradwire.laboratory.bench.tasks.base import Batch, Carry, Data, Metric, Recipe, Task
from gradwire.laboratory.bench.tasks.common import build, generator, num_steps, perplexity, shuffled
from gradwire.models import bert

LENGTH = bert.SMALL_LENGTH
GAPS = round(0.15 * LENGTH)
MASK = bert.SMALL.vocabulary - 1
_EVALUATE = 64  # texts
_VALIDATION = 2_018  # seed of the validation text's gaps


class MaskedData(Data):
    """A text on one device, as int64."""

    def __init__(self, data: text.Text, device: torch.device) -> None:
        self.origin = data.title
        self.device = device
        self.words = data.words
        self.train = data.train.long()
        valid = _texts(data.valid.long(), 0, len(data.valid) // LENGTH)
        self.valid = self._with_gaps(valid, torch.Generator().manual_seed(_VALIDATION))

    @property
    def count(self) -> int:
        return len(self.train) // LENGTH - 1  # one less than would fit, since an epoch starts anywhere in the first

    def steps(self, workers: int, batch: int) -> int:
        return num_steps(self.count, workers, batch)

    def epoch(self, seed: int, epoch: int, workers: int, batch: int) -> Iterator[list[Batch]]:
        source = generator(seed, epoch)
        order = shuffled(self.count, workers, batch, source)
        start = int(torch.randint(LENGTH, (), generator=source))
        parts = self._with_gaps(_texts(self.train, start, self.count)[order.flatten()], source)
        shaped = [part.view(*order.shape, part.shape[-1]) for part in parts]
        for step in range(len(order)):
            yield [tuple(part[step, worker] for part in shaped) for worker in range(workers)]

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
        words, places, hidden = batch
        scores: Tensor = model(words, places=places)
        return F.cross_entropy(scores.flatten(0, 1), hidden.flatten()), ()

    def evaluate(self, model: nn.Module) -> float:
        parts = zip(*(torch.split(part, _EVALUATE) for part in self.valid), strict=True)
        losses = torch.stack([self.loss(model, batch, ())[0].float() * len(batch[0]) for batch in parts])
        return perplexity(losses.sum() / len(self.valid[0]))

    def _with_gaps(self, texts: Tensor, source: torch.Generator) -> Batch:
        """Texts with gaps, where these are, and what stood there, all on the device."""
        places = torch.rand(texts.shape, generator=source).topk(GAPS).indices
        hidden = texts.gather(1, places)
        luck = torch.rand(places.shape, generator=source)
        other = torch.randint(self.words, places.shape, generator=source)
        shown = torch.where(luck < 0.8, MASK, torch.where(luck < 0.9, other, hidden))
        return tuple(part.to(self.device) for part in (texts.scatter(1, places, shown), places, hidden))


def _texts(words: Tensor, start: int, count: int) -> Tensor:
    return words[start : start + count * LENGTH].view(count, LENGTH)


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
