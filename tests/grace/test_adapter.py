"""Compressors written against GRACE's interface run unchanged."""

from __future__ import annotations

import pytest
import torch
from compressors import Bounded, Largest, Noisy, Residual, Vote

import gradwire
from gradwire.grace import adapt
from gradwire.tracing import trace

AGREED = 24  # bytes, on finite gradients and equal sizes


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(workers, step=0):
    shapes = {"w": (20, 15), "b": (7,)}
    return {
        n: [normal(*s, seed=100 * step + 10 * i + w) for w in range(workers)] for i, (n, s) in enumerate(shapes.items())
    }


def test_top_k_with_a_residual_is_our_top_k_with_error_feedback():
    """Each tensor is compressed by itself there: so each is a unit here."""
    theirs = gradwire.VirtualCluster(3, adapt(Largest(0.2), Residual()))
    ours = gradwire.VirtualCluster(3, "topk(ratio=0.2)", strategy="all_gather")
    for step in range(5):
        grads = gradients(3, step)
        grads["b"] = [t[:5] for t in grads["b"]]  # 0.2·5: floor and ceiling agree
        a, b = theirs.reduce(grads), ours.reduce(grads, units=[["w"], ["b"]])
        for name in grads:
            torch.testing.assert_close(a[name], b[name])
    assert theirs.payload_bytes == AGREED + (60 + 1) * (4 + 8)  # nothing is packed, and 64-bit indices are paid for


def test_virtual_workers_do_not_share_a_memory():
    cluster = gradwire.VirtualCluster(2, adapt(Largest(0.5), Residual()))
    grads = {"w": [torch.tensor([4.0, 1.0]), torch.tensor([2.0, 3.0])]}
    assert cluster.reduce(grads)["w"].tolist() == [2.0, 1.5]
    assert cluster.reduce({"w": [torch.zeros(2)] * 2})["w"].tolist() == [1.0, 0.5]  # what each had kept


def test_sizes_that_differ_between_workers_and_nothing_at_all():
    cluster = gradwire.VirtualCluster(3, adapt(Bounded(1.0)))
    grads = {"w": [torch.tensor([3.0, 0.0, -2.0]), torch.tensor([0.0, 0.5, 0.0]), torch.tensor([6.0, 0.0, 0.0])]}
    assert cluster.reduce(grads)["w"].tolist() == [3.0, 0.0, pytest.approx(-2 / 3)]
    assert cluster.reduce({"w": [torch.zeros(3)] * 3})["w"].tolist() == [0.0] * 3


def test_aggregate_and_average_are_theirs():
    cluster = gradwire.VirtualCluster(3, adapt(Vote()))
    grads = {"w": [torch.tensor([1.0, -1.0]), torch.tensor([2.0, -5.0]), torch.tensor([-9.0, 1.0])]}
    assert cluster.reduce(grads)["w"].tolist() == [1.0, -1.0]
    assert cluster.payload_bytes == AGREED + 2


def test_global_randomness_is_seeded_by_worker_step_and_tensor_and_put_back():
    grads, before = gradients(2), torch.get_rng_state()
    kept = [t.clone() for t in grads["w"]]
    cluster = gradwire.VirtualCluster(2, adapt(Noisy()))
    first, second = cluster.reduce(grads)["w"], cluster.reduce(grads)["w"]
    assert not first.equal(second)
    assert first.equal(gradwire.VirtualCluster(2, adapt(Noisy())).reduce(grads)["w"])
    assert torch.get_rng_state().equal(before)
    assert all(t.equal(k) for t, k in zip(grads["w"], kept, strict=True))


def test_a_bad_gradient_is_seen_and_not_remembered():
    codec = adapt(Largest(0.2), Residual())
    cluster, straight = gradwire.VirtualCluster(2, codec), gradwire.VirtualCluster(2, codec)
    bad = gradients(2, 1)
    bad["b"][1][3] = float("nan")
    cluster.reduce(gradients(2))
    assert not all(out.isfinite().all() for out in cluster.reduce(bad).values())
    straight.reduce(gradients(2))
    a, b = cluster.reduce(gradients(2, 2)), straight.reduce(gradients(2, 2))
    assert all(a[n].equal(b[n]) for n in a)


def test_its_bytes_are_traced():
    assert trace(adapt(Largest(0.1)), [("w", (100, 100))], workers=4).payload_bytes == AGREED + 1000 * 12
    assert trace(adapt(Bounded(2e-3)), [("w", (100, 100))], workers=4).payload_bytes > AGREED


@pytest.mark.parametrize(
    "things, message",
    [
        ((Largest,), "is a class, not an object: call it; wanted an object with compress and decompress"),
        ((Residual(),), "has no `compress`"),
        ((Largest(0.1), Vote()), "has no `compensate`; wanted an object with compensate and update"),
        ((None,), "got None"),
    ],
)
def test_wrong_things_are_named(things, message):
    with pytest.raises(gradwire.ConfigError, match=message):
        adapt(*things)


def test_what_is_not_a_tensor_is_refused():
    class Wrong(Vote):
        def compress(self, tensor, name):
            return [tensor, 3], None

    with pytest.raises(
        gradwire.ConfigError, match=r"grace\(Wrong\): `compress` of 'w' returned a int among its tensors"
    ):
        gradwire.VirtualCluster(1, adapt(Wrong())).reduce({"w": [torch.ones(2)]})
