"""Controllers and their states never change: equal inputs give equal decisions, also from a saved state."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle
import warnings
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.adaptive import (
    Accordion,
    AccordionBatch,
    AdaQS,
    Controller,
    ControllerRun,
    Decision,
    Observation,
    State,
    Warmup,
)
from gradwire.adaptive.values import ALL, Choice, Choices, FrozenMapping, frozen, plain
from gradwire.core.errors import ConfigError

PARAMETERS = ("a", "b")
CONTROLLERS = [
    Accordion("topk(ratio=0.1)", "topk(ratio=0.01)", every=1, eta=0.3),
    Accordion("topk(ratio=0.1)", "topk(ratio=0.01)", every=3),
    Accordion("powersgd(rank=4)", "powersgd(rank=1)", every=2, per_layer=False, decay=0.5),
    AccordionBatch(factor=4, every=1),
    AccordionBatch(factor=2, every=2, decay=0.5),
    AdaQS(),
    AdaQS(("topk(ratio=0.01)", "topk(ratio=0.02)"), factor=0.9),
    Warmup("topk(ratio=0.001)"),
]
NORMS = st.one_of(st.floats(0.0, 100.0), st.sampled_from([0.0, 1.0, 8.0, math.inf, math.nan]))
EACH = st.fixed_dictionaries(dict.fromkeys(PARAMETERS, NORMS))


@st.composite
def trainings(draw: st.DrawFn) -> list[Observation]:
    """What a training of some epochs shows, finite or not; rates fall, rise or stay."""
    rates = draw(st.lists(st.sampled_from([0.4, 0.39, 0.1, 0.01]), min_size=2, max_size=13))
    return [
        Observation(epoch, rate, then, draw(EACH), draw(EACH), draw(st.integers(1, 20)), draw(NORMS))
        for epoch, (rate, then) in enumerate(itertools.pairwise(rates))
    ]


def written(value: object) -> str:
    """Equal for equal values, NaN included."""
    return repr(value)


def followed(controller: Controller, state: State, training: list[Observation]) -> list[tuple[State, Decision]]:
    found = []
    for seen in training:
        state, decision = controller.decide(state, seen)
        found.append((state, decision))
    return found


each = pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda c: c.spec)


@each
@settings(max_examples=60, deadline=None)
@given(training=trainings(), data=st.data())
def test_a_saved_state_of_any_epoch_leads_to_the_same_decisions(controller, training, data):
    state, _ = controller.first(PARAMETERS)
    whole = followed(controller, state, training)
    at = data.draw(st.integers(0, len(training)), label="saved after so many epochs")
    state = whole[at - 1][0] if at else state
    loaded = State.from_json(json.loads(json.dumps(state.to_json())))
    assert written(loaded) == written(state)
    assert written(followed(controller, loaded, training[at:])) == written(whole[at:])


@each
@settings(max_examples=60, deadline=None)
@given(training=trainings())
def test_a_decision_depends_on_nothing_but_state_and_observation(controller, training):
    assert written(controller.first(PARAMETERS)) == written(controller.first(PARAMETERS))
    spec, (state, _) = controller.spec, controller.first(PARAMETERS)
    for seen in training:
        before = written((state, seen))
        once, again = controller.decide(state, seen), controller.decide(state, seen)
        assert written(once) == written(again)
        assert written((state, seen)) == before
        state = once[0]
    assert controller.spec == spec


@each
@settings(max_examples=30, deadline=None)
@given(one=trainings(), other=trainings())
def test_trainings_under_one_controller_do_not_see_each_other(controller, one, other):
    def ran_together(*trainings: list[Observation]) -> list[dict]:
        runs = [ControllerRun(controller) for _ in trainings]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a rate that always falls
            for run in runs:
                run.start(PARAMETERS)
            for epoch in range(max(map(len, trainings))):
                for run, training in zip(runs, trainings, strict=True):
                    if epoch < len(training):
                        run.end_epoch(training[epoch])
        return [run.state_dict() for run in runs]

    assert written(ran_together(one, other)) == written(ran_together(one) + ran_together(other))


@each
def test_controllers_states_and_decisions_cannot_be_changed(controller):
    state, decision = controller.first(PARAMETERS)
    state, decision = controller.decide(state, Observation(0, 0.1, 0.1, *2 * [dict.fromkeys(PARAMETERS, 9.0)], 2, 9.0))
    for value in (controller, state, decision, decision.settings):
        for field in fields(value):
            with pytest.raises(FrozenInstanceError):
                setattr(value, field.name, None)
        assert hash(value) == hash(copy.deepcopy(value))
        assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(TypeError, match="does not support item assignment"):
        state.settings.levels["a"] = "none"
    with pytest.raises(TypeError, match="does not support item assignment"):
        state.kept["anything"] = 1
    assert set(vars(controller)) == {f.name for f in fields(controller)}


def test_an_observation_that_changes_later_changes_no_state():
    accordion = CONTROLLERS[0]
    norms = {"a": 8.0, "b": 8.0}
    state, _ = accordion.decide(accordion.first(PARAMETERS)[0], Observation(0, 0.1, 0.1, norms))
    norms["a"] = 1.0
    assert state.kept["norms"] == {"a": 8.0, "b": 8.0}


def test_a_state_of_an_older_version_is_still_read():
    """There AdaQS kept the place of its level too, which the settings tell."""
    adaqs = AdaQS()
    run = ControllerRun(adaqs)
    saved = {
        "controller": "adaqs",
        "epoch": 4,
        "levels": {"a": "powersgd(rank=2)"},
        "batch_factor": 1,
        "rate_factor": 1.0,
        "switches": [{"epoch": 2, "parameter": "*", "from": "powersgd(rank=1)", "to": "powersgd(rank=2)", "why": "x"}],
        "kept": {"msdr": 4.0, "level": 1},
    }
    run.load_state_dict(saved)
    run.end_epoch(Observation(5, 0.1, 0.1, {"a": 20.0}, {"a": 1.0}, steps=20))
    assert run.settings.levels == {"a": "powersgd(rank=4)"}
    assert [s.epoch for s in run.switches] == [2, 5]


def test_frozen_data_is_what_it_was_made_of():
    data = {"a": [1, 2.5, None], "b": {"c": ("x", True)}}
    kept = frozen(data)
    data["a"].append(3)
    assert kept == {"a": (1, 2.5, None), "b": {"c": ("x", True)}}
    assert plain(kept) == {"a": [1, 2.5, None], "b": {"c": ["x", True]}}
    assert isinstance(kept["b"], FrozenMapping)
    assert (len(kept), list(kept), repr(kept["b"])) == (2, ["a", "b"], "{'c': ('x', True)}")
    assert hash(kept) == hash(frozen(plain(kept)))


@pytest.mark.parametrize("odd", [{1, 2}, {"a": object}, [b"x"], {1: 2}])
def test_only_plain_data_is_remembered(odd):
    with pytest.raises(ConfigError, match=r"adaptive: a controller remembers plain data only .*, got "):
        frozen(odd)


@dataclass(frozen=True)
class Straying(Controller):
    """Chooses a level that it does not have."""

    name: ClassVar[str] = "straying"
    watches: ClassVar[bool] = False

    @property
    def levels(self):
        return "none", "topk"

    def first_choices(self):
        return Choices({ALL: Choice("none", "the first epoch")})

    def next_choices(self, state, seen):
        return Choices({ALL: Choice("qsgd", "a slip")})


def test_a_level_that_a_controller_does_not_have_is_named():
    run = ControllerRun(Straying())
    run.start(["weight"])
    with pytest.raises(ConfigError) as caught:
        run.end_epoch(Observation(epoch=0, learning_rate=0.1, next_learning_rate=0.1))
    assert str(caught.value) == (
        "straying: decided on the level 'qsgd' for 'weight', which is none of its levels: none, topk. Name in `levels` "
        "all that it may choose."
    )
    assert run.settings.levels == {"weight": "none"}
