"""Codecs that send what stands out, coarsely: variance-based words, Strom's signs, Dryden's two means."""

from __future__ import annotations

import math

import pytest
import torch

import gradwire
from gradwire.codecs.sparsification import _power_words, variance
from gradwire.conformance.inputs import cluster, normal, rng, through
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.kernels.indices import index_bytes


def step(c, *workers):
    """One step over the given workers' vectors."""
    return c.reduce({"w": [torch.tensor(v) for v in workers]})["w"].tolist()


@pytest.mark.parametrize(
    "spec, words",
    [
        ("variance(alpha=-1)", "variance: `alpha` must be a factor of at least 0, got -1"),
        ("variance(zeta=1.5)", "variance: `zeta` must be a discount in [0, 1], got 1.5"),
        ("strom(tau=0)", "strom: `tau` must be a magnitude above 0, got 0"),
        ("strom(tau='much')", "strom: `tau` must be a magnitude above 0, got 'much'"),
        ("adaptivethreshold(ratio=0)", "adaptivethreshold: `ratio` must be the share kept, in (0, 1], got 0"),
    ],
)
def test_wrong_parameters_name_themselves(spec, words):
    with pytest.raises(gradwire.ConfigError) as caught:
        gradwire.codec(spec)
    assert str(caught.value) == words


# -------------------------------------------------------------------- variance-based


def test_variance_by_hand():
    """zeta = 1, alpha = 1.5, the gradient as its own sample: sent once r² > 1.5 v, which is the second time that it
    comes with the same sign: (2g)² > 1.5·2g². What changes its sign waits."""
    c = cluster("variance(zeta=1)", 1)
    assert step(c, [1.0, -0.5, 3.0]) == [0.0, 0.0, 0.0]
    assert c.memory("w")[0].tolist() == [1.0, -0.5, 3.0]
    assert step(c, [1.0, -0.5, -3.0]) == [2.0, -1.0, 0.0]
    assert c.memory("w")[0].tolist() == [0.0, 0.0, 0.0]
    deviation = c.engine.store.get(variance.DEVIATION, "w").tensor
    torch.testing.assert_close(deviation, torch.tensor([0.0, 0.0, math.sqrt(18)]))


def test_variance_takes_the_observed_squares():
    """g = 2 in all: sent where 4 > 1.5 v. The sum over both workers, each with squares of its own, is divided by 2."""
    c, g = cluster("variance", 2), torch.full((3,), 2.0)
    c.observe("squares", {"w": [torch.tensor([1.0, 4.0, 2.6]), torch.tensor([[2.7, 3.0, 0.0]])]})
    assert c.reduce({"w": [g, g]})["w"].tolist() == [1.0, 0.0, 2.0]
    assert c.reduce({"w": [g, g]})["w"].tolist() != [0.0, 0.0, 0.0]  # observed for one step only


def test_variance_treats_parameters_without_squares_by_their_gradient():
    c = cluster("variance(zeta=1)", 1)
    c.observe("squares", {"a": [torch.zeros(2)]})
    grads = {n: [torch.tensor([1.0, -4.0])] for n in "ab"}
    assert {n: t.tolist() for n, t in c.reduce(grads).items()} == {"a": [1.0, -4.0], "b": [0.0, 0.0]}


def test_variance_refuses_squares_of_another_size():
    c = cluster("variance", 1)
    c.observe("squares", {"w": [torch.zeros(3)]})
    with pytest.raises(gradwire.ConfigError, match=r"^variance: the observed squares of 'w' are 3 numbers for 4"):
        c.reduce({"w": [torch.zeros(4)]})


def test_variance_shows_squares_that_are_not_finite_and_forgets_them():
    c, g = cluster("variance(zeta=1)", 2), torch.ones(3)
    c.reduce({"w": [g, g]})
    c.observe("squares", {"w": [torch.ones(3), torch.tensor([1.0, math.inf, 1.0])]})
    assert c.reduce({"w": [g, g]})["w"].isnan().all()
    assert c.reduce({"w": [g, g]})["w"].tolist() == [2.0, 2.0, 2.0]


def test_variance_unsent_coordinates_do_not_stand_out_of_their_noise():
    """r² <= alpha v wherever v was not reset; gradients in ±[0.5, 1] leave nothing more than 7 steps down."""
    c, waiting = cluster("variance(alpha=1.5, zeta=0.9)", 2), 0
    for seed in range(12):
        signs = [normal(400, seed=2 * seed + w).sign() for w in range(2)]
        c.reduce({"w": [s * (0.5 + 0.5 * normal(400, seed=seed).abs().clamp(max=1)) for s in signs]})
        for row, r in enumerate(c.memory("w")):
            v = c.engine.store.get(variance.DEVIATION, "w", row).tensor.square() / 0.9  # as it was before its discount
            unsent = v > 0
            waiting += int(unsent.sum())
            assert (r.square() <= 1.5 * v * (1 + 1e-5))[unsent].all()
            assert 0 < int(unsent.sum()) <= 400
            assert (r.abs() <= 13 / 3)[~unsent].all()  # what rounding left of it
    assert 12 * 100 < waiting < 12 * 790


