"""GradiVeQ: worked examples, and what it promises."""

from __future__ import annotations

import math

import pytest
import torch

import gradwire
from gradwire.conformance.inputs import Ranks, cluster, normal
from gradwire.core.slots import Entry
from gradwire.tracing import trace


def far(out, x):
    """Relative error."""
    return float((out - x).norm() / x.norm())


def test_gradiveq_by_hand():
    """Slices (3, 4) and (6, 8) give U = (0.6, 0.8); then (1, 0) and (0, 5) become 0.6 U and 4 U. The 7 is no slice."""
    c = cluster("gradiveq(slice=2, kept=1, train=1, cycle=3)", 1)
    assert c.reduce({"w": [torch.tensor([3.0, 4.0, 6.0, 8.0, 7.0])]})["w"].tolist() == [3.0, 4.0, 6.0, 8.0, 7.0]
    out = c.reduce({"w": [torch.tensor([1.0, 0.0, 0.0, 5.0, 7.0])]})["w"]
    torch.testing.assert_close(out, torch.tensor([0.36, 0.48, 2.4, 3.2, 7.0]))
    torch.testing.assert_close(c.memory("w")[0], torch.tensor([0.64, -0.48, -2.4, 1.8, 0.0]), rtol=1e-5, atol=1e-6)
    c.reduce({"w": [torch.zeros(5)]})
    out = c.reduce({"w": [torch.zeros(5)]})["w"]  # the next cycle sends what this one has left out
    torch.testing.assert_close(out, torch.tensor([0.64, -0.48, -2.4, 1.8, 0.0]), rtol=1e-5, atol=1e-6)
    assert (c.memory("w")[0] == 0).all()


def test_gradiveq_each_worker_remembers_what_its_own_projection_left():
    c = cluster("gradiveq(slice=2, kept=1, train=1, cycle=3)", 2)
    c.reduce({"w": [torch.tensor([3.0, 4.0])] * 2})
    out = c.reduce({"w": [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 5.0])]})["w"]
    torch.testing.assert_close(out, torch.tensor([1.38, 1.84]))
    torch.testing.assert_close(torch.stack(c.memory("w")), torch.tensor([[0.64, -0.48], [-2.4, 1.8]]))


def trained(options, gradients, workers=2):
    """A cluster after its training steps, the average of `gradients` in each."""
    c = cluster(f"gradiveq(train={len(gradients)}, cycle=20, {options})", workers, memory="none")
    for step, x in enumerate(gradients):
        c.reduce({"w": [x + (w - (workers - 1) / 2) * normal(*x.shape, seed=step) for w in range(workers)]})
    return c, c.engine.store.get("basis", "w").tensor


