"""`gradwire bench curvature`: the gradient's norm and the Hessian's largest eigenvalue along a training."""

from __future__ import annotations

import doctest
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradwire.cli.bench.curvature import cells, summary
from gradwire.core.errors import GradwireError
from gradwire.laboratory.bench import curvature, training
from gradwire.laboratory.bench.curvature import PRODUCTS, Curved, Look, Plan, Top, hessian_product, measure
from gradwire.laboratory.bench.tasks import task
from gradwire.laboratory.bench.virtual import Trainer
from gradwire.models import bert, lstm


def plan(**changes):
    usual = {"task": "bpr-ml1m", "synthetic": True, "workers": 2, "epochs": 3, "every": 2, "batch": 256}
    changes.setdefault("examples", 512)
    return Plan(**{**usual, **changes})


class Bowl:
    """A loss that is a quadratic form of the weights, another one for each batch."""

    def carry(self, batch):
        return ()

    def loss(self, model, batch, carry):
        (matrix,) = batch
        flat = torch.cat([p.flatten() for p in model.parameters()])
        return flat @ matrix @ flat / 2, ()


def symmetric(size, seed):
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (matrix + matrix.T) / 2


def test_the_examples_hold():
    assert doctest.testmod(curvature).failed == 0


def test_products_are_those_of_the_mean_hessian():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double()
    size = sum(p.numel() for p in model.parameters())
    sample = [(symmetric(size, 0),), (symmetric(size, 1),)]
    vector = torch.randn(size, dtype=torch.float64)
    found = hessian_product(model, Bowl(), sample, vector)
    torch.testing.assert_close(found, (sample[0][0] + sample[1][0]) / 2 @ vector)
    assert all(p.grad is None for p in model.parameters())


def nets():
    """One of each kind that has fast paths without a second derivative, or a state of its own."""
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    size = bert.BertSize(layers=2, width=16, heads=2, vocabulary=30)
    images, words = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.randint(30, (3, 8))
    return {
        "convolutions": (convolutions, (images, torch.arange(6))),
        "attention": (bert.BertMaskedLM(size), (words, words.roll(1, 1))),
        "recurrent": (lstm.LanguageModel(30, width=8, layers=2, dropout=0.5), (words, words.roll(1, 1))),
    }


class Guess(Bowl):
    """Cross entropy of what a model makes of the first tensor."""

    def loss(self, model, batch, carry):
        given, wanted = batch
        scores = model(given)
        scores = scores[0] if isinstance(scores, tuple) else scores
        return F.cross_entropy(scores.flatten(0, -2), wanted.flatten()), ()


@pytest.mark.parametrize("name", ["convolutions", "attention", "recurrent"])
def test_products_of_real_nets_are_differences_of_gradients(name):
    torch.manual_seed(0)
    model, batch = nets()[name]
    model, data = model.double(), Guess()
    parameters = list(model.parameters())
    with torch.no_grad():
        for _ in range(50):  # until norms know their statistics
            data.loss(model, batch, ())
    direction = [torch.randn_like(p) for p in parameters]
    length = math.sqrt(sum(float(d.square().sum()) for d in direction))
    vector = torch.cat([d.flatten() for d in direction]) / length
    before = [buffer.clone() for buffer in model.buffers()]
    found = hessian_product(model, data, [batch], vector)
    assert model.training
    assert all(torch.equal(old, new) for old, new in zip(before, model.buffers(), strict=True))
    assert all(p.grad is None for p in parameters)

    def gradient(step):
        torch._foreach_add_([p.data for p in parameters], direction, alpha=step / length)
        found = torch.autograd.grad(data.loss(model.eval(), batch, ())[0], parameters)
        torch._foreach_add_([p.data for p in parameters], direction, alpha=-step / length)
        return torch.cat([g.flatten() for g in found])

    step = 1e-6
    wanted = (gradient(step) - gradient(-step)) / (2 * step)
    assert float((found - wanted).norm()) < 1e-5 * float(wanted.norm())


