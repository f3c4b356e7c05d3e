"""What trainings say of codecs: losses, their margins, who is safe; and that advice names nobody else."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire import planner
from gradwire.core import records
from gradwire.planner import quality
from gradwire.planner.quality import LOSSY, SAFE, UNTRIED, Quality, kind_of, standing, tabulate
from gradwire.planner.spec import keeps
from gradwire.planner.training import Run
from gradwire.planner.workload import shipped

RESULTS = Path(__file__).parents[2] / "results"
REAL = records.load(RESULTS / "accuracy_h200_2026-11-15.jsonl")[0]
RATES = ("1gbit", "10gbit", "25gbit", "100gbit")


def run(codec, quality, *, task="resnet9-cifar10", seed=0, higher=True, memory="none", **what):
    """A planted training."""
    told = {"task": task, "codec": codec, "memory": memory, "seed": seed, "controller": None, "batch": 8, **what}
    outcome = {"metric": "x", "higher_is_better": higher, "rounds": [5, 9], "epochs": [1, 2]}
    worse = quality - 1 if higher else quality * 2
    record = {**REAL.__dict__, "what": told, "outcome": outcome, "samples": (worse, quality)}
    return Run.of(records.Record(**record))


def by_codec(runs):
    return {(e.codec, e.memory): e for e in tabulate(runs)}


def test_losses_are_against_fp16_of_the_same_setup():
    found = by_codec(
        [
            *(run("fp16", 90.0), run("none", 95.0), run("qsgd", 89.0)),
            *(run("fp16", 80.0, batch=16), run("natural", 80.5, batch=16, memory="error_feedback")),
            run("topk", 50.0, batch=99, memory="error_feedback"),  # beside no baseline
            run("qsgd", 1.0, controller="accordion()"),
        ]
    )
    assert {key: (e.loss, e.unit, e.rounds) for key, e in found.items()} == {
        ("qsgd", "none"): (1.0, "points", 9),
        ("natural", "error_feedback"): (-0.5, "points", 9),
    }
    assert found["qsgd", "none"].margin is None
    assert by_codec([run("none", 95.0), run("qsgd", 89.0)])["qsgd", "none"].loss == 6  # FP32, where there is no FP16


def test_perplexities_are_compared_in_percent():
    found = by_codec([run("fp16", 100.0, higher=False), run("qsgd", 102.0, higher=False)])["qsgd", "none"]
    assert found.loss == pytest.approx(2.0)
    assert str(found) == "perplexity +2.0 %, resnet9-cifar10, 1 seed"
    assert found.exceeds(0.9)
    assert not found.exceeds(1.0)
    assert by_codec([run("fp16", 100.0, higher=False), run("qsgd", 250.0, higher=False)])["qsgd", "none"].loss == 150


def test_seeds_of_other_codecs_give_the_margin():
    seeds = [run("fp16", q, seed=i) for i, q in enumerate((90.0, 91.0, 92.0))]  # deviation 1
    found = by_codec([*seeds, run("qsgd", 90.0)])["qsgd", "none"]
    assert found.loss == 1
    typical = (1 - 2 / 18) ** -1.5  # the median of variances of three seeds is below the true one
    assert found.margin == pytest.approx(1.96 * typical * math.sqrt(1 + 1 / 3), abs=0.01)
    assert str(found) == "-1.0 ± 2.7 points, resnet9-cifar10, 1 seed"
    rates = [run("fp16", q, learning_rate=r) for r, q in ((0.1, 90.0), (0.2, 60.0))]  # no seeds: nothing is known
    assert by_codec([*rates, run("qsgd", 89.0)])["qsgd", "none"].margin is None


def test_a_codec_that_fails_says_nothing_about_the_noise_of_others():
    calm = [run(codec, q, seed=i) for codec in ("fp16", "lpc") for i, q in enumerate((90.0, 90.1, 90.2))]
    wild = [run("dgc", q, seed=i) for i, q in enumerate((40.0, 60.0, 80.0))]
    assert by_codec([*calm, *wild])["lpc", "none"].margin == by_codec(calm)["lpc", "none"].margin


def test_a_task_that_many_codecs_tell_of_has_a_margin_of_its_own():
    def seeds(codec, *, task, apart):
        step = apart if codec in {"fp16", "qsgd"} else -apart  # so that no seed is kind to most
        return [run(codec, 90.0 + i * step, task=task, seed=i) for i in range(3)]

    names = ["fp16", "qsgd", "lpc", "thc", "topk", "natural"]
    wild = [run for name in names for run in seeds(name, task="resnet9-cifar10", apart=1.0)]

    def calm(codecs):
        runs = [run for name in codecs for run in seeds(name, task="resnet18-cifar10", apart=0.1)]
        return {e.task: e.margin for e in tabulate([*wild, *runs]) if e.codec == "qsgd"}

    one = 1.96 * (1 - 2 / 18) ** -1.5 * math.sqrt(2 / 3)  # of seeds that lie a point apart
    assert calm(names) == {"resnet9-cifar10": round(one, 2), "resnet18-cifar10": round(0.1 * one, 2)}
    assert calm(names[:5]) == {"resnet9-cifar10": round(one, 2), "resnet18-cifar10": round(one, 2)}  # as its kind


def test_a_training_that_was_made_again_counts_once():
    first, again = run("qsgd", 70.0), run("qsgd", 90.0)
    again = replace(again, record=replace(again.record, time="2030-01-01T00:00:00+00:00"))
    for order in ([first, again], [again, first]):
        found = by_codec([run("fp16", 91.0), *order])["qsgd", "none"]
        assert (found.loss, found.seeds) == (1, 1)


def test_each_is_taken_at_its_best_rate():
    rates = [run("fp16", q, learning_rate=r) for r, q in ((0.1, 90.0), (0.2, 60.0))]
    own = [run("signsgd", q, learning_rate=r) for r, q in ((0.001, 88.0), (0.1, 10.0))]
    assert by_codec([*rates, *own])["signsgd", "none"].loss == 2
    chosen = [run("fp16", 89.0, learning_rate=0.1, seed=seed) for seed in (1, 2)]
    lucky = run("fp16", 91.0, learning_rate=0.3)  # one seed: it might be luck
    assert by_codec([*rates, *chosen, lucky, *own])["signsgd", "none"].loss == pytest.approx(4 / 3, abs=0.01)


def planted(*entries):
    return [
        Quality(task, kind_of(task), codec, memory, loss, quality.POINTS, 0.2, 3, 100)
        for task, codec, memory, loss in entries
    ]


def test_one_loss_anywhere_is_enough():
    table = planted(
        ("resnet9-cifar10", "natural", "error_feedback", 0.1), ("ncf-ml1m", "natural", "error_feedback", 0.6)
    )
    found = standing("natural", "images", table=table)
    assert (found.kind, found.quality.task) == (LOSSY, "ncf-ml1m")
    found = standing("natural", "images", 0.6, table)
    assert (found.kind, found.quality.task) == (SAFE, "resnet9-cifar10")
    found = standing("natural", "language", 0.6, table)
    assert (found.kind, found.sentence) == (UNTRIED, "not tried on such a task; -0.6 ± 0.2 points, ncf-ml1m, 3 seeds")
    assert standing("natural", None, 0.6, table).kind == SAFE
    assert standing("blockint", None, table=table) == quality.Standing(UNTRIED, None)


def test_only_its_own_memory_and_its_own_parameters_count():
    table = planted(("resnet9-cifar10", "topk(ratio=0.01)", "none", 9.0), ("ncf", "topk", "error_feedback", 0.0))
    assert standing("topk", "recommendation", table=table).kind == SAFE
    assert standing("topk(ratio=0.02)", "recommendation", table=table).kind == UNTRIED


def test_the_shipped_table_is_that_of_the_records():
    files = sorted(RESULTS.glob("accuracy_*.jsonl"))
    found = tabulate(Run(r) for file in files for r in records.load(file))
    assert tuple(found) == quality.shipped()
    assert {e.kind for e in found} <= set(quality.TASKS)


def test_every_model_of_the_catalogue_has_a_kind():
    assert all(kind_of(model) in quality.TASKS for model in shipped().models())
    assert kind_of("somebody.elses:net") is None


@pytest.mark.parametrize("model", shipped().models())
def test_advice_names_nobody_who_lost_in_a_training_of_ours(model):
    own = [e for e in quality.shipped() if keeps(e.codec) == (e.memory != "none")]
    lossy = {e.codec for e in own if e.loss > (0.5 if e.unit == "points" else 1.0)}
    for rate in RATES:
        found = planner.advise(model=model, batch=8, gpus=16, bandwidth=rate, backward=0.05)
        assert not lossy & {r.codec for r in found.ranking}
        assert {r.codec for r in found.apart} >= lossy & set(shipped().codecs())
        assert not any(f'"{codec}"' in (found.verdict.line or "") for codec in lossy)
    careless = planner.advise(model=model, batch=8, gpus=16, bandwidth="1gbit", backward=0.05, any_codec=True)
    assert careless.ranking[0].codec in lossy  # by time alone, such a one would be named


# ---------------------------------------------------------------- what may be tried on a running job


@pytest.mark.parametrize("kind", [*quality.TASKS, None])
def test_only_what_is_safe_for_the_task_may_be_tried(kind):
    found = quality.safe(kind)
    tried = {entry.kind for entry in quality.shipped()}
    kinds = tried if kind is None else {kind}
    for entry in quality.shipped():
        standings = {quality.standing(entry.codec, each).kind for each in kinds}
        assert any(quality.same(entry.codec, spec) for spec in found) == (standings == {quality.SAFE}), entry.codec


def test_planted_qualities_order_what_may_be_tried():
    def planted(codec, kind, loss, memory="none"):
        return quality.Quality("task", kind, codec, memory, loss, quality.POINTS, 0.1, 3, 100)

    table = [
        planted("qsgd", "images", 0.2),
        planted("natural", "images", 0.1, "error_feedback"),
        planted("bf16", "images", 0.3),
        planted("bf16", "language", 0.0),
        planted("terngrad", "images", 0.0),
        planted("terngrad", "language", 9.0),
    ]
    assert quality.safe("images", table=table) == ["qsgd", "bf16", "natural"]
    assert quality.safe("language", table=table) == ["bf16"]
    assert quality.safe(None, table=table) == ["bf16"]
    assert quality.safe("images", max_loss=10.0, table=table) == ["terngrad", "qsgd", "bf16", "natural"]
