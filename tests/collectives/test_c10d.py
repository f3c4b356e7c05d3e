"""In which order the driver over a process group starts the exchanges of a round and waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from gradwire.collectives.c10d import ProcessGroupDriver
from gradwire.collectives.meter import Meter
from gradwire.core.exchange import Exchange, Gather, Payload, Scatter, Sum


class Told:
    """Peers that tell what was asked of them."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[str]]] = []

    def bundles(self, exchange: Exchange) -> bool:
        return isinstance(exchange, Sum)

    def begin_all(self, batch: Sequence[Exchange]) -> Any:
        names = [type(e).__name__ for e in batch]
        self.heard.append(("start", names))

        def wait() -> list[Exchange]:
            self.heard.append(("wait", names))
            return list(batch)

        return wait


def test_exchanges_in_pairs_are_waited_for_last() -> None:
    """A failed collective of gloo blocks the connections, so it must be heard of before anything waits on them."""
    row = Payload(torch.zeros(2, 2, dtype=torch.uint8))
    batch = [Scatter(row, 2), Sum(torch.zeros(1, 1)), Gather(row), Scatter(row, 2), Sum(torch.ones(1, 1))]
    told = Told()
    driver: Any = SimpleNamespace(_peers={None: told}, meter=Meter(), workers=2, rank=0)
    driver._start = lambda batch: ProcessGroupDriver._start(driver, batch)
    answers = ProcessGroupDriver._exchange(driver, batch)
    order = [["Sum", "Sum"], ["Gather"], ["Scatter"], ["Scatter"]]
    assert told.heard == [("start", names) for names in order] + [("wait", names) for names in order]
    assert [a is b for a, b in zip(answers, batch, strict=True)] == [True] * 5