def test_the_eigenvalue_is_the_largest_in_size_whatever_its_sign():
    for seed in range(5):
        matrix = symmetric(20, seed)
        every = torch.linalg.eigvalsh(matrix)
        largest = float(every[every.abs().argmax()])
        found = curvature.top_eigenvalue(lambda v, matrix=matrix: matrix @ v, torch.ones(20, dtype=torch.float64))
        if found.products < PRODUCTS:
            assert abs(found.value) == pytest.approx(abs(largest), rel=0.15)
        assert abs(found.value) <= abs(largest) * (1 + 1e-9)
    nothing = curvature.top_eigenvalue(torch.zeros_like, torch.ones(3))
    assert (nothing.value, nothing.change, nothing.products) == (0.0, 0.0, 1)


def test_looks_tell_norm_and_eigenvalue_and_judge_both_by_accordions_rule():
    seen = []
    records = measure(plan(), on_look=seen.append)
    assert seen == records
    assert [r.what["epoch"] for r in records] == [0, 2]
    assert plan().looks == 2
    first, second = (r.outcome for r in records)
    assert first["critical"] is None
    for name in ("norm", "eigenvalue"):
        change = abs(abs(second[name]) - abs(first[name])) / abs(first[name])
        assert second["critical"][name] is (change >= 0.5)
    assert first["learning_rate"] == second["learning_rate"] == 4e-3
    assert all(1 < r.outcome["products"] <= PRODUCTS for r in records)
    assert records[0].samples == (first["eigenvalue"],)


def test_a_change_by_half_is_critical():
    def look(epoch, norm, value):
        return Look(epoch, norm, Top(value, 0.0, 2, torch.zeros(1)))

    old = look(0, 8.0, -6.0)
    assert look(10, 5.0, 6.5).critical(old) == {"norm": False, "eigenvalue": False}
    assert look(10, 4.0, 6.5).critical(old) == {"norm": True, "eigenvalue": False}
    assert look(10, 13.0, 2.0).critical(old) == {"norm": True, "eigenvalue": True}


def test_the_norm_is_of_the_sum_of_an_epochs_gradients(monkeypatch):
    curved = Curved(plan())
    rows = torch.zeros(2, curved.layout.numel)
    rows[0, 0], rows[1, 0] = 2.0, 4.0
    monkeypatch.setattr(Trainer, "_rows", lambda self, group: (rows, torch.zeros(())))
    for _ in range(5):
        curved._rows([])
    assert curved.norm() == 15.0
    assert curved.norm() == 0.0


def test_looking_changes_nothing_of_the_training():
    curved, plain = Curved(plan()), Trainer(plan().run)
    curved.run(lambda history: curved.top())
    plain.run()
    for ours, theirs in zip(curved.parameters, plain.parameters, strict=True):
        assert torch.equal(ours, theirs)


def test_a_line_of_the_table():
    records = measure(plan())
    lines = [cells(r) for r in records]
    assert [line[0] for line in lines] == ["1", "3"]
    assert (lines[0][4], lines[0][6]) == ("-", "-")
    assert {lines[1][4], lines[1][6]} <= {"yes", "no"}
    told = summary(plan().command, records)
    assert told["command"] == (
        "gradwire bench curvature --task bpr-ml1m --epochs 3 --every 2 --examples 512 --workers 2 --batch 256 "
        "--synthetic --seed 0 --device cpu"
    )
    assert [look["epoch"] for look in told["looks"]] == [0, 2]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"every": 0}, "bench curvature: `every`"),
        ({"every": 3}, "bench curvature: `every` must be .* from 1 to 2"),
        ({"examples": 0}, "bench curvature: `examples`"),
        ({"task": "nothing"}, "nothing"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, said):
    with pytest.raises(GradwireError, match=said):
        plan(**changes)


def test_a_training_that_falls_apart_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(curvature, "Curved", lambda plan, data_dir: _broken(Curved(plan, data_dir)))
    assert measure(plan()) == []


def _broken(curved):
    with torch.no_grad():
        curved.parameters[0].fill_(float("nan"))
    return curved


def test_a_hessian_that_is_not_finite_is_told(monkeypatch):
    monkeypatch.setattr(curvature, "hessian_product", lambda model, data, sample, vector: vector * math.nan)
    with pytest.raises(GradwireError, match="the Hessian of bpr-ml1m has products that are not finite after epoch 1"):
        measure(plan())


def test_the_training_is_the_tasks():
    assert isinstance(plan().run, training.Plan)
    assert plan(epochs=None, every=4).run.recipe.epochs == task("bpr-ml1m").recipe.epochs
