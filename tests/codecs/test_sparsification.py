"""Sparsifying codecs: worked examples, bounds, supports and bytes."""

from __future__ import annotations

import math

import pytest
import torch

import gradwire
from gradwire.codecs._parameters import INDEX_CODINGS as CODINGS
from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.collectives.choose import possible
from gradwire.conformance.inputs import Ranks, agreed, cluster, normal, rng, through
from gradwire.core.random import Random
from gradwire.kernels.indices import index_bytes
from gradwire.tracing import trace

MEGA = 2**20


def vector(*values):
    return {"w": [torch.tensor(values)]}


def laplace(numel, seed=0):
    u = torch.rand(numel, generator=torch.Generator().manual_seed(seed)) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs())


def round_trip(spec, x, source=None):
    codec, source = gradwire.codec(spec), source or rng()
    return codec.decode(codec.encode(x, source), x.shape[1], source)


@pytest.mark.parametrize(
    "spec, message",
    [
        ("topk(index='gzip')", f"topk: `index` must be {' or '.join(map(repr, CODINGS))}, got 'gzip'"),
        ("topk(value_bits=8)", "topk: `value_bits` must be 32 or 16, got 8"),
        ("mstopk(rounds=0)", "mstopk: `rounds` must be a whole number of at least 1, got 0"),
        ("mstopk(ratio=0)", "mstopk: `ratio` must be the share kept, in (0, 1], got 0"),
        ("randomblock(ratio=2)", "randomblock: `ratio` must be the share kept, in (0, 1], got 2"),
        ("randomblock(unbiased=3)", "randomblock: `unbiased` must be True or False, got 3"),
        ("threshold(value=-1)", "threshold: `value` must be a magnitude of at least 0, got -1"),
        ("threshold(capacity=0)", "threshold: `capacity` must be the share kept, in (0, 1], got 0"),
        ("threshold(value_bits=64)", "threshold: `value_bits` must be 32 or 16, got 64"),
        ("dgc(momentum=2)", "dgc: `momentum` must be a factor in [0, 1], got 2"),
        ("dgc(clip=-1)", "dgc: `clip` must be a norm, or 0 for none, got -1"),
        ("dgc(warmup=-1)", "dgc: `warmup` must be a whole number of at least 0, got -1"),
        ("dgc(masking=2)", "dgc: `masking` must be True or False, got 2"),
        ("wangni(ratio=0)", "wangni: `ratio` must be the share kept, in (0, 1], got 0"),
        ("wangni(sweeps=-1)", "wangni: `sweeps` must be a whole number of at least 0, got -1"),
    ],
)
def test_wrong_parameters_name_themselves(spec, message):
    with pytest.raises(gradwire.ConfigError) as caught:
        gradwire.codec(spec)
    assert str(caught.value) == message


# -------------------------------------------------------------------- topk


@pytest.mark.parametrize(
    "index, bits", [("best", 8.56), ("elias_fano", 8.56), ("blocks", 16.05), ("packed", 20), ("bitmap", 100)]
)
def test_topk_bits_of_an_index_at_one_percent_of_a_million(index, bits):
    """l = 6 = floor(log2 100): 7 bits an index and 2^20/2^6 bits of upper parts, 1.56 an index."""
    k = kept(0.01, MEGA)
    payload = gradwire.codec(f"topk(index={index!r})").payload_bytes(MEGA)
    assert 8 * payload / k == pytest.approx(32 + bits, abs=0.01)


@pytest.mark.parametrize("ratio", [1e-6, 0.001, 0.01, 0.1, 0.3, 0.9, 1])
@pytest.mark.parametrize("numel", [1, 5, 129, 10_000, MEGA, 25_557_032])
def test_topk_best_coding_is_never_longer_than_the_others(numel, ratio):
    sizes = {index: gradwire.codec(f"topk(ratio={ratio}, index={index!r})").payload_bytes(numel) for index in CODINGS}
    assert sizes["best"] == min(sizes.values())


