"""A text in passages of one length: every epoch starts somewhere else, and has them in an order of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from gradwire.laboratory.bench.data import text
from gradwire.laboratory.bench.tasks.base import Batch, Data
from gradwire.laboratory.bench.tasks.common import generator, num_steps, perplexity, shuffled


class Passages(Data):
    """A text on one device, as int64.

    Args:
        data: the text.
        device: where batches lie.
        length: words of a passage.
        beyond: words behind a passage that it is shown with, and that begin the next one.
    """

    at_once: ClassVar[int]  # passages of the validation text
    valid: Batch

    def __init__(self, data: text.Text, device: torch.device, length: int, beyond: int = 0) -> None:
        self.origin = data.title
        self.device = device
        self.length, self.beyond = length, beyond
        self.train = data.train.long()

    @property
    def count(self) -> int:
        """Passages of an epoch: one less than would fit, since an epoch starts anywhere in the first."""
        return (len(self.train) - self.beyond) // self.length - 1

    def steps(self, workers: int, batch: int) -> int:
        return num_steps(self.count, workers, batch)

    def epoch(self, seed: int, epoch: int, workers: int, batch: int) -> Iterator[list[Batch]]:
        source = generator(seed, epoch)
        order = shuffled(self.count, workers, batch, source)
        start = int(torch.randint(self.length, (), generator=source))
        parts = self.questions(self.cut(self.train[start:])[order.flatten()], source)
        shaped = [part.view(*order.shape, part.shape[-1]) for part in parts]
        for step in range(len(order)):
            yield [tuple(part[step, worker] for part in shaped) for worker in range(workers)]

    def cut(self, words: Tensor) -> Tensor:
        """All whole passages of a text, one a row."""
        return words.unfold(0, self.length + self.beyond, self.length)

    def evaluate(self, model: nn.Module) -> float:
        parts = zip(*(torch.split(part, self.at_once) for part in self.valid), strict=True)
        losses = torch.stack([self.loss(model, batch, ())[0].float() * len(batch[0]) for batch in parts])
        return perplexity(losses.sum() / len(self.valid[0]))

    @abstractmethod
    def questions(self, passages: Tensor, source: torch.Generator) -> Batch:
        """What the model is shown of passages and what it shall answer, on the device."""
