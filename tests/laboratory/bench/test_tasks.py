"""Tasks: batches follow from seed, epoch and worker; quality is what its name says; the nets are the papers'."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradwire import models
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.laboratory.bench import tasks
from gradwire.laboratory.bench.data import cifar, dagm, movielens, text
from gradwire.laboratory.bench.tasks import (
    common,
    drawn,
    factors,
    images,
    language,
    masked,
    recommendation,
    segmentation,
)
from gradwire.models import bert, lstm

CPU = torch.device("cpu")
# GRACE, Table II: parameters, gradient tensors, quality without compression.
GRACE = {
    "resnet20-cifar10": (269_467, 51, 90.86),
    "densenet40-cifar10": (357_491, 158, 92.07),
    "resnet9-cifar10": (6_573_120, 25, 91.67),
    "vgg16-cifar10": (14_982_987, 30, 86.32),
    "ncf-ml20m": (31_832_577, 10, 95.98),
    "lstm-ptb": (19_775_200, 7, 100.168),
    "unet-dagm": (1_850_305, 46, 96.4),
}
# Enough of a step for one core: workers and batch.
SIZES = {"resnet20-cifar10": (2, 8), "ncf-ml1m": (4, 64), "lstm-ptb": (2, 3), "bert-small-wikitext2": (2, 3)}
SIZES |= {"bpr-ml1m": (4, 64), "gpt-wikitext2": (2, 2), "unet-dagm": (3, 2), "shapes": (4, 16)}


class Answer(nn.Module):
    """A model that gives what a function says."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs, **named):
        return self.function(*inputs, **named)


# --- the list


def test_names_and_tasks_agree():
    assert tasks.names() == [
        *("resnet9-cifar10", "resnet20-cifar10", "densenet40-cifar10", "vgg16-cifar10", "vgg19bn-cifar10"),
        *("vgg19bn-cifar100", "resnet18-cifar10", "resnet18-cifar100", "ncf-ml1m", "ncf-ml20m", "bpr-ml1m"),
        *("lstm-wikitext2", "lstm-ptb", "bert-small-wikitext2", "gpt-wikitext2", "unet-dagm", "shapes"),
    ]
    for name in tasks.names():
        assert tasks.task(name).name == name


@pytest.mark.parametrize(
    "name, hint",
    [
        ("resnet19-cifar10", "did you mean resnet9-cifar10 or resnet18-cifar10 or resnet18-cifar100?"),
        ("qqq", f"known: {', '.join(sorted(tasks.names()))}"),
    ],
)
def test_unknown_names(name, hint):
    with pytest.raises(UnknownName) as caught:
        tasks.task(name)
    assert str(caught.value) == f"no task named {name!r}; {hint}"


@pytest.mark.parametrize("name", tasks.names())
def test_a_task_describes_a_model_that_exists(name):
    task = tasks.task(name)
    model = models.build(task.model_name)
    recipe = task.recipe
    parameters, tensors = sum(p.numel() for p in model.parameters()), len(list(model.parameters()))
    if ":" not in task.model_name:
        assert parameters == models.info(task.model_name).parameters
    published = (parameters, tensors, task.published.quality) if task.published else None
    assert published == GRACE.get(name)
    assert task.published is None or task.published.source == "GRACE, Table II"
    assert recipe.optimizer in ("sgd", "adam", "adamw", "rmsprop")
    assert recipe.decay in ("steps", "linear", "constant")
    assert list(recipe.milestones) == sorted(recipe.milestones)