def test_variance_zeta_lets_old_noise_fade():
    """v = 16 at first, then 4, or 12 and 9, without a gradient: r² = 16 > 1.5·4 is sent, and so is 16 > 1.5·9."""
    for zeta, wanted in ((0.25, [[0.0], [4.0], [0.0]]), (0.75, [[0.0], [0.0], [4.0]])):
        c = cluster(f"variance(zeta={zeta})", 1)
        assert [step(c, [g]) for g in (4.0, 0.0, 0.0)] == wanted


@pytest.mark.parametrize("steps", range(9))
def test_variance_words_hold_exponents_up_to_seven_steps_down(steps):
    x = torch.tensor([-(2.0**5), 0.0, 2.0 ** (5 - steps), -(2.0**-20)])
    starts = torch.tensor([0, 3])
    largest, words = _power_words.encode(x, torch.tensor([0, 2, 3]), starts)
    where, values = _power_words.decode(largest, words, starts)
    assert largest.tolist() == [127 + 5, 127 - 20]
    if steps <= 7:
        assert (words.long() & 0xFFFFFFFF).tolist() == [1 << 28, 2 + (steps << 29), 3 + (1 << 28)]
        assert where.tolist() == [0, 2, 3]
        assert values.tolist() == [-32.0, 2.0 ** (5 - steps), -(2.0**-20)]
    else:
        assert where.tolist() == [0, 3]


def test_variance_rounds_to_the_nearest_power_of_two():
    x = torch.tensor([1.0, 1.499, 1.5, 1.999, 0.751, -3.1, 1e-38, 3.4e38])
    starts = torch.arange(8)
    _, values = _power_words.decode(*_power_words.encode(x, torch.arange(8), starts), starts)
    assert values[:6].tolist() == [1.0, 1.0, 2.0, 2.0, 1.0, -4.0]
    assert values[6:].tolist() == [2.0**-126, 2.0**127]
    x = normal(10_000).abs() + 0.01
    starts = torch.arange(10_000)
    _, values = _power_words.decode(*_power_words.encode(x, starts, starts), starts)
    assert ((x - values).abs() / x).max() <= 1 / 3 + 1e-6


def test_variance_index_guard():
    layout = Layout.of([("w", (_power_words.LARGEST + 1,))])
    program = Engine("variance", tensors="all").reduce(torch.empty(1, layout.numel, device="meta"), layout)
    with pytest.raises(gradwire.Incompatible, match=r"^variance: a unit of 268435457 elements is more than"):
        next(program)
    starts = torch.tensor([0])
    last = torch.tensor([_power_words.LARGEST - 1])
    words = (last | 1 << 28 | 5 << 29).to(torch.int32)
    where, values = _power_words.decode(torch.tensor([130]), words, starts)
    assert (where.tolist(), values.tolist()) == ([_power_words.LARGEST - 1], [-0.25])


def test_variance_sends_a_word_for_each_coordinate_and_a_byte_for_each_parameter():
    c = cluster("variance(alpha=0)", 2)
    out = c.reduce({n: [torch.tensor([1.0, 0.0, 2.0, 2.0**-7])] * 2 for n in "abc"})
    assert [t.tolist() for t in out.values()] == [[1.0, 0.0, 2.0, 0.0]] * 3  # the last one is 8 steps down
    assert c.payload_bytes == 3 + 4 * 6 + 8
    assert c.memory("a")[0].tolist() == [0.0, 0.0, 0.0, 2.0**-7]


def test_variance_follows_a_change_of_the_loss_scale():
    """Everything kept is turned into today's units, v with r."""
    plain, scaled = cluster("variance", 2), cluster("variance", 2)
    for seed in range(6):
        factor = 1.0 if seed < 3 else 16.0
        grads = [normal(300, seed=10 * seed + w) for w in range(2)]
        scaled.engine.begin_step(loss_scale=factor)
        expected = plain.reduce({"w": grads})["w"] * factor
        assert scaled.reduce({"w": [factor * g for g in grads]})["w"].equal(expected)
    assert expected.abs().sum() > 0


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_variance_squares_neither_sink_nor_overflow(scale):
    c = cluster("variance", 1)
    g = scale * normal(200)
    c.reduce({"w": [g]})
    out = c.reduce({"w": [g]})["w"]
    heavy = g.abs() > g.abs().max() / 64
    assert ((out - 2 * g).abs() <= 0.34 * 2 * g.abs())[heavy].all()


# -------------------------------------------------------------------- Strom


def test_strom_by_hand():
    """tau = 1: signs of what exceeds it, worth 1 each; the rest drains in later steps."""
    c = cluster("strom(tau=1)", 1)
    assert step(c, [2.5, -1.5, 0.5, 1.0]) == [1.0, -1.0, 0.0, 0.0]
    assert c.memory("w")[0].tolist() == [1.5, -0.5, 0.5, 1.0]
    assert step(c, [0.0, -0.75, 0.0, 0.25]) == [1.0, -1.0, 0.0, 1.0]
    assert c.memory("w")[0].tolist() == [0.5, -0.25, 0.5, 0.25]


