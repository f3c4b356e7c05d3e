"""A bisected threshold on a GPU, or in Triton's interpreter, against plain torch."""

from __future__ import annotations

import math

import pytest
import torch
from exact import awkward, normal
from hypothesis import given, settings
from on_gpu import (
    ANYWHERE,
    check,
    check_anywhere,
    check_momentum,
    check_steps,
    examples,
    mostly,
    needs_triton,
)

import gradwire
from gradwire.core.codec import Codec

pytestmark = needs_triton
SPANS = ((3, 700), (800, 801), (900, 900), (1000, 2803))
PARTS = ((3, 403), (450, 850))
SPECS = ("mstopk", "mstopk(ratio=0.3, rounds=3, value_bits=16)", "mstopk(ratio=0.9, rounds=1)", "mstopk(ratio=1)")


@pytest.mark.parametrize("shards", mostly(3, 1))
@pytest.mark.parametrize("spec", mostly(*SPECS, always=2))
def test_the_fast_form_is_the_simple_one(spec, shards):
    """A band of few elements, of many, and of all; a run that begins anywhere."""
    codec = gradwire.codec(spec)
    check(codec, normal(2, 2810), SPANS, shards, (0.3, 0.7, False), 0.46)
    check(codec, awkward(2, 2810), SPANS, shards, None)


@pytest.mark.parametrize("rounds", mostly(30, 1))
@pytest.mark.parametrize("filled", ["zeros", "equal", "few", "nan", "infinite"])
def test_rows_of_any_kind(filled, rounds):
    """All elements in the band, or none; fewer than k that are not zero; rows that are not finite."""
    x = torch.zeros(2, 1500)
    if filled == "equal":
        x += 0.7
    elif filled == "few":
        x[:, ::300] = normal(2, 5)
    elif filled != "zeros":
        x += normal(2, 1500)
        x[1, 77] = math.nan if filled == "nan" else -math.inf
    check(gradwire.codec(f"mstopk(ratio=0.05, rounds={rounds})"), x, ((0, 1500),), 1, (0.3, 1.0, True))


@settings(max_examples=examples(3, 200), deadline=None)
@given(**ANYWHERE)
def test_any_shape(lengths, shards, seed):
    check_anywhere(gradwire.codec("mstopk(ratio=0.2, rounds=4)"), lengths, shards, seed, (0.3, 1.0, False))


@pytest.mark.parametrize("strategy", mostly("all_gather", "scatter_reduce_gather"))
def test_whole_steps_are_those_of_plain_torch(strategy):
    check_steps("mstopk(ratio=0.05)", strategy)


def test_nothing_falls_back(monkeypatch):
    simple = Codec.encode_from
    calls = []
    monkeypatch.setattr(Codec, "encode_from", lambda *args: calls.append(1) or simple(*args))
    check_steps("mstopk(ratio=0.05, rounds=4)", "all_gather")
    assert len(calls) == 2  # of plain torch: one a step


@pytest.mark.parametrize("bits", [16, 32])
def test_the_momentum_of_what_is_sent_becomes_zero(bits):
    check_momentum(f"mstopk(ratio=0.1, rounds=4, value_bits={bits})")
