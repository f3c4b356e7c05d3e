"""The choice of a strategy from measured latency and bandwidth: by hand, virtually, and on a shaped network."""

from __future__ import annotations

import pytest
import torch

import gradwire
from gradwire import checkpoint
from gradwire.collectives.choose import choose
from gradwire.collectives.link import FIRST_ROW, Link, measuring
from gradwire.conformance import lockstep
from gradwire.core.codec import codecs
from gradwire.core.exchange import Max
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.laboratory.bench.launch import launch
from gradwire.laboratory.hosts import Network
from gradwire.laboratory.hosts.namespace import missing

SIGN = codecs.build("signsgd")


def chosen(numel, workers, link):
    carrier = choose(SIGN, None, numel, workers, link)
    return carrier and carrier.name


@pytest.mark.parametrize(
    "link, expected",
    [
        (None, "scatter_reduce_gather"),  # 3 workers' payloads of 128 kB: half of the 384 kB is saved
        (Link(1e-3, 1e9), "scatter_reduce_gather"),  # a message costs as much as 125 kB
        (Link(2e-3, 1e9), "all_gather"),  # 250 kB
        (Link(2e-3, 1e8), "scatter_reduce_gather"),
    ],
)
def test_scatter_reduce_gather_where_it_saves_more_than_a_message_costs(link, expected):
    assert chosen(1 << 20, 4, link) == expected
    assert chosen(1 << 20, 2, link) == "all_gather"  # saves nothing at two workers


def test_all_workers_return_the_same_link():
    links = lockstep.run([measuring(3, torch.device("cpu")) for _ in range(3)])
    assert links[0] == links[1] == links[2]
    assert links[0].latency_seconds > 0
    assert links[0].bits_per_second > 0


def answered(program, seconds):
    """What a program returns whose exchanges take no time, and whose slowest worker needs what is given here."""
    given, request = iter(seconds), next(program)
    while True:
        answer = torch.tensor([[next(given)]]) if isinstance(request, Max) else None
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value


def test_the_best_of_a_few_tries_counts():
    link = answered(measuring(3, torch.device("cpu")), [1e-4, 1.0, 0.5, 2.0])  # small exchanges, then three large ones
    assert link.latency_seconds == pytest.approx(1e-4)
    assert link.bits_per_second == pytest.approx(8 * 2 * FIRST_ROW / (0.5 - 1e-4))


def test_an_engine_goes_by_what_it_measured_and_a_resumed_one_too():
    layout = Layout.of([("w", (1024, 1024))])
    engine = Engine("signsgd", strategy="measured", workers=4)
    assert engine.measured
    assert engine.strategy_for(layout).name == "scatter_reduce_gather"
    engine.link = Link(1.0, 1e9)
    assert engine.strategy_for(layout).name == "all_gather"
    resumed = Engine("signsgd", strategy="measured", workers=4)
    checkpoint.load(resumed, checkpoint.save(engine))
    assert resumed.link == engine.link
    plain = Engine("signsgd", workers=4)
    checkpoint.load(plain, checkpoint.save(engine))
    assert (plain.measured, plain.link) == (False, None)


def attach_measured(rank):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
    handle = gradwire.attach(model, "signsgd", strategy="measured")
    before = handle.stats()
    model(torch.ones(1, 512)).sum().backward()
    return before, handle.stats()


@pytest.mark.dist
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_on_a_shaped_network_the_rate_is_found():
    with Network(3, "100mbit") as network:
        found = launch(attach_measured, 3, timeout=100, hosts=network.hosts)
    links = [before["link"] for before, _ in found]
    assert links[0] == links[1] == links[2]
    assert 20e6 < links[0]["bits_per_second"] < 110e6  # beside other tests, too; without the shaping it is gigabits
    assert links[0]["latency_seconds"] > 0
    assert all(before["sent_bytes"] == 0 < after["sent_bytes"] for before, after in found)  # probes are not counted