def test_weights_follow_from_the_seed_and_nothing_else_changes():
    before = torch.get_rng_state()
    for name in ("resnet20-cifar10", "shapes"):
        task = tasks.task(name)
        one, same, other = (list(task.model(seed).parameters()) for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_metrics_know_what_is_better():
    accuracy, perplexity = tasks.task("shapes").metric, tasks.task("lstm-ptb").metric
    assert accuracy.better(80, 70)
    assert not accuracy.better(70, 70)
    assert perplexity.better(90, 100)


def test_dropout_can_be_switched_off():
    torch.manual_seed(0)
    small = bert.BertSize(layers=2, width=32, heads=4, vocabulary=50)
    for model in (bert.BertMaskedLM(small), lstm.LanguageModel(50, width=8, layers=2, dropout=0.5)):
        words = torch.randint(50, (2, 16))
        assert not torch.equal(model(words), model(words))
        assert tasks.without_dropout(model) is model
        assert model.training
        assert torch.equal(model(words), model(words))


# --- what all data promise


@pytest.fixture(scope="module")
def synthetic():
    return {name: tasks.task(name).synthetic(CPU) for name in SIZES}


@pytest.mark.parametrize("name", SIZES)
def test_epochs_follow_from_seed_and_number(name, synthetic):
    data, (workers, batch) = synthetic[name], SIZES[name]
    before = torch.get_rng_state()
    first = list(data.epoch(0, 0, workers, batch))
    assert torch.equal(torch.get_rng_state(), before)
    assert len(first) == data.steps(workers, batch)
    shapes = {tuple(t.shape for t in one) for step in first for one in step}
    assert len(shapes) == 1
    assert {len(step) for step in first} == {workers}
    assert all(len(t) == batch for one in first[0] for t in one)

    def same(epoch):
        return all(
            torch.equal(a, b)
            for step, other in zip(first, epoch, strict=True)
            for one, two in zip(step, other, strict=True)
            for a, b in zip(one, two, strict=True)
        )

    assert same(data.epoch(0, 0, workers, batch))
    moves = name != "lstm-ptb"  # a text is read in its own order
    assert same(data.epoch(0, 1, workers, batch)) is not moves
    assert same(data.epoch(1, 0, workers, batch)) is not moves


@pytest.mark.parametrize("name", SIZES)
def test_data_that_do_not_fill_a_step_are_told(name, synthetic):
    with pytest.raises(ConfigError) as caught:
        synthetic[name].steps(1000, 1000)
    assert str(caught.value).startswith("task: 1000 workers with 1000 examples each need 1000000 a step, and the data")
    assert str(caught.value).endswith("take fewer workers or a smaller batch")


@pytest.mark.parametrize("name", SIZES)
def test_synthetic_data_say_so_and_one_step_learns(name, synthetic):
    data, (workers, batch) = synthetic[name], SIZES[name]
    assert data.origin.startswith("synthetic: ")
    model = tasks.without_dropout(tasks.task(name).model(0))
    one = next(iter(data.epoch(0, 0, workers, batch)))[0]
    loss, carry = data.loss(model, one, data.carry(batch))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    size = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert all(not part.requires_grad for part in carry)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.02 / size * p.grad
        assert data.loss(model, one, data.carry(batch))[0] < loss


def test_an_order_gives_every_worker_other_examples():
    order = common.shuffled(103, 4, 5, torch.Generator().manual_seed(0))
    assert order.shape == (5, 4, 5)
    assert len(order.unique()) == 100
    assert order.max() < 103


def test_perplexity_has_an_end():
    assert common.perplexity(torch.tensor(math.log(50.0))) == pytest.approx(50)
    for bad in (21.0, math.inf, math.nan):
        assert common.perplexity(torch.tensor(bad)) == math.exp(20)


# --- images


def flat_images(count=60):
    """Images of one grey each, so that a crop shows which one it is."""
    pixels = (torch.arange(count, dtype=torch.uint8) * 4).view(-1, 1, 1, 1).expand(-1, 32, 32, 3).contiguous()
    return cifar.Images("flat", 10, pixels, torch.arange(count) % 10, pixels[:20], torch.arange(20) % 10)


def test_workers_of_a_step_see_distinct_images_with_their_labels(monkeypatch):
    monkeypatch.setattr(images, "_AT_ONCE", 30)  # several operations an epoch
    data = images.ImageData(flat_images(), images.Augmentation(reflect=True), CPU)
    seen = []
    for step in data.epoch(0, 0, 3, 4):
        for pictures, labels in step:
            grey = pictures / data.scale.view(3, 1, 1) + data.mean.view(3, 1, 1)
            number = (grey[:, 0, 0, 0] / 4).round().long()
            torch.testing.assert_close(grey, (number * 4.0).view(-1, 1, 1, 1).expand_as(grey), atol=1e-3, rtol=0)
            assert torch.equal(labels, number % 10)
            seen += number.tolist()
    assert sorted(seen) == list(range(60))


@pytest.mark.parametrize("augmentation", [images.Augmentation(), images.Augmentation(reflect=True, hole=8)])
def test_augmentation_is_that_of_a_loop_over_images(augmentation):
    pixels = torch.randint(256, (40, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 10
    data = images.ImageData(cifar.Images("noise", 10, pixels, labels, pixels, labels), augmentation, CPU)
    chosen = torch.arange(40).flip(0)
    draws = data._draws(40, torch.Generator().manual_seed(1))
    result = data._augmented(chosen, draws)
    deviation, mean = torch.std_mean(pixels.float(), dim=(0, 1, 2), correction=0)
    for row, (down, right, flip, top, left) in enumerate(draws.T.tolist()):
        one = pixels[chosen[row]].permute(2, 0, 1).float()
        padded = F.pad(one, (4,) * 4, mode="reflect") if augmentation.reflect else F.pad(one, (4,) * 4)
        crop = padded[:, 4 + down : 36 + down, 4 + right : 36 + right]
        expected = ((crop.flip(2) if flip else crop) - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
        if hole := augmentation.hole:
            expected[:, top : top + hole, left : left + hole] = 0
        torch.testing.assert_close(result[row], expected)
    assert draws[:2].min() == -4
    assert draws[:2].max() == 4
    assert set(draws[2].tolist()) == {0, 1}


def test_accuracy_counts_right_answers():
    data = images.ImageData(flat_images(), images.Augmentation(), CPU)
    grey = [data.test[i, 0, 0, 0] for i in range(20)]

    def right_for(count):
        known = {float(grey[i]): i % 10 for i in range(count)}
        return Answer(lambda x: F.one_hot(torch.tensor([known.get(float(v), 10) for v in x[:, 0, 0, 0]]), 11))

    assert data.evaluate(right_for(20)) == 100.0
    assert data.evaluate(right_for(5)) == 25.0


# --- recommendation


def test_an_epoch_holds_every_positive_once_and_four_new_items_for_each():
    source = recommendation.synthetic()
    data = recommendation.InteractionData(source, CPU)
    steps = data.steps(4, 64)
    assert steps * 256 == 5 * len(source.train)
    parts = [torch.cat(t) for t in zip(*(one for step in data.epoch(0, 0, 4, 64) for one in step), strict=True)]
    users, items, likes = parts
    positive = torch.stack([users, items], 1)[likes == 1]
    assert sorted(positive.tolist()) == sorted(source.train.tolist())
    known = {tuple(pair) for pair in source.train.tolist() + source.test.tolist()}
    assert not known & set(zip(users[likes == 0].tolist(), items[likes == 0].tolist(), strict=True))
    assert torch.equal(users[likes == 0].bincount(), 4 * users[likes == 1].bincount())


def test_an_epoch_of_pairs_compares_each_positive_with_one_new_item():
    source = recommendation.synthetic()
    data = factors.PairData(source, CPU)
    assert data.steps(4, 64) * 256 == len(source.train)
    parts = [torch.cat(t) for t in zip(*(one for step in data.epoch(0, 0, 4, 64) for one in step), strict=True)]
    users, liked, others = parts
    assert sorted(torch.stack([users, liked], 1).tolist()) == sorted(source.train.tolist())
    known = {tuple(pair) for pair in source.train.tolist() + source.test.tolist()}
    assert not known & set(zip(users.tolist(), others.tolist(), strict=True))


def test_a_factorisation_scores_by_its_vectors_and_biases_and_is_asked_to_rank():
    model = factors.Factors(users=2, items=3, width=2)
    with torch.no_grad():
        model.user.weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -1.0]]))
        model.item.weight.copy_(torch.tensor([[1.0, 1.0], [3.0, 0.0], [0.0, 4.0]]))
        model.bias.weight.copy_(torch.tensor([[0.5], [0.0], [1.0]]))
    assert model(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2])).tolist() == [3.5, 3.0, -3.0]
    data = factors.PairData(recommendation.synthetic(), CPU)
    pairs = torch.tensor([0, 1]), torch.tensor([2, 0]), torch.tensor([0, 2])
    wanted = (math.log1p(math.exp(3.5 - 9.0)) + math.log1p(math.exp(-3.0 + 0.5))) / 2  # scores 9, -0.5; 3.5, -3
    assert data.loss(model, pairs, ())[0].item() == pytest.approx(wanted)


