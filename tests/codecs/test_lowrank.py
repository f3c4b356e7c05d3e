"""PowerSGD, GradZip and ATOMO: worked examples, and what each promises."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

import gradwire
from gradwire.codecs.lowrank._alternation import AlternatingCodec
from gradwire.codecs.lowrank._matrices import Batch, unit
from gradwire.codecs.lowrank._spectrum import probabilities, summed
from gradwire.conformance.inputs import cluster, normal, rng, through
from gradwire.core.codec import Codec
from gradwire.core.slots import Entry
from gradwire.core.state import Transaction
from gradwire.kernels.factors.reference import regress
from gradwire.tracing import trace


def far(out, x):
    """Relative error."""
    return float((out.double() - x.double()).norm() / x.double().norm())


def spectral(height, width, values):
    """A matrix with the given singular values."""
    u, v = torch.linalg.qr(normal(height, len(values))).Q, torch.linalg.qr(normal(width, len(values), seed=1)).Q
    return u * torch.as_tensor(values) @ v.T


def steps(spec, x, number, **options):
    """The results of several steps with the same gradient, one worker, no memory."""
    c = cluster(spec, 1, memory="none", **options)
    return [c.reduce({"w": [x]})["w"] for _ in range(number)]


SLOW = 0.9 ** torch.arange(40.0)  # a spectrum that falls slowly


# -------------------------------------------------------------------- powersgd


def begun(spec, q):
    """One worker that starts from the factor `q`."""
    c = cluster(spec, 1)
    c.engine.store.put("q", "w", Entry(torch.tensor(q)))
    return c


M = torch.tensor([[3.0, 1.0], [4.0, 2.0]])


def test_powersgd_by_hand():
    """Q = (1, 0): MQ = (3, 4), so P = (0.6, 0.8) and Q' = MᵀP = (5, 2.2)."""
    c = begun("powersgd(rank=1)", [[1.0], [0.0]])
    out = c.reduce({"w": [M]})["w"]
    torch.testing.assert_close(out, torch.tensor([[3.0, 1.32], [4.0, 1.76]]))
    torch.testing.assert_close(c.memory("w")[0], M - out)
    assert c.engine.store.get("q", "w").tensor.abs().tolist() == [[pytest.approx(5.0)], [pytest.approx(2.2)]]


@pytest.mark.parametrize("names", ["abc", "cba", "bac"])
def test_powersgd_finds_each_matrix_in_its_place_whatever_their_sizes(names):
    shapes = {"a": (24, 30), "b": (64, 40), "c": (24, 36)}
    given = {n: normal(shapes[n][0], 1, seed=i) @ normal(1, shapes[n][1], seed=9 + i) for i, n in enumerate(names)}
    cluster = gradwire.VirtualCluster(2, "powersgd(rank=2)", memory="none")
    for _ in range(2):
        out = cluster.reduce({name: [matrix] * 2 for name, matrix in given.items()})
    for name, matrix in given.items():
        torch.testing.assert_close(out[name], matrix, rtol=1e-3, atol=1e-4)


