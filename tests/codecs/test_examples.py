"""One worked example per codec, with numbers that can be checked by hand or in its paper."""

from __future__ import annotations

import math

import pytest
import torch

import gradwire
from gradwire.conformance.inputs import Ranks, agreed, cluster, normal, rng, through
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.kernels.bitpack import unpack
from gradwire.kernels.grid import code_width
from gradwire.kernels.random import words
from gradwire.tracing import trace


def only(codec, *workers, **options):
    """One step over the given workers' vectors."""
    return cluster(codec, len(workers), **options).reduce({"w": [torch.tensor(v) for v in workers]})["w"].tolist()


def payload(spec, x):
    codec = gradwire.codec(spec)
    return codec, codec.encode(torch.tensor([x]), rng()).data[0]


def test_none_is_the_mean():
    assert only("none", [1.0, 5.0], [3.0, -5.0]) == [2.0, 0.0]


def test_fp16_rounds_to_eleven_bits_and_takes_the_mean_before_the_cast():
    assert only("fp16", [1 + 2.0**-11], [1 + 2.0**-11]) == [1.0]
    assert only("fp16", [1 + 2.0**-10], [1 + 2.0**-10]) == [1 + 2.0**-10]
    assert only("fp16", [49_152.0], [49_152.0], [49_152.0], [49_152.0]) == [49_152.0]  # the sum would overflow
    assert only("fp16", [1e5], [0.0]) == [pytest.approx(5e4, rel=2**-11)]  # and so would one worker's element
    assert only("fp16(scale=2)", [5e4], [0.0]) == [pytest.approx(2.5e4, rel=2**-11)]
    assert only("fp16", [1e-8]) == [0.0]
    assert only("fp16(scale=65536)", [1e-8])[0] == pytest.approx(1e-8, rel=1e-3)


def test_bf16_keeps_the_range_of_float32():
    assert only("bf16", [3e38, 1e-38, 1 + 2.0**-9])[2] == 1.0
    assert only("bf16", [3e38])[0] == pytest.approx(3e38, rel=2**-8)


def test_topk_by_hand():
    """k = ceil(0.4·5) = 2; each worker keeps its two largest; the mean of the two selections."""
    a, b = [5.0, -1.0, 0.5, -4.0, 2.0], [1.0, 3.0, -2.0, 0.0, 0.5]
    assert only("topk(ratio=0.4)", a, b) == [2.5, 1.5, -1.0, -2.0, 0.0]
    codec, data = payload("topk(ratio=0.4)", a)
    assert data.numel() == codec.payload_bytes(5) == 2 * 4 + 1  # two floats in the order of indices, and a bitmap
    assert data[:8].view(torch.float32).tolist() == [5.0, -4.0]
    assert data[8] == 0b01001
    codec, data = payload("topk(ratio=0.4, index='packed')", a)
    assert data.numel() == codec.payload_bytes(5) == 2 * 4 + 1  # two indices of 3 bits in one byte
    assert unpack(data[None, 8:], 3, 2)[0].tolist() == [0, 3]


def test_topk_support_has_exactly_k_elements_and_the_largest():
    x = normal(1000)
    kept = through("topk(ratio=0.013)", x)
    assert int((kept != 0).sum()) == math.ceil(13)
    assert kept.abs()[kept != 0].min() >= x[kept == 0].abs().max()