def test_hit_rate_is_the_share_of_items_among_the_first_ten():
    # 100 users; item 0 is right; the others score 1 to 99 in the order of their numbers.
    negatives = torch.arange(1, 100, dtype=torch.int32).expand(100, 99).clone()
    pairs = torch.stack([torch.arange(100, dtype=torch.int32), torch.zeros(100, dtype=torch.int32)], 1)
    data = recommendation.InteractionData(movielens.Interactions("x", 100, 100, pairs, pairs, negatives), CPU)

    def ranked(right):
        return Answer(lambda users, items: torch.where(items == 0, right(users), items.float()))

    assert data.evaluate(ranked(lambda users: users + 0.5)) == 10.0  # 90 to 99 have nine or fewer ahead
    assert data.evaluate(ranked(lambda users: torch.full_like(users, torch.nan, dtype=torch.float))) == 0.0
    assert data.evaluate(Answer(lambda users, items: torch.zeros(len(users)))) == 0.0  # all share the middle
    assert data.evaluate(Answer(lambda users, items: torch.full((len(users),), torch.nan))) == 0.0
    # Ties share places: nine ahead and two alike make ten, and a negative that is the right item does not count.
    data.candidates[:, 1:3] = 0
    assert data.evaluate(Answer(lambda u, i: (i > 90).float() * 2 + ((i == 0) | (i == 7)).float())) == 100.0
    assert data.evaluate(Answer(lambda u, i: (i > 90).float() * 2 + ((i == 0) | (i == 7) | (i == 8)).float())) == 0.0


