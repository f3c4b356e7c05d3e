"""The medium LSTM language model for Penn Treebank (Zaremba et al. 2014): 19,775,200 parameters.

Two layers of 650 over a vocabulary of 10,000. Each layer holds one matrix for input and state together
and one bias, seven tensors in all; torch's own nn.LSTM would hold two of each per layer, eleven tensors
and 5,200 more parameters. The same net with the vocabulary of WikiText-2 has 50,059,878.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from gradwire.models.catalogue import ModelInfo, tokens

VOCABULARY = 10_000
WIKITEXT2 = 33_278  # words of its vocabulary
WIDTH = 650
LAYERS = 2
_INIT_RANGE = 0.05

LayerState = tuple[Tensor, Tensor]
Advance = tuple[Tensor, list[LayerState]]


class LSTMLayer(nn.Module):
    """One LSTM layer over a whole sequence, (batch, length, width)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.width = width
        self.gates = nn.Linear(inputs + width, 4 * width)

    def forward(self, x: Tensor, state: LayerState | None) -> tuple[Tensor, LayerState]:
        """What each place gives, and the state after the last one, in the weights' own type even under autocast."""
        bias = self.gates.bias
        state = state if state is not None else (bias.new_zeros(x.shape[0], self.width),) * 2
        # Left to itself, autocast would run cuDNN in float16 even where bfloat16 was asked for.
        lowered = x.is_cuda and torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if lowered else bias.dtype
        with torch.autocast("cuda", enabled=False) if lowered else nullcontext():
            before = [s.to(dtype).unsqueeze(0) for s in state]
            out, hidden, cell = torch.lstm(
                x.to(dtype).transpose(0, 1), before, self._weights(dtype), True, 1, 0.0, self.training, False, False
            )
        return out.transpose(0, 1), (hidden[0].to(bias.dtype), cell[0].to(bias.dtype))

    def _weights(self, dtype: torch.dtype) -> list[Tensor]:
        """The one matrix and one bias as torch's kernels want them: two of each, one behind the other in memory."""
        parts = [*torch.split(self.gates.weight, [self.inputs, self.width], dim=1), self.gates.bias]
        parts.append(torch.zeros_like(self.gates.bias))
        flat = torch.cat([part.reshape(-1) for part in parts]).to(dtype)  # else cuDNN packs, and complains
        pieces = torch.split(flat, [part.numel() for part in parts])
        return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


class LanguageModel(nn.Module):
    """Embedding, LSTM layers, and a decoder that scores the next word at every place."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LSTMLayer(width, width) for _ in range(layers))
        self.decoder = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -_INIT_RANGE, _INIT_RANGE)

    def advance(self, words: Tensor, states: list[LayerState] | None = None) -> Advance:
        """Scores and the states to start the next stretch of text from (detach them first)."""
        x: Tensor = self.dropout(self.embedding(words))
        after: list[LayerState] = []
        for index, layer in enumerate(self.layers):
            x, state = layer(x, states[index] if states else None)
            x = self.dropout(x)
            after.append(state)
        return self.decoder(x), after

    def forward(self, words: Tensor, states: list[LayerState] | None = None) -> Tensor | Advance:
        """Scores, (batch, length, vocabulary), of text that starts from empty states; with states, as `advance`."""
        return self.advance(words)[0] if states is None else self.advance(words, states)


def lstm_ptb() -> LanguageModel:
    return LanguageModel(VOCABULARY, width=WIDTH, layers=LAYERS, dropout=0.5)


def lstm_wikitext2() -> LanguageModel:
    return LanguageModel(WIKITEXT2, width=WIDTH, layers=LAYERS, dropout=0.5)


MODELS = (
    ModelInfo(
        name="lstm-ptb",
        description="Two-layer LSTM language model of width 650 for Penn Treebank",
        parameters=19_775_200,
        tensors=7,
        source="GRACE, Table II",
        classes=VOCABULARY,
        inputs=tokens(35, VOCABULARY),
        factory=lstm_ptb,
        note="Exact. One matrix and one bias per layer; nn.LSTM would have 5,200 more parameters "
        "(a second bias of 2,600 per layer) and 11 tensors.",
    ),
    ModelInfo(
        name="lstm-wikitext2",
        description="Two-layer LSTM language model of width 650 for WikiText-2",
        parameters=50_059_878,
        tensors=7,
        source="ours: GRACE's model with the vocabulary of WikiText-2",
        classes=WIKITEXT2,
        inputs=tokens(35, WIKITEXT2),
        factory=lstm_wikitext2,
    ),
)
