"""The medium LSTM language model for Penn Treebank (Zaremba et al. 2014): 19,775,200 parameters.

Two layers of 650 over a vocabulary of 10,000. Each layer holds one matrix for input and state together
and one bias, seven tensors in all; torch's own nn.LSTM would hold two of each per layer, eleven tensors
and 5,200 more parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.models.catalogue import ModelInfo, tokens

VOCABULARY = 10_000
_INIT_RANGE = 0.05

LayerState = tuple[Tensor, Tensor]


class LSTMLayer(nn.Module):
    """One LSTM layer over a whole sequence, (batch, length, width)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.width = width
        self.gates = nn.Linear(inputs + width, 4 * width)

    def forward(self, x: Tensor, state: LayerState | None) -> tuple[Tensor, LayerState]:
        hidden, cell = state if state is not None else (x.new_zeros(x.shape[0], self.width),) * 2
        from_input, from_state = torch.split(self.gates.weight, [self.inputs, self.width], dim=1)
        # The input's share of all gates in one product; only the state's share has to go step by step.
        shares = F.linear(x, from_input, self.gates.bias)
        outputs = []
        for share in shares.unbind(dim=1):
            enter, forget, new, leave = (share + F.linear(hidden, from_state)).chunk(4, dim=1)
            cell = cell * torch.sigmoid(forget) + torch.sigmoid(enter) * torch.tanh(new)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1), (hidden, cell)


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

    def advance(self, words: Tensor, states: list[LayerState] | None = None) -> tuple[Tensor, list[LayerState]]:
        """Scores and the states to start the next stretch of text from (detach them first)."""
        x: Tensor = self.dropout(self.embedding(words))
        after: list[LayerState] = []
        for index, layer in enumerate(self.layers):
            x, state = layer(x, states[index] if states else None)
            x = self.dropout(x)
            after.append(state)
        return self.decoder(x), after

    def forward(self, words: Tensor) -> Tensor:
        """Scores for text that starts from empty states, (batch, length, vocabulary)."""
        return self.advance(words)[0]


def lstm_ptb() -> LanguageModel:
    return LanguageModel(VOCABULARY, width=650, layers=2, dropout=0.5)


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
)
