"""Moments: the host's clock on a CPU, events on a GPU (here a stand-in), and the exchange between them."""

from __future__ import annotations

import pytest
import torch

from gradwire.core import moments
from gradwire.core.moments import Exchanged, moment, reached, seconds_between, wait_for
from stream_events import StreamEvent

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_on_a_cpu_a_moment_is_past_at_once():
    first, second = moment(CPU), moment(CPU)
    assert reached(first)
    wait_for(second)
    assert seconds_between(first, second) >= 0


def test_on_a_gpu_nobody_waits_until_asked_to(monkeypatch):
    StreamEvent.reset()
    monkeypatch.setattr(torch.cuda, "Event", StreamEvent)
    first = moment(GPU)
    StreamEvent.launched = 20.0
    second = moment(GPU)
    assert reached(first)
    assert not reached(second)
    assert StreamEvent.waits == 0
    wait_for(second)
    assert StreamEvent.waits == 1
    assert seconds_between(first, second) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("computed", "done", "hidden", "exposed"),
    [(3.0, 5.0, 2.0, 2.0), (3.0, 2.5, 1.5, 0.0), (1.0, 4.0, 0.0, 3.0)],
    ids=["half hidden", "hidden", "after the backward pass"],
)
def test_an_exchange_is_hidden_until_the_backward_pass_ends(computed, done, hidden, exposed):
    found = Exchanged(1.0, computed, done)
    assert found.reached
    assert (found.hidden, found.exposed) == (hidden, exposed)


def test_the_host_clock_is_the_one_of_the_module(monkeypatch):
    monkeypatch.setattr(moments, "perf_counter", lambda: 7.0)
    assert moment(CPU) == 7.0
