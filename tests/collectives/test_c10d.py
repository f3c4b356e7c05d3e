"""What the driver over a process group does between exchanges; tests/integrations has it among ranks."""

from __future__ import annotations

import torch

from gradwire.collectives.c10d import _answers
from gradwire.core.exchange import Gather, Payload, Scatter, Sum


def test_collectives_are_waited_for_before_exchanges_in_pairs() -> None:
    """A failed collective of gloo blocks the connections, so it must be heard of before anything waits on them."""
    row = Payload(torch.zeros(2, 2, dtype=torch.uint8))
    batch = [Scatter(row, 2), Sum(torch.zeros(1, 1)), Scatter(row, 2), Gather(row)]
    heard: list[int] = []

    def wait(i: int) -> str:
        heard.append(i)
        return f"answer {i}"

    answers = _answers(batch, [lambda i=i: wait(i) for i in range(4)])  # type: ignore[misc]
    assert heard == [1, 3, 0, 2]
    assert answers == [f"answer {i}" for i in range(4)]
