"""The largest positive and negative elements on a GPU, or in Triton's interpreter, against plain torch."""

from __future__ import annotations

import math

import pytest
import torch
from exact import normal
from hypothesis import given, settings
from on_gpu import (
    ANYWHERE,
    check,
    check_anywhere,
    check_momentum,
    check_steps,
    examples,
    here,
    mostly,
    needs_triton,
    on_gpu,
)

import gradwire
from gradwire.core.codec import Codec
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window

pytestmark = needs_triton
SPANS = ((3, 700), (800, 801), (900, 900), (1000, 2803))
SPECS = ("adaptivethreshold", "adaptivethreshold(ratio=0.3)", "adaptivethreshold(ratio=1)")


@pytest.mark.parametrize("shards", mostly(3, 1))
@pytest.mark.parametrize("spec", mostly(*SPECS))
def test_the_fast_form_is_the_simple_one(spec, shards):
    codec = gradwire.codec(spec)
    check(codec, normal(2, 2810), SPANS, shards, (0.3, 0.7, False), 0.46)
    check(codec, normal(2, 2810, 3), SPANS, shards, None)


@pytest.mark.parametrize("filled", mostly("nan", "one side", "few", "zeros", "equal", "infinite", always=2))
def test_rows_of_any_kind(filled):
    """Sides that have nothing, or less than k; rows that are not finite."""
    x = torch.zeros(2, 1500)
    if filled == "equal":
        x += 0.7
    elif filled == "few":
        x[:, ::300] = normal(2, 5)
    elif filled != "zeros":
        x += normal(2, 1500)
        if filled == "one side":
            x.abs_()
        else:
            x[1, 77] = math.nan if filled == "nan" else -math.inf
    for shards in (1, 3):
        check(gradwire.codec("adaptivethreshold(ratio=0.05)"), x, ((0, 1500),), shards, (0.3, 1.0, True))


@settings(max_examples=examples(3, 200), deadline=None)
@given(**ANYWHERE)
def test_any_shape(lengths, shards, seed):
    check_anywhere(gradwire.codec("adaptivethreshold(ratio=0.2)"), lengths, shards, seed, (0.3, 1.0, False))


@pytest.mark.parametrize("deep", mostly(3, 12))
def test_sums_are_folded_as_blocks_are(deep, monkeypatch):
    from gradwire.kernels.sides import gpu

    monkeypatch.setattr(gpu, "DEEP", deep)
    monkeypatch.setattr(gpu, "LEVELS", 2)
    check(gradwire.codec("adaptivethreshold(ratio=0.7)"), normal(2, 1900), ((0, 900), (903, 1900)), 1, None)


@pytest.mark.parametrize("strategy", mostly("all_gather", "scatter_reduce_gather"))
def test_whole_steps_are_those_of_plain_torch(strategy):
    check_steps("adaptivethreshold(ratio=0.05)", strategy)


def test_nothing_falls_back(monkeypatch):
    codec, window, rng = gradwire.codec("adaptivethreshold"), Window(here(normal(1, 900)), ((0, 900),)), Random()
    for name in ("encode_from", "decode_to", "combine_to", "combine"):
        monkeypatch.setattr(Codec, name, None)  # out of reach
    with on_gpu():
        payload = codec.encode_from(window, Feedback(here(torch.empty(1, 900)), None), 1, 900, rng)
        codec.decode_to(payload, window, 900, rng)
        codec.combine_to(payload, window, rng)


def test_the_momentum_of_what_is_sent_becomes_zero():
    check_momentum("adaptivethreshold(ratio=0.1)")