@pytest.mark.parametrize("value_bits", [32, 16])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1])
def test_topk_result_does_not_depend_on_the_coding(ratio, value_bits):
    x = normal(3, 1001)
    wanted = x.clone() if value_bits == 32 else x.half().float()
    order = x.abs().argsort(dim=1, descending=True)
    wanted.scatter_(1, order[:, math.ceil(ratio * 1001) :], 0.0)
    for index in CODINGS:
        codec = gradwire.codec(f"topk(ratio={ratio}, value_bits={value_bits}, index={index!r})")
        payload, own = codec.encode_own(x, rng())
        assert payload.data.shape == (3, codec.payload_bytes(1001))
        assert codec.decode(payload, 1001, rng()).equal(wanted)
        assert own.equal(wanted)
        torch.testing.assert_close(codec.combine(payload, 1001, rng()), wanted.mean(0, keepdim=True))


def test_topk_takes_the_lower_index_among_equals():
    x = torch.tensor([1.0, -2.0, 2.0, 1.0, 2.0, -2.0, 0.0, 1.0])
    assert through("topk(ratio=0.25)", x).nonzero().view(-1).tolist() == [1, 2]
    assert through("topk(ratio=0.625)", x).nonzero().view(-1).tolist() == [0, 1, 2, 4, 5]


# -------------------------------------------------------------------- randomblock


def test_randomblock_sends_the_same_run_from_all_workers():
    a, b = normal(1000, seed=1), normal(1000, seed=2)
    c = cluster("randomblock(ratio=0.1)", 2, memory="none")
    starts = set()
    for _ in range(40):
        out = c.reduce({"w": [a, b]})["w"]
        sent = out != 0
        assert int(sent.sum()) == 100
        torch.testing.assert_close(out[sent], (a + b)[sent] / 2)
        assert int((sent & ~sent.roll(1)).sum()) == 1  # one run, on a circle
        starts.add(int((sent & ~sent.roll(1)).nonzero()))
    assert len(starts) > 30
    assert max(starts) > 900, "some runs reach the end and continue at the beginning"
    assert c.payload_bytes == 400


