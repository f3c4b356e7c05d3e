"""Codecs whose workers agree on what to keep: the oracle of global top-k, gTop-k's merges, Sketched-SGD."""

from __future__ import annotations

import pytest
import torch

import gradwire
from gradwire.codecs.sparsification._sparse_payload import support_bytes
from gradwire.conformance.inputs import Ranks, agreed, cluster, normal, rng, through
from gradwire.kernels import sketch
from gradwire.memory.momentum_correction import MOMENTUM
from gradwire.tracing import trace

CPU = torch.device("cpu")


def reduced(codec, *workers, **options):
    """One step over the given workers' vectors: the cluster and the result."""
    c = cluster(codec, len(workers), **options)
    return c, c.reduce({"w": [torch.tensor(v) for v in workers]})["w"].tolist()


def owed(c):
    return [m.tolist() for m in c.memory("w")]


@pytest.mark.parametrize(
    "spec, words",
    [
        ("globaltopk(ratio=0)", "globaltopk: `ratio` must be the share kept, in (0, 1], got 0"),
        ("gtopk(ratio=2)", "gtopk: `ratio` must be the share kept"),
        ("gtopk(value_bits=8)", "gtopk: `value_bits` must be 32 or 16, got 8"),
        ("sketchedsgd(ratio=-1)", "sketchedsgd: `ratio` must be the share kept"),
        ("sketchedsgd(rows=4)", "sketchedsgd: `rows` must be an odd number"),
        ("sketchedsgd(rows=0)", "sketchedsgd: `rows` must be a whole number of at least 1"),
        ("sketchedsgd(columns=0)", "sketchedsgd: `columns` must be a whole number from 1"),
        ("sketchedsgd(candidates=0)", "sketchedsgd: `candidates` must be a whole number of at least 1, got 0"),
    ],
)
def test_wrong_parameters_name_themselves(spec, words):
    with pytest.raises(gradwire.ConfigError) as caught:
        gradwire.codec(spec)
    assert str(caught.value).startswith(words)


# -------------------------------------------------------------------- global top-k


def test_globaltopk_by_hand():
    """The workers' largest cancel; the mean's largest is the third: 2. (Local top-1 would choose the first.)"""
    c, out = reduced("globaltopk(ratio=0.25)", [9.0, 0.0, 2.0, 0.0], [-9.0, 1.0, 2.0, 0.0])
    assert out == [0.0, 0.0, 2.0, 0.0]
    assert owed(c) == [[9.0, 0.0, 0.0, 0.0], [-9.0, 1.0, 0.0, 0.0]]  # own values leave on the common support


def test_globaltopk_is_the_best_sparse_approximation_of_the_mean_and_costs_all_of_it():
    grads = [normal(1000, seed=w) for w in range(4)]
    c = cluster("globaltopk(ratio=0.03)", 4, memory="none")
    out = c.reduce({"w": grads})["w"]
    mean = torch.stack(grads).mean(0)
    best = mean.abs().topk(30).indices.sort().values
    assert out.nonzero().view(-1).equal(best)
    torch.testing.assert_close(out[best], mean[best])
    assert c.payload_bytes == 4 * 1000
    assert trace("globaltopk", [("w", (100, 100))]).bits_per_element == 32


# -------------------------------------------------------------------- gTop-k


def test_gtopk_by_hand():
    """Two workers, k = 2: {0: 5, 3: -4} + {0: 1, 1: 3} = {0: 6, 1: 3, 3: -4}, of which 0 and 3 stay."""
    c, out = reduced("gtopk(ratio=0.4)", [5.0, -1.0, 0.5, -4.0, 2.0], [1.0, 3.0, -0.5, 0.0, 0.5])
    assert out == [3.0, 0.0, 0.0, -2.0, 0.0]
    assert owed(c) == [[0.0, -1.0, 0.5, 0.0, 2.0], [0.0, 3.0, -0.5, 0.0, 0.5]]


def test_gtopk_an_entry_cut_off_early_stays_owed_though_its_coordinate_comes_back():
    """k = 1: worker 1's {1: 4} loses to {0: 5}; workers 2 and 3 bring coordinate 1 back, with 6, and win."""
    c, out = reduced("gtopk(ratio=0.5)", [5.0, 0.0], [0.0, 4.0], [0.0, 3.0], [0.0, 3.0])
    assert out == [0.0, 1.5]
    assert owed(c) == [[5.0, 0.0], [0.0, 4.0], [0.0, 0.0], [0.0, 0.0]]


