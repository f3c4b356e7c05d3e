"""What the engine adds round a codec: the dense part, unused parameters, measured fidelity, bad input, state."""

from __future__ import annotations

import threading

import pytest
import torch

import gradwire
from gradwire import checkpoint
from gradwire.conformance.lockstep import engines, step
from gradwire.core.layout import Layout
from gradwire.core.slots import Slot
from gradwire.core.state import Store
from gradwire.engine import Engine


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_vectors_and_tiny_tensors_travel_as_they_are():
    """Exact means for the biases and the small matrix; bytes: their floats beside the codec's payload."""
    layout = Layout.of([("w", (64, 32)), ("b", (64,)), ("tiny", (10, 10)), ("v", (33, 40)), ("long", (2000,))])
    flats = [normal(layout.numel, seed=r) for r in range(3)]
    (out, *_), meters = step(engines(3, "topk(ratio=0.1)"), layout, flats)
    exact = torch.stack(flats).mean(0)
    parts, wanted = layout.split(out), layout.split(exact)
    torch.testing.assert_close(parts[1], wanted[1])
    torch.testing.assert_close(parts[2], wanted[2])
    torch.testing.assert_close(parts[4], wanted[4])
    assert 0 < int((parts[0] != 0).sum()) < 64 * 32 // 2
    picked = 64 * 32 + 33 * 40
    assert meters[0].payload_bytes == 4 * 2164 + gradwire.codec("topk(ratio=0.1)").payload_bytes(picked)
    assert meters[0].exchanges == 2


@pytest.mark.parametrize("codec", ["fp16", "bf16", "none"])
def test_casts_take_vectors_along(codec):
    """One message less, and what torch's FP16 hook sends."""
    layout = Layout.of([("w", (64, 32)), ("b", (64,)), ("v", (33, 40))])
    _, meters = step(engines(2, codec), layout, [normal(layout.numel, seed=r) for r in range(2)])
    assert meters[0].exchanges == 1
    assert meters[0].payload_bytes == gradwire.codec(codec).payload_bytes(layout.numel)


def test_all_tensors_are_given_to_the_codec_where_that_is_asked_for():
    layout = Layout.of([("b", (64,))])
    _, meters = step(engines(2, "signsgd", tensors="all"), layout, [normal(64, seed=r) for r in range(2)])
    assert meters[0].payload_bytes == 64 // 8 + 1


@pytest.mark.parametrize("strategy", ["all_gather", "scatter_reduce_gather"])
def test_parameters_that_nobody_used_keep_their_memory(strategy):
    """DDP throws the result for such a parameter away, so nothing of it may be spent."""
    layout = Layout.of([("a", (40, 40)), ("b", (40, 40))])
    group = engines(3, "efsignsgd(block=64)", strategy=strategy, track_unused=True)
    sent, wanted = torch.zeros(1600, dtype=torch.float64), torch.zeros(1600, dtype=torch.float64)
    for t in range(6):
        flats = [normal(layout.numel, seed=10 * t + r) for r in range(3)]
        if t in (2, 3):
            for x in flats:
                layout.split(x)[1].zero_()
        (out, *_), _ = step(group, layout, flats)
        result = layout.split(out)[1]
        if t in (2, 3):
            assert (result == 0).all()
            continue
        sent += result.double()
        wanted += layout.split(torch.stack(flats).mean(0))[1].double()
    owed = torch.stack([checkpoint.owed(e, "b", (1600,)) for e in group]).double().mean(0)
    torch.testing.assert_close(sent + owed, wanted, rtol=1e-5, atol=1e-4)


def test_momenta_of_parameters_that_nobody_used_go_on_and_nothing_of_them_is_sent():
    """As with a gradient of zeros, but nothing is masked. A gradient in the last elements alone is one."""
    layout = Layout.of([("a", (40, 40)), ("b", (40, 40))])
    group = engines(2, "dgc(ratio=0.1, momentum=0.5)", track_unused=True)
    kept = []
    for t in range(4):
        flats = [normal(layout.numel, seed=10 * t + r) for r in range(2)]
        for x in flats:
            layout.split(x)[1][: (0, 1500, 1600, 1600)[t]].zero_()
        (out, *_), _ = step(group, layout, flats)
        kept.append([[e.store.get(kind, "b").tensor.clone() for kind in ("momentum", "error")] for e in group])
        assert bool(layout.split(out)[1].any()) == (t < 2)
    for (momentum, error), after, last in zip(*kept[1:], strict=True):
        assert torch.equal(after[0], momentum / 2)
        assert torch.equal(after[1], error + momentum / 2)
        assert torch.equal(last[0], momentum / 4)


