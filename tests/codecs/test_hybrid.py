"""Codecs that both select and quantise: worked examples and what each promises."""

from __future__ import annotations

import math
import struct

import pytest
import torch

import gradwire
from gradwire.codecs.hybrid._quantiles import quantiles
from gradwire.conformance.inputs import NASTY, cluster, normal, rng, through
from gradwire.core.exchange import Payload
from gradwire.core.scaled import Scaled
from gradwire.kernels import indices


def wire(spec, *values):
    """The bytes of one row that are sent."""
    payload = gradwire.codec(spec).encode(torch.tensor([values], dtype=torch.float32), rng())
    length = payload.data.shape[1] if payload.lengths is None else int(payload.lengths[0])
    return bytes(payload.data[0, :length].tolist())


def back(codec, x, seed=0):
    """What comes out for a flat vector."""
    row = x.reshape(1, -1)
    return codec.decode(codec.encode(row, rng(seed)), row.shape[1], rng(seed))[0]


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


# ---------------------------------------------------------------- 3LC


def test_threelc_by_hand():
    """M = 1: 0.75 rounds up, -0.5 away from zero, 0.25 down; codes 2 0 1 0 1 in base 3 are 172."""
    a = (0.75, -0.5, 0.25, -1.0, 0.0)
    assert through("threelc(sparsity=1)", torch.tensor(a)).tolist() == [1, -1, 0, -1, 0]
    assert wire("threelc(sparsity=1, zero_runs=False)", *a) == floats(1.0) + bytes([172])
    # M = 1.5: only the last but one reaches M/2 = 0.75, and 0.75 itself; codes 2 1 1 0 1
    assert wire("threelc(sparsity=1.5)", *a) == floats(1.5) + bytes([2 * 81 + 27 + 9 + 0 + 1])


def test_threelc_has_a_scale_for_each_block():
    a = torch.tensor([1.0, 0.4, 0.1, -0.05, 0.02])
    assert through("threelc(sparsity=1, block=2)", a).tolist() == pytest.approx([1, 0, 0.1, -0.1, 0.02])
    assert through("threelc(sparsity=1, block=None)", a).tolist() == [1, 0, 0, 0, 0]
    assert wire("threelc(sparsity=1, zero_runs=False, block=2)", *a.tolist())[:12] == floats(1.0, 0.1, 0.02)


def test_threelc_cuts_runs_of_zeros_short():
    """Six bytes of five zeros become one: 243 for two of them, one more for each other."""
    assert wire("threelc(sparsity=1)", 1.0, *[0.0] * 34) == floats(1.0) + bytes([2 * 81 + 27 + 9 + 3 + 1, 243 + 4])
    fixed, cut = (gradwire.codec(f"threelc(zero_runs={z})") for z in (False, True))
    x = normal(3000) ** 5
    assert back(cut, x).equal(back(fixed, x))
    assert cut.encode(x[None], rng()).lengths[0] < fixed.payload_bytes(3000) / 3


def test_threelc_sends_at_least_a_seventieth_of_a_byte_an_element():
    codec = gradwire.codec("threelc")
    length = int(codec.encode(torch.zeros(1, 7000), rng()).lengths[0])
    assert length == 4 * 4 + 100  # four blocks
    assert 8 * (length - 4 * 4) / 7000 == pytest.approx(0.114, abs=5e-4)
    assert codec.payload_bytes(7000) == 4 * 4 + 1400 + 8


@pytest.mark.parametrize("s", [1, 1.3, 1.75, 1.9])
@pytest.mark.parametrize("kind", NASTY)
def test_threelc_errs_by_at_most_half_of_m_and_never_by_more_than_the_element(kind, s):
    x = NASTY[kind].flatten()
    error = (through(f"threelc(sparsity={s})", x) - x).abs()
    assert (error <= 0.5 * s * x.abs().max() * (1 + 1e-6) + 1e-44).all()
    assert (error <= x.abs() * (1 + 1e-6)).all()
    largest = x.abs().argmax()
    assert float(error[largest]) == pytest.approx((s - 1) * float(x[largest].abs()), rel=1e-5, abs=1e-44)


def test_threelc_sends_fewer_the_larger_the_factor():
    x = normal(10_000)
    sent = [int((through(f"threelc(sparsity={s})", x) != 0).sum()) for s in (1, 1.5, 1.9)]
    assert sent[0] > 2 * sent[1] > 4 * sent[2] > 0


def test_threelc_with_error_feedback_sends_small_elements_in_the_end():
    c, x = cluster("threelc", 1), torch.tensor([1.0, 0.3, -0.05])
    total = sum(c.reduce({"w": [x]})["w"] for _ in range(60))
    torch.testing.assert_close(total / 60, x, rtol=0, atol=0.03)
    assert through("threelc", x)[1:].tolist() == [0, 0]


