"""Two levels, on virtual workers: against the same done by hand, and for everything that the engine promises."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

import gradwire
from gradwire import checkpoint
from gradwire.collectives import Hierarchical, hierarchical, local
from gradwire.collectives.choose import possible
from gradwire.collectives.hierarchical import Ownership
from gradwire.collectives.meter import Meter
from gradwire.conformance import lockstep
from gradwire.core.codec import Combine, codecs
from gradwire.core.exchange import Gather, Payload, Sum, Team, side_by_side, within
from gradwire.core.layout import Layout
from gradwire.engine import Engine

GRIDS = [(2, 2), (2, 3), (3, 2)]  # nodes, ranks on each
# sizes that nothing divides; fewer elements than ranks; none at all; a table far larger than the rest
SHAPES = {"table": (331, 7), "a": (33, 40), "v": (53,), "one": (), "two": (2,), "none": (0, 4), "b": (41, 29)}


@pytest.fixture(autouse=True)
def small_tensors_are_cut(monkeypatch):
    monkeypatch.setattr(hierarchical, "CUT", 64)
    monkeypatch.setattr(hierarchical, "CUT_ROWS", 512)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(workers, step=0, shapes=SHAPES, dtype=torch.float32):
    return {
        name: [normal(*shape, seed=1000 * step + 50 * i + w).to(dtype) for w in range(workers)]
        for i, (name, shape) in enumerate(shapes.items())
    }


def mean_of(tensors):
    return torch.stack([t.double() for t in tensors]).mean(0)


ROUNDED = {"gradzip", "powersgd"}  # products of one matrix and of several at once round differently


class Cluster(gradwire.VirtualCluster):
    """A virtual cluster, and beside it an engine for each worker: all must come to the same, bit for bit."""

    def __init__(self, workers, codec, **options):
        super().__init__(workers, codec, **options)
        self.engines = lockstep.engines(workers, codec, **{"tensors": "all"} | options)

    def reduce(self, gradients, *, units=None):
        out = super().reduce(gradients, units=units)
        layouts = [Layout.of((n, gradients[n][0].shape) for n in names) for names in units or [list(gradients)]]
        self.meters = [Meter() for _ in self.engines]
        results = []
        with torch.no_grad():
            for layout in layouts:
                rows = [torch.cat([gradients[n][r].reshape(-1) for n in layout.names]) for r in range(self.workers)]
                programs = [e.reduce(x[None], layout) for e, x in zip(self.engines, rows, strict=True)]
                results.append(lockstep.run(programs, self.meters))
        for engine, own in zip(self.engines, zip(*results, strict=True), strict=True):
            engine.finish_step(own)
        for layout, units_results in zip(layouts, results, strict=True):
            for one, other in itertools.pairwise(units_results):
                same(one.out, other.out)
            for segment, piece in zip(layout.segments, layout.split(units_results[0].out[0]), strict=True):
                self._same_as_here(piece.view(segment.shape), out[segment.name])
                for engine, kept in zip(self.engines, self.memory(segment.name), strict=True):
                    if kept is not None:
                        self._same_as_here(checkpoint.owed(engine, segment.name, segment.shape), kept)
        assert (self.meters[0].sent_bytes, self.meters[0].node_bytes) == (self.sent_bytes, self.node_bytes)
        return out

    def _same_as_here(self, got, expected):
        if self.codec.name in ROUNDED:
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-3, equal_nan=True)
        else:
            same(got, expected)

    def load(self, states):
        self.load_state_dicts(states)
        for engine in self.engines:
            checkpoint.load(engine, states)


def same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def cluster(nodes, per_node, codec, across="auto", **options):
    return Cluster(nodes * per_node, codec, strategy=Hierarchical(per_node, across), **options)


# -------------------------------------------------------------------- the mean


@pytest.mark.parametrize("nodes, per_node", GRIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_without_compression_it_is_the_mean(nodes, per_node, dtype):
    c, grads = cluster(nodes, per_node, "none"), gradients(nodes * per_node, dtype=dtype)
    for name, out in c.reduce(grads).items():
        assert (out.shape, out.dtype) == (grads[name][0].shape, dtype)
        wanted = mean_of(grads[name])
        torch.testing.assert_close(out.double(), wanted, rtol=0, atol=torch.finfo(dtype).eps * 3)


def test_without_compression_sums_that_are_exact_stay_exact():
    grads = {n: [(8 * t).round() / 8 for t in ts] for n, ts in gradients(4).items()}
    out = cluster(2, 2, "none").reduce(grads)
    assert all(out[n].double().equal(mean_of(grads[n])) for n in grads)


def test_a_representable_mean_does_not_overflow_inside_the_node():
    grads = {"w": [torch.full((300,), 5e4, dtype=torch.float16)] * 4}
    assert (cluster(2, 2, "none").reduce(grads)["w"] == 5e4).all()
    grads = {"w": [torch.full((300,), 3e38)] * 4}
    assert (cluster(2, 2, "none").reduce(grads)["w"] == torch.tensor(3e38)).all()


def test_inside_the_node_half_precision_is_summed_in_float32():
    """2048 + 1 + 1 + 1 + 1: in float16 each of the ones would be rounded away."""
    grads = {"w": [torch.full((64, 32), v, dtype=torch.float16) for v in (2048, 1, 1, 1) * 2]}
    exact = (2048 + 3) / 4
    assert (cluster(2, 4, "none").reduce(grads)["w"] == torch.tensor(exact).half()).all()
    out = cluster(2, 4, "topk(ratio=1)").reduce(grads)["w"]
    assert (out == torch.tensor(exact).half()).all()


# -------------------------------------------------------------------- against two levels by hand


def node_means(tensors, per_node):
    nodes = [tensors[i : i + per_node] for i in range(0, len(tensors), per_node)]
    return [sum(t * (1.0 / per_node) for t in node) for node in nodes]


@pytest.mark.parametrize("codec", ["efsignsgd(block=64)", "qsgd", "powersgd(rank=2)", "topkc", "signum"])
@pytest.mark.parametrize("nodes, per_node", GRIDS)
def test_it_is_what_the_nodes_means_give_share_by_share(monkeypatch, nodes, per_node, codec):
    """Whole tensors, the largest first, each to the rank that has least; then a flat run for each rank's share."""
    monkeypatch.setattr(hierarchical, "CUT", 10**6)
    monkeypatch.setattr(hierarchical, "CUT_ROWS", 10**6)
    shapes = {"d": (10, 10), "a": (40, 40), "c": (20, 20), "b": (35, 35)}
    shares = {2: [["d", "a"], ["c", "b"]], 3: [["a"], ["b"], ["d", "c"]]}[per_node]
    c = cluster(nodes, per_node, codec)
    flat = [gradwire.VirtualCluster(nodes, codec) for _ in shares]
    for step in range(4):
        grads = gradients(nodes * per_node, step, shapes)
        out = c.reduce(grads)
        for own, names in zip(flat, shares, strict=True):
            expected = own.reduce({n: node_means(grads[n], per_node) for n in names})
            assert all(out[n].equal(expected[n]) for n in names), step
    for rank, engine in enumerate(c.engines):
        own, names = flat[rank % per_node], shares[rank % per_node]
        for name in names:
            kept = own.memory(name)[rank // per_node]
            assert kept is None or checkpoint.owed(engine, name, shapes[name]).equal(per_node * kept)
        state = checkpoint.save(engine)
        assert all(set(kept) <= set(names) for kept in (*state["state"].values(), *state["common"].values()))


def test_a_large_tensor_is_cut_into_equal_pieces():
    grads = {"w": [normal(50, 40, seed=w) for w in range(4)]}
    means = [m.view(-1) for m in node_means(grads["w"], 2)]
    out = cluster(2, 2, "efsignsgd(block=64)").reduce(grads)["w"].view(-1)
    for piece in (slice(0, 1000), slice(1000, 2000)):
        expected = gradwire.VirtualCluster(2, "efsignsgd(block=64)").reduce({"w": [m[piece] for m in means]})["w"]
        assert out[piece].equal(expected)


def test_pieces_of_one_tensor_draw_different_random_numbers():
    half = normal(1000)
    out = cluster(2, 2, "qsgd(levels=1)").reduce({"w": [torch.cat([half, half])] * 4})["w"]
    assert not out[:1000].equal(out[1000:])


@pytest.mark.parametrize("codec", ["efsignsgd", "qsgd", "none"])
def test_one_rank_on_each_node_is_the_flat_run(codec):
    grads = gradients(3)
    wanted = gradwire.VirtualCluster(3, codec).reduce(grads)
    assert all(out.equal(wanted[n]) for n, out in cluster(3, 1, codec).reduce(grads).items())


def test_across_is_what_carries_shares_between_nodes():
    grads = {"w": [normal(4096, seed=w) for w in range(8)]}
    sent = {}
    for across in ("all_gather", "scatter_reduce_gather", "scatter_reduce_gather(down='fp16')"):
        c = cluster(4, 2, "efsignsgd(block=64)", across)
        c.reduce(grads)
        flat = gradwire.VirtualCluster(4, "efsignsgd(block=64)", strategy=across)
        flat.reduce({"w": [t[:2048] for t in grads["w"][:4]]})
        sent[across] = c.sent_bytes
        assert c.sent_bytes == flat.sent_bytes
    assert len(set(sent.values())) == 3


# -------------------------------------------------------------------- every codec


@pytest.mark.parametrize("name", [*codecs.names(), "gradiveq(slice=16, kept=4, train=1, cycle=3)"])
def test_every_codec_runs_and_nothing_is_lost(name):
    """Replicas agree, memories and results add up to the gradients, whatever units the tensors come in."""
    codec = gradwire.codec(name)
    c, names = cluster(2, 3, codec), list(SHAPES)
    total, wanted = 0.0, 0.0
    for step in range(4):
        grads = gradients(6, step)
        units = [names] if step < 2 else [names[3:][::-1], names[:3]]  # as DDP does
        out = c.reduce(grads, units=units)
        total += torch.cat([out[n].double().flatten() for n in names])
        wanted += torch.cat([mean_of(grads[n]).flatten() for n in names])
        assert total.isfinite().all()
    if codec.traits.memory == "error_feedback":
        owed = torch.cat([mean_of(c.memory(n)).flatten() for n in names])
        torch.testing.assert_close(total + owed, wanted, rtol=0, atol=2e-3)  # topkc sums in half precision


@pytest.mark.parametrize("across", ["all_gather", "scatter_reduce_gather"])
def test_owners_between_nodes_keep_their_error_when_units_change(across):
    c = cluster(3, 2, "efsignsgd(block=64)", across)
    total = wanted = 0.0
    for step, units in enumerate([[["a", "b", "c"]]] * 3 + [[["c"], ["b", "a"]]] * 3):
        grads = gradients(6, step, {"a": (40, 40), "b": (50,), "c": (37, 50)})
        out = c.reduce(grads, units=units)
        total += torch.cat([out[n].double().flatten() for n in "abc"])
        wanted += torch.cat([mean_of(grads[n]).flatten() for n in "abc"])
    owed = torch.cat([mean_of(c.memory(n)).flatten() for n in "abc"])
    torch.testing.assert_close(total + owed, wanted, rtol=1e-4, atol=1e-4)
    assert any("owner_error" in e.store.kinds for e in c.engines) == (across != "all_gather")


@pytest.mark.parametrize("name", [n for n in codecs.names() if gradwire.codec(n).traits.memory != "none"])
def test_a_bad_element_is_seen_by_all_and_remembered_by_none(name):
    c = cluster(2, 2, name)
    c.reduce(gradients(4))
    before = copy.deepcopy(states(c))
    grads = gradients(4, 1)
    grads["b"][3].view(-1)[-1] = float("nan")
    out = c.reduce(grads)
    assert any(not t.isfinite().all() for t in out.values())
    assert {e.skipped_steps for e in [*c.engines, c.engine]} == {1}
    for now, kept in zip(states(c), before, strict=True):
        assert {k: set(v) for k, v in now.items()} == {k: set(v) for k, v in kept.items()}
        assert all(now[k][n]["tensor"].equal(e["tensor"]) for k, entries in kept.items() for n, e in entries.items())
    assert all(out.isfinite().all() for out in c.reduce(gradients(4, 2)).values())


def test_without_a_memory_nothing_is_skipped():
    c = cluster(2, 2, "none")
    grads = gradients(4)
    grads["b"][3].view(-1)[-1] = float("nan")
    assert not c.reduce(grads)["b"].isfinite().all()
    assert {e.skipped_steps for e in [*c.engines, c.engine]} == {0}


def states(c):
    """Of all workers, as rows and as engines of their own."""
    found = c.state_dicts() + [checkpoint.save(e) for e in c.engines]
    return [state["state"] | state["common"] for state in found]


@pytest.mark.parametrize(
    "codec",
    [c for n in codecs.names() for c in map(gradwire.codec, [n, *codecs.cls(n).variants]) if c.traits.ignores_shapes],
)
def test_codecs_that_claim_to_see_one_flat_vector_ignore_shapes(codec):
    """So that their units may be cut anywhere."""
    x = [normal(60 * 40, seed=w) for w in range(3)]
    outs = [
        gradwire.VirtualCluster(3, codec).reduce({"w": [t.view(shape) for t in x]})["w"].view(-1)
        for shape in ((60, 40), (2400,), (4, 6, 100))
    ]
    assert outs[0].equal(outs[1])
    assert outs[0].equal(outs[2])


# -------------------------------------------------------------------- bytes


def engines(nodes, per_node, codec, **options):
    return lockstep.engines(nodes * per_node, codec, strategy=Hierarchical(per_node), **options)


@pytest.mark.parametrize("codec", ["fp16", "signsgd", "qsgd", "topk(ratio=0.125, index='packed')"])
@pytest.mark.parametrize("nodes, per_node", [(2, 2), (4, 2), (2, 4)])
def test_each_rank_sends_its_part_of_what_a_node_alone_would_send(nodes, per_node, codec):
    layout = Layout.of([("w", (128, 64)), ("v", (64, 64))])
    count = nodes * per_node
    _, meters = lockstep.step(
        engines(nodes, per_node, codec, tensors="all"), layout, [normal(layout.numel, seed=r) for r in range(count)]
    )
    flat = gradwire.VirtualCluster(nodes, codec)
    flat.reduce({"w": [normal(layout.numel // per_node, seed=r) for r in range(nodes)]})
    for meter in meters:
        assert (meter.sent_bytes, meter.payload_bytes) == (flat.sent_bytes, flat.payload_bytes)
        assert meter.node_bytes == 2 * 4 * layout.numel * (per_node - 1) // per_node
    alone = gradwire.VirtualCluster(nodes, codec)
    alone.reduce({"w": [normal(layout.numel, seed=r) for r in range(nodes)]})
    assert sum(m.sent_bytes for m in meters[:per_node]) == pytest.approx(alone.sent_bytes, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_inside_a_node_gradients_travel_in_their_own_type(dtype):
    """There and back: what the codec makes of a share is float32."""
    layout = Layout.of([("w", (128, 64)), ("v", (64, 64))])
    flats = [normal(layout.numel, seed=r).to(dtype) for r in range(4)]
    results, meters = lockstep.step(engines(2, 2, "topk(ratio=0.1)", tensors="all"), layout, flats)
    assert {result.dtype for result in results} == {dtype}
    assert {meter.node_bytes for meter in meters} == {dtype.itemsize * layout.numel}


def test_auto_weighs_what_all_ranks_of_a_node_save_together():
    """They share the link; a message costs each of them the same time."""
    unit, share = (Layout.of([("w", (n,))]) for n in (1 << 19, 1 << 16))
    alone = Engine("efsignsgd", workers=8)
    assert [alone.strategy_for(x).name for x in (unit, share)] == ["scatter_reduce_gather", "all_gather"]
    assert engines(8, 8, "efsignsgd")[0].strategy_for(share).name == "scatter_reduce_gather"


def test_one_node_sends_nothing_and_compresses_nothing():
    c, grads = cluster(1, 4, "topk(ratio=0.01)"), gradients(4)
    for name, out in c.reduce(grads).items():
        torch.testing.assert_close(out.double(), mean_of(grads[name]), rtol=0, atol=1e-6)
    assert c.sent_bytes == c.payload_bytes == 0 < c.node_bytes
    assert all(not e.store.kinds and not e.store.named for e in [*c.engines, c.engine])


# -------------------------------------------------------------------- who owns what


def owned(shares):
    return [share.numel for share in shares]


@pytest.mark.parametrize("by_tensor", [False, True])
@pytest.mark.parametrize("per_node", [2, 3, 8])
def test_every_element_has_one_owner_for_good(per_node, by_tensor):
    layout, owners = Layout.of(SHAPES.items()), Ownership(per_node)
    shares = owners.shares(layout, by_tensor)
    marks = torch.zeros(layout.numel)
    for share in shares:
        for piece in share.segments:
            marks[layout.find(piece)] += 1
            assert piece.numel > 0
    assert (marks == 1).all()
    for part in (Layout(layout.segments[3:]), Layout(layout.segments[:3][::-1])):
        again = owners.shares(part, by_tensor)
        assert all(set(new.segments) <= set(old.segments) for new, old in zip(again, shares, strict=True))
    restored = Ownership(per_node, owners.parts)
    assert restored.shares(layout, by_tensor) == shares


def test_a_huge_table_does_not_ruin_the_balance():
    """Flat codecs cut it anywhere; those that look at matrices cut it between rows."""
    layout = Layout.of([("table", (5000, 16)), ("a", (40, 40)), ("b", (16, 90)), ("c", (33,))])
    for by_tensor in (False, True):
        shares = Ownership(4).shares(layout, by_tensor)
        assert max(owned(shares)) < 1.1 * layout.numel / 4
        assert all(
            s.shape[1:] == (16,) and s.start % 16 == 0 for x in shares for s in x.segments if s.name == "table"
        ) == (by_tensor)


def test_a_wide_matrix_stays_whole_where_a_piece_would_need_a_factor_as_wide():
    layout = Layout.of([("wide", (100, 100)), ("b", (10, 10))])
    assert sorted(owned(Ownership(2).shares(layout, by_tensor=True))) == [100, 10_000]
    c = cluster(2, 2, "powersgd(rank=2)")
    c.reduce({"wide": [normal(100, 100, seed=w) for w in range(4)]})
    assert [m.store.get("q", "wide") is not None for m in c.engines] == [True, False, True, False]


def test_small_tensors_of_many_units_go_to_different_ranks():
    owners = Ownership(3)
    loads = [owned(owners.shares(Layout.of([(f"w{i}", (50,))]), by_tensor=False)) for i in range(6)]
    assert [sum(rank) for rank in zip(*loads, strict=True)] == [100] * 3


def test_owners_follow_the_order_in_which_units_are_announced():
    """Ranks may begin the units of a step in different orders, and must cut them alike."""
    units = [Layout.of([(f"w{i}", (10 + i, 3))]) for i in range(6)]
    first, second = (engines(2, 2, "topk", tensors="all")[0] for _ in range(2))
    for engine, order in ((first, units), (second, units[::-1])):
        for unit in units:
            engine.announce(unit)
        for unit in order:
            next(engine.reduce(torch.ones(1, unit.numel), unit))
    assert first.owners.parts == second.owners.parts


# -------------------------------------------------------------------- what the engine adds


@pytest.mark.parametrize("codec", ["efsignsgd(block=64)", "powersgd(rank=2)"])
def test_parameters_that_nobody_used_keep_their_memory(codec):
    layout = Layout.of([("a", (40, 40)), ("b", (40, 40))])
    group = engines(2, 2, codec, track_unused=True)
    sent, wanted = 0.0, 0.0
    for t in range(6):
        flats = [normal(layout.numel, seed=10 * t + r) for r in range(4)]
        if t in (2, 3):
            for x in flats:
                layout.split(x)[1].zero_()
        (out, *_), _ = lockstep.step(group, layout, flats)
        result = layout.split(out)[1]
        if t in (2, 3):
            assert (result == 0).all()
            continue
        sent += result.double()
        wanted += layout.split(mean_of(flats))[1]
    owed = mean_of([checkpoint.owed(e, "b", (1600,)) for e in group])
    torch.testing.assert_close(sent + owed, wanted, rtol=1e-5, atol=1e-4)


def test_a_tensor_is_used_if_any_piece_of_it_is_on_any_rank():
    """The second half of the gradient is zero on all ranks, and its memory is sent all the same."""
    layout = Layout.of([("w", (40, 40))])
    group = engines(2, 2, "topk(ratio=0.25)", track_unused=True, tensors="all")
    lockstep.step(group, layout, [normal(1600, seed=r) for r in range(4)])
    flats = [torch.zeros(1600) for _ in range(4)]
    flats[2][:800] = normal(800)
    (out, *_), _ = lockstep.step(group, layout, flats)
    assert out[800:].count_nonzero() > 0


def test_measured_error_is_that_of_all_shares_on_all_ranks():
    layout = Layout.of([("w", (64, 64)), ("v", (30, 40)), ("b", (30,))])
    group = engines(2, 2, "qsgd(levels=1)", nmse_every=2)
    flats = [normal(layout.numel, seed=r) for r in range(4)]
    (out, *_), measured = lockstep.step(group, layout, flats)
    got, exact = out[: 4096 + 1200], mean_of(flats)[: 4096 + 1200]
    wanted = float((got - exact).square().sum() / exact.square().sum())
    _, later = lockstep.step(group, layout, flats)
    assert [e.nmse() for e in group] == pytest.approx([wanted] * 4, rel=1e-4)
    assert measured[0].sent_bytes - later[0].sent_bytes == 4 * (4096 + 1200) // 2


def test_what_is_owed_follows_the_gradients_units():
    """Twice the loss scale: gradients and results double, and so must what was kept."""
    outs = []
    for scales in ((1.0, 1.0), (1.0, 2.0)):
        group = engines(2, 2, "topk(ratio=0.25)", tensors="all")
        for t, scale in enumerate(scales):
            for engine in group:
                engine.begin_step(loss_scale=scale)
            flats = [scale * normal(1600, seed=10 * t + r) for r in range(4)]
            (out, *_), _ = lockstep.step(group, Layout.of([("w", (40, 40))]), flats)
        outs.append(out)
    assert (2 * outs[0]).equal(outs[1])


def test_momentum_correction_reaches_vectors_and_pieces():
    """A ratio of 1 without masking is momentum SGD."""
    c = cluster(2, 2, "topk(ratio=1)", memory="momentum_correction(momentum=0.5, masking=False)", tensors="matrices")
    shapes = {"w": (40, 40), "b": (70,)}
    velocity = dict.fromkeys(shapes, 0.0)
    for t in range(3):
        grads = gradients(4, t, shapes)
        out = c.reduce(grads)
        for name in shapes:
            velocity[name] = 0.5 * velocity[name] + mean_of(grads[name])
            torch.testing.assert_close(out[name].double(), velocity[name], rtol=1e-5, atol=1e-5)


def test_observations_of_one_rank_are_refused():
    c = cluster(2, 2, "variance")
    with pytest.raises(gradwire.Incompatible) as caught:
        c.observe("squares", {"w": [torch.ones(4)] * 4})
    assert str(caught.value) == (
        "gradwire: under hierarchical a codec sees the mean gradient of a node, and 'squares' of one rank says nothing "
        "about that. Choose another strategy, or leave observe out."
    )


# -------------------------------------------------------------------- state


@pytest.mark.parametrize("codec", ["efsignsgd(block=64)", "powersgd(rank=2)", "dgc(ratio=0.1)"])
def test_a_restored_cluster_goes_on_exactly(codec):
    whole, resumed = (cluster(2, 2, codec) for _ in range(2))
    units = [["a", "v"], ["table", "b"]]
    for t in range(2):
        whole.reduce(gradients(4, t, {n: SHAPES[n] for u in units for n in u}), units=units)
    resumed.load_state_dicts(whole.state_dicts())
    for old, new in zip(whole.engines, resumed.engines, strict=True):
        checkpoint.load(new, checkpoint.save(old))
    for t in range(2, 5):
        grads = gradients(4, t, {n: SHAPES[n] for u in units for n in u})
        expected, got = (c.reduce(grads) for c in (whole, resumed))  # in one unit now: owners stay
        assert all(expected[n].equal(got[n]) for n in grads)


def flat_or_not(nodes, per_node, across):
    strategy = across if per_node == 1 else Hierarchical(per_node, across)
    return Cluster(nodes * per_node, "efsignsgd(block=64)", strategy=strategy)


@pytest.mark.parametrize("across", ["all_gather", "scatter_reduce_gather"])
@pytest.mark.parametrize(
    "before, after", [((2, 2), (3, 2)), ((2, 2), (4, 1)), ((4, 1), (2, 2)), ((2, 3), (3, 2)), ((3, 2), (2, 3))]
)
def test_a_change_of_nodes_keeps_what_is_owed(before, after, across):
    shapes = {"a": (40, 40), "b": (50,), "c": (37, 50)}
    old, new = flat_or_not(*before, across), flat_or_not(*after, across)
    total = wanted = 0.0
    for t in range(6):
        if t == 3:
            new.load(old.state_dicts())
        c = old if t < 3 else new
        grads = gradients(c.workers, t, shapes)
        out = c.reduce(grads)
        total += torch.cat([out[n].double().flatten() for n in shapes])
        wanted += torch.cat([mean_of(grads[n]).flatten() for n in shapes])
    owed = torch.cat([mean_of(new.memory(n)).flatten() for n in shapes])
    torch.testing.assert_close(total + owed, wanted, rtol=1e-4, atol=1e-4)


def test_factors_of_pieces_start_anew_on_other_nodes_and_those_of_tensors_go_on():
    old, new = cluster(2, 2, "powersgd(rank=2)"), cluster(3, 2, "powersgd(rank=2)")
    shapes = {"tall": (600, 4), "square": (40, 40)}
    old.reduce(gradients(4, 0, shapes))
    new.load(old.state_dicts())
    for engine in new.engines:
        assert engine.store.get("q", "tall") is None
        kept = [e.store.get("q", "square") for e in old.engines if e.store.get("q", "square")]
        torch.testing.assert_close(engine.store.get("q", "square").tensor, kept[0].tensor)
    out = new.reduce(gradients(6, 1, shapes))
    assert all(t.isfinite().all() for t in out.values())


def test_the_state_of_another_shape_is_refused():
    state = checkpoint.save(engines(2, 2, "topk")[1])
    with pytest.raises(gradwire.StateMismatch) as caught:
        checkpoint.load(Engine("topk", ranks=(1,), workers=4), state)
    assert str(caught.value) == (
        "gradwire: this state was saved by rank 1 of 4 (2 on each node), and this is rank 1 of 4. Memories belong to a "
        "rank: load this rank's own file, or, after a change of the number of workers or of those on a node, pass the "
        "list of all 4 ranks' state dicts."
    )


# -------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "spec, message",
    [
        (
            "hierarchical(per_node=3)",
            "hierarchical: 4 workers cannot be 3 on each node, and every node must have as many. Give their number as "
            "hierarchical(per_node=...), or choose another strategy.",
        ),
        (
            "hierarchical",
            "hierarchical: the number of ranks of a node is not given, and LOCAL_WORLD_SIZE, where torchrun puts it, "
            "is not set. Start the ranks with torchrun, or write hierarchical(per_node=...).",
        ),
        ("hierarchical(per_node=-1)", "hierarchical: `per_node` must be a whole number of at least 0, got -1"),
        (
            "hierarchical(2, 'hierarchical(2)')",
            "hierarchical: `across` must be the spec of a strategy without levels, such as 'scatter_reduce_gather', "
            "got 'hierarchical(2)'",
        ),
        (
            "hierarchical(2, 3)",
            "hierarchical: `across` must be the spec of a strategy without levels, such as 'scatter_reduce_gather', "
            "got 3",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(monkeypatch, spec, message):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(gradwire.ConfigError) as caught:
        gradwire.VirtualCluster(4, "topk", strategy=spec)
    assert str(caught.value) == message


def test_torchrun_says_how_many_ranks_a_node_has(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    engine = Engine("topk", strategy="hierarchical", ranks=(3,), workers=6)
    assert engine.strategy == Hierarchical(per_node=2)
    assert engine.teams == [Team(range(2, 4), inside=True), Team(range(1, 6, 2))]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "two")
    with pytest.raises(gradwire.ConfigError, match=r", is 'two'\. Start the ranks with torchrun, or write "):
        Engine("topk", strategy="hierarchical", workers=4)


def test_what_cannot_carry_a_codec_cannot_between_nodes():
    with pytest.raises(gradwire.Incompatible, match=r"^topk cannot run under all_reduce: its payloads cannot be added"):
        cluster(2, 2, "topk", "all_reduce")
    with pytest.raises(gradwire.Incompatible, match=r"^powersgd cannot run under all_gather: it runs its own rounds"):
        cluster(2, 2, "powersgd", "all_gather")
    with pytest.raises(gradwire.UnknownName, match="did you mean hierarchical"):
        gradwire.VirtualCluster(4, "topk", strategy="hierarchial(2)")
    assert "hierarchical" not in possible(gradwire.codec("topk"))


# -------------------------------------------------------------------- teams in the virtual driver

PAIRS = [Team(range(0, 2)), Team(range(2, 4), inside=True)]


def rounds(ranks, count):
    total = torch.tensor([[1.0 + rank] for rank in ranks])
    for _ in range(count):
        rows = Payload(torch.tensor([[rank] for rank in ranks], dtype=torch.uint8))
        total, rows = yield (Sum(total.clone()), Gather(rows))
        total = total.expand(len(ranks), 1)
    return float(total[0]), rows.data.flatten().tolist()


def test_teams_exchange_among_themselves_and_need_not_keep_step():
    def program(rank):
        inner = yield from within(rounds([rank], 1 + rank // 2), PAIRS[rank // 2])
        everyone = yield Sum(torch.tensor([[1.0]]))
        return inner, float(everyone)

    meters = [Meter() for _ in range(4)]
    results = lockstep.run([program(rank) for rank in range(4)], meters)
    assert results == [((3.0, [0, 1]), 4.0)] * 2 + [((14.0, [2, 3]), 4.0)] * 2
    assert [(m.sent_bytes, m.node_bytes) for m in meters] == [(4 + 1 + 6, 0)] * 2 + [(6, 2 * (4 + 1))] * 2
    assert [m.payload_bytes for m in meters] == [4 + 1 + 4] * 2 + [4] * 2


@pytest.mark.parametrize("pairs, sent", [(PAIRS, (4 + 1 + 6, 0)), (PAIRS[::-1], (6, 4 + 1))])
def test_teams_whose_workers_are_all_here_exchange_side_by_side(pairs, sent):
    """One program for all workers; the meter counts what worker 0 sends, and nothing of the other team."""
    first, second = Team(range(0, 2), pairs[0].inside), Team(range(2, 4), pairs[1].inside)

    def program():
        inner = yield from side_by_side([within(rounds([0, 1], 1), first), within(rounds([2, 3], 2), second)])
        everyone = yield Sum(torch.ones(4, 1))
        return inner, float(everyone)

    meter = Meter()
    assert local.run(program(), 4, meter) == ([(3.0, [0, 1]), (14.0, [2, 3])], 4.0)
    assert (meter.sent_bytes, meter.node_bytes) == sent


def test_multi_round_codecs_have_said_whether_they_are_flat():
    """A reminder: those that are not are cut between tensors."""
    rounds = {n for n in codecs.names() if gradwire.codec(n).traits.combine is Combine.ROUNDS}
    flat = {n for n in rounds if gradwire.codec(n).traits.ignores_shapes}
    assert rounds - flat == {"atomo", "gradiveq", "gradzip", "powersgd", "variance"}
