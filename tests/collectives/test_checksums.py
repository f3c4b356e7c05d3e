"""Checksums beside exchanges: the same results, and what was changed on the way is seen, with its sender."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import gradwire
from gradwire.collectives import local
from gradwire.collectives.checksums import checksummed
from gradwire.core.codec import codecs
from gradwire.core.exchange import Gather, Max, Payload, Reduction, Route, Scatter, Sum, Team, as_batch, within
from gradwire.core.layout import Layout
from gradwire.engine import Engine

WORKERS = 3
LAYOUT = Layout.of([("w", (40, 30)), ("b", (30,))])


def engine_of(spec):
    engine = Engine(spec, workers=WORKERS, ranks=range(WORKERS))
    engine.begin(LAYOUT)
    return engine


def gradient():
    return torch.randn(WORKERS, LAYOUT.numel, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("spec", codecs.names())
def test_results_are_the_same(spec):
    wanted = local.run(engine_of(spec).reduce(gradient(), LAYOUT), WORKERS).out
    found = local.run(checksummed(engine_of(spec).reduce(gradient(), LAYOUT), spec, WORKERS), WORKERS).out
    assert torch.equal(found, wanted)


def bytes_of(*numbers):
    return torch.tensor(numbers, dtype=torch.uint8)[:, None].expand(-1, 50).contiguous()


def gathers():
    return (yield Gather(Payload(bytes_of(1, 2, 3))))


def gathers_rows_of_changing_size():
    return (yield Gather(Payload(bytes_of(1, 2, 3), torch.tensor([50, 20, 30])), most=50))


def scatters():
    return (yield Scatter(Payload(bytes_of(*range(9))), WORKERS))


def routes():
    return (yield Route(Payload(bytes_of(1, 2, 3)), to=(1, 2, 0), source=(2, 0, 1)))


def changing(program, change, seen):
    """`program`, whose answers are changed: that of its first exchange."""
    answer = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value
        seen.append([type(exchange) for exchange in as_batch(request)])
        answers = list((yield request)) if isinstance(request, tuple) else [(yield request)]
        if len(seen) == 1:
            answers[0] = change(answers[0])
        answer = tuple(answers) if isinstance(request, tuple) else answers[0]


def flipped(row):
    def change(payload):
        data = payload.data.clone()
        data[row, 17] ^= 64
        return replace(payload, data=data)

    return change


@pytest.mark.parametrize(
    ("program", "row", "sender"),
    [(gathers, 2, 2), (gathers_rows_of_changing_size, 1, 1), (scatters, 4, 1), (scatters, 6, 0), (routes, 1, 0)],
)
def test_a_changed_bit_is_seen_and_its_sender_named(program, row, sender):
    seen = []
    with pytest.raises(gradwire.CorruptPayload) as caught:
        local.run(changing(checksummed(program(), "topk", WORKERS), flipped(row), seen), WORKERS)
    assert str(caught.value) == (
        f"topk: what worker {sender} sent cannot be read: its bytes are not those of its checksum. Bytes were changed "
        "on the way, or the ranks run different versions; end all ranks, and start them again from the last checkpoint."
    )
    assert local.run(checksummed(program(), "topk", WORKERS), WORKERS).rows  # unchanged, it arrives


def sums_twice():
    first = yield Sum(torch.arange(6.0).view(3, 2))
    return first + (yield Max(torch.arange(6.0).view(3, 2)))


def one_of_three(answers):
    """What a driver of worker 1 would see, whose sum differs: its own row of sums is another."""
    data = answers.data.clone()
    data[1, 0] += 1
    return Payload(data)


def test_a_sum_that_differs_is_seen_beside_the_next_exchange_or_after_the_last():
    for at in (1, 2):
        program, rounds = checksummed(sums_twice(), "powersgd", WORKERS), 0
        answer, told = None, ""
        while not told:
            try:
                request = program.send(answer)
            except gradwire.CorruptPayload as problem:
                told = str(problem)
                break
            answers = [local.carry_out(exchange) for exchange in as_batch(request)]
            if rounds == at:
                answers[-1] = one_of_three(answers[-1])
            answer = tuple(answers) if isinstance(request, tuple) else answers[0]
            rounds += 1
        assert rounds == at + 1
        assert told.startswith("powersgd: worker 1 got another sum of all workers' tensors than the others. Bytes were")


def test_an_empty_sum_is_not_compared():
    def nothing():
        return (yield Sum(torch.zeros((3, 0))))

    program = checksummed(nothing(), "x", WORKERS)
    assert [type(e) for e in as_batch(next(program))] == [Sum]
    with pytest.raises(StopIteration):
        program.send((torch.zeros((1, 0)),))


def test_checksums_stay_in_the_team_and_are_no_payload():
    team = Team(range(3, 6))
    request = next(checksummed(within(sums_and_scatters(), team), "x", 9))
    payload, beside = request[:2], request[2:]
    assert [type(e) for e in request] == [Sum, Scatter, Scatter]
    assert all(e.team == team for e in request)
    assert beside[0].payload_bytes == 0
    assert beside[0].sent_bytes(3, 0) == 2 * 16
    assert isinstance(payload[0], Reduction)


def sums_and_scatters():
    return (yield Sum(torch.ones(1, 4)), Scatter(Payload(bytes_of(1, 2, 3)), 3))