def test_powersgd_each_iteration_comes_nearer():
    x = spectral(50, 60, SLOW)
    best = float(SLOW[3:].norm() / SLOW.norm())
    errors = [far(steps(f"powersgd(rank=3, iterations={i})", x, 1)[0], x) for i in (1, 2, 4, 30)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1.05 * best
    assert errors[-1] == pytest.approx(best, rel=1e-3)
    many, warm = steps("powersgd(rank=3, iterations=3)", x, 1)[0], steps("powersgd(rank=3)", x, 3)[-1]
    torch.testing.assert_close(many, warm, rtol=1e-3, atol=1e-5)  # iterations are steps that need no new gradient


def test_powersgd_a_warm_start_beats_a_new_one():
    x = spectral(50, 60, SLOW)
    warm, cold = (steps(f"powersgd(rank=3, warm={w})", x, 6) for w in (True, False))
    assert warm[0].equal(cold[0])
    assert far(warm[-1], x) < min(far(out, x) for out in cold)
    assert not any(a.equal(b) for a, b in pairwise(cold))  # a new factor in each step


def test_powersgd_a_cold_start_is_shared_and_nothing_is_kept():
    """Workers that start alike find what one would that has the mean gradient."""
    a, b = normal(20, 30, seed=1), normal(20, 30, seed=2)
    c, alone = (
        cluster("powersgd(rank=3, warm=False)", 2, memory="none"),
        steps("powersgd(rank=3, warm=False)", (a + b) / 2, 2),
    )
    for wanted in alone:
        torch.testing.assert_close(c.reduce({"w": [a, b]})["w"], wanted, rtol=1e-3, atol=1e-5)
    assert c.engine.store.get("q", "w") is None
    assert "q" not in c.engine.store.named


@pytest.mark.parametrize("name", ["powersgd", "gradzip"])
def test_factors_are_kept_in_two_buffers_and_not_one_by_one(name, monkeypatch):
    def refuse(*_):
        raise AssertionError("kept one by one")

    for method in ("get", "put", "forget"):
        monkeypatch.setattr(Transaction, method, refuse)
    c, seen = cluster(f"{name}(rank=2)", 2), []
    for step in range(5):
        c.reduce({n: [normal(20, 30, seed=10 * step + w) for w in range(2)] for n in "ab"})
        factors = [c.engine.store.get("q", n).tensor for n in "ab"]
        assert all(q.shape == (30, 2) for q in factors)
        seen.append([q.data_ptr() for q in factors])
    assert seen == [seen[0], seen[1]] * 2 + [seen[0]]
    assert seen[0] != seen[1]


@pytest.mark.parametrize("name", ["powersgd", "gradzip"])
def test_in_place_is_what_the_simple_form_is(name, monkeypatch):
    def steps_of_two():
        c, seen = gradwire.VirtualCluster(2, f"{name}(rank=2)", tensors="all"), []
        for step in range(3):
            shapes = {"w": (20, 30), "b": (7,), "v": (4, 9)}
            given = {n: [normal(*s, seed=10 * step + w) for w in range(2)] for n, s in shapes.items()}
            seen += [*c.reduce(given).values(), *(kept for n in shapes for kept in c.memory(n))]
        return seen

    found = steps_of_two()
    monkeypatch.setattr(AlternatingCodec, "reduce_to", Codec.reduce_to)
    for one, other in zip(found, steps_of_two(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["powersgd", "gradzip"])
def test_the_first_steps_send_everything(name):
    codec = gradwire.codec(f"{name}(rank=2, start=3)")
    assert codec.steady_from_step == 3
    c, exact = cluster(codec, 2), []
    for step in range(5):
        grads = {"w": [normal(20, 30, seed=10 * step + w) for w in range(2)], "b": [normal(7), normal(7)]}
        out = c.reduce(grads)["w"]
        exact.append((c.payload_bytes, float((out - (grads["w"][0] + grads["w"][1]) / 2).abs().max()) < 1e-6))
        if step == 2:
            assert all((m == 0).all() for m in c.memory("w"))
    assert exact == 3 * [(4 * 607, True)] + 2 * [(4 * (2 * 50 + 7), False)]


def test_bytes_and_rounds_grow_with_the_iterations_and_vectors_travel_once():
    for spec, iterations in (("powersgd(rank=2)", 1), ("gradzip(rank=2)", 1), ("powersgd(rank=2, iterations=3)", 3)):
        traced = trace(spec, [("w", (50, 60)), ("b", (5,))], tensors="all")
        assert traced.payload_bytes == 4 * (iterations * 2 * (50 + 60) + 5)
        assert traced.rounds == 2 * iterations


@pytest.mark.parametrize("spec", ["powersgd(rank=4)", "powersgd(rank=4, iterations=2)", "gradzip(rank=4)"])
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-15, 1.0, 1e15, 1e30])
def test_factors_are_as_good_at_any_scale(spec, scale):
    """The product of gradient and kept factor would vanish or overflow."""
    x = spectral(30, 50, [4.0, 3.0, 2.0, 1.0]) * scale
    assert all(far(out, x) < 1e-3 for out in steps(spec, x, 4)[1:])


