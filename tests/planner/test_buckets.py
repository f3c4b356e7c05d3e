"""Our buckets are DDP's."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from gradwire import models
from gradwire.planner.simulated_buckets import CAP_BYTES, FIRST_BYTES, buckets
from gradwire.planner.workload import shipped


@pytest.mark.parametrize("name", ["resnet20", "resnet50", "bert-base", "lstm-ptb", "ncf", "vgg19"])
def test_as_ddp_fills_them(name):
    """What DDP's rebuilt buckets are: its own function, on parameters in the order in which gradients arrive."""
    shapes = [tuple(p.shape) for p in models.build(name).parameters()]
    tensors = [torch.empty(s, device="meta") for s in reversed(shapes)]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [FIRST_BYTES, CAP_BYTES])
    last = len(shapes) - 1
    assert buckets(shapes) == [[last - i for i in bucket] for bucket in theirs]


def test_the_sizes_that_are_known():
    """MB of ResNet-50's buckets and of BERT's last one, which holds the word embedding (research notes, section 6)."""
    shapes = shipped().shape("resnet50").shapes
    sizes = [sum(4 * math.prod(shapes[i]) for i in b) / 1e6 for b in buckets(shapes)]
    assert [round(s, 1) for s in sizes] == [8.2, 31.5, 26.3, 26.6, 9.7]
    bert = shipped().shape("bert-base").shapes
    found = buckets(bert)
    assert len(found) == 14
    assert round(sum(4 * math.prod(bert[i]) for i in found[-1]) / 1e6) == 95


def test_odd_ones():
    assert buckets([]) == []
    assert buckets([(3,)]) == [[0]]
    assert buckets([(1 << 18,), (1 << 18,)]) == [[1], [0]]  # exactly full
    assert sorted(i for b in buckets([(5, 5)] * 100) for i in b) == list(range(100))
