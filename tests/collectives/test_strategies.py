"""Strategies against the plain mean, on virtual workers, before they see a socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import gradwire
from gradwire.collectives import AllGather, ScatterReduceGather, local
from gradwire.collectives.choose import MESSAGE_BYTES, choose, possible
from gradwire.collectives.meter import Meter
from gradwire.conformance import lockstep
from gradwire.core.codec import Combine, Traits
from gradwire.core.exchange import Gather, Max, Payload, Route, Scatter, Sum, together


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def nmse(out, tensors):
    exact = torch.stack(tensors).mean(0)
    return float((out - exact).square().sum() / exact.square().sum())


@pytest.mark.parametrize("strategy", ["all_reduce", "all_gather", "scatter_reduce_gather"])
@pytest.mark.parametrize("numel", [1, 5, 31, 1000, 1001])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_without_loss_every_strategy_gives_the_mean(strategy, numel, workers):
    grads = [normal(numel, seed=w) for w in range(workers)]
    out = gradwire.VirtualCluster(workers, "none", strategy=strategy).reduce({"w": grads})["w"]
    torch.testing.assert_close(out, torch.stack(grads).mean(0))


def test_scatter_reduce_gather_sums_casts_in_float32():
    """Fifteen small shares, each half a step of the running sum, that a sum in bfloat16 rounds away one by one."""
    grads = {"w": [torch.tensor([256.0])] + [torch.tensor([1.0])] * 15}
    exact = (256 + 15) / 16
    assert float(gradwire.VirtualCluster(16, "bf16", strategy="all_reduce").reduce(grads)["w"]) == 16
    summed = gradwire.VirtualCluster(16, "bf16", strategy="scatter_reduce_gather").reduce(grads)["w"]
    assert abs(float(summed) - exact) <= exact * 2**-8


def test_two_legs_may_have_different_widths():
    grads = {"w": [normal(4096, seed=w) for w in range(4)]}
    up, both = "qsgd(levels=7)", "scatter_reduce_gather(down='qsgd(levels=127)')"
    narrow = gradwire.VirtualCluster(4, up, strategy="scatter_reduce_gather")
    wide = gradwire.VirtualCluster(4, up, strategy=both)
    fine, coarse = nmse(wide.reduce(grads)["w"], grads["w"]), nmse(narrow.reduce(grads)["w"], grads["w"])
    assert fine < 0.6 * coarse
    assert wide.payload_bytes == narrow.payload_bytes
    assert wide.sent_bytes == narrow.sent_bytes // 2 + narrow.sent_bytes // 2 * (1024 + 8) // (512 + 8)


def test_the_owners_memory_makes_up_for_the_second_loss():
    grads = {"w": [normal(4096, seed=w) for w in range(8)]}
    totals = {}
    for remember in (True, False):
        strategy = ScatterReduceGather(owner_memory=remember)
        c = gradwire.VirtualCluster(8, "efsignsgd(block=64)", strategy=strategy)
        total = sum(c.reduce(grads)["w"] for _ in range(50)) / 50
        totals[remember] = nmse(total, grads["w"])
    assert totals[True] < 0.2 * totals[False]


def test_an_owner_keeps_nothing_of_what_lies_behind_the_end():
    """Signs have no zero, so padding would seem to owe something, and count in the scale of its block."""
    cluster = gradwire.VirtualCluster(3, "efsignsgd(block=64)", strategy="scatter_reduce_gather")
    for step in range(3):
        cluster.reduce({"w": [normal(1001, seed=3 * step + worker) for worker in range(3)]})
    (slot,) = cluster.engine.store._slots["owner_error"].values()
    lengths = [layout.numel for layout in slot.layouts]
    assert sum(lengths) == 1001 < 3 * slot.width
    for kept, length in zip(slot.current, lengths, strict=True):
        assert bool(kept[:length].any())
        assert not kept[length:].any()


def test_auto_weighs_bytes_saved_against_one_more_message():
    sign, n = gradwire.codec("efsignsgd"), 8
    assert choose(sign, None, 10_000, n) == AllGather()
    assert choose(sign, None, 10_000_000, n) == ScatterReduceGather()
    assert choose(sign, None, 10_000_000, 2) == AllGather()
    assert choose(gradwire.codec("fp16"), None, 10_000_000, n).name == "all_reduce"
    assert choose(gradwire.codec("powersgd"), None, 10_000_000, n) is None
    edge = next(k for k in range(1000, 10**7, 1000) if choose(sign, None, k, n) == ScatterReduceGather())
    assert sign.payload_bytes(edge) * 7 * 0.75 == pytest.approx(MESSAGE_BYTES, rel=0.02)


@pytest.mark.parametrize(
    "codec, strategy, message",
    [
        (
            "topk",
            "all_reduce",
            "topk cannot run under all_reduce: its payloads cannot be added up. "
            "Use strategy='auto' or one of: all_gather, scatter_reduce_gather.",
        ),
        (
            "randomk",
            "scatter_reduce_gather",
            "randomk cannot run under scatter_reduce_gather: a shard of its gradient cannot be encoded by itself. "
            "Use strategy='auto' or one of: all_gather, all_reduce.",
        ),
        (
            "powersgd",
            "all_gather",
            "powersgd cannot run under all_gather: it runs its own rounds of exchanges. Leave the strategy at 'auto'.",
        ),
        (
            "qsgd",
            "scatter_reduce_gather(down='powersgd')",
            "scatter_reduce_gather: powersgd cannot serve as `down`: "
            "a shard of its gradient cannot be encoded by itself",
        ),
    ],
)
def test_refusals_are_whole_sentences(codec, strategy, message):
    with pytest.raises(gradwire.Incompatible) as caught:
        gradwire.VirtualCluster(4, codec, strategy=strategy)
    assert str(caught.value) == message


def test_possible_strategies_are_those_that_are_not_refused():
    assert possible(gradwire.codec("fp16")) == ["all_gather", "all_reduce", "scatter_reduce_gather"]
    assert possible(gradwire.codec("powersgd")) == []


# -------------------------------------------------------------------- the virtual driver itself


def test_exchanges_do_what_they_say():
    """Two workers: as the rows of one program, and as two programs of one row."""

    def program(*ranks):
        total = yield Sum(torch.tensor([[1.0 + r] for r in ranks]))
        top, rows = yield (
            Max(torch.tensor([[r, -r] for r in ranks])),
            Gather(Payload(torch.tensor([[r] for r in ranks]))),
        )
        mine = yield Scatter(Payload(torch.tensor([[10 * r + to] for r in ranks for to in range(2)])), 2)
        return total.tolist(), top.tolist(), rows.data.tolist(), mine.data.tolist()

    alike = ([[3.0]], [[1, 0]], [[0], [1]])
    assert local.run(program(0, 1), 2) == (*alike, [[0], [10], [1], [11]])
    assert lockstep.run([program(0), program(1)]) == [(*alike, [[0], [10]]), (*alike, [[1], [11]])]


def test_a_scatter_needs_a_row_for_everybody():
    def program():
        yield Scatter(Payload(torch.zeros(3, 1)), 2)

    with pytest.raises(gradwire.ExchangeFailed, match=r"^2 workers scatter 4 rows, got 3$"):
        local.run(program(), 2)


def test_workers_that_disagree_are_told():
    """By the driver of the tests, so that a codec whose workers would wait for each other cannot pass."""

    def one():
        yield Sum(torch.zeros(1, 1))

    def two():
        yield Sum(torch.zeros(1, 1))
        yield Sum(torch.zeros(1, 1))

    def other():
        yield Max(torch.zeros(1, 1))

    def pair():
        yield (Sum(torch.zeros(1, 1)), Sum(torch.zeros(1, 1)))

    with pytest.raises(gradwire.ExchangeFailed, match=r"^1 of 2 workers ended while the others still exchange$"):
        lockstep.run([one(), two()])
    with pytest.raises(gradwire.ExchangeFailed, match=r"different exchanges in the same round: Sum, Max$"):
        lockstep.run([one(), other()])
    with pytest.raises(gradwire.ExchangeFailed, match=r"different numbers of exchanges in the same round$"):
        lockstep.run([one(), pair()])


def test_extras_travel_with_the_first_exchange():
    def main():
        a = yield Sum(torch.tensor([1.0]))
        b = yield Sum(a)
        return float(b)

    def nothing():
        return 7
        yield

    def extra():
        return (Sum(torch.tensor([5.0])),)

    gen = together(main(), extra())
    assert len(next(gen)) == 2
    assert local.run(together(main(), extra()), 1) == (1.0, (torch.tensor([5.0]),))
    assert local.run(together(nothing(), extra()), 1) == (7, (torch.tensor([5.0]),))
    assert local.run(together(main(), ()), 1) == (1.0, ())


# -------------------------------------------------------------------- payloads whose size depends on the data


@dataclass(frozen=True)
class Nonzero(gradwire.Codec):
    """Sends the non-zero elements: as many bytes as there are, none if there are none."""

    name: ClassVar[str] = "nonzero"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "a test of payloads of variable size"

    @property
    def traits(self):
        return Traits(combine=Combine.GATHER, fixed_size=False, delta=1.0)

    def encode(self, x, rng):
        rows = [torch.cat([i.int().view(torch.uint8), r[i].view(torch.uint8)]) for r in x for i in [r.nonzero()[:, 0]]]
        lengths = torch.tensor([len(r) for r in rows])
        width = int(lengths.max())
        return Payload(torch.stack([torch.nn.functional.pad(r, (0, width - len(r)), value=255) for r in rows]), lengths)

    def decode(self, payload, numel, rng):
        out = torch.zeros(payload.rows, numel)
        for row, data, length in zip(out, payload.data, payload.lengths.tolist(), strict=True):
            index, value = data[:length].clone().view(2, -1)
            row[index.clone().view(torch.int32).long()] = value.clone().view(torch.float32)
        return out

    def payload_bytes(self, numel):
        return 8 * numel + 8


@pytest.mark.parametrize("strategy", ["all_gather", "scatter_reduce_gather"])
def test_payloads_of_variable_size_may_be_empty(strategy):
    grads = [torch.zeros(50), torch.zeros(50), torch.zeros(50)]
    grads[1][[3, 40]] = torch.tensor([6.0, -3.0])
    c = gradwire.VirtualCluster(3, Nonzero(), strategy=strategy)
    assert c.reduce({"w": grads})["w"].nonzero()[:, 0].tolist() == [3, 40]
    assert c.reduce({"w": [torch.zeros(50)] * 3})["w"].tolist() == [0] * 50
    assert c.sent_bytes == {"all_gather": 2 * 8, "scatter_reduce_gather": 2 * 8 + 2 * 8}[strategy]


def test_a_row_goes_round_the_ring():
    def program(*ranks):
        rows = Payload(torch.tensor([[r] for r in ranks], dtype=torch.uint8))
        for _ in range(4):
            rows = yield Route(rows, tuple((r + 1) % 4 for r in ranks), tuple((r - 1) % 4 for r in ranks))
        return rows.data.flatten().tolist()

    meter, meters = Meter(), [Meter() for _ in range(4)]
    assert local.run(program(0, 1, 2, 3), 4, meter) == [0, 1, 2, 3]
    assert lockstep.run([program(r) for r in range(4)], meters) == [[0], [1], [2], [3]]
    assert [m.sent_bytes for m in [meter, *meters]] == [4] * 5


def test_a_row_that_nobody_expects_is_an_error_that_names_both():
    def program(to, source):
        return (yield Route(Payload(torch.zeros(2, 1, dtype=torch.uint8)), to, source))

    with pytest.raises(gradwire.ExchangeFailed, match=r"^worker 0 sends to worker 1, which expects a row from None$"):
        local.run(program((1, None), (None, None)), 2)
    with pytest.raises(gradwire.ExchangeFailed, match=r"^worker 1 expects a row from worker 0, which sends to None$"):
        local.run(program((None, None), (None, 0)), 2)
