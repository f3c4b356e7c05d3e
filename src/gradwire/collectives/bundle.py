"""Small exchanges of a round, in one message to each peer.

What a small exchange costs is its messages. Gloo's ring passes a sum on 2(n - 1) times and a gathered row n - 1 times,
each after the other. In a bundle every worker sends all that a peer needs to that peer at once, by one all-to-all:

- of a gather, its row; of a scatter, the peer's row;
- of a reduction among two, the tensor; among more, the peer's share of it. Each worker reduces its own share, and a
  second all-to-all gives the shares to all.

Each worker sends as many bytes as in a ring. A share is added up by one worker, in the order of their ranks: the sum is
the same for all, and the same as among virtual workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.collectives.local import reduced
from gradwire.core.exchange import Exchange, Gather, Max, Payload, Reduction, Scatter

SMALL = 1 << 16  # bytes that a worker sends for an exchange: below, a message of its own costs more than a copy

Start = Callable[[Tensor], Callable[[], Tensor]]  # row r goes to peer r; the answer has a row from each peer


def fits(exchange: Exchange, workers: int) -> bool:
    """Whether an exchange may travel in a bundle: a small one, whose size all peers know."""
    if isinstance(exchange, Reduction):
        return 0 < exchange.tensor.nbytes <= SMALL and not exchange.in_ring
    if not isinstance(exchange, (Gather, Scatter)) or exchange.payload.lengths is not None:
        return False
    copies = workers if isinstance(exchange, Gather) else 1
    return 0 < exchange.payload.nbytes * copies <= SMALL


def begin(batch: Sequence[Exchange], workers: int, start: Start) -> Callable[[], list[Any]]:
    """Start the exchanges of `batch`, one row of this process in each; what is returned waits and gives their answers.

    Args:
        batch: exchanges that fit.
        workers: how many peers there are, this worker among them.
        start: begins an all-to-all of (workers, bytes).
    """
    parts = [_for_peers(exchange, workers) for exchange in batch]
    wait = start(torch.cat(parts, 1))

    def finish() -> list[Any]:
        received = torch.split(wait(), [part.shape[1] for part in parts], 1)
        answers = [_answer(exchange, rows) for exchange, rows in zip(batch, received, strict=True)]
        shares = [i for i, e in enumerate(batch) if isinstance(e, Reduction) and workers > 2]
        if shares:
            mine = torch.cat([answers[i].view(torch.uint8) for i in shares])
            everyones = torch.split(start(mine.repeat(workers, 1))(), [answers[i].nbytes for i in shares], 1)
            for i, rows in zip(shares, everyones, strict=True):
                answers[i] = rows.contiguous().view(-1).view(answers[i].dtype)
        return [_shaped(exchange, answer) for exchange, answer in zip(batch, answers, strict=True)]

    return finish


def _for_peers(exchange: Exchange, workers: int) -> Tensor:
    """What each peer gets: (workers, bytes)."""
    if isinstance(exchange, Reduction):
        flat = exchange.tensor.contiguous().view(-1)
        if workers == 2:
            return flat.view(torch.uint8).expand(2, -1)
        return F.pad(flat, (0, -flat.numel() % workers)).view(workers, -1).view(torch.uint8)
    assert isinstance(exchange, (Gather, Scatter))
    data = exchange.payload.data.contiguous()
    return data.view(len(data), -1).view(torch.uint8).expand(workers, -1)


def _answer(exchange: Exchange, received: Tensor) -> Any:
    """What `received`, the peers' bytes, comes to; of a reduction among more than two this worker's share."""
    if isinstance(exchange, Reduction):
        rows = received.contiguous().view(exchange.tensor.dtype)
        return reduced(rows, maximum=isinstance(exchange, Max))[0]
    assert isinstance(exchange, (Gather, Scatter))
    data = exchange.payload.data
    return Payload(received.contiguous().view(data.dtype).view(len(received), *data.shape[1:]))


def _shaped(exchange: Exchange, answer: Any) -> Any:
    """A reduction's answer in its form, without the padding."""
    if not isinstance(exchange, Reduction):
        return answer
    return answer[: exchange.tensor.numel()].view(exchange.tensor.shape)
