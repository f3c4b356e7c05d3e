"""Trainings that nobody ran, for tests of what is made of their records."""

from __future__ import annotations

from gradwire.core.records import Quantiles, Record

NO_CLOCK = "one device computes all workers in turn: no time of a cluster"


def training(codec="fp16", quality=(50.0, 80.0, 90.0), *, task="resnet9-cifar10", model="resnet9", **changes):
    """One record: ten rounds and one epoch between evaluations, 1000 parameters.

    `changes` go to `what`, `outcome` or the record itself, wherever such a name is.
    """
    count = len(quality)
    what = {
        "task": task, "model": model, "data": "CIFAR-10", "codec": codec, "memory": "none()", "strategy": "auto",
        "controller": None, "workers": 8, "batch": 64, "epochs": count, "seed": 0, "learning_rate": 0.4,
        "momentum": 0.9, "precision": "float32", "compress": "matrices",
    }  # fmt: skip
    rounds = [10 * (i + 1) for i in range(count)]
    outcome = {
        "metric": "top-1 accuracy", "higher_is_better": True, "rounds": rounds, "epochs": [r / 10 for r in rounds],
        "best": max(quality), "final": quality[-1], "train_loss": [1.0] * count, "nmse": [0.25] * count,
        "nmse_gradient": [0.5] * count, "payload_bytes": [2000 * r for r in rounds],
        "sent_bytes": None, "floats_sent": [500 * r for r in rounds],
        "residual_norm": None, "levels": None, "switches": [], "learning_rates": [0.4] * count,
        "batch_sizes": [512] * count, "seconds": [0.5 * r for r in rounds], "clock": NO_CLOCK, "stopped_early": False,
        "diverged": False, "skipped_steps": 0, "parameters": 1000, "tensors": 5, "published": None,
    }  # fmt: skip
    values = {
        "kind": "accuracy", "command": "gradwire bench accuracy --task " + task, "time": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef", "dirty": False, "unit": "%",
        "environment": {"cpu": "a processor", "cores": 2, "gpu": "a GPU", "os": "Linux", "python": "3.11"},
    }  # fmt: skip
    for name, value in changes.items():
        place = next(p for p in (what, outcome, values) if name in p)
        place[name] = value
    samples = tuple(quality)
    return Record(**values, what=what, outcome=outcome, samples=samples, quantiles=Quantiles.of(samples))


def perplexity(codec="fp16", quality=(300.0, 120.0, 100.0), **changes):
    """The same of a language model."""
    usual = {"task": "bert-small-wikitext2", "model": "bert-base", "data": "WikiText-2"}
    usual |= {"unit": "perplexity", "metric": "perplexity", "higher_is_better": False}
    return training(codec, quality, **{**usual, **changes})
