"""Foreign compressors: a bad gradient of one worker, a bad step, sizes that are not as declared, and bytes that lie."""

from __future__ import annotations

import pytest
import torch
from compressors import Bounded, Largest, Momentum, Residual, Uneven, Vote

import gradwire
from gradwire.core.exchange import Payload
from gradwire.grace import adapt
from gradwire.grace.adapter import GraceCodec, _tensors

CODECS = {
    "signs": lambda: adapt(Vote(), Residual()),
    "momentum": lambda: adapt(Momentum()),
    "bounded": lambda: adapt(Bounded(0.5), Residual()),
    "largest": lambda: adapt(Largest(0.2), Residual()),
}


def gradients(step, bad=None):
    """Two tensors of three workers; `bad` goes into one element of one worker."""
    normal = torch.Generator().manual_seed(step)
    found = {name: [torch.randn(40, generator=normal) for _ in range(3)] for name in ("w", "b")}
    if bad is not None:
        found["b"][1][3] = bad
    return found


def kept(cluster):
    """What the objects of all workers hold."""
    (workers,) = cluster.engine.codec._workers.values()
    return [[vars(thing) for thing in pair if thing is not None] for pair in workers._kept]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.equal(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return all(map(same, a, b)) if isinstance(a, list) else a == b


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("units", [None, [["w"], ["b"]]], ids=["one unit", "two units"])
def test_a_bad_gradient_is_seen_by_all_and_leaves_nothing_behind(name, bad, units):
    """Signs, bounds and votes of NaN are finite numbers: a look at the result would not notice."""
    cluster, straight = (gradwire.VirtualCluster(3, CODECS[name]()) for _ in range(2))
    for one in (cluster, straight):
        one.reduce(gradients(0), units=units)
    before = kept(cluster)
    results = cluster.reduce(gradients(1, bad), units=units)
    assert not results["b"].isfinite().any()
    assert cluster.engine.skipped_steps == 1
    assert same(kept(cluster), before)
    straight.engine.step += 1
    a, b = cluster.reduce(gradients(2), units=units), straight.reduce(gradients(2), units=units)
    assert same(a, b)
    assert same(kept(cluster), kept(straight))


@pytest.mark.parametrize("name", CODECS)
def test_units_of_one_step_share_their_objects(name):
    """Each tensor is treated by itself, so nothing depends on how they come."""
    one, two = (gradwire.VirtualCluster(3, CODECS[name]()) for _ in range(2))
    for step in range(3):
        assert same(one.reduce(gradients(step)), two.reduce(gradients(step), units=[["b"], ["w"]]))
    assert same(kept(one), kept(two))


def test_a_result_that_overflows_is_not_kept_either():
    class Overflows(Momentum):
        def aggregate(self, tensors):
            return sum(tensors) * (1e38 if self.kept["w"].abs().max() > 1e3 else 1.0) * 1e3

    cluster = gradwire.VirtualCluster(3, adapt(Overflows()))
    cluster.reduce(gradients(0))
    before = kept(cluster)
    large = {name: [1e6 * g for g in found] for name, found in gradients(1).items()}
    assert not cluster.reduce(large)["w"].isfinite().all()
    assert cluster.engine.skipped_steps == 1
    assert same(kept(cluster), before)


def test_a_step_that_was_abandoned_leaves_nothing_behind():
    codec = adapt(Momentum())
    cluster = gradwire.VirtualCluster(3, codec)
    cluster.reduce(gradients(0))
    (workers,) = codec._workers.values()
    before = kept(cluster)
    workers.begin(1, ["w", "b"])[0][0].kept["w"].fill_(7.0)  # and then an exception, say, in the backward pass
    assert same(kept(cluster), before)
    straight = gradwire.VirtualCluster(3, adapt(Momentum()))
    straight.reduce(gradients(0))
    assert same(cluster.reduce(gradients(1)), straight.reduce(gradients(1)))


def test_sizes_that_differ_although_declared_equal_are_refused():
    cluster = gradwire.VirtualCluster(2, adapt(Uneven(0.5)))
    told = (
        r"^grace\(Uneven\): the workers' tensors take between 24 and 36 bytes, and it declares that their sizes are "
        r"the same; set tensors_size_are_same = False on the compressor$"
    )
    with pytest.raises(gradwire.CodecError, match=told):
        cluster.reduce({"w": [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -2.0, -3.0])]})


def test_a_result_of_another_size_is_refused():
    class Short(Vote):
        def decompress(self, tensors, ctx):
            return tensors[0].float()[:1]

        def aggregate(self, tensors):
            return sum(tensors)

    with pytest.raises(gradwire.CodecError, match=r"`decompress` of 'w' must give 3 elements, and gives 1$"):
        gradwire.VirtualCluster(2, adapt(Short())).reduce({"w": [torch.ones(3)] * 2})


@pytest.mark.parametrize("counts", [[-1, 4], [10**12, 1], [3, 2], [0, 0]])
def test_counts_that_do_not_fit_the_bytes_are_refused(counts):
    row = torch.cat([torch.tensor(counts).view(torch.uint8), torch.zeros(12, dtype=torch.uint8)])
    rows = Payload(torch.stack([row, row]), torch.tensor([row.numel()] * 2))
    like = [torch.zeros(2), torch.zeros(1)]
    with pytest.raises(gradwire.CorruptPayload, match=r"its counts are \[.*\], and 28 bytes came") as caught:
        _tensors(rows, 1, like, False)
    assert caught.value.row == 1  # `core.received.guarded` makes a sentence of it


def test_nothing_of_it_is_captured_in_a_graph():
    """A graph would replay what foreign code did once, and not what it would do now."""
    codec = adapt(Largest(0.1))
    assert isinstance(codec, GraceCodec)
    assert not codec.traits.fixed_size