def test_topk_bits_follow_the_formula():
    """32 k bits of values, and of indices k ceil(log2 d), or k (l + 1) + d/2^l with l = 6 = floor(log2(d/k))."""
    d, k = 10_000, 100
    assert gradwire.codec("topk(index='packed')").payload_bytes(d) == math.ceil(k * (32 + 14) / 8)
    assert gradwire.codec("topk").payload_bytes(d) == k * 4 + math.ceil(k * 6 / 8) + math.ceil((k + d // 64) / 8)


def test_randomk_sends_the_same_coordinates_from_all_workers_and_counts_values_alone():
    a, b = normal(1000, seed=1), normal(1000, seed=2)
    c = cluster("randomk(ratio=0.1)", 2, memory="none")
    out = c.reduce({"w": [a, b]})["w"]
    kept = out != 0
    assert int(kept.sum()) == 100
    torch.testing.assert_close(out[kept], (a + b)[kept] / 2)
    assert c.payload_bytes == 400
    assert not kept.equal(c.reduce({"w": [a, b]})["w"] != 0)  # a new support in each step


@pytest.mark.parametrize("numel, ratio", [(10, 0.3), (97, 0.11), (5, 1.0), (3, 0.01)])
def test_randomk_includes_every_coordinate_with_probability_k_over_n(numel, ratio):
    codec = gradwire.codec(f"randomk(ratio={ratio})")
    k, draws = codec.payload_bytes(numel) // 4, 4000
    counts = torch.zeros(numel)
    for seed in range(draws):
        index = codec.support(numel, rng(seed)).indices(numel, torch.device("cpu"))
        assert index.unique().numel() == k
        counts[index] += 1
    p = k / numel
    assert (counts / draws - p).abs().max() < 5 * math.sqrt(p * (1 - p) / draws) + 1e-9


def test_randomk_lifts_its_values_where_it_shall_be_unbiased():
    """A quarter of the elements, each four times as large."""
    out = torch.tensor(only("randomk(ratio=0.25, unbiased=True)", [2.0] * 1000))
    assert sorted(set(out.tolist())) == [0.0, 8.0]
    assert out.mean() == 2


def test_signsgd_is_a_majority_vote():
    assert only("signsgd", [0.1, -9.0, 3.0], [0.2, -8.0, -1.0], [-7.0, -0.1, 2.0]) == [1.0, -1.0, 1.0]


def test_signsgd_payload_is_one_bit_a_coordinate_and_one_flag():
    codec, data = payload("signsgd", [1.0, -1.0, 2.0, -3.0, 4.0, 5.0, -6.0, -7.0, 8.0])
    assert data.tolist() == [0b00110101, 0b1, 0]
    assert codec.payload_bytes(9) == 3


def test_signsgd_zeros_and_ties_follow_a_coin_that_all_workers_share():
    zeros = cluster("signsgd", 4)
    first = zeros.reduce({"w": [torch.zeros(4000)] * 4})["w"]
    assert abs(first.mean()) < 0.1  # no drift
    assert not zeros.reduce({"w": [torch.zeros(4000)] * 4})["w"].equal(first)
    tie = cluster("signsgd", 2).reduce({"w": [torch.ones(4000), -torch.ones(4000)]})["w"]
    assert abs(tie.mean()) < 0.1


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_signsgd_vote_is_the_same_by_all_gather_and_by_scatter_reduce_gather(workers):
    grads = {"w": [normal(1001, seed=w).round() for w in range(workers)]}  # many zeros and ties
    a, b = (cluster("signsgd", workers, strategy=s).reduce(grads)["w"] for s in ("all_gather", "scatter_reduce_gather"))
    assert a.equal(b)


def test_efsignsgd_by_hand():
    """Blocks of 2: mean magnitudes 2 and 6; the memory keeps the rest."""
    c = cluster("efsignsgd(block=2)", 1)
    assert c.reduce({"w": [torch.tensor([1.0, -3.0, 6.0])]})["w"].tolist() == [2.0, -2.0, 6.0]
    assert c.memory("w")[0].tolist() == [-1.0, -1.0, 0.0]


def test_efsignsgd_contraction_of_a_gaussian_is_two_over_pi():
    x = normal(400_000)
    error = (through("efsignsgd(block=4000)", x) - x).square().sum() / x.square().sum()
    assert error == pytest.approx(1 - 2 / math.pi, abs=0.005)


def test_qsgd_levels_by_hand():
    """s = 2, max-norm 4: the grid is {-4, -2, 0, 2, 4}; grid points are kept whatever is drawn."""
    x = [4.0, -2.0, 0.0, 2.0]
    assert only("qsgd(levels=2, block=4)", x) == x
    draws = torch.stack([through("qsgd(levels=2, block=2)", torch.tensor([4.0, 1.0]), s) for s in range(2000)])
    assert set(draws[:, 1].tolist()) == {0.0, 2.0}
    assert (draws[:, 1] == 2).double().mean() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("spec", ["qsgd", "qsgd(levels=3, block=64, norm='l2')", "qsgd(levels=7, share_norm=True)"])
def test_qsgd_shows_a_block_that_is_not_a_number(spec):
    x = normal(2048)
    x[3] = float("nan")
    assert bool(through(spec, x).isnan().any())


@pytest.mark.parametrize("levels, width", [(1, 2), (3, 3), (7, 4), (127, 8), (128, 9)])
def test_qsgd_width_is_that_of_two_s_plus_one_codes(levels, width):
    codec = gradwire.codec(f"qsgd(levels={levels}, block=100)")
    assert code_width(levels, levels) == width == math.ceil(math.log2(2 * levels + 1))
    assert codec.payload_bytes(1000) == math.ceil(1000 * width / 8) + 4 * 10


@pytest.mark.parametrize(
    "spec, omega", [("levels=1, norm='l2'", 17), ("levels=7, norm='l2'", 1.58), ("levels=1", 1.64), ("levels=7", 0.037)]
)
def test_qsgd_variance_on_gaussian_blocks_of_512(spec, omega):
    x = normal(512 * 400)
    error = (through(f"qsgd(block=512, {spec})", x) - x).square().sum() / x.square().sum()
    assert error == pytest.approx(omega, rel=0.08)


def test_qsgd_a_single_value_in_a_block_comes_back_whole():
    """y = s|x|/N may exceed s by rounding; without the clamp the code would wrap."""
    for seed in range(200):
        x = torch.zeros(8)
        x[seed % 8] = normal(1, seed=seed)[0]
        torch.testing.assert_close(through("qsgd(levels=127, block=8, norm='l2')", x, seed), x)


def test_qsgd_never_exceeds_the_top_level():
    """u just below 1 makes y + u round up to s + 1 in float32; without the clamp that code would wrap."""
    x = torch.ones(1, 20_000)
    codec = gradwire.codec("qsgd(levels=32767, block=20000)")
    assert codec.decode(codec.encode(x, rng()), 20_000, rng()).equal(x)


def test_topkc_by_hand():
    """Chunks of 2 with summed energies 25+1, 4+4, 9+16: the first and the last of three are kept (J = 2)."""
    a, b = [5.0, 0.0, 2.0, 0.0, 0.0, 3.0], [1.0, 0.0, 0.0, 2.0, 4.0, 0.0]
    assert only("topkc(ratio=0.5, chunk=2)", a, b) == [3.0, 0.0, 0.0, 0.0, 2.0, 1.5]


def test_topkc_bits_follow_the_papers_formula():
    """b = 16 (J·C/d + 1/C); C = 64 gives J·C/d = 0.484 at 8 bits and 0.109 at 2, C = 128 0.0234 at 0.5."""
    for chunk, bits, share in [(64, 8, 0.484), (64, 2, 0.109), (128, 0.5, 0.0234)]:
        d = 2**20
        kept = gradwire.codec(f"topkc(bits={bits}, chunk={chunk})").kept_chunks(d)
        assert kept * chunk / d == pytest.approx(share, abs=6e-4)
        traced = trace(f"topkc(bits={bits}, chunk={chunk})", [("w", (1024, 1024))])
        assert traced.bits_per_element == 16 * (kept * chunk / d + 1 / chunk)


@pytest.mark.parametrize("rms", [1e-12, 5.4e-5, 1.0, 1e6])
def test_topkc_is_as_good_at_any_scale(rms):
    """Half precision would lose energies of small gradients and overflow on large ones."""
    x = rms * normal(64, 128) * torch.linspace(0.1, 2, 64).unsqueeze(1)
    out = through("topkc(ratio=0.25)", x)
    kept = out.abs().sum(1) > 0
    assert int(kept.sum()) == 16
    assert kept[48:].sum() == 14  # two of the strongest rows are weaker than their neighbours below
    torch.testing.assert_close(out[kept], x[kept], rtol=1e-3, atol=rms * 1e-5)


def test_topkc_beats_topk_at_equal_bits_where_energy_is_local_and_loses_when_permuted():
    """Energy comes in runs of 64, as in layers: chunks find it without paying for plain indices, as in the paper."""
    local = normal(4096, 64) * torch.exp(2 * normal(4096, 1, seed=3))
    shuffled = local.view(-1)[torch.randperm(local.numel(), generator=torch.Generator().manual_seed(0))].view(4096, 64)

    def nmse(spec, x):
        return float((through(spec, x) - x).square().sum() / x.square().sum())

    chunked, top = "topkc(bits=2, chunk=64)", f"topk(ratio={2 / (16 + 18)}, value_bits=16, index='packed')"
    assert trace(top, [("w", (4096, 64))], workers=1).bits_per_element == pytest.approx(2, rel=0.01)
    assert nmse(chunked, local) < nmse(top, local)
    assert nmse(chunked, shuffled) > nmse(top, shuffled)


def test_topkc_permuted_is_topkc_of_the_permuted_vector():
    """The order is drawn anew in each step, alike on all workers; memories are kept in the order of the gradient."""
    spec, vectors = "topkc(ratio=0.3, chunk=16{})", [normal(1000, seed=r) for r in range(3)]
    permuted, orders = cluster(spec.format(", permute=True"), 3), []
    ranks = Ranks(spec.format(", permute=True"), 3)
    for step in range(2):
        before = permuted.memory("w") if step else [torch.zeros(1000)] * 3
        out = permuted.reduce({"w": vectors})["w"]
        assert agreed(ranks.reduce({"w": vectors}))["w"].equal(out)
        draw = Random(permuted.engine.seed, step, Layout.of([("w", (1000,))]).id).shared("permutation")
        orders.append(words(draw, (1000,), out.device).argsort(stable=True))
        plain = cluster(spec.format(""), 3)
        given = [(v + b)[orders[-1]] for v, b in zip(vectors, before, strict=True)]
        assert out[orders[-1]].equal(plain.reduce({"w": given})["w"])
        for mine, theirs in zip(permuted.memory("w"), plain.memory("w"), strict=True):
            assert mine[orders[-1]].equal(theirs)
    assert orders[0].sort().values.equal(torch.arange(1000))
    assert (orders[0] == orders[1]).float().mean() < 0.1


def test_topkc_needs_the_order_of_the_gradient():
    """As the paper's ablation: on a permuted gradient chunks are alike, and choosing among them gains little."""
    local = normal(256, 64) * torch.exp(2 * normal(256, 1, seed=3))

    def nmse(spec):
        return float((through(spec, local) - local).square().sum() / local.square().sum())

    assert nmse("topkc(bits=2, chunk=64, permute=True)") > 2 * nmse("topkc(bits=2, chunk=64)")
    assert trace("topkc(bits=2, chunk=64, permute=True)", [("w", (256, 64))]).sent_bytes == (
        trace("topkc(bits=2, chunk=64)", [("w", (256, 64))]).sent_bytes
    )


def test_powersgd_is_exact_on_low_rank_after_a_warm_step():
    x = normal(30, 2) @ normal(2, 50, seed=1)
    c = cluster("powersgd(rank=2)", 2)
    for _ in range(3):
        out = c.reduce({"w": [x, x]})["w"]
    torch.testing.assert_close(out, x, rtol=1e-3, atol=1e-4)


def test_powersgd_treats_each_matrix_of_a_batch_by_itself():
    """Eight rank-1 matrices of one shape: a norm over the whole batch would spoil all but one."""
    grads = {f"w{i}": [10.0**-i * normal(20, 1, seed=i) @ normal(1, 30, seed=50 + i)] for i in range(8)}
    c = cluster("powersgd(rank=1)", 1)
    for _ in range(3):
        out = c.reduce(grads)
    for name, (x,) in grads.items():
        assert ((out[name] - x).norm() / x.norm()) < 1e-3


def test_powersgd_basis_is_shared_and_the_mean_is_projected():
    a, b = normal(20, 30, seed=1), normal(20, 30, seed=2)
    c = cluster("powersgd(rank=3)", 2)
    out = c.reduce({"w": [a, b]})["w"]
    basis = torch.linalg.svd(out).U[:, :3]
    torch.testing.assert_close(out, basis @ basis.T @ ((a + b) / 2), rtol=1e-3, atol=1e-4)
    assert torch.linalg.matrix_rank(out) == 3
    ranks = Ranks("powersgd(rank=3)", 2)
    agreed(ranks.reduce({"w": [a, b]}))
    q = [e.store.get("q", "w").tensor for e in ranks.engines]
    assert q[0].equal(q[1])
    torch.testing.assert_close(q[0], c.engine.store.get("q", "w").tensor)


def test_powersgd_sends_vectors_exactly():
    a, b = normal(17, seed=1), normal(17, seed=2)
    out = cluster("powersgd", 2).reduce({"w": [normal(20, 30)] * 2, "b": [a, b]})
    torch.testing.assert_close(out["b"], (a + b) / 2)


def test_powersgd_warm_start_converges_to_the_best_approximation():
    """Power iteration over the steps: a fixed matrix with a slowly falling spectrum needs more than one."""
    u, v = torch.linalg.qr(normal(40, 40)).Q, torch.linalg.qr(normal(40, 40, seed=1)).Q
    spectrum = 0.8 ** torch.arange(40)
    x = u * spectrum @ v
    best = spectrum[2:].norm()
    c = cluster("powersgd(rank=2)", 1, memory="none")
    errors = [float((c.reduce({"w": [x]})["w"] - x).norm() / best) for _ in range(30)]
    assert errors[0] > 1.05
    assert errors[-1] < 1.001


def test_powersgd_recovers_from_a_zero_gradient():
    x = normal(20, 1) @ normal(1, 30, seed=1)
    c = cluster("powersgd(rank=1)", 1)
    c.reduce({"w": [torch.zeros(20, 30)]})
    for _ in range(3):
        out = c.reduce({"w": [x]})["w"]
    assert out.abs().sum() > 0


def test_powersgd_sends_vectors_and_incompressible_matrices_as_they_are():
    """A 4 x 4 matrix at rank 2 would take 16 numbers: at min_rate 1 it travels whole, with the vector."""
    traced = trace("powersgd(rank=2, min_rate=1)", [("m", (4, 4)), ("b", (5,)), ("w", (50, 60))], tensors="all")
    assert traced.payload_bytes == 4 * (16 + 5 + 2 * (50 + 60))