def test_strom_takes_the_mean_over_the_workers():
    c = cluster("strom(tau=2)", 4, strategy="all_gather")
    assert step(c, [3.0, 3.0], [5.0, 0.0], [-3.0, 0.0], [9.0, 0.0]) == [1.0, 0.5]


@pytest.mark.parametrize("tau, numel", [(2.5, 10_000), (1.0, 10_000), (0.001, 777)])
def test_strom_bytes_are_a_count_an_index_set_and_signs(tau, numel):
    x = normal(1, numel)
    payload = gradwire.codec(f"strom(tau={tau})").encode(x, rng())
    k = int((x.abs() > tau).sum())
    assert payload.lengths.tolist() == [4 + index_bytes(numel, k) + math.ceil(k / 8)]
    assert payload.nbytes < 4 * k  # a word each, as published


def test_strom_nothing_beyond_the_threshold_takes_no_byte():
    x = torch.tensor([[0.5, -0.5], [2.0, 0.0]])
    payload = gradwire.codec("strom(tau=1)").encode(x, rng())
    assert payload.lengths.tolist() == [0, 6]
    assert gradwire.codec("strom(tau=1)").decode(payload, 2, rng()).tolist() == [[0.0, 0.0], [1.0, 0.0]]
    c = cluster("strom(tau=1)", 2)
    c.reduce({"w": [x[0], x[0]]})
    assert c.payload_bytes == 8


# -------------------------------------------------------------------- adaptive threshold


def test_adaptivethreshold_by_hand():
    """k = 2 a side: {5, 3} go as 4 and {-4, -6} as -5."""
    c = cluster("adaptivethreshold(ratio=0.5)", 1)
    assert step(c, [5.0, 1.0, -4.0, 3.0, -2.0, -6.0, 0.5, -0.1]) == [4.0, 0.0, -5.0, 4.0, 0.0, -5.0, 0.0, 0.0]
    torch.testing.assert_close(c.memory("w")[0], torch.tensor([1.0, 1.0, 1.0, -1.0, -2.0, -1.0, 0.5, -0.1]))


def test_adaptivethreshold_takes_the_mean_over_the_workers():
    """One a side: {4, -2} and {3, -1} of the two workers, summed where they meet."""
    c = cluster("adaptivethreshold(ratio=0.5)", 2, strategy="all_gather")
    assert step(c, [4.0, -2.0, 1.0, 0.0], [-1.0, -0.5, 0.0, 3.0]) == [1.5, -1.0, 0.0, 1.5]


def test_adaptivethreshold_a_short_side_sends_what_it_has_and_no_wrong_sign():
    x = torch.tensor([0.0, -1.0, -5.0, 0.0, 2.0, -4.0, -3.0, 0.0])  # one positive, k = 3
    assert through("adaptivethreshold(ratio=0.75)", x).tolist() == [0.0, 0.0, -4.0, 0.0, 2.0, -4.0, -4.0, 0.0]
    assert through("adaptivethreshold(ratio=1)", -torch.ones(4)).tolist() == [-1.0, -1.0, 0.0, 0.0]
    assert through("adaptivethreshold(ratio=1)", torch.tensor([0.0, 7.0, 0.0])).tolist() == [0.0, 7.0, 0.0]


@pytest.mark.parametrize("ratio", [0.01, 0.2, 1.0])
def test_adaptivethreshold_keeps_the_sum_of_each_side_and_the_largest(ratio):
    x = normal(1000) ** 3
    out, k = through(f"adaptivethreshold(ratio={ratio})", x), math.ceil(1000 * ratio / 2)
    energy = 0.0
    for sign in (1, -1):
        sent, side = sign * out > 0, sign * x
        assert int(sent.sum()) == min(k, int((side > 0).sum()))
        assert out[sent].unique().numel() == 1
        assert out[sent].double().sum() == pytest.approx(float(x[sent].double().sum()), rel=1e-5)
        assert side[sent].min() >= side[~sent].max()
        energy += float(out[sent].square().sum())
    error = float((x - out).square().sum())
    assert error == pytest.approx(float(x.square().sum()) - energy, rel=1e-4)


def test_adaptivethreshold_bytes_are_two_means_and_two_index_sets():
    """The last k of the indices below n + k stand for places left empty."""
    codec = gradwire.codec("adaptivethreshold")
    payload = codec.encode(normal(1, 10_000), rng())
    assert payload.nbytes == codec.payload_bytes(10_000) == 4 + 4 + 2 * index_bytes(10_050, 50)


def test_adaptivethreshold_mean_of_huge_values_does_not_overflow():
    assert through("adaptivethreshold(ratio=1)", torch.full((6,), 3e38)).tolist()[:3] == pytest.approx([3e38] * 3)