@pytest.mark.parametrize("spec", ["powersgd(rank=4)", "powersgd(rank=4, warm=False)", "gradzip(rank=4)"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_matrices_of_lower_rank_do_no_harm(spec, rank):
    x = normal(20, rank, seed=1) @ normal(rank, 30, seed=2)
    c = cluster(spec, 1)
    for _ in range(4):
        torch.testing.assert_close(c.reduce({"w": [x]})["w"], x, rtol=1e-3, atol=1e-3)
    y = spectral(20, 30, [4.0, 3.0, 2.0, 1.0])
    for _ in range(4):
        out = c.reduce({"w": [y]})["w"]
    assert far(out, y) < 0.05  # nothing is stuck at the lower rank


@pytest.mark.parametrize("memory", ["none", "error_feedback"])
def test_powersgd_columns_that_a_gradient_does_not_need_serve_the_next_one(memory):
    """They are not lost, and do not shrink until they are numbers that a CPU is slow with."""
    small = gradwire.VirtualCluster(workers=1, codec="powersgd(rank=4)", memory=memory)
    one = normal(96, 1, seed=1) @ normal(1, 48, seed=2)
    for _ in range(40):
        small.reduce({"w": [one]})
    y = normal(96, 3, seed=3) @ normal(3, 48, seed=4)
    assert far(small.reduce({"w": [y]})["w"], y) < 1e-3


@pytest.mark.parametrize("name", ["powersgd", "gradzip"])
def test_a_factor_of_zeros_is_not_used(name):
    """A bad first step leaves one behind on an accelerator; half of this gradient's columns are zero."""
    x = spectral(20, 30, [4.0, 3.0])
    x[:, :15] = 0
    assert far(begun(f"{name}(rank=2)", [[0.0, 0.0]] * 30).reduce({"w": [x]})["w"], x) < 1e-3


def test_unit_scales_each_matrix_by_itself():
    x = torch.tensor([[[1.0, -4.0]], [[0.0, 0.0]], [[1e-40, 0.0]], [[math.nan, 1.0]]])
    assert unit(x)[:3].tolist() == [[[0.25, -1.0]], [[0.0, 0.0]], [[1.0, 0.0]]]
    assert unit(x)[3].isnan().any()


# -------------------------------------------------------------------- gradzip


def test_gradzip_by_hand():
    """A ridge as large as the eigenvalue halves each of the two fits, and scale cancels: half of PowerSGD's result."""
    c = begun("gradzip(rank=1, ridge=1)", [[1.0], [0.0]])
    torch.testing.assert_close(c.reduce({"w": [M]})["w"], torch.tensor([[1.5, 0.66], [2.0, 0.88]]))


def test_gradzip_ridge_regression_by_hand():
    """F = diag(2, 1), λ = 0.1·5/2: F(FᵀF + λI)⁻¹ = diag(2/4.25, 1/1.25)."""
    torch.testing.assert_close(
        regress(torch.diag(torch.tensor([2.0, 1.0])), 0.1), torch.diag(torch.tensor([8 / 17, 0.8]))
    )
    assert (regress(torch.zeros(2, 5, 3), 1e-6) == 0).all()
    assert regress(torch.ones(5, 3), 1e-6).isfinite().all()  # columns that are all alike


def test_gradzip_without_a_ridge_is_powersgd():
    """From the same start, over several steps."""
    a, b = (cluster(spec, 3, memory="none", seed=4) for spec in ("powersgd(rank=3)", "gradzip(rank=3, ridge=1e-10)"))
    for step in range(6):
        grads = {n: [normal(*s, seed=9 * step + w) for w in range(3)] for n, s in (("v", (20, 30)), ("w", (31, 17)))}
        one, other = a.reduce(grads), b.reduce(grads)
        assert all(far(other[n], one[n]) < 1e-5 for n in grads)


def test_gradzip_the_ridge_shrinks_and_scales_with_the_gradient():
    x = normal(20, 30)
    outs = [steps(f"gradzip(ridge={r})", x, 2)[-1] for r in (1e-6, 1e-2, 1e-1, 1)]
    norms = [float(o.norm()) for o in outs]
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < 0.8 * norms[0]
    torch.testing.assert_close(steps("gradzip(ridge=0.1)", 1e12 * x, 2)[-1], 1e12 * outs[2], rtol=1e-4, atol=1e7)


@pytest.mark.parametrize("spec", ["powersgd(rank=2)", "gradzip(rank=2, ridge=1e-10)", "gradzip(rank=2, ridge=0.1)"])
def test_own_shares_have_the_mean_for_their_mean_and_leave_no_more_than_the_gradient(spec):
    c = cluster(spec, 3)
    grads = [normal(20, 30, seed=w) for w in range(3)]
    out = c.reduce({"w": grads})["w"]
    own = [g - e for g, e in zip(grads, c.memory("w"), strict=True)]
    torch.testing.assert_close(sum(own) / 3, out, rtol=1e-4, atol=1e-5)
    assert all(e.norm() < g.norm() for e, g in zip(c.memory("w"), grads, strict=True))
    basis = torch.linalg.svd(out).U[:, :2]
    projected = [basis @ basis.T @ g for g in grads]
    for share, whole in zip(own, projected, strict=True):  # each its own gradient in the shared basis
        torch.testing.assert_close(basis @ basis.T @ share, share, rtol=1e-3, atol=1e-4)
        assert (far(share, whole) < 1e-4) == ("0.1" not in spec)


# -------------------------------------------------------------------- atomo


SPECTRUM = [4.0, 2.0, 1.0, 1.0]


def drawn(spec, x, copies=4000, seed=0):
    """Independent results for copies of one matrix, and the number of atoms of each."""
    codec, batch = gradwire.codec(spec), Batch(tuple(range(copies)), *x.shape, 1)
    payload = codec.encode_matrices([x.expand(copies, *x.shape)], [batch], rng(seed))
    (out,) = summed(payload, [batch])
    return out.double(), payload


@pytest.mark.parametrize(
    "budget, wanted",
    [
        (1, [0.5, 0.25, 0.125, 0.125]),
        (2, [1, 0.5, 0.25, 0.25]),  # 2·4/8 = 1, and what is left, 1, is shared by 2, 1, 1
        (3, [1, 1, 0.5, 0.5]),
        (3.5, [1, 1, 0.75, 0.75]),
        (4, [1, 1, 1, 1]),
        (9, [1, 1, 1, 1]),
    ],
)
def test_atomo_probabilities_by_hand(budget, wanted):
    order = [2, 0, 3, 1]
    p = probabilities(torch.tensor([SPECTRUM, [SPECTRUM[i] for i in order]]), budget)
    assert p.tolist() == [wanted, [wanted[i] for i in order]]


@pytest.mark.parametrize("budget", [0.5, 1, 2.5, 7, 19])
def test_atomo_probabilities_add_up_to_the_budget_and_follow_the_strengths(budget):
    values = normal(50, 20).abs() ** torch.linspace(0.1, 6, 50)[:, None]
    p = probabilities(values, budget).double()
    assert p.max() <= 1
    torch.testing.assert_close(p.sum(1), torch.full((50,), float(budget), dtype=torch.float64), rtol=1e-5, atol=0)
    factor = (p / values).where(p < 1, torch.nan)  # one factor for all that are not certain
    together = factor.nan_to_num(torch.inf).amin(1) * values.where(p < 1, 0).sum(1)
    torch.testing.assert_close(together, p.where(p < 1, 0).sum(1), rtol=1e-5, atol=1e-6)
    assert probabilities(torch.zeros(1, 3), budget).tolist() == [[0.0, 0.0, 0.0]]


def test_atomo_is_right_on_average_and_spends_its_budget():
    """p = (1, 0.5, 0.25, 0.25): drawing again until two atoms are kept would give 4, 2.4, 0.8, 0.8."""
    out, payload = drawn("atomo(budget=2)", torch.diag(torch.tensor(SPECTRUM)))
    diagonal = out.diagonal(dim1=1, dim2=2)
    assert [sorted(set(d.round(decimals=4).tolist())) for d in diagonal.T] == [
        [4.0],
        [0.0, 4.0],
        [0.0, 4.0],
        [0.0, 4.0],
    ]
    wanted = torch.tensor(SPECTRUM, dtype=torch.float64)
    spread = (wanted**2 * (torch.tensor([1.0, 2, 4, 4]) - 1) / len(out)).sqrt()
    assert ((diagonal.mean(0) - wanted).abs() <= 4.5 * spread + 1e-5).all()
    number = (int(payload.lengths) - 4000 * 3 / 8) / (4 * 8) / 4000
    assert number == pytest.approx(2, abs=4.5 * math.sqrt((0.25 + 2 * 3 / 16) / 4000))


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (5, 5)])
def test_atomo_unbiased_with_the_variance_of_its_probabilities(shape):
    x = normal(*shape)
    out, _ = drawn("atomo(budget=2)", x)
    directions = normal(x.numel(), 8, seed=1).double()
    sample, true = out.flatten(1) @ directions, x.flatten().double() @ directions
    assert ((sample.mean(0) - true).abs() / (sample.std(0) / len(out) ** 0.5)).max() < 4.5
    values = torch.linalg.svdvals(x)
    wanted = float((values**2 * (1 / probabilities(values[None], 2)[0] - 1)).sum())
    assert (out - x).square().sum((1, 2)).mean() == pytest.approx(wanted, rel=0.06)
    assert wanted <= (len(values) / 2 - 1) * float(x.square().sum())


