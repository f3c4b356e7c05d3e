"""Language modelling: an LSTM predicts the next word of WikiText-2 or Penn Treebank, scored by perplexity.

The training text is cut into as many streams as there are rows in all workers' batches. A step shows each stream's
next 35 words, and the states that the net reached carry over to the worker's next step, without gradients. Quality is
the perplexity of the test text, read the same way in 32 streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.laboratory.bench.data import text
from gradwire.laboratory.bench.tasks.base import Batch, Carry, Data, Metric, Published, Recipe, Task
from gradwire.laboratory.bench.tasks.common import build, num_steps, perplexity
from gradwire.models import lstm

LENGTH = 35  # words a step
_STREAMS, _WINDOW = 32, 70  # of an evaluation


class StreamData(Data):
    """A text on one device, as int64."""

    def __init__(self, data: text.Text, device: torch.device) -> None:
        self.origin = data.title
        self.device = device
        self.train, self.test = data.train.to(device).long(), data.test.to(device).long()

    def steps(self, workers: int, batch: int) -> int:
        return num_steps((len(self.train) - 1) // LENGTH, workers, batch)

    def epoch(self, seed: int, epoch: int, workers: int, batch: int) -> Iterator[list[Batch]]:
        """The text in its own order: neither the seed nor the epoch changes it."""
        steps = self.steps(workers, batch)
        rows, shape = workers * batch, (workers, batch, steps, LENGTH)
        words, following = (self._streams(self.train, rows, steps * LENGTH, shift).view(shape) for shift in (0, 1))
        words, following = (part.permute(2, 0, 1, 3).contiguous() for part in (words, following))
        for step in range(steps):
            yield [(words[step, worker], following[step, worker]) for worker in range(workers)]

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
        words, following = batch
        scores, after = model(words, _pairs(carry))
        return _cross_entropy(scores, following), tuple(part.detach() for state in after for part in state)

    def carry(self, batch: int) -> Carry:
        return tuple(torch.zeros(batch, lstm.WIDTH, device=self.device) for _ in range(2 * lstm.LAYERS))

    def evaluate(self, model: nn.Module) -> float:
        rows = min(_STREAMS, len(self.test) - 1)
        length = (len(self.test) - 1) // rows
        words, following = (self._streams(self.test, rows, length, shift) for shift in (0, 1))
        carry, total = self.carry(rows), torch.zeros((), device=self.device)
        for first in range(0, length, _WINDOW):
            window = slice(first, min(first + _WINDOW, length))
            loss, carry = self.loss(model, (words[:, window], following[:, window]), carry)
            total += loss.float() * (window.stop - window.start)
        return perplexity(total / length)

    @staticmethod
    def _streams(words: Tensor, rows: int, length: int, shift: int) -> Tensor:
        """`rows` stretches of the text, one behind the other, each of `length` words."""
        return words[shift : shift + rows * length].view(rows, length)


def _pairs(carry: Carry) -> list[lstm.LayerState]:
    return list(zip(carry[::2], carry[1::2], strict=True))


def _cross_entropy(scores: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), following.flatten())


def synthetic(words: int = 50, length: int = 12_000) -> text.Text:
    """A text in which the next word follows from the last one, four times out of five."""
    source = torch.Generator().manual_seed(0)
    surprise = torch.randint(words, (length,), generator=source).tolist()
    obeys = (torch.rand(length, generator=source) < 0.8).tolist()
    numbers = [0]
    for odd, rule in zip(surprise, obeys, strict=True):
        numbers.append((7 * numbers[-1] + 3) % words if rule else odd)
    parts = torch.tensor(numbers, dtype=torch.int32).tensor_split([length * 3 // 4, length * 7 // 8])
    return text.Text("synthetic: a rule with exceptions", words, *parts)


class Lstm(Task):
    """Perplexity of the medium LSTM."""

    metric = Metric("test perplexity", "perplexity", higher_is_better=False)
    words: ClassVar[str]
    # Rate and clipping are of the mean loss a word.
    recipe = Recipe(batch=20, epochs=25, optimizer="sgd", learning_rate=20.0, decay="linear", clip=0.25)

    def model(self, seed: int) -> nn.Module:
        return build(self.model_name, seed)

    def open(self, directory: Path | None, device: torch.device) -> StreamData:
        return StreamData(text.load(self.words, directory), device)

    def synthetic(self, device: torch.device) -> StreamData:
        return StreamData(synthetic(), device)


class LstmWikiText2(Lstm):
    name = "lstm-wikitext2"
    model_name = "lstm-wikitext2"
    words = "wikitext2"


class LstmPennTreebank(Lstm):
    name = "lstm-ptb"
    model_name = "lstm-ptb"
    words = "ptb"
    published = Published(100.168, "GRACE, Table II")