def test_threelc_stays_finite_where_m_would_not():
    assert through("threelc(sparsity=1.9)", torch.tensor([3e38, -1e38, -2e38])).isfinite().all()


# ---------------------------------------------------------------- SketchML


def test_sketchml_buckets_by_hand():
    """Halves of each sign: 1 2 | 3 4 and 5 | 6, each at its middle; flags are bucket and sign."""
    spec = "sketchml(ratio=1, buckets=2, tables=0)"
    x = (1.0, 2.0, 3.0, 4.0, -5.0, -6.0)
    assert through(spec, torch.tensor(x)).tolist() == [1.5, 1.5, 3.5, 3.5, -5, -6]
    flags = (0, 0, 2, 2, 1, 3)  # of two bits, the lowest first
    packed = bytes([sum(f << 2 * i for i, f in enumerate(flags[:4])), flags[4] | flags[5] << 2])
    assert wire(spec, *x) == floats(5, 6, 1.5, 3.5) + packed


def test_sketchml_a_wide_bucket_stands_for_twice_its_smallest():
    """The middle of 1 and 9 is 5, which would put 1 further away than zero is."""
    spec = "sketchml(ratio=1, buckets=2, tables=0)"
    assert through(spec, torch.tensor([1.0, 9.0, 10.0, 10.0])).tolist() == [2, 2, 10, 10]


def test_sketchml_collisions_by_hand():
    """One cell a group: everything in it falls to the group's lowest bucket, of either table."""
    spec = "sketchml(ratio=1, buckets=4, groups=2, columns=0.01)"
    x = torch.arange(1.0, 9.0)
    assert through(spec, x).tolist() == [1.5] * 4 + [5.5] * 4
    assert gradwire.codec(spec).payload_bytes(8) == 8 * 4 + 2 + 1  # means, 8 flags of 2 bits, 2·2 cells of 1 bit


@pytest.mark.parametrize("k, q", [(1000, 16), (1003, 16), (100, 64), (37, 64), (2, 8), (1, 4)])
def test_sketchml_fills_the_buckets_of_each_sign_equally(k, q):
    x = normal(1, k, seed=k) + 0.3
    means, negative, bucket = quantiles(x, q)
    for side, chosen in enumerate((negative[0], ~negative[0])):
        counts = torch.bincount(bucket[0][chosen], minlength=q)
        assert counts.numel() == q
        assert counts.max() - counts.min() <= 1
        magnitude, of = x[0][chosen].abs(), bucket[0][chosen]
        for b in of.unique().tolist():
            low, high = magnitude[of == b].min(), magnitude[of == b].max()
            assert float(means[0, side * q + b]) == pytest.approx(float(min((low + high) / 2, 2 * low)), rel=1e-6)
            assert not (of == b - 1).any() or magnitude[of == b - 1].max() <= low


