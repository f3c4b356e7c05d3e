"""`gradwire bench supports`: what two gradients of a training have in common."""

from __future__ import annotations

import doctest

import pytest
import torch

from gradwire.cli.bench.supports import cells, summary
from gradwire.core.errors import GradwireError
from gradwire.laboratory.bench import supports, training
from gradwire.laboratory.bench.supports import MEAN, PAIRS, WORKER, WORKERS, Plan, Watched, measure
from gradwire.laboratory.bench.virtual import Trainer


def plan(**changes):
    return Plan(**{"task": "shapes", "synthetic": True, "rounds": 3, "workers": 3, "epochs": 2, **changes})


def test_the_examples_hold():
    assert doctest.testmod(supports).failed == 0


def test_each_kind_of_pair_is_compared_as_often_as_there_are_pairs():
    seen = []
    records = measure(plan(), on_epoch=seen.append)
    assert seen == records
    for epoch, record in enumerate(records):
        pairs = record.outcome["pairs"]
        assert {kind: len(shares) for kind, shares in pairs.items()} == {WORKERS: 3 * 3, WORKER: 3 * 3, MEAN: 3}
        assert all(0.1 < share < 1 for shares in pairs.values() for share in shares)  # more than by chance
        assert (record.what["epoch"], record.what["share"], record.samples) == (epoch, 0.1, tuple(pairs[WORKER]))
        assert record.outcome["learning_rates"][0] > record.outcome["learning_rates"][1] > 0
    assert epoch == 1


def test_looking_changes_nothing_of_the_training():
    watched, plain = Watched(plan(epochs=1)), Trainer(training.Plan(**{**vars(plan().run), "epochs": None}))
    watched.run()
    plain._over = lambda: plain._epoch >= 1
    plain.run()
    for ours, theirs in zip(watched.parameters, plain.parameters, strict=True):
        assert torch.equal(ours, theirs)


def test_the_rounds_lie_evenly_between_the_first_and_the_last():
    watched = Watched(plan(batch=8, rounds=4))
    assert (watched.steps, sorted(watched.noted)) == (170, [0, 56, 113, 169])
    every = Watched(plan(rounds=1000))
    assert every.noted == set(range(every.steps))


def test_equal_gradients_share_all_and_others_what_they_share(monkeypatch):
    """Rows made up: the first worker's largest coordinates are the second's, and none of the third's."""
    watched = Watched(plan())
    numel, some = watched.layout.numel, round(0.1 * watched.layout.numel)
    rows = torch.zeros(3, numel)
    rows[:2, :some] = torch.tensor([[5.0], [-5.0]])
    rows[2, -some:] = 1.0
    monkeypatch.setattr(Trainer, "_rows", lambda self, group: (rows, torch.zeros(())))
    for turn in sorted(watched.noted):
        watched._rounds = turn
        watched._rows([])
    seen = watched.seen()
    assert seen[WORKERS] == 3 * (1.0, 0.0, 0.0)
    assert set(seen[WORKER]) == set(seen[MEAN]) == {1.0}
    assert watched.seen() == dict.fromkeys(PAIRS, ())


def test_a_line_of_the_table():
    records = measure(plan(epochs=1))
    (line,) = map(cells, records)
    assert line[0] == "1"
    assert all(" to " in cell for cell in line[2:])
    told = summary(plan(epochs=1).command, records)
    assert told["command"] == (
        "gradwire bench supports --task shapes --share 0.1 --epochs 1 --rounds 3 --workers 3 --synthetic --seed 0 "
        "--device cpu"
    )
    assert set(told["epochs"][0]["pairs"]) == set(PAIRS)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"share": 0.0}, "bench supports: `share`"),
        ({"workers": 1}, "bench supports: `workers`"),
        ({"rounds": 1}, "bench supports: `rounds`"),
        ({"epochs": 0}, "bench supports: `epochs`"),
        ({"epochs": 6}, "bench supports: `epochs` must be .* from 1 to 5"),
        ({"task": "nothing"}, "nothing"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, said):
    with pytest.raises(GradwireError, match=said):
        plan(**changes)


def test_one_round_is_no_pair():
    steps = Watched(plan(batch=1)).steps
    with pytest.raises(GradwireError, match="an epoch has one round, and two are compared; take a smaller batch"):
        Watched(plan(batch=steps))


def test_a_training_that_falls_apart_ends():
    watched = Watched(plan())
    with torch.no_grad():
        watched.parameters[0].fill_(float("nan"))
    assert watched.run().diverged
    assert len(watched.history.quality) == 1
