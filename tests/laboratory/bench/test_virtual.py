"""Training on virtual workers: it learns, stops when it should, goes on where it was, and tells what it sent."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from small import TRAIN, narrow, shrink

from gradwire.cluster import VirtualCluster
from gradwire.codecs.sparsification.topk import TopK
from gradwire.core.errors import ConfigError
from gradwire.core.registry import to_spec
from gradwire.laboratory.bench.tasks.base import Recipe
from gradwire.laboratory.bench.tasks.drawn import Shapes
from gradwire.laboratory.bench.training import Plan, open_data, optimizer, rate
from gradwire.laboratory.bench.virtual import TURNS, Trainer
from gradwire.tracing import trace

BASE = Plan(task="shapes", codec="none", workers=4, batch=8, epochs=3, nmse_every=4)
ROUNDS = TRAIN // 32  # of an epoch


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch.setattr)


@cache
def data():
    return open_data(BASE)


def finished(plan, **options):
    trainer = Trainer(plan, data=data())
    trainer.run(**options)
    return trainer


# -------------------------------------------------------------------- what a run comes to


def test_a_task_is_learnt_with_and_without_compression():
    quality = {c: finished(replace(BASE, codec=c)).history.quality for c in ("none", "topk(ratio=0.05)")}
    assert all(len(q) == 3 and q[-1] > 2 * 10 and q[-1] > q[0] for q in quality.values())
    assert quality["none"] != quality["topk(ratio=0.05)"]


def test_workers_combine_what_they_gather_once_for_all(monkeypatch):
    made, combine = [], TopK.combine_to
    monkeypatch.setattr(TopK, "combine_to", lambda *given: made.append(1) or combine(*given))
    trainer = finished(replace(BASE, codec="topk(ratio=0.05)", strategy="all_gather", epochs=1))
    assert trainer.cluster.workers > 1
    assert len(made) == trainer.history.rounds[-1]


def test_bytes_are_those_of_the_wire_and_measuring_the_error_adds_none():
    plan = replace(BASE, codec="topk(ratio=0.05)", epochs=1)
    measured, unmeasured = finished(plan), finished(replace(plan, nmse_every=0))
    sent = trace(plan.codec, [(n, tuple(p.shape)) for n, p in narrow(0).named_parameters()], workers=4)
    for trainer in (measured, unmeasured):
        assert trainer.history.payload_bytes == [ROUNDS * sent.payload_bytes]
        assert trainer.history.sent_bytes == [ROUNDS * sent.sent_bytes]
    assert torch.equal(*(next(t.model.parameters()) for t in (measured, unmeasured)))
    (given,), (plain,) = measured.history.nmse, measured.history.nmse_gradient
    assert 0.05 < given < 1  # of what the memory hands on, which is not the gradient
    assert 0.05 < plain != given
    assert (unmeasured.history.nmse, unmeasured.history.nmse_gradient) == ([None], [None])
    assert measured.history.residual_norm[0] > 0


def test_without_a_memory_both_errors_are_the_same():
    history = finished(replace(BASE, codec="qsgd", compress="all", epochs=1)).history
    assert history.nmse == pytest.approx(history.nmse_gradient, rel=1e-3)
    assert history.residual_norm == [None]
    exact = finished(replace(BASE, epochs=1)).history
    assert exact.nmse == [0.0]
    assert exact.nmse_gradient[0] < 1e-12


def test_evaluations_between_epochs():
    history = finished(replace(BASE, epochs=2, evaluate_every=6)).history
    assert history.rounds == [6, 12, 16, 18, 24, 30, 32]
    assert history.epochs == [r / ROUNDS for r in history.rounds]
    assert history.learning_rates == pytest.approx([0.05 * (1 - (r - 1) / 32) for r in history.rounds])
    assert sorted(history.seconds) == history.seconds
    assert sorted(history.payload_bytes) == history.payload_bytes
    at_epochs = finished(replace(BASE, epochs=2)).history
    assert at_epochs.quality == [history.quality[2], history.quality[6]]


def test_the_outcome_is_complete():
    trainer = finished(replace(BASE, codec="efsignsgd", epochs=2))
    found, history = trainer.outcome(), trainer.history
    assert set(found) == {
        "metric", "higher_is_better", "rounds", "epochs", "best", "final", "train_loss", "nmse", "nmse_gradient",
        "payload_bytes", "sent_bytes", "floats_sent", "residual_norm", "levels", "switches", "learning_rates",
        "batch_sizes", "seconds", "clock", "stopped_early", "diverged", "skipped_steps", "parameters", "tensors",
        "published",
    }  # fmt: skip
    assert (found["best"], found["final"]) == (max(history.quality), history.quality[-1])
    assert found["floats_sent"] == [n / 4 for n in found["payload_bytes"]]
    assert (found["clock"], found["levels"], found["switches"]) == (TURNS, None, [])
    assert (found["parameters"], found["tensors"]) == (sum(p.numel() for p in narrow(0).parameters()), 6)
    assert found["batch_sizes"] == [32, 32]


# -------------------------------------------------------------------- ends before its time


def test_patience():
    history = finished(replace(BASE, learning_rate=0.0, patience=2, epochs=9)).history
    assert (history.stopped_early, history.diverged, len(history.quality)) == (True, False, 3)
    assert len(set(history.quality)) == 1


@pytest.mark.parametrize("codec", ["none", "topk"])
def test_divergence_ends_the_run_and_is_told(codec):
    trainer = finished(replace(BASE, codec=codec, learning_rate=1e9, epochs=9))
    history = trainer.history
    assert (history.diverged, history.stopped_early, history.rounds) == (True, False, [ROUNDS])
    assert history.train_loss == [None]
    assert trainer.outcome()["diverged"]
    skipped = trainer.outcome()["skipped_steps"]
    assert 0 < skipped < ROUNDS if codec == "topk" else skipped == 0  # without a memory nothing is kept, or skipped


# -------------------------------------------------------------------- under a controller


def test_a_controller_of_the_batch_changes_rounds_and_rates():
    controller = "accordion_batch(codec='none', factor=3, eta=2.0, every=1, decay=0.5)"
    trainer = finished(replace(BASE, codec=None, controller=controller, epochs=4))
    history = trainer.history
    assert history.batch_sizes == [32, 32, 96, 96]
    assert history.rounds == [16, 32, 38, 44]  # the sixth round of a large batch has one micro-batch
    assert history.epochs == [1.0, 2.0, 3.0, 4.0]
    schedule = [0.05 * (1 - (e + step / ROUNDS) / 4) for e, step in ((0, 15), (1, 15), (2, 15), (3, 15))]
    assert history.learning_rates == pytest.approx([s * f for s, f in zip(schedule, (1, 1, 3, 3), strict=True)])
    assert [s["to"] for s in trainer.outcome()["switches"]] == ["batch x3", "batch x1"]
    assert history.levels == [{"none": 6}] * 4


def test_levels_are_those_of_the_rounds_before_an_evaluation():
    controller = "accordion(low='powersgd(rank=3)', high='powersgd(rank=1)', eta=9.0, every=1, decay=0.5)"
    trainer = finished(replace(BASE, codec=None, controller=controller))
    history = trainer.history
    assert history.levels == [{"powersgd(rank=3)": 2}, {"powersgd(rank=3)": 2}, {"powersgd(rank=1)": 2}]
    sent = [b - a for a, b in zip([0, *history.payload_bytes], history.payload_bytes, strict=False)]
    assert sent[0] == sent[1] > sent[2]
    assert {s["epoch"] for s in trainer.outcome()["switches"]} == {1, 2}  # at the very end the rate falls to zero


# -------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(
    "how",
    [
        {"codec": "dgc(ratio=0.05)", "momentum": 0.0},
        {"codec": "qsgd", "memory": "error_feedback"},
        {"codec": None, "controller": "accordion(low='topk(ratio=0.1)', high='topk', eta=9.0, every=1, decay=0.5)"},
    ],
)
@pytest.mark.filterwarnings("ignore:qsgd. error feedback over an unbiased codec")
def test_a_run_that_was_cut_off_goes_on_as_if_nothing_had_happened(how, tmp_path, monkeypatch):
    with_dropout = lambda self, seed: torch.nn.Sequential(torch.nn.Dropout(0.1), narrow(seed))  # noqa: E731
    monkeypatch.setattr(Shapes, "model", with_dropout)
    plan = replace(BASE, workers=2, batch=32, epochs=3, evaluate_every=5, **how)  # 8 rounds an epoch
    whole = finished(plan)
    path = tmp_path / "new" / "run.pt"

    def pull_the_plug(history):
        if history.epochs[-1] > 1.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finished(plan, on_evaluation=pull_the_plug, checkpoint=path)
    torch.manual_seed(99)  # another process has another generator
    resumed = finished(plan, checkpoint=path)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    ours, theirs = vars(whole.history), vars(resumed.history)
    assert {k: v for k, v in ours.items() if k != "seconds"} == {k: v for k, v in theirs.items() if k != "seconds"}
    switches = resumed.outcome()["switches"]
    assert whole.outcome()["switches"] == switches
    assert {s["epoch"] for s in switches} == (set() if plan.controller is None else {1, 2})
    assert finished(plan, checkpoint=path).history == resumed.history  # nothing is left to do


# -------------------------------------------------------------------- plans and recipes


def test_schedules():
    linear = Recipe(batch=1, epochs=10, optimizer="sgd", learning_rate=2.0, warmup=0.2, decay="linear")
    assert [rate(linear, e) for e in (0, 1, 2, 6, 9, 10)] == pytest.approx([0, 1, 2, 1, 0.25, 0])
    steps = replace(linear, decay="steps", warmup=1.0, milestones=(0.5, 0.8))
    assert [rate(steps, e) for e in (0.5, 1, 4.9, 5, 7.9, 8, 9.9)] == pytest.approx([1, 2, 2, 0.2, 0.2, 0.02, 0.02])
    constant = replace(linear, decay="constant", warmup=0.0)
    assert [rate(constant, e) for e in (0, 9.9)] == [2.0, 2.0]
    with pytest.raises(ConfigError) as caught:
        rate(replace(linear, decay="cosine"), 5)
    assert str(caught.value) == "recipe: `decay` must be 'linear', 'steps' or 'constant', got 'cosine'"


def test_optimizers():
    recipe = Recipe(batch=1, epochs=1, optimizer="sgd", learning_rate=0.1, momentum=0.9, nesterov=True)
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    sgd = optimizer(recipe, parameters).param_groups[0]
    assert (sgd["momentum"], sgd["nesterov"], sgd["weight_decay"]) == (0.9, True, 0.0)
    for kind, built in (("adam", torch.optim.Adam), ("rmsprop", torch.optim.RMSprop)):
        assert type(optimizer(replace(recipe, optimizer=kind), parameters)) is built
    with pytest.raises(ConfigError) as caught:
        optimizer(replace(recipe, optimizer="lion"), parameters)
    assert str(caught.value) == "recipe: `optimizer` must be 'sgd', 'adam', 'adamw' or 'rmsprop', got 'lion'"


def test_a_plan_changes_what_it_names_and_nothing_else():
    assert Plan(task="resnet9-cifar10", codec="none").recipe == replace(
        Plan(task="resnet9-cifar10", codec="none", batch=7).recipe, batch=64
    )
    without = Plan(task="resnet9-cifar10", codec="none", momentum=0.0).recipe
    assert (without.momentum, without.nesterov, without.learning_rate) == (0.0, False, 0.4)
    what = replace(BASE, codec="topk(ratio=0.01)", seed=3).what("some data")
    assert what == {
        "task": "shapes", "model": "gradwire.laboratory.bench.tasks.drawn:net", "data": "some data", "codec": "topk",
        "memory": "error_feedback", "strategy": "auto", "controller": None, "workers": 4, "batch": 8, "epochs": 3,
        "seed": 3, "learning_rate": 0.05, "momentum": 0.9, "precision": "float32", "compress": "matrices",
    }  # fmt: skip
    assert replace(BASE, precision="bf16").what("some data")["precision"] == "bf16 autocast"
    steered = replace(BASE, codec=None, controller="accordion(low='topk(ratio=0.1)',high='topk')").what("some data")
    assert (steered["codec"], steered["memory"]) == (None, "error_feedback")
    assert steered["controller"] == "accordion(low='topk(ratio=0.1)', high='topk')"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"workers": 0}, "bench accuracy: `workers` must be a whole number of at least 1, got 0"),
        ({"batch": 0}, "bench accuracy: `batch` must be a whole number of at least 1, got 0"),
        ({"patience": -1}, "bench accuracy: `patience` must be a whole number of at least 0, got -1"),
        ({"controller": "accordion"}, "bench accuracy: name a codec or a controller, and not both"),
        ({"codec": None}, "bench accuracy: name a codec or a controller, and not both"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        replace(BASE, **changes)
    assert str(caught.value) == message


def test_data_too_few_for_a_step_are_refused():
    with pytest.raises(ConfigError, match="4 workers with 500 examples each need 2000 a step, and the data have 512"):
        Trainer(replace(BASE, batch=500))
    assert open_data(replace(BASE, synthetic=True)).origin == "synthetic: drawn shapes"


def test_a_record_names_the_memory_that_runs_and_what_changes_the_course():
    plan = Plan(task="shapes", controller="accordion(low='none', high='topk')", patience=3)
    what = plan.what("made up")
    cluster = VirtualCluster(2, controller=plan.controller)
    assert what["memory"] == to_spec(cluster.engine.memory) == "error_feedback"
    assert (what["patience"], "evaluate_every" in what) == (3, False)