@pytest.mark.parametrize("columns", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("tables", [1, 2, 4])
def test_sketchml_collisions_only_lower_within_the_group_and_keep_the_sign(tables, columns):
    x, options = normal(4000) + 0.1, "ratio=0.5, buckets=64"
    exact = back(gradwire.codec(f"sketchml({options}, tables=0)"), x)
    found = back(gradwire.codec(f"sketchml({options}, groups=8, tables={tables}, columns={columns})"), x)
    assert (found.sign() == exact.sign()).all()
    assert (found.abs() <= exact.abs()).all()
    assert (found.abs() < exact.abs()).any()
    means, negative, bucket = quantiles(x[None, exact != 0], 64)
    floor = means.gather(1, bucket // 8 * 8 + 64 * ~negative)[0]  # the group's lowest bucket
    assert (found[exact != 0].abs() >= floor).all()


def test_sketchml_loses_less_with_more_columns_and_tables():
    x = normal(20_000)
    kept = through("topk(ratio=0.1)", x)

    def error(options):
        return float((through(f"sketchml({options})", x) - kept).norm() / kept.norm())

    few, many = error("columns=0.1"), error("columns=1.0")
    assert many < 0.5 * few
    assert error("columns=0.5, tables=3") < error("columns=0.5, tables=1")
    assert error("tables=0") < 0.03


@pytest.mark.parametrize("spec", ["sketchml", "sketchml(ratio=1, buckets=4, groups=2, columns=0.05)"])
@pytest.mark.parametrize("kind", NASTY)
def test_sketchml_errs_by_at_most_the_element_itself(kind, spec):
    x = NASTY[kind].flatten()
    y = through(spec, x)
    assert ((y - x).abs() <= x.abs()).all()
    assert (y * x >= 0).all()


@pytest.mark.parametrize("spec", ["sketchml(ratio=1, buckets=64, tables=0)", "sketchml(ratio=0.5, columns=1.0)"])
def test_sketchml_spends_one_bucket_on_zeros_however_many_are_kept(spec):
    """A gradient that is sparse by itself: few elements among thousands of zeros."""
    x = torch.zeros(5000)
    x[[3, 50, 99, 2000, 4999]] = torch.tensor([2.0, -1.0, 0.5, 0.25, -4.0])
    y = through(spec, x)
    assert (y[x == 0] == 0).all()
    assert y[[3, 99, 4999]].tolist() == [2.0, 0.5, -4.0]
    assert through("sketchml(ratio=1, buckets=64, tables=0)", x).equal(x)


def test_sketchml_draws_new_hashes_in_each_step_alike_on_all_workers():
    c = cluster("sketchml(ratio=0.5)", 2, memory="none")
    x = normal(2000)
    first, second = (c.reduce({"w": [x, x]})["w"] for _ in range(2))
    assert not first.equal(second)
    codec = gradwire.codec("sketchml(ratio=0.5)")
    payload = codec.encode(torch.stack((x, x)), rng().at(4096))
    assert payload.data[0].equal(payload.data[1])
    assert payload.data.equal(codec.encode(torch.stack((x, x)), rng()).data)  # wherever a shard begins


def test_sketchml_bytes_follow_the_formula():
    n, k = 100_000, 10_000
    keys = indices.index_bytes(n, k)
    assert keys < k * 10 / 8  # one byte and a flag of two bits, the least that differences in bytes take
    cells = 2 * 8 * math.ceil(0.2 * k / 8)
    assert gradwire.codec("sketchml").payload_bytes(n) == 8 * 256 + keys + k * 4 // 8 + math.ceil(cells * 5 / 8)
    assert gradwire.codec("sketchml(ratio=1, buckets=64, tables=0)").payload_bytes(n) == 8 * 64 + n * 7 // 8


# ---------------------------------------------------------------- Qsparse


def test_qsparse_signs_of_the_top_k_by_hand():
    """k = 2: 5 and -4 become their signs times their mean magnitude."""
    spec = "qsparse(ratio=0.4, values='efsignsgd')"
    a = (5.0, -1.0, 0.5, -4.0, 2.0)
    assert through(spec, torch.tensor(a)).tolist() == [4.5, 0, 0, -4.5, 0]
    assert wire(spec, *a) == bytes([0b01001]) + floats(4.5) + bytes([0b01])  # a bitmap, the scale, the signs


@pytest.mark.parametrize("support", ["topk", "randomk"])
def test_qsparse_has_the_support_of_the_plain_sparsifier(support):
    x = normal(1000)
    plain, codec = (
        gradwire.codec(s)
        for s in (f"{support}(ratio=0.03)", f"qsparse(ratio=0.03, support='{support}', values='efsignsgd')")
    )
    assert (back(codec, x) != 0).equal(back(plain, x) != 0)
    where = indices.index_bytes(1000, 30) if support == "topk" else 0
    assert codec.payload_bytes(1000) == where + 4 + 4


@pytest.mark.parametrize("support", ["topk", "randomk"])
def test_qsparse_shows_a_bad_element_that_it_does_not_send(support):
    for place in (0, 500, 999):
        x = torch.ones(1000)
        x[place] = float("inf")
        cluster = gradwire.VirtualCluster(2, f"qsparse(ratio=0.01, support='{support}')")
        assert bool(cluster.reduce({"w": [torch.ones(1000), x]})["w"].isnan().any())
        assert cluster.engine.skipped_steps == 1


def test_qsparse_hands_the_values_to_the_codec_as_a_vector_of_its_own():
    x, values = normal(1, 500), gradwire.codec("qsgd(levels=3, block=20)")
    y = back(gradwire.codec("qsparse(ratio=0.2, values='qsgd(levels=3, block=20)')"), x)
    kept = back(gradwire.codec("topk(ratio=0.2)"), x)
    inner = rng().fold("values")
    expected = values.decode(values.encode(x[:, kept != 0], inner), 100, inner)[0]
    assert y[kept != 0].equal(expected)
    assert (y[kept == 0] == 0).all()


@pytest.mark.parametrize(
    "values, factor",
    [("qsgd(levels=2, block=8)", 1.0), ("qsgd(levels=1, block=16, norm='l2')", 1 / 5)],
)
def test_qsparse_is_unbiased_on_the_support_up_to_its_factor(values, factor):
    """omega = min(8/16, √8/2) = 1/2 goes as it is; min(16/4, 4) = 4 is divided by 1 + 4."""
    codec, x = gradwire.codec(f"qsparse(ratio=0.25, values={values!r})"), normal(1, 128, seed=3)
    kept = back(gradwire.codec("topk(ratio=0.25)"), x).double()
    rows = x.expand(3000, 128)  # each with random numbers of its own
    draws = codec.decode(codec.encode(rows, rng()), 128, rng()).double()
    spread = draws.std(0) / len(draws) ** 0.5
    random = spread > 1e-7
    assert random.sum() > 15
    assert ((draws.mean(0) - factor * kept)[random] / spread[random]).abs().max() < 4.5
    torch.testing.assert_close(draws.mean(0)[~random], factor * kept[~random], rtol=1e-5, atol=1e-7)
    error = (draws - x.double()).square().sum(1).mean() / x.double().square().sum()
    assert error <= 1 - codec.traits.delta


def test_qsparse_contracts_by_the_papers_constants():
    def delta(values):
        return gradwire.codec(f"qsparse(ratio=0.1, values={values!r})").traits.delta

    assert delta("qsgd(levels=2, block=13)") == pytest.approx(0.1 * (1 - 0.5))  # omega = (√(1 + 12/4) − 1)/2
    assert delta("qsgd(levels=1, block=25)") == pytest.approx(0.1 / (1 + 2))  # omega = (√25 − 1)/2
    assert delta("efsignsgd(block=50)") == pytest.approx(0.1 / 50)
    assert isinstance(gradwire.codec("qsparse(values='qsgd(levels=1, block=25)')")._coder.codec, Scaled)
    assert not isinstance(gradwire.codec("qsparse")._coder.codec, Scaled)


def test_qsparse_carries_values_of_any_length():
    codec = gradwire.codec("qsparse(ratio=0.5, values='threelc(sparsity=1)')")
    x = torch.stack((normal(1000), normal(1000) ** 9))
    payload = codec.encode(x, rng())
    assert not codec.traits.fixed_size
    assert payload.lengths[1] < payload.lengths[0]
    rows = [Payload(payload.data[i : i + 1, :n], payload.lengths[i : i + 1]) for i, n in enumerate(payload.lengths)]
    assert codec.decode(payload, 1000, rng()).equal(torch.cat([codec.decode(r, 1000, rng()) for r in rows]))


@pytest.mark.parametrize("strategy", ["all_gather", "scatter_reduce_gather"])
@pytest.mark.parametrize("numel", [640, 1000])  # 192 values, three blocks, and 300
def test_qsparse_takes_value_codecs_whose_draws_are_shared_by_place(strategy, numel):
    """A rotation is undone only by the signs it was done with, wherever the row comes from and goes to."""
    spec = "qsparse(ratio=0.3, values='blockint(bits=8, block=64, rotate=True)')"
    c = cluster(spec, 3, strategy=strategy)
    grads = [normal(numel, seed=w) for w in range(3)]
    total = sum(c.reduce({"w": grads})["w"] for _ in range(10))
    torch.testing.assert_close(total + sum(c.memory("w")) / 3, 10 * sum(grads) / 3, rtol=0, atol=1e-4)


@pytest.mark.parametrize("values, reason", [("none", "decoded one by one"), ("powersgd", "decoded one by one")])
def test_qsparse_refuses_values_that_are_not_decoded_one_by_one(values, reason):
    with pytest.raises(gradwire.Incompatible, match=rf"^qsparse: '{values}' cannot code the values: .*{reason}"):
        gradwire.codec(f"qsparse(values={values!r})")


def test_qsparse_refuses_votes():
    with pytest.raises(gradwire.Incompatible, match=r"^qsparse: 'signsgd' cannot code .* averaged"):
        gradwire.codec("qsparse(values='signsgd')")


# ---------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    "spec, complaint",
    [
        ("threelc(sparsity=2)", "threelc: `sparsity` must be a factor of at least 1 and below 2, got 2"),
        ("threelc(sparsity=0.9)", "threelc: `sparsity` must be"),
        ("threelc(block=0)", "threelc: `block` must be a whole number of at least 1, got 0"),
        ("threelc(zero_runs=3)", "threelc: `zero_runs` must be True or False, got 3"),
        ("sketchml(ratio=0)", "sketchml: `ratio` must be"),
        ("sketchml(buckets=1)", "sketchml: `buckets` must be"),
        ("sketchml(tables=-1)", "sketchml: `tables` must be"),
        ("sketchml(groups=7)", "sketchml: `groups` must be a proper divisor of the 256 buckets, got 7"),
        ("sketchml(groups=256)", "sketchml: `groups` must be"),
        ("sketchml(columns=0)", "sketchml: `columns` must be"),
        ("qsparse(ratio=2)", "qsparse: `ratio` must be"),
        ("qsparse(support='top')", "qsparse: `support` must be 'topk' or 'randomk', got 'top'"),
        ("qsparse(values=7)", "qsparse: `values` must be the spec of a codec, got 7"),
    ],
)
def test_wrong_parameters_name_themselves(spec, complaint):
    with pytest.raises(gradwire.ConfigError) as problem:
        gradwire.codec(spec)
    assert complaint in str(problem.value)