def test_atomo_workers_draw_independently():
    """Each keeps the second atom of diag(4, 2, 1, 1) half of the time, as 4."""
    x = torch.diag(torch.tensor(SPECTRUM))
    grads = {f"w{i}": [x, x] for i in range(400)}
    second = torch.stack([out[1, 1] for out in cluster("atomo(budget=2)", 2).reduce(grads).values()])
    assert second.eq(2).double().mean() == pytest.approx(0.5, abs=4.5 * 0.5 / 20)


@pytest.mark.parametrize("spec, rank", [("atomo(budget=3)", 2), ("atomo(budget=20)", 20), ("atomo(budget=100)", 20)])
def test_atomo_is_exact_within_its_budget(spec, rank):
    for x in (normal(20, rank) @ normal(rank, 30, seed=1), normal(30, rank) @ normal(rank, 20, seed=1)):
        assert far(through(spec, x), x) < 1e-5
    assert through("atomo(budget=8)", torch.eye(8)).equal(torch.eye(8))


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e30])
def test_atomo_at_any_scale(scale):
    x = normal(20, 30)
    torch.testing.assert_close(through("atomo", scale * x), scale * through("atomo", x), rtol=1e-3, atol=1e-3 * scale)


def test_atomo_bytes_by_hand():
    """Two counts of 3 bits in one byte; 4 (m + l) bytes an atom; 8 for the length; vectors beside it."""
    c = cluster("atomo(budget=4)", 2)
    grads = {"v": [normal(4, 4)] * 2, "b": [normal(5)] * 2, "w": [normal(7, 4)] * 2}
    out = c.reduce(grads)
    assert c.payload_bytes == 1 + 4 * 4 * (4 + 4) + 4 * 4 * (7 + 4) + 8 + 4 * 5
    assert all(far(out[n], g[0]) < 1e-5 for n, g in grads.items())
    c.reduce({n: [torch.zeros_like(t) for t in ts] for n, ts in grads.items()})
    assert c.payload_bytes == 1 + 8 + 4 * 5  # nothing to keep
    traced = trace("atomo(budget=4)", [(n, g[0].shape) for n, g in grads.items()], tensors="all")
    assert traced.rounds == 1
    whole = trace("atomo(budget=4, min_rate=1)", [("v", (4, 4)), ("b", (5,))], tensors="all")
    assert whole.payload_bytes == 4 * (16 + 5)  # 4·(4 + 4) > 4·4: as it is


