"""What comes from a peer is checked before it is used: a short form of ``make fuzz``, and what a user reads."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

import gradwire
from fuzz import Case, attack, changed
from gradwire.collectives.local import carry_out
from gradwire.core.codec import codecs
from gradwire.core.exchange import Gather, Payload, Scatter, as_batch
from gradwire.core.layout import Layout
from gradwire.core.received import check_lengths, guarded
from gradwire.engine import Engine
from gradwire.kernels import bitpack, indices, rows, runs, signs, tagged, trits

LISTED = [spec for name in codecs.names() for spec in (name, *codecs.cls(name).variants)]


@pytest.mark.parametrize("spec", LISTED)
def test_a_corrupt_answer_gives_a_result_or_a_sentence_of_ours(spec):
    ended = [attack(Case(spec, seed)) for seed in range(3)]
    assert [one for one in ended if not one.well] == []


def test_the_harness_sees_what_goes_wrong(monkeypatch):
    monkeypatch.setattr("gradwire.kernels.indices.inside", lambda where, numel: where)  # indices are believed
    ended = [attack(Case("topk(ratio=0.3, index='packed')", seed)) for seed in range(30)]
    assert "raised" in {one.kind for one in ended}
    monkeypatch.undo()
    monkeypatch.setattr("fuzz.TIMES", 0.5)
    assert attack(Case("qsgd", 3)).kind == "memory"


@pytest.mark.parametrize(
    "answer",
    [
        Payload(torch.arange(64, dtype=torch.uint8).view(2, 32)),
        Payload(torch.zeros(2, 8), torch.tensor([8, 3])),
        torch.zeros(1, 5),
        torch.tensor([[1, 2]]),
    ],
    ids=["rows", "rows of zeros and other lengths", "a sum", "a maximum"],
)
def test_each_case_changes_an_answer(answer):
    for seed in range(50):
        new = changed(answer, Random(seed))
        same_lengths = not isinstance(answer, Payload) or answer.lengths is None or answer.lengths.equal(new.lengths)
        assert not same_lengths or not as_bytes(new.data).equal(as_bytes(answer.data))


def as_bytes(x):
    """NaN, which is unequal to itself, and -0, which is equal to 0, are told apart by their bytes."""
    return x.contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("spec", codecs.names())
def test_some_case_changes_each_answer_of_a_codec(spec, monkeypatch):
    """Sums of codecs that gather nothing, too."""
    seen = []
    monkeypatch.setattr("fuzz.changed", lambda answer, random: seen.append(1) or changed(answer, random))
    assert all(attack(Case(spec, seed)).well for seed in range(4))
    assert len(seen) == 4


def answered(codec, change):
    """The error of a step in which worker 1's row is changed."""
    cluster = gradwire.VirtualCluster(2, codec, strategy="all_gather", tensors="all")
    gradient = {"w": [torch.linspace(-1, 1, 100), torch.linspace(1, -1, 100)]}

    def swap(exchange):
        answer = carry_out(exchange)
        return change(answer) if isinstance(exchange, Gather) else answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire.collectives.local.carry_out", swap)
        with pytest.raises(gradwire.CorruptPayload) as caught:
            cluster.reduce(gradient)
    return str(caught.value)


def short(answer):
    return Payload(answer.data[:, :-1].contiguous())


def longer(answer):
    return replace(answer, lengths=answer.lengths + torch.tensor([0, 2**40]))


def test_an_error_names_codec_worker_reason_and_what_to_do():
    told = answered("threshold(value=0.5)", longer)
    assert "threshold: what worker 1 sent cannot be read" in told
    assert "1,099,5" in told  # the length that it announces
    assert "start them again from the last checkpoint" in told
    assert "efsignsgd: what a worker sent" in answered("efsignsgd", short)


@pytest.mark.parametrize("spec", [name for name in codecs.names() if not codecs.build(name).traits.fixed_size])
def test_no_row_of_changing_size_is_longer_than_the_codec_says(spec):
    engine, layout = Engine(spec, workers=2, ranks=range(2), tensors="all"), Layout.of([("w", (25, 20))])
    engine.step = engine.codec.steady_from_step
    (exchange,) = as_batch(next(engine.reduce(torch.randn(2, layout.numel), layout)))
    assert isinstance(exchange, Gather | Scatter)
    most = exchange.most
    assert most is not None
    check_lengths([0, most], None, exchange)
    for wrong in (-1, most + 1, 2**62):
        with pytest.raises(gradwire.CorruptPayload, match="is announced"):
            check_lengths([0, wrong], None, exchange)


def test_a_length_below_zero_is_refused_where_nobody_knows_the_longest():
    exchange = Gather(Payload(torch.zeros((1, 3), dtype=torch.uint8), torch.tensor([3])))
    check_lengths([0, 2**40], None, exchange)
    with pytest.raises(gradwire.CorruptPayload, match="a row of -1 bytes is announced, and none has fewer than 0"):
        check_lengths([0, -1], None, exchange)


def test_a_program_s_own_errors_pass_unchanged():
    def broken():
        yield Gather(Payload(torch.zeros(1, 3)))
        raise ValueError("mine")

    program = guarded(broken(), "qsgd", 2)
    next(program)
    with pytest.raises(ValueError, match="mine"):
        program.send(Payload(torch.zeros(2, 3)))


ROW = torch.zeros((2, 3), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda: rows.take(ROW, 0, 1, torch.float32), "4 bytes are to be read from a row of 3"),
        (lambda: rows.take(ROW, 0, -1, torch.int8), "a count below zero"),
        (lambda: bitpack.unpack(ROW, 3, 9), "4 bytes are to be read"),
        (lambda: trits.unpack(ROW, 16), "4 bytes are to be read"),
        (lambda: signs.decode(ROW, torch.zeros(2, 1), torch.ones(2, 1), 25, 25), "4 bytes are to be read"),
        (lambda: tagged.decode(ROW, 1.0, 13), "4 bytes are to be read"),
        (lambda: tagged.decode(torch.full((1, 1), 255, dtype=torch.uint8), 1.0, 4), "17 bytes are to be read"),
        (lambda: runs.decode(ROW, torch.tensor([3, 3]), 4), "its runs hold 3 bytes, not 4"),
        (lambda: runs.decode(ROW, torch.tensor([3, -1]), 3), "ends before its runs begin"),
        (lambda: indices.decode(ROW, 10, 11, "packed"), "11 indices of a row of 10 elements"),
        (lambda: indices.decode(ROW, 1000, 3, "packed"), "4 bytes are to be read"),
        (lambda: indices.decode(ROW + 255, 10, 6, "packed"), "an index lies outside of a row of 10 elements"),
    ],
)
@pytest.mark.parametrize("plain", [False, True], ids=["compiled", "plain torch"])
def test_readers_of_rows_stay_inside(read, reason, plain):
    from gradwire.kernels.backend import plain_torch

    with plain_torch(plain), pytest.raises(gradwire.CorruptPayload, match=reason):
        read()
