"""The warning that a codec does not pay: told where plain DDP is surely faster, and nowhere else."""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from given import SimpleTopK
from ranks import Pool
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.integrations.payoff import LEAST, Timed, judge

FAST = 1e9  # bytes a second


def step(seed: int = 0, **changes: float) -> Timed:
    """40 MB in two buckets; the step waits 60 ms, of which 5 are spent exchanging. Plain DDP would wait 45."""
    noise = 1 + 0.02 * random.Random(seed).random()
    one = Timed(
        seconds=0.3 * noise,
        computed=0.1,
        exposed=0.06 * noise,
        exchanging=0.005,
        arrivals=((0.0, 2e7), (0.1, 2e7)),
        bytes_per_second=FAST,
    )
    return dataclasses.replace(one, **changes)


def steps(count: int = LEAST, **changes: float) -> list[Timed]:
    return [step(seed, **changes) for seed in range(count)]


def test_a_codec_that_computes_for_longer_than_plain_ddp_would_send_does_not_pay() -> None:
    told = judge("slow(level=9)", steps())
    assert told is not None
    assert told.startswith("slow(level=9) does not pay in this run. A step waits 60.6 ms for it, and would wait 45 ms ")
    assert "by the 8 Gbit/s seen here" in told
    assert "the 95 % interval of 50 steps" in told
    assert told.endswith("gradwire.attach(model), without a codec, tries both and keeps the faster.")


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("a link on which plain DDP would wait for longer", {"bytes_per_second": FAST / 10}),
        ("a rank that is late, for which plain DDP would wait, too", {"exchanging": 0.055}),
        ("an exchange that hides", {"exposed": 0.001}),
    ],
)
def test_where_it_is_not_known_nothing_is_said(what: str, changes: dict) -> None:
    assert judge("slow", steps(**changes)) is None, what


def test_few_steps_say_nothing() -> None:
    assert judge("slow", steps(LEAST - 1)) is None


def test_noise_says_nothing() -> None:
    """A wait that is mostly short, and sometimes long."""
    found = [step(i, exposed=0.2 if i % 3 == 0 else 0.02) for i in range(90)]
    assert judge("slow", found) is None


@dataclass(frozen=True)
class Slow(SimpleTopK):
    """Sends half of the elements, after a nap: a codec that does not pay on any link there is here."""

    name: ClassVar[str] = "slow_for_payoff"
    ratio: float = 0.5

    def encode(self, x: Tensor, rng: Random) -> Payload:
        time.sleep(0.03)
        return super().encode(x, rng)


def train_slowly(rank: int, codec: object) -> list[str]:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gradwire").addHandler(handler)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(256, 256, bias=False))
    handle = gradwire.attach(model, codec)
    handle.watch(20, log=False)
    for _ in range(101):
        model(torch.ones(2, 256)).square().mean().backward()
    logging.getLogger("gradwire").removeHandler(handler)
    return told


@pytest.mark.dist
def test_a_run_is_warned_once(pool: Pool) -> None:
    told, other = pool.run(2, train_slowly, Slow())
    assert len(told) == 1
    assert told[0].startswith("gradwire: slow_for_payoff does not pay in this run. A step waits ")
    assert other == []