def test_randomblock_by_hand():
    """All of k = 2 neighbours of four; the unbiased form doubles them."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    runs = {tuple(through("randomblock(ratio=0.5)", x, s).tolist()) for s in range(60)}
    assert runs == {(1, 2, 0, 0), (0, 2, 3, 0), (0, 0, 3, 4), (1, 0, 0, 4)}
    doubled = {tuple(through("randomblock(ratio=0.5, unbiased=True)", x, s).tolist()) for s in range(60)}
    assert doubled == {tuple(2 * v for v in run) for run in runs}


@pytest.mark.parametrize("numel, ratio, draws", [(10, 0.3, 400), (97, 0.11, 400), (5, 1.0, 20), (3, 0.01, 100)])
def test_randomblock_includes_every_coordinate_with_probability_k_over_n(numel, ratio, draws):
    codec, names = gradwire.codec(f"randomblock(ratio={ratio})"), torch.arange(float(numel)).view(1, -1)
    sent = torch.cat([codec.encode(names, rng(seed)).data for seed in range(draws)])
    assert sent.shape[1] == kept(ratio, numel)
    counts, p = sent.long().view(-1).bincount(minlength=numel), kept(ratio, numel) / numel
    assert (counts / draws - p).abs().max() < 4.5 * math.sqrt(p * (1 - p) / draws) + 1e-9


# -------------------------------------------------------------------- mstopk


def test_mstopk_by_hand():
    """Mean 2.5; the one pass tries 3.875, 5.25 and 6.625, which 4, 1 and 1 elements reach: 8 and one 4 are sent."""
    x = torch.tensor([[0.0, 4.0, 0.0, -4.0, 8.0, 0.0, 4.0, 0.0]])
    counts = torch.zeros(8)
    for y in round_trip("mstopk(ratio=0.25, rounds=1)", x.repeat(600, 1)):  # each row draws a start of its own
        assert y[4] == 8
        assert int((y != 0).sum()) == 2
        assert y[y != 0].equal(x[0, y != 0])
        counts += y != 0
    assert (counts[[1, 3, 6]] - 200).abs().max() < 5 * math.sqrt(600 * 2 / 9)


def test_mstopk_run_is_contiguous_in_the_band_and_the_same_on_all_workers():
    """A constant vector is one band: k neighbours on a circle."""
    c, starts = cluster("mstopk(ratio=0.1)", 3, memory="none"), set()
    for _ in range(20):
        sent = c.reduce({"w": [torch.full((200,), 0.7)] * 3})["w"] != 0
        assert int(sent.sum()) == 20
        assert int((sent & ~sent.roll(1)).sum()) == 1
        starts.add(int((sent & ~sent.roll(1)).nonzero()))
    assert len(starts) > 10


KINDS = {
    "gaussian": lambda: normal(3, 5000),
    "heavy": lambda: normal(3, 5000) ** 9,
    "rounded": lambda: normal(3, 5000).mul(2).round(),
    "zeros": lambda: torch.zeros(3, 5000),
    "one_hot": lambda: torch.nn.functional.one_hot(torch.tensor([0, 7, 4999]), 5000).float(),
    "denormal": lambda: normal(3, 5000) * 1e-42,
    "huge": lambda: normal(3, 5000) * 5e37,
    "halves": lambda: torch.tensor([0.0, 3.0]).repeat(3, 2500),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounds", [1, 5, 30])
def test_mstopk_support_has_exactly_k_elements_between_the_thresholds(kind, rounds):
    """All that reach the upper threshold, none below the lower one, k distinct indices in ascending order."""
    x = KINDS[kind]()
    magnitude = x.abs()
    for ratio in (0.0002, 0.01, 0.45, 0.8, 1):
        codec, k = gradwire.codec(f"mstopk(ratio={ratio}, rounds={rounds})"), kept(ratio, 5000)
        values, where = codec.pick(x, rng())
        assert where.shape == (3, k)
        assert (where.diff(dim=1) > 0).all()
        assert where.min() >= 0
        assert where.max() < 5000
        assert values.equal(x.gather(1, where))
        mean = magnitude.double().mean(1, keepdim=True).float()
        low, high = codec._bisect(x, k, mean, magnitude.amax(1, keepdim=True), 0 * mean)
        sent = torch.zeros_like(x, dtype=torch.bool).scatter_(1, where, True)
        assert sent[magnitude >= high].all()
        assert not sent[magnitude < low].any()


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1, 0.3, 0.7])
def test_mstopk_after_thirty_rounds_is_topk(ratio):
    for x in (normal(2, 20_000), laplace(40_000).view(2, -1), normal(2, 20_000) ** 3):
        energy = [
            round_trip(f"{name}(ratio={ratio})", x).double().square().sum(1) / x.double().square().sum(1)
            for name in ("mstopk", "topk")
        ]
        torch.testing.assert_close(energy[0], energy[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("rounds", [1, 2])
def test_mstopk_contracts_by_its_ratio_on_average_after_few_rounds(rounds):
    """Ascending magnitudes: a run without wrap-around, or always from the start, would find the small ones first."""
    x = torch.arange(1.0, 65.0).view(1, -1)
    codec = gradwire.codec(f"mstopk(ratio=0.8, rounds={rounds})")
    errors = (round_trip(codec.spec, x.repeat(400, 1)) - x).square().sum(1)
    assert errors.mean() <= (1 - codec.traits.delta) * x.square().sum()


def test_mstopk_and_topk_are_of_one_size():
    for ratio in (0.01, 0.3):
        assert gradwire.codec(f"mstopk(ratio={ratio})").payload_bytes(MEGA) == (
            gradwire.codec(f"topk(ratio={ratio})").payload_bytes(MEGA)
        )


@pytest.mark.parametrize("spec", ["topk(ratio=0.01)", "mstopk(ratio=0.01)", "threshold(value=9)", "wangni"])
def test_a_row_of_nan_is_seen_by_the_receiver_even_before_padding(spec):
    """The last shard is a few NaN before zeros."""
    rows = torch.zeros(30, 400)
    rows[0], rows[2:, :2] = normal(400), math.nan
    out = round_trip(spec, rows)
    assert out[:2].isfinite().all()
    assert out[2:, :2].isnan().any(1).all()


# -------------------------------------------------------------------- threshold


def test_threshold_by_hand():
    """What does not exceed 1 waits in the memory; the boundary itself is not sent."""
    c = cluster("threshold(value=1)", 1)
    assert c.reduce(vector(0.75, -2.0, 1.0, 0.0))["w"].tolist() == [0.0, -2.0, 0.0, 0.0]
    assert c.memory("w")[0].tolist() == [0.75, 0.0, 1.0, 0.0]
    assert c.reduce(vector(0.75, 0.5, 0.0, 0.0))["w"].tolist() == [1.5, 0.0, 0.0, 0.0]
    assert c.memory("w")[0].tolist() == [0.0, 0.5, 1.0, 0.0]


def test_threshold_rows_have_sizes_of_their_own_and_may_be_empty():
    x = torch.zeros(3, 100)
    x[0, 5], x[2, :50] = 3.0, -2.0
    codec = gradwire.codec("threshold(value=1)")
    payload = codec.encode(x, rng())
    assert payload.lengths.tolist() == [
        4 + 4 + index_bytes(100, 1),
        0,
        4 + 50 * 4 + index_bytes(100, 50),
    ]
    assert codec.decode(payload, 100, rng()).equal(x)
    torch.testing.assert_close(codec.combine(payload, 100, rng()), x.mean(0, keepdim=True))
    own_payload, own = codec.encode_own(x, rng())
    assert own_payload.data.equal(payload.data)
    assert own.equal(x)


@pytest.mark.parametrize("strategy", ["all_gather", "scatter_reduce_gather"])
def test_threshold_of_nothing_is_legal(strategy):
    c = cluster("threshold(value=1)", 3, strategy=strategy)
    out = c.reduce({"w": [0.1 * normal(50, 40, seed=w) for w in range(3)]})["w"]
    assert (out == 0).all()
    assert c.payload_bytes == (8 if strategy == "all_gather" else 3 * 8)  # lengths alone


def test_threshold_memory_never_exceeds_the_value():
    c = cluster("threshold(value=0.25)", 2, strategy="all_gather")
    for step in range(20):
        c.reduce({"w": [normal(500, seed=2 * step + w) for w in range(2)]})
        assert all(m.abs().max() <= 0.25 for m in c.memory("w"))


def test_threshold_sends_negative_gradients_as_any_other():
    """A floor at max(x) instead of max|x| would send an all-negative tensor whole."""
    x = -torch.linspace(0.01, 1, 100)
    assert through("threshold(value=0.9)", x).nonzero().view(-1).tolist() == list(range(90, 100))


def test_threshold_capacity_sends_the_largest_and_keeps_the_rest():
    """Five exceed 1; ceil(0.3·8) = 3 go."""
    c = cluster("threshold(value=1, capacity=0.3)", 1)
    assert c.reduce(vector(2.0, -5.0, 0.5, 3.0, 4.0, -2.5, 0.0, 0.0))["w"].tolist() == [0, -5, 0, 3, 4, 0, 0, 0]
    assert c.memory("w")[0].tolist() == [2.0, 0.0, 0.5, 0.0, 0.0, -2.5, 0.0, 0.0]
    x = normal(2, 1000)
    x[1] *= 0.3  # only the first row overflows
    payload, own = gradwire.codec("threshold(value=1, capacity=0.1)").encode_own(x, rng())
    assert (own != 0).sum(1).tolist() == [100, int((x[1].abs() > 1).sum())]
    assert payload.row_bytes(0) <= gradwire.codec("threshold(value=1, capacity=0.1)").payload_bytes(1000)


@pytest.mark.parametrize("numel", [1, 9, 1000, 1001])
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 100.0])
def test_threshold_and_wangni_stay_within_their_bound_of_bytes(numel, scale):
    for spec in ("threshold(value=1)", "threshold(value=0.5, value_bits=16)", "wangni", "wangni(ratio=1, sweeps=3)"):
        codec = gradwire.codec(spec)
        assert codec.encode(scale * normal(1, numel), rng()).row_bytes(0) <= codec.payload_bytes(numel)


# -------------------------------------------------------------------- dgc


def trajectory(codec, steps=12, workers=2):
    """Sum of the results, and the mean gradients."""
    c, total, means = cluster(codec, workers), torch.zeros(50), []
    for step in range(steps):
        grads = [normal(50, seed=10 * step + w) for w in range(workers)]
        total += c.reduce({"w": grads})["w"]
        means.append(torch.stack(grads).mean(0))
    return total, means


def by_sgd(means, **options):
    weight = torch.zeros(50, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0, **options)
    for mean in means:
        weight.grad = mean
        optimizer.step()
    return -weight.detach()


@pytest.mark.parametrize("nesterov", [False, True])
def test_dgc_of_everything_without_masking_is_momentum_sgd(nesterov):
    total, means = trajectory(f"dgc(ratio=1, momentum=0.8, nesterov={nesterov}, masking=False)")
    torch.testing.assert_close(total, by_sgd(means, momentum=0.8, nesterov=nesterov), rtol=1e-5, atol=1e-4)


def test_dgc_of_everything_with_masking_is_plain_sgd():
    total, means = trajectory("dgc(ratio=1, momentum=0.8)")
    torch.testing.assert_close(total, by_sgd(means), rtol=1e-5, atol=1e-5)


def test_dgc_by_hand():
    """m = 1/2, one of two. u = (1, 3) = v: 3 goes; then u = (1.5, 2), v = (2.5, 2): 2.5 goes."""
    c = cluster("dgc(ratio=0.5, momentum=0.5)", 1)
    assert c.reduce(vector(1.0, 3.0))["w"].tolist() == [0.0, 3.0]
    assert c.reduce(vector(1.0, 2.0))["w"].tolist() == [2.5, 0.0]
    store = c.engine.store
    assert store.get("momentum", "w").tensor.tolist() == [0.0, 2.0]
    assert store.get("error", "w").tensor.tolist() == [0.0, 2.0]


def test_dgc_nesterov_by_hand():
    """u = (u + g)/2, v = v + u + g: v = (1.5, 4.5), then u = (0.75, 1), v = (3.25, 3)."""
    c = cluster("dgc(ratio=0.5, momentum=0.5, nesterov=True)", 1)
    assert c.reduce(vector(1.0, 3.0))["w"].tolist() == [0.0, 4.5]
    assert c.reduce(vector(1.0, 2.0))["w"].tolist() == [3.25, 0.0]


def test_dgc_accumulators_are_zero_where_sent_and_only_there():
    c = cluster("dgc(ratio=0.1, momentum=0.9)", 1)
    for step in range(5):
        sent = c.reduce({"w": [normal(400, seed=step)]})["w"] != 0
        for kind in ("momentum", "error"):
            kept_back = c.engine.store.get(kind, "w").tensor
            assert (kept_back[sent] == 0).all()
            assert (kept_back[~sent] != 0).all()
        assert int(sent.sum()) == 40


def test_dgc_hands_its_parameters_to_its_memory():
    memory = cluster("dgc(momentum=0.7, nesterov=True, masking=False, clip=3)", 1).engine.memory
    assert (memory.momentum, memory.nesterov, memory.masking, memory.clip) == (0.7, True, False, 3)


def test_dgc_clips_before_it_accumulates():
    """Norm 5, four workers, clip 2: each adds [0.6, 0.8]; plain momentum doubles nothing of what was clipped."""
    c = cluster("dgc(ratio=1, masking=False, momentum=0.5, clip=2)", 4)
    for momentum in (1.0, 1.5, 1.75):
        out = c.reduce({"w": [torch.tensor([3.0, 4.0])] * 4})["w"]
        torch.testing.assert_close(out, momentum * torch.tensor([0.6, 0.8]))


def test_dgc_warm_up_falls_in_four_equal_stages():
    codec = gradwire.codec("dgc(warmup=8)")
    assert [codec.share(s) for s in range(10)] == [
        *[0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625, 0.00390625, 0.00390625],
        *[0.001, 0.001],
    ]
    assert codec.steady_from_step == 8
    assert gradwire.codec("dgc").share(0) == 0.001
    assert gradwire.codec("dgc(ratio=0.05, warmup=4)").share(2) == 0.05  # never below the ratio
    shares = [gradwire.codec("dgc(warmup=3)").share(s) for s in range(4)]
    assert shares == [0.25, 0.0625, 0.015625, 0.001]


@pytest.mark.parametrize("strategy", possible(gradwire.codec("dgc")))
def test_dgc_payloads_shrink_with_the_warm_up_and_stay_exact(strategy):
    """Sizes follow from the step: no lengths travel, replicas agree, and the tracer tells the size after it."""
    spec = "dgc(ratio=0.002, warmup=4)"
    c, sizes, supports = cluster(spec, 3, strategy=strategy), [], []
    ranks = Ranks(spec, 3, strategy=strategy)
    for step in range(6):
        grads = [normal(40, 100, seed=3 * step + w) for w in range(3)]
        out = c.reduce({"w": grads})["w"]
        assert agreed(ranks.reduce({"w": grads}))["w"].equal(out)
        sizes.append(c.payload_bytes)
        supports.append(int((c.engine.store.get("momentum", "w").tensor == 0).sum()))
    shards, shard = (1, 4000) if strategy == "all_gather" else (3, 1336)
    wanted = [shards * kept(share, shard) for share in (0.25, 0.0625, 0.015625, 0.00390625, 0.002, 0.002)]
    assert supports == wanted
    assert sizes[:4] == sorted(sizes[:4], reverse=True)
    settled = trace(spec, [("w", (40, 100))], workers=3, strategy=strategy)
    assert settled.payload_bytes == sizes[4] == sizes[5] == shards * c.codec.payload_bytes(shard)


def test_dgc_decodes_by_the_step_it_was_encoded_in():
    codec, x = gradwire.codec("dgc(ratio=0.01, warmup=4)"), normal(2, 1000)
    for step in range(6):
        source = Random(step=step)
        payload, own = codec.encode_own(x, source)
        out = codec.decode(payload, 1000, source)
        assert out.equal(own)
        assert (out != 0).sum(1).tolist() == [kept(codec.share(step), 1000)] * 2


# -------------------------------------------------------------------- wangni


def test_wangni_by_hand():
    """Budget 0.4·10 = 4. τ = 18/4 makes 9 certain; the sweep leaves 3 for the ones: τ = 9/3, p = 1/3."""
    x = torch.tensor([[9.0, *[1.0] * 9]])
    codec = gradwire.codec("wangni(ratio=0.4)")
    assert gradwire.codec("wangni(ratio=0.4, sweeps=0)").step(x).tolist() == [[4.5]]
    assert codec.step(x).tolist() == [[3.0]]
    draws = round_trip(codec.spec, (x * x.new_tensor([1.0, -1.0]).repeat(5)).repeat(400, 1))
    assert (draws[:, 0] == 9).all()
    assert set(draws[:, 1:].unique().tolist()) == {-3.0, 0.0, 3.0}
    frequency = (draws[:, 1:] != 0).double().mean(0)
    assert (frequency - 1 / 3).abs().max() < 4.5 * math.sqrt(2 / 9 / 400)


def test_wangni_is_unbiased_element_by_element():
    x, draws = laplace(300), 500
    codec = gradwire.codec("wangni(ratio=0.2)")
    p = (x.abs() / codec.step(x.abs().view(1, -1))[0]).clamp(max=1).double()
    sample = round_trip(codec.spec, x.repeat(draws, 1)).double()
    certain, often = p == 1, (p > 0.05) & (p < 1)
    assert 0 < int(certain.sum()) < 100
    assert sample[:, certain].eq(x[certain]).all()
    spread = x.double().abs() * ((1 / p - 1) / draws).sqrt()
    assert ((sample.mean(0) - x) / spread)[often].abs().max() < 5
    directions = normal(300, 16).double()
    error = (sample.mean(0) - x.double()) @ directions
    assert (error / (spread.square() @ directions.square()).sqrt()).abs().max() < 4.5


def test_wangni_support_is_the_sum_of_the_probabilities():
    x = laplace(20_000).view(1, -1)
    codec = gradwire.codec("wangni")
    p = (x.abs() / codec.step(x.abs())).clamp(max=1)
    assert float(p.sum()) == pytest.approx(0.05 * 20_000, rel=0.01)
    sizes = (round_trip("wangni", x.repeat(10, 1)) != 0).sum(1).double()
    spread = float((p * (1 - p)).sum().sqrt())
    assert (sizes - float(p.sum())).abs().max() < 4.5 * spread
    assert abs(float(sizes.mean()) - float(p.sum())) < 4 * spread / math.sqrt(10)


def test_wangni_variance_on_laplace_data_is_half_of_uniform_sampling():
    """E‖Q(x)‖² / ‖x‖² is 9.98 at 5 %, where uniform sampling has 20."""
    x = laplace(MEGA).view(1, -1)
    codec = gradwire.codec("wangni")
    p = (x.abs() / codec.step(x.abs())).clamp(max=1).double()
    energy = float(x.double().square().sum())
    assert float((x.double().square() / p.clamp(min=1e-30)).sum()) / energy == pytest.approx(9.98, rel=0.01)
    sent = codec.decode(codec.encode(x, rng()), MEGA, rng()).double()
    assert float(sent.square().sum()) / energy == pytest.approx(9.98, rel=0.02)


@pytest.mark.parametrize("sweeps", [0, 1, 2, 5])
def test_wangni_variance_is_within_omega_whatever_the_data(sweeps):
    for ratio in (0.02, 0.3, 0.9):
        codec = gradwire.codec(f"wangni(ratio={ratio}, sweeps={sweeps})")
        for x in (torch.ones(1, 400), normal(1, 400), normal(1, 400) ** 7, torch.eye(400)[:1]):
            step = codec.step(x.abs())
            p = (x.abs() / step).clamp(max=1).double()
            assert float(p.sum()) <= ratio * 400 * (1 + 1e-5)
            variance = torch.where(p > 0, x.double().square() * (1 / p - 1), 0.0).sum()
            assert variance <= codec.traits.omega * x.double().square().sum()


def test_wangni_bytes_are_counts_step_values_and_two_sets_of_indices():
    x = laplace(5000).view(1, -1)
    codec = gradwire.codec("wangni(ratio=0.3)")
    payload = codec.encode(x, rng())
    out = codec.decode(payload, 5000, rng())
    step = codec.step(x.abs())
    certain = x.abs() >= step
    drawn = (out != 0) & ~certain
    a, b = int(certain.sum()), int(drawn.sum())
    assert a > 0
    assert b > 0
    assert out[certain].equal(x[certain])
    assert out[drawn].equal(x[drawn].sign() * step[0])
    assert payload.lengths.tolist() == [12 + 4 * a + index_bytes(5000, a) + index_bytes(5000, b) + math.ceil(b / 8)]


def test_wangni_of_large_elements_does_not_overflow():
    x = torch.full((1, 4), 3e38)
    assert round_trip("wangni(ratio=1, sweeps=0)", x).equal(x)


def test_wangni_of_nothing_is_legal():
    codec = gradwire.codec("wangni")
    payload = codec.encode(torch.zeros(2, 100), rng())
    assert payload.lengths.tolist() == [0, 0]
    assert (codec.decode(payload, 100, rng()) == 0).all()
    assert codec.encode(torch.full((1, 100), math.nan), rng()).lengths.tolist() == [12]
