"""The task: images that follow from the seed, all shapes drawn, a net of the promised size."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gradwire.laboratory.bench.tasks import shapes


def test_data_follows_from_the_seed_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    images, labels = shapes.data(64, seed=3)
    again, other = shapes.data(64, seed=3), shapes.data(64, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images, again[0])
    assert torch.equal(labels, again[1])
    assert not torch.equal(images, other[0])
    assert images.shape == (64, 1, shapes.SIDE, shapes.SIDE)


def test_every_shape_is_seen_whole_and_differs_from_the_others():
    images, labels = shapes.data(2000, seed=0)
    means = torch.stack([images[labels == label].mean(0) for label in range(len(shapes.SHAPES))])
    assert means.isfinite().all()  # each label occurs
    distance = torch.cdist(means.flatten(1), means.flatten(1)) + torch.eye(len(means)) * 1e3
    assert distance.min() > 0.5


def test_it_can_be_learned():
    images, labels = shapes.data(1024, seed=0)
    net = shapes.model(0)
    optimizer = torch.optim.SGD(net.parameters(), 0.2)
    for batch in list(torch.arange(1024).split(64)) * 2:
        optimizer.zero_grad()
        F.cross_entropy(net(images[batch]), labels[batch]).backward()
        optimizer.step()
    unseen, truth = shapes.data(512, seed=1)
    assert (net(unseen).argmax(1) == truth).float().mean() > 0.3  # a guess is right in 0.1 of cases


def test_the_net_follows_from_its_seed():
    one, two, other = shapes.model(1), shapes.model(1), shapes.model(2)
    assert sum(p.numel() for p in one.parameters()) == 1_059_274
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
