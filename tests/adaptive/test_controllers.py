"""Controllers, fed with made-up norms: what they decide, why, and that it survives being saved."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from gradwire.adaptive import Accordion, AccordionBatch, AdaQS, ControllerRun, Observation, Settings, Switch, Warmup
from gradwire.adaptive.controller import Controller, controllers
from gradwire.adaptive.values import ALL, Choice, Choices
from gradwire.core.codec import codecs
from gradwire.core.errors import ConfigError, StateMismatch, UnknownName

LOW, HIGH = "powersgd(rank=2)", "powersgd(rank=1)"
LAYERS = ["conv1.weight", "conv2.weight", "linear.weight"]


def observed(epoch, norms=1.0, *, rate=0.4, then=None, steps=98, deviations=1.0):
    """An epoch in which all layers had this norm, or each its own."""
    each = dict(norms) if isinstance(norms, dict) else dict.fromkeys(LAYERS, norms)
    return Observation(
        epoch=epoch,
        learning_rate=rate,
        next_learning_rate=rate if then is None else then,
        norms=each,
        deviations=dict.fromkeys(each, deviations),
        steps=steps,
        whole_norm=math.hypot(*each.values()),
    )


def started(controller):
    """A training under the controller, before its first step."""
    run = ControllerRun(controller)
    run.start(LAYERS)
    return run


def report(run, epochs):
    for seen in epochs:
        run.end_epoch(seen)


def rate_of(epoch):
    """Divided by ten after epochs 151 and 251."""
    return 0.4 / 10 ** ((epoch > 151) + (epoch > 251))


def norm_of(epoch):
    """Halves, and a little more, up to epochs 10, 160 and 260; nearly constant elsewhere."""
    return 100.0 * 0.4 ** sum(epoch >= e for e in (10, 160, 260)) * (1 + 0.1 * math.sin(epoch))


def published_run(run, epochs=range(300)):
    """The settings in each epoch, from the first of `epochs` on."""
    used = []
    for epoch in epochs:
        used.append(run.settings)
        run.end_epoch(observed(epoch, norm_of(epoch), rate=rate_of(epoch), then=rate_of(epoch + 1)))
    return used


# ---------------------------------------------------------------- Accordion


@pytest.mark.parametrize("per_layer", [True, False])
def test_accordion_gives_the_59_epochs_that_the_published_volume_implies(per_layer):
    accordion = started(Accordion(LOW, HIGH, per_layer=per_layer))
    used = published_run(accordion)
    low = {e for e, settings in enumerate(used) if set(settings.levels.values()) == {LOW}}
    assert low == {*range(21), *range(152, 171), *range(252, 271)}
    assert all(set(used[e].levels.values()) == {HIGH} for e in range(300) if e not in low)

    # ResNet-18 on CIFAR-100: 36415 r + 9700 floats a step, 98 steps an epoch (dissertation, Table 3.2: 1566.3 M)
    rank = {LOW: 2, HIGH: 1}
    floats = sum(98 * (36_415 * rank[settings.levels[LAYERS[0]]] + 9_700) for settings in used)
    assert math.floor(floats / 1e5) / 10 == 1566.3


def test_accordion_logs_its_switches_with_reasons():
    accordion = started(Accordion(LOW, HIGH))
    published_run(accordion)
    by_epoch = {s.epoch for s in accordion.switches}
    assert by_epoch == {20, 151, 170, 251, 270}
    first, fall = accordion.switches[0], next(s for s in accordion.switches if s.epoch == 151)
    assert first.to_json() == {
        "epoch": 20, "parameter": LAYERS[0], "from": LOW, "to": HIGH, "why": first.why,
    }  # fmt: skip
    assert first.why.endswith("< eta")
    assert (fall.parameter, fall.before, fall.after) == (ALL, HIGH, LOW)
    assert fall.why == "the learning rate falls from 0.4 to 0.04"
    assert Switch.from_json(json.loads(json.dumps(fall.to_json()))) == fall


def test_accordion_decides_for_each_layer_on_its_own():
    accordion = started(Accordion(LOW, HIGH))
    accordion.end_epoch(observed(0, 8.0))
    for epoch in range(1, 10):
        assert set(accordion.end_epoch(observed(epoch, 0.0)).levels.values()) == {LOW}
    # at eta exactly it is critical, just below it is not, and growing counts as well as shrinking
    settings = accordion.end_epoch(observed(10, {"conv1.weight": 4.0, "conv2.weight": 4.1, "linear.weight": 12.0}))
    assert settings.levels == {"conv1.weight": LOW, "conv2.weight": HIGH, "linear.weight": LOW}
    assert [s.parameter for s in accordion.switches] == ["conv2.weight"]
    # the norms of epoch 10 are what epoch 20 is held against
    settings = accordion.end_epoch(observed(20, {"conv1.weight": 4.0, "conv2.weight": 1.0, "linear.weight": 8.0}))
    assert settings.levels == {"conv1.weight": HIGH, "conv2.weight": LOW, "linear.weight": HIGH}


def test_a_fall_of_the_rate_holds_until_the_next_decision():
    accordion = started(Accordion(LOW, HIGH, every=5))
    levels = {}
    for epoch in range(20):
        then = 0.04 if epoch >= 7 else 0.4
        settings = accordion.end_epoch(observed(epoch, 1.0, rate=0.04 if epoch >= 8 else 0.4, then=then))
        levels[epoch + 1] = set(settings.levels.values())
    assert [e for e, level in levels.items() if level == {LOW}] == [1, 2, 3, 4, 5, 8, 9, 10]
    assert [e for e, level in levels.items() if level == {HIGH}] == [6, 7, *range(11, 21)]


@pytest.mark.parametrize(("every", "low"), [(5, [*range(6), *range(15, 21)]), (1, [0, 1, 15, 16])])
def test_the_first_epoch_at_a_lower_rate_decides_nothing(every, low):
    accordion = started(Accordion(LOW, HIGH, every=every))
    used = []
    for epoch in range(25):
        used.append(set(accordion.settings.levels.values()))
        rates = [0.4 if e < 15 else 0.04 for e in (epoch, epoch + 1)]
        accordion.end_epoch(observed(epoch, 1.0, rate=rates[0], then=rates[1]))
    assert [e for e, level in enumerate(used) if level == {LOW}] == low


def test_a_fall_in_a_decision_epoch_wins_and_its_norms_are_still_kept():
    accordion = started(Accordion(LOW, HIGH))
    accordion.end_epoch(observed(0, 8.0))
    assert set(accordion.end_epoch(observed(10, 8.0, then=0.04)).levels.values()) == {LOW}
    assert set(accordion.end_epoch(observed(20, 7.9, rate=0.04)).levels.values()) == {HIGH}
    accordion.end_epoch(observed(30, 1.0, rate=0.04, then=0.004))
    assert set(accordion.end_epoch(observed(40, 1.0, rate=0.004)).levels.values()) == {HIGH}


def test_a_mixed_model_logs_only_what_changes():
    accordion = started(Accordion(LOW, HIGH))
    accordion.end_epoch(observed(0, 8.0))
    accordion.end_epoch(observed(10, {"conv1.weight": 8.0, "conv2.weight": 1.0, "linear.weight": 8.0}))
    accordion.end_epoch(observed(11, 1.0, then=0.04))
    assert [(s.epoch, s.parameter) for s in accordion.switches] == [
        (10, "conv1.weight"), (10, "linear.weight"), (11, "conv1.weight"), (11, "linear.weight"),
    ]  # fmt: skip


def test_a_rising_rate_changes_nothing():
    accordion = started(Accordion(LOW, HIGH, every=2))
    for epoch in range(6):
        settings = accordion.end_epoch(observed(epoch, rate=0.1 * (epoch + 1), then=0.1 * (epoch + 2)))
    assert set(settings.levels.values()) == {HIGH}


def test_a_rate_that_always_falls_is_warned_about_and_has_a_way_out():
    rates = [0.2 * (1 + math.cos(math.pi * e / 40)) for e in range(41)]
    cosine = [observed(e, rate=rates[e], then=rates[e + 1]) for e in range(40)]
    plain, patient = (started(Accordion(LOW, HIGH, decay=decay)) for decay in (1.0, 0.5))
    with pytest.warns(UserWarning, match=r"accordion: .* last 10 epochs.*decay=0.5") as warned:
        report(plain, cosine)
    assert len(warned) == 1
    assert not plain.switches
    report(patient, cosine)  # a warning would be an error
    # one comparison sends all to `high`; back only where the cosine halves from one epoch to the next
    assert [(s.epoch, s.after) for s in patient.switches if s.parameter in (ALL, LAYERS[0])] == [(10, HIGH), (37, LOW)]


def test_falls_that_do_not_follow_each_other_are_no_reason_to_warn():
    accordion = started(Accordion(LOW, HIGH, every=2))
    report(accordion, [observed(e, then=0.3 if e % 4 == 3 else 0.4) for e in range(20)])
    assert [s.epoch for s in accordion.switches[:4]] == [2, 2, 2, 3]


@pytest.mark.parametrize(
    ("old", "now", "level", "why"),
    [
        (0.0, 5.0, LOW, "the older gradient was zero"),
        (0.0, 0.0, LOW, "the older gradient was zero"),
        (5.0, 0.0, LOW, "norm 5 to 0 in 10 epochs: 1.00 >= eta"),
        (5.0, math.nan, LOW, "not finite"),
        (math.nan, 5.0, LOW, "not finite"),
        (math.inf, math.inf, LOW, "not finite"),
        (5.0, 5.0, HIGH, "norm 5 to 5 in 10 epochs: 0.00 < eta"),
    ],
)
def test_odd_norms_are_critical(old, now, level, why):
    accordion = started(Accordion(LOW, HIGH))
    accordion.end_epoch(observed(0, old))
    accordion.end_epoch(observed(1, 1.0))
    state = replace(accordion.state, settings=Settings(dict.fromkeys(LAYERS, "before")))
    _, decision = accordion.controller.decide(state, observed(10, now))
    assert set(decision.settings.levels.values()) == {level}
    assert why in decision.switches[0].why


def test_a_norm_that_was_not_observed_is_named():
    accordion = started(Accordion(LOW, HIGH))
    with pytest.raises(ConfigError, match=r"accordion: .*epoch 0 lacks the norm of 'linear.weight'"):
        accordion.end_epoch(observed(0, {"conv1.weight": 1.0, "conv2.weight": 1.0}))


# ---------------------------------------------------------------- batch size


def test_batch_and_rate_grow_outside_critical_regimes():
    batch = started(AccordionBatch())
    used = published_run(batch)
    assert [s.batch_factor for s in used] == [
        1 if e in {*range(21), *range(152, 171), *range(252, 271)} else 8 for e in range(300)
    ]
    assert all(s.rate_factor == s.batch_factor and set(s.levels.values()) == {"none"} for s in used)
    assert [(s.epoch, s.before, s.after) for s in batch.switches[:2]] == [
        (20, "batch x1", "batch x8"),
        (151, "batch x8", "batch x1"),
    ]


def test_fewer_steps_of_a_larger_batch_are_no_change_of_the_gradient():
    batch = started(AccordionBatch(factor=8, every=1, codec="fp16"))
    batch.end_epoch(observed(0, 80.0, steps=96))
    assert batch.end_epoch(observed(1, 80.0, steps=96)).batch_factor == 8
    assert batch.end_epoch(observed(2, 10.0, steps=12)).batch_factor == 8  # the sum is an eighth, the mean the same
    assert batch.end_epoch(observed(3, 4.0, steps=12)).batch_factor == 1
    with pytest.raises(ConfigError, match="accordion_batch: an epoch must have had a step, got 0"):
        batch.end_epoch(observed(4, steps=0))


# ---------------------------------------------------------------- AdaQS


def norm_at(msdr, steps=98):
    """Of the sum of the gradients, if their deviation is 1."""
    return steps * math.sqrt((steps * msdr**2 + 1) / (steps - 1))


def test_adaqs_climbs_one_level_whenever_the_ratio_has_halved():
    adaqs = started(AdaQS())
    assert set(adaqs.settings.levels.values()) == {"powersgd(rank=1)"}
    ranks = []
    for epoch, msdr in enumerate([8.0, 6.0, 4.1, 3.999, 9.0, 2.1, 0.5, 0.01]):
        settings = adaqs.end_epoch(observed(epoch, norm_at(msdr)))
        ranks.append(int(settings.levels[LAYERS[0]][-2]))
    assert ranks == [1, 1, 1, 2, 2, 2, 4, 4]
    assert [s.to_json() for s in adaqs.switches] == [
        {"epoch": 3, "parameter": ALL, "from": "powersgd(rank=1)", "to": "powersgd(rank=2)",
         "why": "MSDR 8 to 4, at most 0.5 times"},
        {"epoch": 6, "parameter": ALL, "from": "powersgd(rank=2)", "to": "powersgd(rank=4)",
         "why": "MSDR 4 to 0.5, at most 0.5 times"},
    ]  # fmt: skip


def test_adaqs_takes_the_ratio_of_the_whole_model():
    adaqs = AdaQS(levels=("a", "b"))
    seen = Observation(0, 0.1, 0.1, {"x": 30.0, "y": 40.0}, {"x": 4.0, "y": 3.0}, steps=10)
    state, _ = adaqs.decide(adaqs.first(["x", "y"])[0], seen)
    assert state.kept["msdr"] == pytest.approx(math.sqrt((9 * (50 / 10 / 5) ** 2 - 1) / 10))


@pytest.mark.parametrize("msdr", [1.0, 0.1])
def test_adaqs_sees_through_the_noise_of_a_mean_of_few_steps(msdr):
    """The mean over 20 steps of a gradient in noise: its length alone says at least 0.22, whatever the gradient."""
    torch.manual_seed(0)
    steps, elements, found = 20, 500, []
    mean = torch.nn.functional.normalize(torch.randn(elements), dim=0) * msdr
    for _ in range(200):
        drawn = mean + torch.randn(steps, elements) / elements**0.5
        middle = float(drawn.mean(0).square().sum())
        deviation = math.sqrt(float(drawn.square().sum(1).mean()) - middle)
        seen = Observation(0, 0.1, 0.1, {"x": steps * math.sqrt(middle)}, {"x": deviation}, steps=steps)
        found.append(AdaQS()._msdr(["x"], seen) ** 2)
    assert sum(found) / len(found) == pytest.approx(msdr**2, rel=0.1)


def test_adaqs_loosens_epoch_by_epoch_below_the_noise():
    adaqs = started(AdaQS())
    sunk = 0.9 * norm_at(0.0)
    used = [adaqs.end_epoch(observed(e, norm)).levels[LAYERS[0]] for e, norm in enumerate([sunk, norm_at(1.0)])]
    assert used == 2 * ["powersgd(rank=1)"]  # what begins below is held against nothing
    used = [adaqs.end_epoch(observed(e, sunk)).levels[LAYERS[0]] for e in (2, 3, 4)]
    assert used == ["powersgd(rank=2)", "powersgd(rank=4)", "powersgd(rank=4)"]
    assert adaqs.switches[-1].why == "MSDR 0.5 to 0, at most 0.5 times"


@pytest.mark.parametrize(
    "odd", [{"deviations": 0.0}, {"norms": math.nan}, {"norms": math.inf}, {"steps": 0}, {"steps": 1}]
)
def test_adaqs_passes_over_epochs_without_a_ratio(odd):
    adaqs = started(AdaQS())
    adaqs.end_epoch(observed(0, norm_at(8.0)))
    adaqs.end_epoch(observed(1, **({"norms": norm_at(8.0)} | odd)))
    assert not adaqs.switches
    assert set(adaqs.end_epoch(observed(2, norm_at(3.9))).levels.values()) == {"powersgd(rank=2)"}


# ---------------------------------------------------------------- warm-up


def test_warmup_goes_through_the_ratios_of_deep_gradient_compression():
    warmup = started(Warmup("topk(ratio=0.001)"))
    used = [warmup.settings.levels[LAYERS[0]]]
    used += [warmup.end_epoch(Observation(e, 0.1, 0.1)).levels[LAYERS[0]] for e in range(5)]
    assert [codecs.build(spec).ratio for spec in used] == [0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001]
    assert warmup.controller.levels == tuple(used[:5])
    assert [s.epoch for s in warmup.switches] == [0, 1, 2, 3]
    assert not warmup.controller.watches


@pytest.mark.parametrize(
    ("spec", "stages"),
    [
        (
            "warmup(codec='powersgd(rank=1)', field='rank', begin=8, factor=0.5, epochs=3)",
            ("powersgd(rank=8)", "powersgd(rank=4)", "powersgd(rank=2)"),
        ),
        ("warmup(codec='dgc', epochs=1)", ("dgc(ratio=0.25)",)),
        ("warmup(codec='topk(ratio=0.1)', epochs=2)", ("topk(ratio=0.25)", "topk(ratio=0.1)")),  # not past the end
        ("warmup(codec='qsgd(levels=8)', field='levels', begin=2, factor=2, epochs=3)",
         ("qsgd(levels=2)", "qsgd(levels=4)", "qsgd(levels=8)")),
        ("warmup('topk(ratio=0.001)', begin=0.1, factor=0.1, epochs=2)", ("topk(ratio=0.1)", "topk(ratio=0.01)")),
    ],
)  # fmt: skip
def test_warmup_replaces_one_argument(spec, stages):
    assert controllers.build(spec).stages == stages


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("warmup", "`codec` must be a codec's spec"),
        ("warmup('topk(0.001)')", "named arguments"),
        ("warmup('topk(ratio=')", "cannot be read"),
        ("warmup('topk(ratio=x)')", "cannot be read"),
        ("warmup('topk', field='a b')", "`field` must be the name of one of the codec's parameters"),
        ("warmup('powersgd(rank=1)', field='rank', begin=8, factor=0.3)", "epoch 1 would set rank=2.4"),
        ("warmup('topk', begin=0.0)", "`begin` must be a number above 0"),
        ("warmup('topk', factor=-1.0)", "`factor` must be a number above 0"),
        ("warmup('topk', epochs=0)", "`epochs` must be a whole number of at least 1"),
        ("accordion", "`low` must be a codec's spec"),
        ("accordion(low='topk')", "`high` must be a codec's spec"),
        ("accordion('topk', 'topk', eta=-1)", "`eta` must be a relative change"),
        ("accordion('topk', 'topk', every=0)", "`every` must be a whole number"),
        ("accordion('topk', 'topk', decay=0)", "`decay` must be"),
        ("accordion('topk', 'topk', per_layer=2)", "`per_layer` must be True or False"),
        ("accordion_batch(factor=1)", "`factor` must be a whole number of at least 2"),
        ("accordion_batch(codec='')", "`codec` must be a codec's spec"),
        ("adaqs(levels='powersgd')", "at least two different codec specs"),
        ("adaqs(levels=['a', 'b'])", "must be a tuple of at least two"),
        ("adaqs(levels=('a', 'a'))", "at least two different codec specs"),
        ("adaqs(levels=('a', 1))", "`levels` must be a codec's spec"),
        ("adaqs(factor=2)", "`factor` must be"),
    ],
)
def test_bad_parameters_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        controllers.build(spec)


# ---------------------------------------------------------------- what all have in common

ALL_KINDS = [
    Accordion(LOW, HIGH, every=3),
    Accordion("topk(ratio=0.99)", "thc(rotate='full')", per_layer=False, decay=0.5),
    AccordionBatch(factor=4, every=3),
    AdaQS(("topk(ratio=0.01)", "topk(ratio=0.02)"), factor=0.7),
    Warmup("topk(ratio=0.001)"),
]


def by_spec(controller):
    return controller.spec


@pytest.mark.parametrize("controller", ALL_KINDS, ids=by_spec)
def test_specs_round_trip(controller):
    assert controllers.build(controller.spec) == controller
    assert controllers.build(controller.spec).spec == controller.spec


def test_specs_are_written_as_one_would():
    spec = "accordion(low='powersgd(rank=4)', high='powersgd(rank=1)')"
    assert controllers.build(spec).spec == spec
    assert controllers.names() == ["accordion", "accordion_batch", "adaqs", "warmup"]
    with pytest.raises(UnknownName, match="no controller named 'acordion'; did you mean accordion"):
        controllers.build("acordion")


@pytest.mark.parametrize("controller", ALL_KINDS, ids=by_spec)
def test_a_run_that_is_resumed_in_the_middle_goes_on_as_it_would_have(controller):
    norms = [{p: 10.0 / (1 + (7 * e + i) % 5) for i, p in enumerate(LAYERS)} for e in range(16)]
    seen = [observed(e, norms[e], then=0.04 if e == 8 else 0.4) for e in range(16)]
    whole, resumed = started(controller), started(controller)
    report(whole, seen[:9])
    state = whole.state_dict()
    saved = json.loads(json.dumps(state))
    resumed.load_state_dict(saved)
    assert resumed.settings == whole.settings
    for one in seen[9:]:
        assert resumed.end_epoch(one) == whole.end_epoch(one)
    assert resumed.switches == whole.switches
    assert resumed.state_dict() == whole.state_dict()
    assert state == saved != whole.state_dict()  # what was saved is a copy
    used = {level for run in (whole, resumed) for level in run.settings.levels.values()}
    assert used <= set(controller.levels)


def test_a_state_of_another_set_up_is_refused():
    accordion = started(Accordion(LOW, HIGH))
    state = accordion.state_dict()
    with pytest.raises(StateMismatch, match=r"saved by controller \"accordion\(.*this one is 'adaqs'"):
        ControllerRun(AdaQS()).load_state_dict(state)
    with pytest.raises(StateMismatch, match=r"eta=0.3"):
        ControllerRun(Accordion(LOW, HIGH, eta=0.3)).load_state_dict(state)
    other = ControllerRun(Accordion(LOW, HIGH))
    other.start([*LAYERS, "more"])
    with pytest.raises(StateMismatch, match="only one side has more"):
        other.load_state_dict(state)


def test_epochs_are_reported_once_and_after_the_start():
    accordion = ControllerRun(Accordion(LOW, HIGH))
    with pytest.raises(ConfigError, match=r"accordion: nothing is set yet; call start"):
        accordion.end_epoch(observed(0))
    with pytest.raises(ConfigError, match="distinct names"):
        accordion.start(["a", "a"])
    with pytest.raises(ConfigError, match="distinct names"):
        accordion.start([])
    accordion.start(LAYERS)
    accordion.end_epoch(observed(3))
    with pytest.raises(ConfigError, match="epoch 3 was reported after that of epoch 3"):
        accordion.end_epoch(observed(3))


@dataclass(frozen=True)
class Stairs(Controller):
    """Sends one layer a step up in each epoch, and all of them to the bottom in the third."""

    name: ClassVar[str] = "stairs"

    @property
    def levels(self):
        return "a", "b", "c"

    def first_choices(self):
        return Choices({ALL: Choice("a", "first")})

    def next_choices(self, state, seen):
        if seen.epoch == 2:
            return Choices({ALL: Choice("a", "down"), LAYERS[2]: Choice("b", "but this")})
        return Choices({p: Choice("bc"[seen.epoch], "up") for p in LAYERS[seen.epoch :]})


def test_a_rule_of_ones_own_gets_its_changes_logged_one_by_one_from_where_each_was():
    stairs = started(Stairs())
    for epoch in range(3):
        stairs.end_epoch(Observation(epoch, 0.1, 0.1))
    assert [(s.epoch, s.parameter, s.before, s.after, s.why) for s in stairs.switches[3:]] == [
        (1, LAYERS[1], "b", "c", "up"),
        (1, LAYERS[2], "b", "c", "up"),
        (2, LAYERS[0], "b", "a", "down"),
        (2, LAYERS[1], "c", "a", "down"),
        (2, LAYERS[2], "c", "b", "but this"),
    ]


def test_start_forgets():
    accordion = started(Accordion(LOW, HIGH))
    published_run(accordion, range(30))
    assert set(accordion.settings.levels.values()) == {HIGH}
    assert set(accordion.start(LAYERS).levels.values()) == {LOW}
    assert not accordion.switches
    assert accordion.state_dict()["kept"] == {}
