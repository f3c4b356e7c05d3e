"""`attach(..., checksum=True)`: the same training, some more bytes, and a bit that was changed on the way is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from given import SHAPES, gradients, reduced, wrap
from ranks import Pool
from test_alarm import ended, live_on
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import gradwire
from gradwire.collectives.c10d import ProcessGroupDriver
from gradwire.core.exchange import Payload

pytestmark = pytest.mark.dist
TIMEOUT = 60.0


def steps(rank: int, spec: str, checksum: bool, **options: Any) -> tuple[list[dict[str, Tensor]], int]:
    model = wrap()
    handle = gradwire.attach(model, spec, checksum=checksum, **options)
    means = [reduced(model, gradients(SHAPES, rank, step)) for step in range(3)]
    return means, handle.stats()["sent_bytes"]


def with_and_without(rank: int, spec: str, options: dict[str, Any]) -> tuple[bool, int]:
    (plain, few), (checked, more) = (steps(rank, spec, on, **options) for on in (False, True))
    same = all(torch.equal(a[n], b[n]) for a, b in zip(plain, checked, strict=True) for n in a)
    return same, more - few


@pytest.mark.parametrize(
    ("workers", "spec", "options"),
    [
        (3, "blockint(bits=8)", {}),
        (2, "powersgd(rank=2)", {"mode": "after_backward"}),
        (3, "threshold(value=0.5)", {}),
        (3, "gtopk", {}),
        (4, "efsignsgd", {"strategy": "hierarchical(per_node=2)"}),
    ],
)
def test_training_is_the_same_and_sends_some_more_bytes(
    pool: Pool, workers: int, spec: str, options: dict[str, Any]
) -> None:
    for same, more in pool.run(workers, with_and_without, spec, options, timeout=TIMEOUT):
        assert same
        assert 0 < more < 8000  # three steps of eight tensors: 16 bytes a row and peer


def flip(answer: Any) -> Any:
    data = answer.data.clone()
    data.view(-1)[0] ^= 1
    return replace(answer, data=data)


def trained(rank: int, train: Any) -> str:
    """What ends the training where rank 1 hears a changed bit in the third step."""
    exchange, at = ProcessGroupDriver._exchange, [0]

    def heard(self: ProcessGroupDriver, batch: Any) -> list[Any]:
        answers = exchange(self, batch)
        if (rank, at[0]) == (1, 2):
            first = next((i for i, a in enumerate(answers) if isinstance(a, Payload) and a.data.numel()), None)
            if first is not None:
                answers[first] = flip(answers[first])
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessGroupDriver, "_exchange", heard)
        try:
            train(at)
        except gradwire.CorruptPayload as problem:
            live_on([0])
            return str(problem)
        except gradwire.ExchangeFailed as problem:
            ended(rank)
            return str(problem)
    return "nothing happened"


def under_ddp(rank: int, checksum: bool) -> str:
    model = wrap()
    gradwire.attach(model, "qsgd", tensors="all", checksum=checksum)

    def train(at: list[int]) -> None:
        for at[0] in range(4):
            reduced(model, gradients(SHAPES, rank, at[0]))

    return trained(rank, train)


def sharded(rank: int) -> str:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    fully_shard(model)
    gradwire.attach(model, "blockint(bits=8)", memory="none", checksum=True)

    def train(at: list[int]) -> None:
        for at[0] in range(4):
            model(torch.ones(2, 64)).sum().backward()

    return trained(rank, train)


def found(first: str, second: str, codec: str) -> bool:
    sentence = f"{codec}: what worker 0 sent cannot be read: its bytes are not those of its checksum. Bytes were"
    told = f"rank 0 of 2: rank 1 has stopped (CorruptPayload: {codec}"
    return second.startswith(sentence) and first.startswith(told)


def test_a_changed_bit_ends_all_ranks_with_who_sent_it(pool: Pool) -> None:
    assert found(*pool.run(2, under_ddp, True, timeout=TIMEOUT), "qsgd")
    assert found(*pool.run(2, sharded, timeout=TIMEOUT), "blockint(bits=8)")


def test_without_checksums_a_changed_value_passes(pool: Pool) -> None:
    assert pool.run(2, under_ddp, False, timeout=TIMEOUT) == ["nothing happened"] * 2


def differing(rank: int) -> str:
    try:
        gradwire.attach(wrap(), "topk", checksum=rank == 0)
    except gradwire.Incompatible as problem:
        return str(problem)
    return "nothing happened"


def test_ranks_must_agree_on_checksums(pool: Pool) -> None:
    for told in pool.run(2, differing, timeout=TIMEOUT):
        assert "nmse_every 0, checksums, mode overlap; rank 1 has" in told