@pytest.mark.parametrize("where", ["w", "v", "b"])
@pytest.mark.parametrize("units", [None, [["w"], ["v", "b"]], [["b"], ["v"], ["w"]]], ids=str)
def test_a_bad_element_skips_the_whole_step_wherever_it_is(units, where):
    """In a tensor that is compressed or one that travels as it is, in the first unit or the last."""
    cluster = gradwire.VirtualCluster(2, "topk(ratio=0.1)", tensors="matrices")

    def grads(t):
        return {n: [normal(*s, seed=10 * t + r) for r in range(2)] for n, s in shapes.items()}

    shapes = {"w": (40, 40), "v": (50, 30), "b": (60,)}
    cluster.reduce(grads(0), units=units)
    before = {n: [kept.clone() for kept in cluster.memory(n)] for n in ("w", "v")}
    bad = grads(1)
    bad[where][1].view(-1)[7] = float("nan")
    cluster.reduce(bad, units=units)
    assert (cluster.engine.step, cluster.engine.skipped_steps) == (2, 1)
    for n, kept in before.items():
        assert all(a.equal(b) for a, b in zip(kept, cluster.memory(n), strict=True))
    cluster.reduce(grads(2), units=units)
    assert cluster.engine.skipped_steps == 1


def test_a_unit_of_vectors_alone_is_no_matter_where_unused_parameters_are_tracked():
    layout = Layout.of([("b", (64,)), ("c", (7,))])
    flats = [normal(71, seed=r) for r in range(2)]
    outs, _ = step(engines(2, "topk", track_unused=True), layout, flats)
    assert all(out.equal(torch.stack(flats).mean(0)) for out in outs)


def test_measured_error_is_the_error():
    layout = Layout.of([("w", (64, 64))])
    group = engines(2, "qsgd(levels=1)", nmse_every=2)
    flats = [normal(4096, seed=r) for r in range(2)]
    (out, *_), meters = step(group, layout, flats)
    exact = torch.stack(flats).mean(0)
    first = float((out - exact).square().sum() / exact.square().sum())
    assert group[0].nmse() == pytest.approx(first, rel=1e-4)
    _, later = step(group, layout, flats)
    assert group[0].nmse() == pytest.approx(first, rel=1e-4)  # not measured in every second step
    assert meters[0].sent_bytes - later[0].sent_bytes == 4096 * 4


def test_measured_errors_are_those_of_all_units_and_steps():
    cluster, squares = gradwire.VirtualCluster(2, "qsgd(levels=1)", nmse_every=1), torch.zeros(2)
    for t in range(2):
        grads = {
            n: [(1 + 9 * i) * normal(40, 40, seed=4 * t + 2 * i + r) for r in range(2)] for i, n in enumerate("ab")
        }
        out = cluster.reduce(grads, units=[["a"], ["b"]])
        for name, both in grads.items():
            exact = torch.stack(both).mean(0)
            squares += torch.stack([(out[name] - exact).square().sum(), exact.square().sum()])
        assert cluster.nmse() == pytest.approx(float(squares[0] / squares[1]), rel=1e-4)
    assert cluster.nmse(forget=True) is not None
    assert cluster.nmse() is None