def test_other_data_than_the_model_was_made_for_are_refused(tmp_path, monkeypatch):
    task = tasks.task("ncf-ml1m")
    monkeypatch.setattr(type(task), "limits", (10, 10))
    (tmp_path / "ratings.dat").write_text("".join(f"{u}::{u + i}::5::{i}\n" for u in range(12) for i in range(3)))
    with pytest.raises(ConfigError) as caught:
        task.open(tmp_path, CPU)
    assert str(caught.value) == (
        "ncf-ml1m: the model has rows for 10 users and 10 items, the data have 12 and 14; --data-dir must hold "
        "MovieLens-1M itself"
    )


# --- language


def counting(length=1000):
    parts = (torch.arange(length, dtype=torch.int32),) * 3
    return text.Text("counting", length, *parts)


def test_streams_go_on_from_step_to_step():
    data = language.StreamData(counting(), CPU)
    steps = list(data.epoch(0, 0, 2, 3))
    assert len(steps) == data.steps(2, 3) == 4
    for before, after in pairwise(steps):
        for worker in range(2):
            (words, following), (next_words, _) = before[worker], after[worker]
            assert words.shape == (3, 35)
            assert torch.equal(words + 1, following)
            assert torch.equal(following[:, -1], next_words[:, 0])
    starts = torch.cat([words[:, 0] for words, _ in steps[0]])
    assert starts.tolist() == [140 * row for row in range(6)]


def test_states_are_handed_to_the_next_step():
    task = tasks.task("lstm-ptb")
    data, model = task.synthetic(CPU), lstm.LanguageModel(50, width=lstm.WIDTH, layers=2, dropout=0.0)
    (first,), (second,) = list(data.epoch(0, 0, 1, 2))[:2]
    with torch.no_grad():
        loss, carry = data.loss(model, first, data.carry(2))
        later, _ = data.loss(model, second, carry)
        whole = torch.cat([first[0], second[0]], 1), torch.cat([first[1], second[1]], 1)
        together, _ = data.loss(model, whole, data.carry(2))
    assert [tuple(part.shape) for part in carry] == [(2, 650)] * 4
    torch.testing.assert_close((loss + later) / 2, together)


