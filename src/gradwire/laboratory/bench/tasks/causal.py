"""Language modelling by a GPT: the next word of WikiText-2, scored by the perplexity of the validation text.

A passage has 256 words, and the model answers at each of them, knowing those before it alone. The validation text is
read in passages, too, so that the first words of each have little to go by. The rate stays the same after a warm-up:
when a run reaches a quality says how fast it learns, not when its schedule ends.
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
from gradwire.models import gpt


class NextWordData(Passages):
    """A text whose next word is asked for at each place."""

    at_once = 32

    def __init__(self, data: text.Text, device: torch.device) -> None:
        super().__init__(data, device, gpt.WIKITEXT2.length, beyond=1)
        self.valid = self.questions(self.cut(data.valid.long()), torch.Generator())

    def questions(self, passages: Tensor, source: torch.Generator) -> Batch:
        passages = passages.to(self.device)
        return passages[:, :-1].contiguous(), passages[:, 1:].contiguous()

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
        words, following = batch
        scores: Tensor = model(words)
        return F.cross_entropy(scores.flatten(0, 1), following.flatten()), ()


class GptWikiText2(Task):
    """Perplexity of a GPT of eight layers."""

    name = "gpt-wikitext2"
    model_name = "gpt-wikitext2"
    metric = Metric("validation perplexity", "perplexity", higher_is_better=False)
    recipe = Recipe(
        batch=16,
        epochs=16,
        optimizer="adamw",
        learning_rate=3e-4,
        weight_decay=0.1,
        warmup=1,
        decay="constant",
        clip=1.0,
    )

    def model(self, seed: int) -> nn.Module:
        return build(self.model_name, seed)

    def open(self, directory: Path | None, device: torch.device) -> NextWordData:
        return NextWordData(text.load("wikitext2", directory), device)

    def synthetic(self, device: torch.device) -> NextWordData:
        return NextWordData(language.synthetic(), device)