@pytest.mark.parametrize(
    "tensor, message",
    [
        (
            torch.zeros(3, 3).to_sparse(),
            "gradwire: the gradient of 'w' is sparse, and codecs work on dense gradients. Build the embedding with "
            "sparse=False, or keep this parameter out of the compressed model.",
        ),
        (
            torch.zeros(3, dtype=torch.complex64),
            "gradwire: 'w' is complex (torch.complex64), and codecs work on real numbers. Store it as a real parameter "
            "(torch.view_as_real) or train it without compression.",
        ),
        (torch.zeros(3, dtype=torch.int32), "gradwire: 'w' is of torch.int32; gradients must be floating point"),
    ],
)
def test_gradients_no_codec_can_treat(tensor, message):
    with pytest.raises(gradwire.Incompatible) as caught:
        gradwire.VirtualCluster(1, "topk").reduce({"w": [tensor]})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: gradwire.VirtualCluster(0, "topk"), "`workers` must be a whole number of at least 1, got 0"),
        (lambda: cluster().reduce({}), "`reduce` was given no gradients; pass {name: [one tensor per worker]}"),
        (lambda: cluster().reduce({"w": [torch.ones(3)]}), "'w' needs one tensor for each of 2 workers, got 1"),
        (
            lambda: cluster().reduce({"w": [torch.ones(3), torch.ones(4)]}),
            "the workers' tensors for 'w' differ in shape, dtype or device",
        ),
        (
            lambda: cluster().reduce({"w": [torch.ones(3)] * 2, "v": [torch.ones(3).half()] * 2}),
            "all gradients of one call must share one dtype and device",
        ),
        (lambda: cluster().memory("w"), "no gradient named 'w' has been reduced; known: []"),
        (
            lambda: cluster().reduce({"w": [torch.ones(3)] * 2}, units=[["v"]]),
            "`units` must hold every name of the gradients exactly once",
        ),
    ],
)
def test_the_cluster_says_what_is_wrong(call, message):
    with pytest.raises(gradwire.ConfigError) as caught:
        call()
    assert str(caught.value) == f"VirtualCluster: {message}"


def cluster():
    return gradwire.VirtualCluster(2, "topk")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"tensors": "some"}, "gradwire: `tensors` must be 'matrices' or 'all', got 'some'"),
        ({"nmse_every": -1}, "gradwire: `nmse_every` must be 0 (never) or a number of steps, got -1"),
    ],
)
def test_the_engine_says_what_is_wrong(options, message):
    with pytest.raises(gradwire.ConfigError) as caught:
        Engine("topk", **options)
    assert str(caught.value) == message


def test_what_moves_to_another_slot_is_held_all_the_while(monkeypatch):
    """One unit's thread fills its slot from that of older units while another's asks."""
    store, begun, asked = Store(), threading.Event(), threading.Event()
    layout = Layout.of([("a", (3,)), ("b", (2,))])
    store.slot("kind", [layout], 5).turn(torch.ones(1, 5))
    pieces = Slot.pieces

    def slow(slot):
        begun.set()
        asked.wait(0.2)
        return pieces(slot)

    monkeypatch.setattr(Slot, "pieces", slow)
    thread = threading.Thread(target=store.slot, args=("kind", [Layout(layout.segments[:1])], 3))
    thread.start()
    begun.wait(10)
    held = store.holds("kind")
    asked.set()
    thread.join()
    assert held
    assert [(p.name, p.entry.tensor.tolist()) for p in store.loose("kind")] == [("b", [1.0, 1.0])]


def test_rows_are_workers():
    """`reduce_rows` is `reduce` of one unit, whatever the names in it."""
    layout = Layout.of([("w", (64, 32)), ("b", (32,))])
    rows = torch.stack([normal(layout.numel, seed=r) for r in range(3)])
    by_rows, by_name = (gradwire.VirtualCluster(3, "topk(ratio=0.1)", tensors="matrices") for _ in range(2))
    for _ in range(2):
        flat = by_rows.reduce_rows(rows, layout)
        parts = [layout.split(row) for row in rows]
        named = {s.name: [p[i].view(s.shape) for p in parts] for i, s in enumerate(layout.segments)}
        out = by_name.reduce(named)
        assert flat.equal(torch.cat([out["w"].flatten(), out["b"]]))
    assert by_rows.sent_bytes == by_name.sent_bytes
    assert all(a.equal(b) for a, b in zip(by_rows.memory("w"), by_name.memory("w"), strict=True))
    with pytest.raises(gradwire.ConfigError) as caught:
        by_rows.reduce_rows(rows[:2], layout)
    assert str(caught.value) == "VirtualCluster: rows of shape (3, 2080) were wanted, got (2, 2080)"