def test_perplexity_of_a_guess_is_the_size_of_the_vocabulary():
    data = language.StreamData(counting(), CPU)
    blind = Answer(lambda words, states: (torch.zeros(*words.shape, 1000), states))
    assert data.evaluate(blind) == pytest.approx(1000, rel=1e-4)
    knows = Answer(lambda words, states: (30 * F.one_hot((words + 1) % 1000, 1000).float(), states))
    assert data.evaluate(knows) == pytest.approx(1, abs=1e-3)
    lost = Answer(lambda words, states: (torch.full((*words.shape, 1000), torch.nan), states))
    assert data.evaluate(lost) == math.exp(20)


# --- masked words


def test_gaps_are_as_bert_wants_them():
    source = language.synthetic(length=40_000)
    data = masked.MaskedData(source, CPU)
    assert masked.GAPS == 19
    rows = [torch.cat(t) for t in zip(*(one for step in data.epoch(3, 5, 2, 4) for one in step), strict=True)]
    words, places, hidden = rows
    assert all(len(row.unique()) == 19 for row in places)
    shown = words.gather(1, places)
    masks = (shown == masked.MASK).float().mean()
    kept = (shown == hidden).float().mean()
    assert 0.77 < masks < 0.83
    assert 0.07 < kept < 0.14  # a tenth, and now and then the random word is the right one
    restored = words.scatter(1, places, hidden)
    assert restored.max() < source.words
    whole = " ".join(map(str, source.train.tolist()))
    assert all(" ".join(map(str, row.tolist())) in whole for row in restored[:20])


def test_validation_asks_the_same_questions_each_time():
    source = language.synthetic()
    one, two = (masked.MaskedData(source, CPU) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.valid, two.valid, strict=True))
    assert one.evaluate(Answer(lambda words, places: torch.zeros(*places.shape, 50))) == pytest.approx(50, rel=1e-4)


# --- segmentation


def test_only_defective_images_are_trained_on_and_all_are_tested():
    made = segmentation.synthetic()
    free = made.train_masks.clone()
    free[:12] = 0
    data = segmentation.SurfaceData(dagm.Surfaces("x", made.train, free, made.test, made.test_masks), CPU)
    assert len(data.images) == 20
    assert data.steps(2, 5) == 2
    assert len(data.test) == 16


def test_images_and_masks_turn_together():
    corner = torch.zeros(8, 4, 4, dtype=torch.uint8)
    corner[:, 0, 1] = 1
    turns = torch.tensor([[(way >> bit) & 1 for way in range(8)] for bit in range(3)]).bool()
    turned = segmentation._turned(corner, turns)
    assert sorted(image.nonzero()[0].tolist() for image in turned) == sorted(
        [row, column] for row in range(4) for column in range(4) if (row in (0, 3)) != (column in (0, 3))
    )


def test_intersection_over_union_pools_all_test_pixels():
    data = segmentation.SurfaceData(segmentation.synthetic(), CPU)
    finished = data._finished(data.test)

    def marking(masks):
        answers = {image.numpy().tobytes(): mask for image, mask in zip(finished, masks, strict=True)}
        return Answer(lambda x: torch.stack([answers[i.numpy().tobytes()] for i in x])[:, None].float() - 0.5)

    wanted = data.test_masks
    assert data.evaluate(marking(wanted)) == 100.0
    assert data.evaluate(marking(torch.zeros_like(wanted))) == 0.0
    everything = 100 * float(wanted.sum()) / wanted.numel()
    assert data.evaluate(marking(torch.ones_like(wanted))) == pytest.approx(everything)


# --- shapes


def test_shapes_are_learned_in_an_epoch():
    task = tasks.task("shapes")
    data, model, recipe = task.open(None, CPU), task.model(0), task.recipe
    optimizer = torch.optim.SGD(model.parameters(), recipe.learning_rate, recipe.momentum)
    start = data.evaluate(model)
    for batches in data.epoch(0, 0, 2, recipe.batch):
        for one in batches:
            data.loss(model, one, ())[0].backward()
        for p in model.parameters():
            p.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
    assert start < 25
    assert data.evaluate(model) > 60
    assert models.build(task.model_name).state_dict().keys() == drawn.net().state_dict().keys()
