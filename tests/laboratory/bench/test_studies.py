"""The studies behind the findings: plans that can be built, each once, with what their codecs need."""

from __future__ import annotations

import warnings

import pytest

from gradwire.adaptive.controller import controllers
from gradwire.core.codec import codecs
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.engine import Engine
from gradwire.laboratory.bench import studies
from gradwire.laboratory.bench.training import Plan


@pytest.mark.parametrize("name", studies.STUDIES)
def test_every_run_of_a_study_can_begin(name):
    plans = studies.plans(name, seed=3, nmse_every=10)
    assert {(p.seed, p.nmse_every) for p in plans} == {(3, 10)}
    told = [(p.task, p.codec, p.controller, p.memory, p.batch, p.learning_rate) for p in plans]
    assert len(set(told)) == len(told) > 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scaled codecs
        for plan in plans:
            Engine(plan.codec, controller=plan.controller, memory=plan.memory, workers=plan.workers)
            what = plan.what("some data")
            assert what["codec"] == (None if plan.codec is None else codecs.build(plan.codec).spec)
    assert len({str(p.what("some data")) for p in plans}) == len(plans)


@pytest.mark.parametrize("name", studies.STUDIES)
def test_every_study_has_what_it_compares_with(name):
    plans = studies.plans(name)
    plain = {p.codec for p in plans if p.codec in ("none", "fp16")}
    steered = [p for p in plans if p.controller is not None]
    assert plain == {"none", "fp16"} or steered
    for plan in steered:  # its levels run alone in the same study, but for those between them
        levels = controllers.build(plan.controller).levels
        alone = {codecs.build(p.codec).spec for p in plans if p.codec is not None and p.task == plan.task}
        assert {codecs.build(levels[0]).spec, codecs.build(levels[-1]).spec} <= alone


def test_grace_has_every_codec_with_and_without_feedback_where_both_make_sense():
    plans = studies.plans("grace-resnet9")
    by_codec = {}
    for plan in plans:
        by_codec.setdefault(codecs.build(plan.codec).name, []).append(plan.memory)
    assert set(by_codec) == set(codecs.names())
    assert by_codec["topk"] == ["default", "none"]
    assert by_codec["terngrad"][0] == "default"
    assert by_codec["none"] == by_codec["fp16"] == by_codec["dgc"] == ["default"]
    assert {p.memory for p in plans} == {"default", "none", "error_feedback"}
    assert {(p.task, p.workers, p.recipe.epochs) for p in plans} == {("resnet9-cifar10", 8, 24)}


def test_votes_get_a_rate_of_their_own_and_momentum_is_applied_once():
    base = Plan(task="resnet9-cifar10", codec="none")
    assert studies.adjusted(base) is base
    vote = studies.adjusted(Plan(task="resnet9-cifar10", codec="signum"))
    assert (vote.momentum, vote.learning_rate) == (0.0, 1e-3)
    dgc = studies.adjusted(Plan(task="resnet9-cifar10", codec="dgc(ratio=0.01)"))
    assert (dgc.momentum, dgc.learning_rate, dgc.recipe.nesterov) == (0.0, None, False)
    assert studies.adjusted(Plan(task="resnet9-cifar10", codec="dgc", memory="none")).momentum is None
    assert studies.adjusted(Plan(task="bert-small-wikitext2", codec="signsgd")).learning_rate is None  # Adam
    steered = Plan(task="resnet9-cifar10", controller="accordion(low='topk',high='topk')")
    assert studies.adjusted(steered) is steered


def test_shorter_schedules_decide_more_often_but_not_each_epoch():
    short, usual = (studies.plans("accordion", epochs=epochs) for epochs in (30, 300))
    every = [controllers.build(p.controller).every for p in (*short, *usual) if (p.controller or "").startswith("acc")]
    assert every == 4 * [5] + 4 * [10]
    assert {p.epochs for p in short} == {30}


def test_an_unknown_study_is_refused_with_the_known_ones():
    with pytest.raises(UnknownName) as caught:
        studies.plans("grace")
    assert str(caught.value) == (
        "no study named 'grace'; there are: grace-resnet9, beyond-throughput, language, gpt, rates, "
        "recommendation, accordion, accordion-batch"
    )


@pytest.mark.parametrize(
    "wanted, expected",
    [
        ({}, 10),
        ({"tasks": ["vgg19bn-cifar10"]}, 5),
        ({"specs": ["powersgd(rank=4)"]}, 1),
        ({"steered": ["accordion"]}, 4),
        ({"steered": ["accordion", "adaqs"], "specs": ["powersgd(1)"], "tasks": ["resnet18-cifar10"]}, 4),
    ],
)
def test_some_of_the_runs(wanted, expected):
    whole = studies.plans("accordion")
    found = studies.pick(whole, **wanted)
    assert len(found) == expected
    assert [plan for plan in whole if plan in found] == found


def test_memories_are_picked_by_name_and_nothing_found_is_told():
    whole = studies.plans("recommendation")
    assert {p.codec for p in studies.pick(whole, kept=["none"])} == {"topk", "eightbit", "natural"}
    with pytest.raises(ConfigError) as caught:
        studies.pick(studies.plans("accordion-batch"), specs=["topk"], kept=["none"])
    assert str(caught.value) == (
        "bench accuracy: no run of the study has topk, memory none; it has: none, accordion_batch"
    )


def test_what_two_studies_share_is_run_once():
    both = [*studies.plans("grace-resnet9"), *studies.plans("beyond-throughput")]
    found = studies.pick(both)
    assert len(found) == len(set(both)) < len(both)
