"""Two levels, on virtual workers: against the same done by hand, and for everything that the engine promises."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

import gradwire
from gradwire.collectives import Hierarchical, hierarchical, local
from gradwire.collectives.choose import possible
from gradwire.collectives.hierarchical import Ownership
from gradwire.collectives.meter import Meter
from gradwire.core.codec import Combine, codecs
from gradwire.core.exchange import Gather, Payload, Sum, Team, within
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


def cluster(nodes, per_node, codec, across="auto", **options):
    return gradwire.VirtualCluster(nodes * per_node, codec, strategy=Hierarchical(per_node, across), **options)


def agree(c, names):
    return all(a.equal(b) for name in names for a, b in itertools.pairwise(c.outputs(name)))


# -------------------------------------------------------------------- the mean


@pytest.mark.parametrize("nodes, per_node", GRIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_without_compression_it_is_the_mean(nodes, per_node, dtype):
    c, grads = cluster(nodes, per_node, "none"), gradients(nodes * per_node, dtype=dtype)
    for name, out in c.reduce(grads).items():
        assert (out.shape, out.dtype) == (grads[name][0].shape, dtype)
        wanted = mean_of(grads[name])
        torch.testing.assert_close(out.double(), wanted, rtol=0, atol=torch.finfo(dtype).eps * 3)
    assert agree(c, grads)


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
        assert agree(c, grads)
    for rank, engine in enumerate(c.engines):
        own, names = flat[rank % per_node], shares[rank % per_node]
        for name in names:
            kept = own.memory(name)[rank // per_node]
            assert kept is None or engine.owed(name, shapes[name]).equal(per_node * kept)
        assert all(set(kept) <= set(names) for kept in engine.store.entries.values())


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
        assert agree(c, grads)
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
    assert any("owner_error" in e.store.entries for e in c.engines) == (across != "all_gather")


@pytest.mark.parametrize("name", [n for n in codecs.names() if gradwire.codec(n).traits.memory != "none"])
def test_a_bad_element_is_seen_by_all_and_remembered_by_none(name):
    c = cluster(2, 2, name)
    c.reduce(gradients(4))
    before = [copy.deepcopy(e.state_dict()["state"]) for e in c.engines]
    grads = gradients(4, 1)
    grads["b"][3].view(-1)[-1] = float("nan")
    c.reduce(grads)
    for rank, (engine, kept) in enumerate(zip(c.engines, before, strict=True)):
        assert any(not c.outputs(n)[rank].isfinite().all() for n in grads)
        assert engine.skipped_steps == 1
        now = engine.state_dict()["state"]
        assert {k: set(v) for k, v in now.items()} == {k: set(v) for k, v in kept.items()}
        assert all(now[k][n]["tensor"].equal(e["tensor"]) for k, entries in kept.items() for n, e in entries.items())
    assert all(out.isfinite().all() for out in c.reduce(gradients(4, 2)).values())


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


def step(engines, layout, flats):
    meters = [Meter() for _ in engines]
    with torch.no_grad():
        outs = local.run([e.reduce(x, layout) for e, x in zip(engines, flats, strict=True)], meters)
    for engine in engines:
        engine.finish_step()
    return outs, meters


def engines(nodes, per_node, codec, **options):
    count = nodes * per_node
    return [Engine(codec, strategy=Hierarchical(per_node), rank=r, workers=count, **options) for r in range(count)]


@pytest.mark.parametrize("codec", ["fp16", "signsgd", "qsgd", "topk(ratio=0.125, index='packed')"])
@pytest.mark.parametrize("nodes, per_node", [(2, 2), (4, 2), (2, 4)])
def test_each_rank_sends_its_part_of_what_a_node_alone_would_send(nodes, per_node, codec):
    layout = Layout.of([("w", (128, 64)), ("v", (64, 64))])
    count = nodes * per_node
    _, meters = step(
        engines(nodes, per_node, codec, compress="all"), layout, [normal(layout.numel, seed=r) for r in range(count)]
    )
    flat = gradwire.VirtualCluster(nodes, codec)
    flat.reduce({"w": [normal(layout.numel // per_node, seed=r) for r in range(nodes)]})
    for meter in meters:
        assert (meter.sent_bytes, meter.payload_bytes) == (flat.sent_bytes, flat.payload_bytes)
        assert meter.node_bytes == 2 * 4 * layout.numel * (per_node - 1) // per_node
    alone = gradwire.VirtualCluster(nodes, codec)
    alone.reduce({"w": [normal(layout.numel, seed=r) for r in range(nodes)]})
    assert sum(m.sent_bytes for m in meters[:per_node]) == pytest.approx(alone.sent_bytes, rel=0.05)


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
    assert all(not e.store.entries for e in c.engines)


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
        (out, *_), _ = step(group, layout, flats)
        result = layout.split(out)[1]
        if t in (2, 3):
            assert (result == 0).all()
            continue
        sent += result.double()
        wanted += layout.split(mean_of(flats))[1]
    owed = mean_of([e.owed("b", (1600,)) for e in group])
    torch.testing.assert_close(sent + owed, wanted, rtol=1e-5, atol=1e-4)


def test_a_tensor_is_used_if_any_piece_of_it_is_on_any_rank():
    """The second half of the gradient is zero on all ranks, and its memory is sent all the same."""
    layout = Layout.of([("w", (40, 40))])
    group = engines(2, 2, "topk(ratio=0.25)", track_unused=True, compress="all")
    step(group, layout, [normal(1600, seed=r) for r in range(4)])
    flats = [torch.zeros(1600) for _ in range(4)]
    flats[2][:800] = normal(800)
    (out, *_), _ = step(group, layout, flats)
    assert out[800:].count_nonzero() > 0


def test_measured_error_is_that_of_all_shares_on_all_ranks():
    layout = Layout.of([("w", (64, 64)), ("v", (30, 40)), ("b", (30,))])
    group = engines(2, 2, "qsgd(levels=1)", nmse_every=2)
    flats = [normal(layout.numel, seed=r) for r in range(4)]
    (out, *_), measured = step(group, layout, flats)
    got, exact = out[: 4096 + 1200], mean_of(flats)[: 4096 + 1200]
    wanted = float((got - exact).square().sum() / exact.square().sum())
    _, later = step(group, layout, flats)
    assert [e.nmse() for e in group] == pytest.approx([wanted] * 4, rel=1e-4)
    assert measured[0].sent_bytes - later[0].sent_bytes == 4 * (4096 + 1200) // 2


def test_what_is_owed_follows_the_gradients_units():
    """Twice the loss scale: gradients and results double, and so must what was kept."""
    outs = []
    for scales in ((1.0, 1.0), (1.0, 2.0)):
        group = engines(2, 2, "topk(ratio=0.25)", compress="all")
        for t, scale in enumerate(scales):
            for engine in group:
                engine.gradient_scale = scale
            flats = [scale * normal(1600, seed=10 * t + r) for r in range(4)]
            (out, *_), _ = step(group, Layout.of([("w", (40, 40))]), flats)
        outs.append(out)
    assert (2 * outs[0]).equal(outs[1])


def test_momentum_correction_reaches_vectors_and_pieces():
    """A ratio of 1 without masking is momentum SGD."""
    c = cluster(2, 2, "topk(ratio=1)", memory="momentum_correction(momentum=0.5, masking=False)", compress="matrices")
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
    for old, new in zip(whole.engines, resumed.engines, strict=True):
        new.load_state_dict(old.state_dict())
    for t in range(2, 5):
        grads = gradients(4, t, {n: SHAPES[n] for u in units for n in u})
        expected, got = (c.reduce(grads) for c in (whole, resumed))  # in one unit now: owners stay
        assert all(expected[n].equal(got[n]) for n in grads)


def flat_or_not(nodes, per_node, across):
    strategy = across if per_node == 1 else Hierarchical(per_node, across)
    return gradwire.VirtualCluster(nodes * per_node, "efsignsgd(block=64)", strategy=strategy)


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
            states = [e.state_dict() for e in old.engines]
            for engine in new.engines:
                engine.load_state_dict(states)
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
    states = [e.state_dict() for e in old.engines]
    for engine in new.engines:
        engine.load_state_dict(states)
        assert engine.store.get("q", "tall") is None
        kept = [e.store.get("q", "square") for e in old.engines if e.store.get("q", "square")]
        torch.testing.assert_close(engine.store.get("q", "square").tensor, kept[0].tensor)
    out = new.reduce(gradients(6, 1, shapes))
    assert agree(new, shapes)
    assert all(t.isfinite().all() for t in out.values())


def test_the_state_of_another_shape_is_refused():
    state = engines(2, 2, "topk")[1].state_dict()
    with pytest.raises(gradwire.StateMismatch) as caught:
        Engine("topk", rank=1, workers=4).load_state_dict(state)
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
    engine = Engine("topk", strategy="hierarchical", rank=3, workers=6)
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


def run(*programs):
    meters = [Meter() for _ in programs]
    return local.run(programs, meters), meters


def test_teams_exchange_among_themselves_and_need_not_keep_step():
    def program(rank):
        def rounds(count):
            total = torch.tensor([1.0 + rank])
            for _ in range(count):
                total, rows = yield (Sum(total.clone()), Gather(Payload(torch.tensor([[rank]], dtype=torch.uint8))))
            return float(total), rows.data.flatten().tolist()

        inner = yield from within(rounds(1 + rank // 2), PAIRS[rank // 2])
        everyone = yield Sum(torch.tensor([1.0]))
        return inner, float(everyone)

    results, meters = run(*map(program, range(4)))
    assert results == [((3.0, [0, 1]), 4.0)] * 2 + [((14.0, [2, 3]), 4.0)] * 2
    assert [(m.sent_bytes, m.node_bytes) for m in meters] == [(4 + 1 + 6, 0)] * 2 + [(6, 2 * (4 + 1))] * 2
    assert [m.payload_bytes for m in meters] == [4 + 1 + 4] * 2 + [4] * 2


def test_teams_that_miss_somebody_are_told():
    def one(team):
        yield Sum(torch.zeros(1), team=team)

    with pytest.raises(gradwire.ExchangeFailed, match=r"^the workers wait for each other: each team lacks some"):
        run(one(PAIRS[0]), one(None), one(None))
    with pytest.raises(gradwire.ExchangeFailed, match=r"^1 of 2 workers ended while the others still exchange$"):
        run(one(Team(range(1))), one(None))

    def mixed():
        yield (Sum(torch.zeros(1), team=PAIRS[0]), Sum(torch.zeros(1)))

    with pytest.raises(gradwire.ExchangeFailed, match=r"^a worker asks for exchanges of different teams in the same"):
        run(mixed(), mixed())


def test_multi_round_codecs_have_said_whether_they_are_flat():
    """A reminder: those that are not are cut between tensors."""
    rounds = {n for n in codecs.names() if gradwire.codec(n).traits.combine is Combine.ROUNDS}
    flat = {n for n in rounds if gradwire.codec(n).traits.ignores_shapes}
    assert rounds - flat == {"atomo", "gradiveq", "gradzip", "powersgd", "variance"}