def test_atomo_shows_a_bad_gradient_in_every_matrix():
    bad = torch.full((20, 30), math.nan)
    c = cluster("atomo", 2)
    assert c.reduce({"w": [normal(20, 30), bad]})["w"].isnan().all()
    assert c.payload_bytes < 4 * 600


# -------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    "spec, message",
    [
        ("powersgd(rank=0)", "powersgd: `rank` must be a whole number of at least 1, got 0"),
        ("powersgd(start=-1)", "powersgd: `start` must be a whole number of at least 0, got -1"),
        ("powersgd(iterations=0)", "powersgd: `iterations` must be a whole number of at least 1, got 0"),
        ("powersgd(warm='yes')", "powersgd: `warm` must be True or False, got 'yes'"),
        ("gradzip(ridge=0)", "gradzip: `ridge` must be a share of the mean eigenvalue from 1e-10 to 1, got 0"),
        ("gradzip(start=1.5)", "gradzip: `start` must be a whole number of at least 0, got 1.5"),
        ("atomo(budget=0)", "atomo: `budget` must be the expected number of atoms, from 1e-6 to 1e6, got 0"),
        ("atomo(min_rate=-1)", "atomo: `min_rate` must be a compression rate of at least 0, got -1"),
    ],
)
def test_wrong_parameters_name_themselves(spec, message):
    with pytest.raises(gradwire.ConfigError) as caught:
        gradwire.codec(spec)
    assert str(caught.value) == message