def test_a_cluster_under_a_controller_ends_epochs():
    """Two clusters may have the same controller: each has a state of its own."""
    given = gradwire.Warmup("topk(ratio=0.01)", begin=0.5, factor=0.1, epochs=1)
    cluster = gradwire.VirtualCluster(2, controller=given, nmse_every=1)
    other = gradwire.VirtualCluster(2, controller=given)
    assert cluster.controller is other.controller is given
    grads = {"w": [normal(40, 40, seed=r) for r in range(2)]}
    cluster.reduce(grads)
    other.reduce(grads)
    assert cluster.end_epoch(0.1, 0.1).levels == {"w": "topk(ratio=0.01)"}
    first = cluster.nmse(forget=True)
    sent = cluster.sent_bytes
    cluster.reduce(grads)
    assert cluster.sent_bytes < sent
    assert cluster.nmse() > first
    assert [s.to_json()["to"] for s in cluster.switches] == ["topk(ratio=0.01)"]
    assert (cluster.settings.levels, other.settings.levels) == ({"w": "topk(ratio=0.01)"}, {"w": "topk(ratio=0.5)"})
    assert other.switches == ()


def test_a_cluster_without_a_controller_follows_the_schedule():
    cluster = gradwire.VirtualCluster(1, "topk")
    assert cluster.controller is None
    assert cluster.switches == ()
    settings = cluster.settings
    assert (settings.levels, settings.batch_factor, settings.rate_factor) == ({}, 1, 1.0)


def saved(**changes):
    return checkpoint.save(Engine("topk", ranks=(1,), workers=4)) | changes


@pytest.mark.parametrize(
    "state, message",
    [
        (
            saved(format_version=9),
            "gradwire: this state has format 9, and this version reads 2 and 3; install the version that wrote it, or "
            "start without the state",
        ),
        (
            saved(codec="qsgd(levels=3)"),
            "gradwire: this state belongs to qsgd(levels=3) with memory error_feedback, and this run uses topk with "
            "memory error_feedback; attach with the saved ones, or start without it",
        ),
        (
            saved(),
            "gradwire: this state was saved by rank 1 of 4, and this is rank 0 of 2. Memories belong to a rank: load "
            "this rank's own file, or, after a change of the number of workers, pass the list of all 4 ranks' state "
            "dicts.",
        ),
        ([], "gradwire: load_state_dict was given an empty list; pass the state dicts of all ranks"),
    ],
)
def test_states_of_another_set_up_are_refused(state, message):
    with pytest.raises(gradwire.StateMismatch) as caught:
        checkpoint.load(Engine("topk", ranks=(0,), workers=2), state)
    assert str(caught.value) == message


@pytest.mark.parametrize("strategy", ["all_gather", "scatter_reduce_gather"])
@pytest.mark.parametrize("before, after", [(2, 4), (4, 2), (3, 5)])
def test_a_change_of_the_number_of_workers_keeps_what_is_owed(strategy, before, after):
    layout = Layout.of([("a", (40, 40)), ("b", (50, 50))])
    old, new = (engines(n, "efsignsgd(block=64)", strategy=strategy) for n in (before, after))
    sent, wanted = torch.zeros(layout.numel, dtype=torch.float64), torch.zeros(layout.numel, dtype=torch.float64)
    for t in range(8):
        if t == 4:
            states = [checkpoint.save(e) for e in old]
            for engine in new:
                checkpoint.load(engine, states)
        group = old if t < 4 else new
        flats = [normal(layout.numel, seed=10 * t + r) for r in range(len(group))]
        (out, *_), _ = step(group, layout, flats)
        sent += out.double()
        wanted += torch.stack(flats).double().mean(0)
    owed = torch.stack([torch.cat([checkpoint.owed(e, s.name, (s.numel,)) for s in layout.segments]) for e in new])
    torch.testing.assert_close(sent + owed.double().mean(0), wanted, rtol=1e-5, atol=1e-4)


def test_a_state_dict_holds_tensors_and_plain_values(tmp_path):
    engine = Engine("powersgd(rank=2)", workers=1, tensors="all")
    step([engine], Layout.of([("w", (20, 30))]), [normal(600)])
    torch.save(checkpoint.save(engine), tmp_path / "s.pt")
    loaded = torch.load(tmp_path / "s.pt", weights_only=True)
    assert loaded["step"] == 1
    assert loaded["common"]["q"]["w"]["tensor"].shape == (30, 2)
    assert (tmp_path / "s.pt").stat().st_size < 4 * 600 + 4 * 60 + 4000  # views would drag their whole storage along
