"""The front doors say by name what the functions behind them take, and no default is written down twice differently."""

from __future__ import annotations

import inspect

import pytest

from gradwire import planner
from gradwire.planner import advisor, model
from gradwire.planner.sweeps import whatif as inner_whatif

OF_PREDICT = inspect.signature(planner.predict).parameters
SETUP = {"model": "resnet50", "batch": 64, "gpus": 16, "bandwidth": "1gbit"}


def parameters(function):
    return dict(inspect.signature(function).parameters)


@pytest.mark.parametrize("question", [planner.predict, planner.advise, planner.whatif])
def test_every_argument_has_a_name_and_a_type(question):
    for parameter in parameters(question).values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.annotation not in (inspect.Parameter.empty, "Any")


def test_predict_takes_what_the_model_takes_but_the_workload_that_it_finds_itself():
    inner = parameters(model.predict)
    del inner["workload"]
    assert parameters(planner.predict) == inner


def test_advise_takes_what_the_advisor_takes_and_the_rest_of_a_setup():
    own = parameters(advisor.advise)
    del own["predict"], own["setup"]
    rest = {name: p for name, p in OF_PREDICT.items() if name not in own and name != "codec"}
    assert parameters(planner.advise) == own | rest


def test_whatif_takes_a_sweep_and_a_setup_of_which_anything_may_be_left_out():
    own = parameters(inner_whatif)
    del own["predict"], own["setup"]
    asked = parameters(planner.whatif)
    assert {name: asked.pop(name) for name in own} == own
    assert set(asked) == set(OF_PREDICT) - {"codec"}
    for name, parameter in asked.items():
        assert parameter.default is None
        assert parameter.annotation.removesuffix(" | None") == OF_PREDICT[name].annotation.removesuffix(" | None")


def test_advice_repeats_what_was_said_and_nothing_else():
    usual = planner.advise(**SETUP, codecs="eightbit", ratio=1.0)
    told = planner.advise(**SETUP, codecs="eightbit", ratio=2.0, mode="overlap")
    assert "ratio" not in usual.setup
    assert told.setup["ratio"] == 2.0
    assert {row.mode for row in told.ranking} == {"overlap"}
    assert usual == advisor.advise(**SETUP, codecs="eightbit", predict=planner.predict)


@pytest.mark.parametrize("question", [planner.predict, planner.advise, planner.whatif])
def test_a_misspelt_argument_is_refused_as_python_does(question):
    with pytest.raises(TypeError, match="unexpected keyword argument 'bandwith'"):
        question(bandwith="1gbit")