def test_gtopk_a_worker_beyond_the_power_of_two_learns_what_became_of_its_entry():
    """Worker 2 hands {1: 4} to worker 0, where it loses to {0: 5}; worker 1 wins with {1: 6}."""
    c, out = reduced("gtopk(ratio=0.5)", [5.0, 0.0], [0.0, 6.0], [0.0, 4.0])
    assert out == [0.0, 2.0]
    assert owed(c) == [[5.0, 0.0], [0.0, 0.0], [0.0, 4.0]]
    c, out = reduced("gtopk(ratio=0.5)", [3.0, 0.0], [0.0, 6.0], [0.0, 4.0])  # this time it survives
    assert out[1] == pytest.approx(10 / 3)
    assert owed(c) == [[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("bits", [32, 16])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 6, 7, 8])
def test_gtopk_loses_nothing_whatever_the_number_of_workers(workers, bits):
    c, ranks = (kind(f"gtopk(ratio=0.05, value_bits={bits})", workers) for kind in (cluster, Ranks))
    sent, wanted = torch.zeros(300, dtype=torch.float64), torch.zeros(300, dtype=torch.float64)
    for step in range(8):
        grads = [normal(300, seed=100 * step + w) for w in range(workers)]
        out = c.reduce({"w": grads})["w"]
        assert int((out != 0).sum()) == 15
        assert agreed(ranks.reduce({"w": grads}))["w"].equal(out)
        sent += out
        wanted += torch.stack(grads).double().mean(0)
    still = torch.stack(c.memory("w")).double().mean(0)
    torch.testing.assert_close(sent + still, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_gtopk_is_exact_where_all_that_is_not_zero_fits(workers):
    """Few entries, many zeros among the k: indices stay distinct, nothing is cut."""
    grads = [torch.zeros(40) for _ in range(workers)]
    for w, g in enumerate(grads):
        g[[w, 39, 2 * w]] = torch.tensor([1.0, -2.0, 4.0])
    c = cluster("gtopk(ratio=0.4)", workers)
    torch.testing.assert_close(c.reduce({"w": grads})["w"], torch.stack(grads).mean(0))
    assert all((m == 0).all() for m in c.memory("w"))


def test_gtopk_sends_a_row_a_round():
    row = support_bytes(1000, 10)
    sizes = {}
    for workers in (2, 4, 8, 3, 6):
        c = cluster("gtopk", workers)
        c.reduce({"w": [normal(1000, seed=w) for w in range(workers)]})
        assert c.payload_bytes == row
        sizes[workers] = c.sent_bytes
    assert sizes == {2: row, 4: 2 * row, 8: 3 * row, 3: 2 * row + 2, 6: 3 * row + 2}  # 2 bytes: ten bits of survival


def test_gtopk_half_precision_sums_do_not_overflow():
    _, out = reduced("gtopk(ratio=0.5, value_bits=16)", *[[60_000.0, 0.0]] * 4)
    assert out == [60_000.0, 0.0]


# -------------------------------------------------------------------- the sketch


def test_sketch_by_hand():
    """Places 2h + (1 if negative): 5 and -3 meet in column 0, 2 and 1 in column 1."""
    where = torch.tensor([[0, 1, 2, 2]], dtype=torch.int32)
    table = sketch.fold(torch.tensor([5.0, 3.0, 2.0, 1.0]), where, 2)
    assert table.tolist() == [[2.0, 3.0]]
    assert sketch.estimate(table, where).tolist() == [2.0, -2.0, 3.0, 3.0]


def test_sketch_is_linear():
    """Exactly so in float64, where sums of float32 numbers do not round."""
    x, y = normal(1000).double(), normal(1000, seed=1).double()
    where = sketch.places(rng().shared("sketch"), 1000, 5, 37, CPU)
    folded = sketch.fold(x + y, where, 37)
    assert folded.equal(sketch.fold(x, where, 37) + sketch.fold(y, where, 37))
    assert folded.dtype == torch.float64


def test_sketch_estimates_without_bias_and_within_the_variance():
    """Over the hashes, a row's estimate of x_i has mean x_i and variance (‖x‖² - x_i²)/columns."""
    x, columns, draws = normal(40).double(), 8, 1500
    where = sketch.places(rng().shared("sketch"), 40, draws, columns, CPU)
    sample = sketch.row_estimates(sketch.fold(x, where, columns), where)
    variance = (x.square().sum() - x.square()) / columns
    assert ((sample.mean(0) - x) / (variance / draws).sqrt()).abs().max() < 4.5
    errors = (sample - x).square()
    torch.testing.assert_close(errors.mean(0), variance, rtol=0.25, atol=0)
    assert errors.mean() == pytest.approx(float(variance.mean()), rel=0.04)


def test_sketch_places_are_uniform():
    where = sketch.places(rng().shared("sketch"), 5000, 4, 10, CPU)
    counts = torch.stack([row.bincount(minlength=20) for row in where])
    assert counts.shape == (4, 20)
    assert (counts - 250).abs().max() < 5 * 250**0.5
    assert not where[0].equal(where[1])


@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_sketch_estimate_is_the_median_of_the_rows(rows):
    table = normal(rows, 11)
    where = sketch.places(rng().shared("sketch"), 200, rows, 11, CPU)
    assert sketch.estimate(table, where).equal(sketch.row_estimates(table, where).median(0).values)


# -------------------------------------------------------------------- Sketched-SGD


def test_sketchedsgd_by_hand():
    """With far more columns than elements nothing collides: the top 1 of the mean, where the workers' own cancel."""
    spec = "sketchedsgd(ratio=0.25, columns=10000, candidates=2)"
    c, out = reduced(spec, [9.0, 0.0, 2.0, 0.0], [-9.0, 1.0, 2.0, 0.0], memory="error_feedback")
    assert out == [0.0, 0.0, 2.0, 0.0]
    assert owed(c) == [[9.0, 0.0, 0.0, 0.0], [-9.0, 1.0, 0.0, 0.0]]


def test_sketchedsgd_finds_what_is_heavy_in_the_mean_only():
    """20 coordinates of 1 in noise; each worker hides them below five spikes of 3 that cancel in the sum."""
    heavy = torch.arange(7, 2000, 100)
    grads = [0.01 * normal(2000, seed=w) for w in range(4)]
    for w, g in enumerate(grads):
        g[heavy] = 1.0
        g[:5] = 3.0 * (-1) ** w
    out = cluster("sketchedsgd(columns=400)", 4, memory="none").reduce({"w": grads})["w"]
    assert out.nonzero().view(-1).equal(heavy)
    torch.testing.assert_close(out[heavy], torch.ones(20))


def test_sketchedsgd_single_heavy_hitter_stands_out_of_heavy_noise():
    for seed in range(20):
        x = normal(5000, seed=seed)
        x[17 * seed] = 60.0  # the noise in a row of 100 columns has a standard deviation of 7
        assert through("sketchedsgd(ratio=0.0002, columns=100, candidates=1)", x, seed).argmax() == 17 * seed


def test_sketchedsgd_second_round_sorts_the_candidates_out():
    """One row of few columns: more candidates come nearer to the true top k, and never leave it."""
    x = normal(3000) ** 3
    best = float(x.abs().topk(30).values.square().sum())
    caught = [
        float(through(f"sketchedsgd(rows=1, columns=300, candidates={p})", x).square().sum()) / best
        for p in (1, 4, 16, 100)
    ]
    assert caught == sorted(caught)
    assert caught[0] < 0.9
    assert caught[-1] == pytest.approx(1)


@pytest.mark.parametrize("spec, size", [("", 5 * 40 + 4 * 10), ("rows=3, columns=50, candidates=2", 150 + 20)])
def test_sketchedsgd_bytes_follow_the_formula(spec, size):
    """4 (rows·columns + P·k), k = 10; columns are 4k unless given."""
    assert trace(f"sketchedsgd({spec})", [("w", (40, 25))], tensors="all").payload_bytes == 4 * size


def test_sketchedsgd_masks_the_momentum_of_what_was_sent_on_every_worker():
    grads = [normal(500, seed=w) for w in range(3)]
    c = cluster("sketchedsgd(ratio=0.1)", 3)
    sent = c.reduce({"w": grads})["w"] != 0
    assert int(sent.sum()) == 50
    for row, (g, memory) in enumerate(zip(grads, c.memory("w"), strict=True)):
        momentum = c.engine.store.get(MOMENTUM, "w", row).tensor
        assert momentum.equal(torch.where(sent, 0.0, g))
        assert memory.equal(torch.where(sent, 0.0, g))


def test_sketchedsgd_hashes_stay_the_same_and_follow_the_seed():
    x = normal(2000)
    c = cluster("sketchedsgd", 1, memory="none", seed=1)
    first = c.reduce({"w": [x]})["w"]
    assert c.reduce({"w": [x]})["w"].equal(first)
    assert not through("sketchedsgd", x, seed=2).equal(first)