@pytest.mark.parametrize("slices", [5, 40])  # fewer than K = 16 in all steps, and more in each
def test_gradiveq_basis_is_that_of_the_principal_components(slices):
    given = [normal(slices, 16, seed=s) * torch.linspace(2, 0.1, 16) for s in range(3)]
    c, basis = trained("slice=16, kept=4", given)
    torch.testing.assert_close(basis.T @ basis, torch.eye(4), rtol=0, atol=1e-5)
    leading = torch.linalg.svd(torch.cat(given)).Vh[:4].T
    torch.testing.assert_close(basis @ basis.T, leading @ leading.T, rtol=0, atol=1e-4)
    assert c.engine.store.get("root", "w") is None
    x = normal(slices, 16, seed=9)
    out = c.reduce({"w": [x, x]})["w"]
    torch.testing.assert_close(out, x @ leading @ leading.T, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(c.reduce({"w": [out, out]})["w"], out, rtol=1e-4, atol=1e-5)  # a projection


def test_gradiveq_rank_0_alone_keeps_the_training_slices_and_no_more_than_needed():
    ranks = Ranks("gradiveq(slice=16, kept=4, train=5, cycle=9)", 2)
    first, second = (engine.store for engine in ranks.engines)
    rows = []
    for step in range(4):
        ranks.reduce({"w": [normal(7, 16, seed=step)] * 2})
        rows.append(first.get("root", "w").tensor.shape[0])
        assert second.get("root", "w") is None
    assert rows == [7, 14, 16, 16]
    ranks.reduce({"w": [normal(7, 16, seed=4)] * 2})  # then both have the basis
    assert first.get("root", "w") is None
    assert first.get("basis", "w").tensor.equal(second.get("basis", "w").tensor)


def test_gradiveq_the_code_of_the_sum_is_the_sum_of_the_codes():
    c, _ = trained("slice=16, kept=4", [normal(20, 16)], workers=3)
    d, _ = trained("slice=16, kept=4", [normal(20, 16)], workers=3)
    xs = [normal(20, 16, seed=w) for w in range(3)]
    together = c.reduce({"w": xs})["w"]
    torch.testing.assert_close(together, d.reduce({"w": [sum(xs) / 3] * 3})["w"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("centre", [False, True])
def test_gradiveq_is_exact_for_slices_in_the_space_that_it_has_seen(centre):
    space, away = normal(4, 16, seed=1), 3 * normal(16, seed=2) * centre
    c, _ = trained(f"slice=16, kept=4, centre={centre}", [normal(9, 4, seed=s) @ space + away for s in range(2)], 1)
    x = normal(9, 4, seed=7) @ space + away
    assert far(c.reduce({"w": [x]})["w"], x) < 1e-5
    y = normal(9, 16, seed=8)
    assert far(c.reduce({"w": [y]})["w"], y) > 0.3


def test_gradiveq_centred_by_hand():
    """Slices (1, 5) and (3, 5): μ = (2, 5), U = (1, 0). Of (7, 9) the first element is kept, the second is μ's."""
    c = cluster("gradiveq(slice=2, kept=1, train=2, cycle=5, centre=True)", 1)
    results = []
    for x, scale in (((1, 5), 1), ((3, 5), 8), ((7, 9), 8), ((7, 9), 2), ((7, 9), 2)):
        c.engine.begin_step(loss_scale=float(scale))  # a loss scale, say: what is kept must follow
        results.append(c.reduce({"w": [torch.tensor(x) * float(scale)]})["w"] / scale)
    torch.testing.assert_close(torch.stack(results[2:]), torch.tensor([[7.0, 5.0]] * 3))


def test_gradiveq_training_steps_weigh_alike_whatever_the_loss_scale():
    """(4, 0) in the first step, (0, 3) in the second, given in units 100 times as large."""
    c = cluster("gradiveq(slice=2, kept=1, train=2, cycle=4)", 1)
    c.reduce({"w": [torch.tensor([4.0, 0.0])]})
    c.engine.begin_step(loss_scale=100.0)
    c.reduce({"w": [torch.tensor([0.0, 300.0])]})
    assert c.engine.store.get("basis", "w").tensor.abs().flatten().tolist() == pytest.approx([1.0, 0.0], abs=1e-5)


def test_gradiveq_bytes_of_a_cycle():
    """37·6 = 222 elements: 13 slices of 16 and 14 more; the tensor of 9 has no slice."""
    codec = gradwire.codec("gradiveq(slice=16, kept=4, train=2, cycle=5)")
    c, sizes = cluster(codec, 2), []
    for step in range(8):
        c.reduce({"w": [normal(37, 6, seed=step)] * 2, "b": [normal(9)] * 2})
        sizes.append(c.payload_bytes // 4)
    small = 13 * 4 + 14 + 9
    assert sizes == [231, 231 + 16 * 4, small, small, small, 231, 231 + 16 * 4, small]
    assert codec.steady_from_step == 2
    assert trace(codec, [("w", (37, 6)), ("b", (9,))], tensors="all").payload_bytes == 4 * small
    assert trace("gradiveq", [("w", (512, 512))]).bits_per_element == 32 * 64 / 512


def test_gradiveq_without_a_basis_keeps_the_first_elements_of_each_slice():
    for kept in (None, Entry(torch.zeros(4, 2)), Entry(torch.ones(4, 1))):  # zeros are what a bad step may leave behind
        c = cluster("gradiveq(slice=4, kept=2, train=1, cycle=3)", 1)
        c.engine.step = 1
        if kept is not None:
            c.engine.store.put("basis", "w", kept)
        out = c.reduce({"w": [torch.arange(9.0)]})["w"]
        assert out.tolist() == [0.0, 1.0, 0.0, 0.0, 4.0, 5.0, 0.0, 0.0, 8.0]


@pytest.mark.parametrize("centre", [False, True])
def test_gradiveq_a_bad_training_step_leaves_no_basis_behind(centre):
    c = cluster(f"gradiveq(slice=4, kept=2, train=1, cycle=3, centre={centre})", 2)
    x = normal(3, 4)
    assert c.reduce({"w": [x, torch.full((3, 4), math.nan)]})["w"].isnan().all()
    assert c.engine.store.get("basis", "w") is None
    assert c.reduce({"w": [x, x]})["w"].isfinite().all()


def test_gradiveq_a_new_cycle_forgets_what_the_last_one_did_not_finish():
    c = cluster("gradiveq(slice=2, kept=1, train=2, cycle=3)", 1)
    for x in ((9.0, 0.0), (math.nan, math.nan), (0.0, 0.0), (0.0, 3.0), (0.0, 3.0)):
        c.reduce({"w": [torch.tensor(x)]})
    assert c.engine.store.get("basis", "w").tensor.abs().flatten().tolist() == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize(
    "spec, message",
    [
        ("gradiveq(kept=600)", "gradiveq: `kept` must be a whole number from 1 to 512, got 600"),
        ("gradiveq(train=100)", "gradiveq: `cycle` must be a whole number of at least 101, got 100"),
        ("gradiveq(slice=0)", "gradiveq: `slice` must be a whole number of at least 1, got 0"),
        ("gradiveq(centre=2)", "gradiveq: `centre` must be True or False, got 2"),
    ],
)
def test_wrong_parameters_name_themselves(spec, message):
    with pytest.raises(gradwire.ConfigError) as caught:
        gradwire.codec(spec)
    assert str(caught.value) == message
