"""What the sliders' page answers, without the page: the numbers of `advise`, and a map that agrees with it."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from gradwire import planner
from gradwire.laboratory.explore import answer as answers
from gradwire.laboratory.explore.answer import Question, answer, choices
from gradwire.planner.ranking import LABELS

SMALL = Question(model="resnet18-cifar10", gpus_per_node=1, batch=16)


def test_doctests():
    assert doctest.testmod(answers).failed == 0


def test_it_says_what_advise_says():
    setup = {"model": SMALL.model, "batch": 16, "gpus": 64, "bandwidth": 10e9, "gpus_per_node": 1}
    advice = planner.advise(**setup)
    found = answer(SMALL)
    assert (found.kind, found.sentence, found.line) == (
        advice.verdict.kind,
        advice.verdict.sentence,
        advice.verdict.line,
    )
    known = [r for r in (*advice.baselines, *advice.ranking) if r.step_seconds is not None]
    assert set(found.steps.groups) == {LABELS.get(r.codec, r.codec) for r in known}
    totals = [sum(p.values[i] for p in found.steps.parts) for i in range(len(known))]
    assert totals == pytest.approx(sorted(r.step_seconds for r in known))
    assert advice.certainty.sentence in found.notes


def test_every_slider_changes_the_answer():
    def told(**changes):
        return answer(replace(SMALL, **changes)).steps

    first = told()
    for field, value in (
        ("bandwidth", 1e9),
        ("gpus", 256),
        ("batch", 256),
        ("encode_time", 10.0),
        ("model", "resnet9"),
    ):
        assert told(**{field: value}).ends != first.ends, field
    assert len(told(max_loss=5.0).groups) > len(first.groups)
    assert answer(replace(SMALL, max_loss=0.0)).kind == "not worth it"


def test_slower_encoding_makes_codecs_slower_and_leaves_ddp_as_it_was():
    def times(factor):
        steps = answer(replace(SMALL, bandwidth=1e9, encode_time=factor)).steps
        return dict(zip(steps.groups, zip(*(p.values for p in steps.parts), strict=True), strict=True))

    usual, slow = times(1.0), times(10.0)
    assert slow["FP32 DDP"] == usual["FP32 DDP"]  # FP16 is encoded, too
    assert sum(slow["eightbit"]) > sum(usual["eightbit"])


@pytest.mark.parametrize("bandwidth", [1e9, 10e9, 400e9])
def test_the_map_agrees_with_the_recommendation(bandwidth):
    """At each place where the reader can stand on it."""
    question = replace(SMALL, bandwidth=bandwidth)
    found, drawn = answer(question), choices(question)
    row, column = drawn.here
    assert (drawn.ys[row], drawn.xs[column]) == (64, bandwidth)
    name = drawn.names[row][column]
    assert (name in drawn.plain) == (found.kind != "worth it")
    assert f"{name} takes" in found.sentence or name in drawn.plain
    assert all(value >= 1 for line in drawn.values for value in line)


def test_the_mark_is_left_out_where_the_reader_is_off_the_map():
    assert choices(replace(SMALL, bandwidth=0.2e9)).here is None
    assert choices(replace(SMALL, gpus=1024)).here is None


def test_numbers_of_gpus_fill_nodes():
    assert list(choices(replace(SMALL, gpus_per_node=8)).ys) == [8, 16, 32, 64, 128, 256, 512]
    assert answers.fitting(2, 8) == 8
    assert answer(replace(SMALL, gpus=answers.fitting(4, 8), gpus_per_node=8)).steps is not None


def test_what_cannot_be_asked_is_said_in_words():
    found = answer(replace(SMALL, gpus=4, gpus_per_node=8))
    assert found.steps is None
    assert "4" in found.sentence
    assert choices(replace(SMALL, model="no-such-model")) is None


def test_the_command_asks_the_same():
    assert Question().command == (
        "gradwire advise --model resnet50 --batch 64 --gpus 64 --gpus-per-node 8 --bandwidth 10gbit"
    )
    assert replace(SMALL, max_loss=1.0, hardware="v100").command.endswith(" --max-loss 1 --hardware v100")
    assert replace(SMALL, encode_time=2.0).command is None


def test_models_are_those_with_times():
    assert "resnet50" in answers.models("h200")
    assert "vgg16-cifar10" not in answers.models("h200")
