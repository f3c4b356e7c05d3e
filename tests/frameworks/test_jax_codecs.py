"""Codecs inside compiled JAX programs, on four devices of one CPU: against torch's codecs, bytes on the wire, state."""

from __future__ import annotations

import re

import numpy
import pytest
import torch
from axis_jobs import gradients, reducer
from steps import SHAPES, flat, given, tree_of

import gradwire

pytestmark = pytest.mark.frameworks
jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jax_codecs = pytest.importorskip("gradwire.frameworks.jax_codecs", exc_type=ImportError)
P = jax.sharding.PartitionSpec
EXACT = ("bf16", "fp16", "blockint(bits=8)", "blockint(bits=4)", "blockint(bits=2, block=100)", "topk(ratio=0.05)")
CLOSE = {"none": 1e-6, "powersgd(rank=2)": 1e-5}  # sums and products in an order of their own


@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.parametrize("codec", [*EXACT, *CLOSE])
def test_same_results_and_errors_as_the_torch_codec(codec, workers):
    step, state = reducer(codec, workers)
    strategy = "auto" if codec in CLOSE else "scatter_reduce_gather"
    cluster = gradwire.VirtualCluster(workers, codec, strategy=strategy, tensors="matrices")
    for number in range(3):
        found, state = step(gradients(number, workers), state)
        shaped = {name: [torch.from_numpy(given(rank, number, name)) for rank in range(workers)] for name in SHAPES}
        matrices = {n: [t.flatten(0, -2) if t.ndim > 2 else t for t in ts] for n, ts in shaped.items()}
        wanted = cluster.reduce(matrices)
        for name, array in flat(found).items():
            expected = wanted[name].numpy().reshape(SHAPES[name])
            error = numpy.abs(numpy.asarray(array) - expected).max() / numpy.abs(expected).max()
            assert error <= (CLOSE.get(codec, 0) if expected.size >= 1024 else 1e-6), f"step {number}, {name}"
    if codec in EXACT and state.error is not None:
        kept = [saved["state"]["error"] for saved in cluster.state_dicts()]
        mine = numpy.asarray(state.error)
        for rank in range(workers):
            parts = [kept[rank][name]["tensor"].numpy().ravel() for name in SHAPES if name in kept[rank]]
            assert (mine[rank] == numpy.concatenate(parts)).all()


def test_none_is_the_mean_that_jax_takes():
    step, state = reducer("none", 4)
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()[:4]), ("data",))

    def mean(tree):
        return jax.tree.map(lambda x: jax.lax.pmean(x[0], "data"), tree)

    own = jax.shard_map(mean, mesh=mesh, in_specs=P("data"), out_specs=P())
    given_to_all = gradients(0, 4)
    found, wanted = flat(step(given_to_all, state)[0]), flat(jax.jit(own)(given_to_all))
    assert all((numpy.asarray(found[name]) == numpy.asarray(wanted[name])).all() for name in SHAPES)


@pytest.mark.parametrize(
    "codec, dtype",
    [("blockint(bits=8)", "u8"), ("blockint(bits=4)", "u8"), ("topk(ratio=0.05)", "u8"), ("bf16", "u16")],
)
def test_the_compiled_program_sends_the_small_type(codec, dtype):
    step, state = reducer(codec, 4)
    text = step.lower(gradients(0, 4), state).compile().as_text()
    sent = [line for line in text.splitlines() if re.search(r" all-(to-all|gather)\(", line)]
    assert len(sent) == 2
    sizes = [re.findall(rf"{dtype}\[(\d+),(\d+)\]", line.partition(" all-")[0]) for line in sent]
    elements = sum(numpy.prod(shape) for shape in SHAPES.values())
    for found in sizes:
        assert found, f"nothing of {dtype} in {sent}"
        bytes_ = sum(int(a) * int(b) for a, b in found) * (2 if dtype == "u16" else 1)
        assert bytes_ < (0.55 if dtype == "u16" else 0.3) * 4 * elements


def test_powersgd_finds_again_what_a_gradient_had_nothing_for():
    """After gradients of rank one, those of rank two come through: no column of the factor is lost."""
    step, state = reducer("powersgd(rank=2)", 2)
    draw = numpy.random.default_rng(0).standard_normal

    def alike(rank):
        def both(name):
            first, *rest = SHAPES[name]
            product = draw((first, rank)) @ draw((rank, numpy.prod(rest, dtype=int)))
            return numpy.stack([product.reshape(SHAPES[name])] * 2).astype("float32")

        return tree_of(both)

    one, two = alike(1), alike(2)
    for _ in range(12):
        _, state = step(one, state)
    for _ in range(3):
        found, state = step(two, state)
    for name in ("['a']", "['d']['e']"):
        wanted = flat(two)[name][0]
        assert numpy.abs(numpy.asarray(flat(found)[name]) - wanted).max() < 1e-3 * numpy.abs(wanted).max(), name


def test_a_step_that_is_not_finite_leaves_the_state():
    step, state = reducer("topk(ratio=0.05)", 4)
    _, state = step(gradients(0, 4), state)
    bad = gradients(1, 4)
    bad["a"][2, 0, 0] = numpy.nan
    found, after = step(bad, state)
    assert not numpy.isfinite(numpy.asarray(found["a"])).all()
    assert (numpy.asarray(after.error) == numpy.asarray(state.error)).all()
    assert (numpy.asarray(after.owner_error) == numpy.asarray(state.owner_error)).all()


@pytest.mark.parametrize(
    "codec, workers",
    [("powersgd(rank=2)", 2), ("topk(ratio=0.05)", 2), ("topk(ratio=0.05)", 4), ("blockint", 2), ("blockint", 4)],
)
def test_the_state_goes_through_orbax(tmp_path, codec, workers):
    """Bit for bit, on the devices that it lies on, which keep other rows each."""
    checkpoints = pytest.importorskip("orbax.checkpoint")
    step, state = reducer(codec, workers)
    _, state = step(gradients(0, workers), state)
    with checkpoints.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", jax.tree.map(jax.numpy.zeros_like, state))
    if state.owner_error is not None:
        rows = numpy.asarray(state.owner_error)
        assert all((rows[i] != rows[0]).any() for i in range(1, workers)), "the devices' rows should differ"
    (wanted, kept), (found, restored_and_stepped) = (step(gradients(1, workers), each) for each in (state, restored))
    for before, after in ((state, restored), (wanted, found), (kept, restored_and_stepped)):
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert (numpy.asarray(a) == numpy.asarray(b)).all()
            assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


def test_a_training_stays_beside_the_uncompressed_one():
    """Least squares, the whole batch on one device, against four devices with a quarter each."""
    x = numpy.random.default_rng(0).standard_normal((64, 48)).astype("float32")
    y = x @ numpy.random.default_rng(1).standard_normal((48, 32)).astype("float32")
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()[:4]), ("data",))

    def loss(w, x, y):
        return ((x @ w - y) ** 2).mean()

    def trained(codec):
        optimizer = optax.chain(jax_codecs.over_axis(codec, axis="data", workers=4), optax.sgd(0.5))
        w = jax.numpy.zeros((48, 32))
        state = optimizer.init(w)
        specs = jax_codecs.state_specs(state, "data")

        def step(w, state, x, y):
            updates, state = optimizer.update(jax.grad(loss)(w, x, y), state)
            return w + updates, state

        mapped = jax.jit(
            jax.shard_map(
                step, mesh=mesh, in_specs=(P(), specs, P("data"), P("data")), out_specs=(P(), specs), check_vma=False
            )
        )
        for _ in range(60):
            w, state = jax.block_until_ready(mapped(w, state, x, y))  # many steps at once starve a CPU's devices
        return float(loss(w, x, y))

    w = jax.numpy.zeros((48, 32))
    alone = jax.jit(lambda w: w - 0.5 * jax.grad(loss)(w, x, y))
    start = float(loss(w, x, y))
    for _ in range(60):
        w = alone(w)
    whole = float(loss(w, x, y))
    assert whole < 0.5 * start
    assert trained("none") == pytest.approx(whole, rel=1e-4)
    for codec in ("blockint(bits=8)", "blockint(bits=4)", "topk(ratio=0.1)"):
        assert trained(codec) == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize(
    "codec, workers, specs, shape, sentence",
    [
        ("none", 4, None, (64, 32), "the axis 'data' has 2 devices, and workers=4; say 2"),
        ("powersgd(rank=2)", 1, None, (64, 32), "the axis 'data' has 2 devices, and workers=1; say 2"),
        ("topk", 2, P(), (64, 32), "a device has 2 x 2048 elements of the state, and 1 x 2048 were wanted. Make"),
        (
            "topk",
            2,
            None,
            (64, 48),
            "a device has 1 x 2048 elements of the state, and 1 x 3072 were wanted. Make",
        ),
    ],
)
def test_a_program_that_would_give_wrong_means_is_refused(codec, workers, specs, shape, sentence):
    transformation = jax_codecs.over_axis(codec, axis="data", workers=workers)
    state = transformation.init(jax.numpy.zeros((64, 32)))
    specs = jax_codecs.state_specs(state, "data") if specs is None else specs
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()[:2]), ("data",))

    def step(gradient, state):
        return transformation.update(gradient[0], state)

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P("data"), specs), out_specs=(P(), specs), check_vma=False)
    state = jax.tree.map(lambda rows: jax.numpy.tile(rows, (2, 1)) if workers == 1 else rows, state)
    with pytest.raises(gradwire.Incompatible) as caught:
        jax.jit(mapped)(jax.numpy.ones((2, *shape)), state)
    assert str(caught.value).startswith(f"over_axis: {sentence}")


def test_outside_of_shard_map_it_says_where_it_belongs():
    transformation = jax_codecs.over_axis("none", axis="data", workers=4)
    with pytest.raises(gradwire.Incompatible) as caught:
        transformation.update(jax.numpy.ones(4), transformation.init(jax.numpy.ones(4)))
    assert str(caught.value) == (
        "over_axis: there is no mesh axis 'data' here; call update inside jax.shard_map over a mesh that has it"
    )


def test_what_has_no_compiled_form_is_refused():
    with pytest.raises(gradwire.Incompatible) as caught:
        jax_codecs.over_axis("qsgd", axis="data", workers=4)
    assert str(caught.value).startswith(
        "over_axis: qsgd has no form inside a compiled JAX program. There are none, bf16"
    )
    with pytest.raises(gradwire.Incompatible, match="rounding='stochastic'"):
        jax_codecs.over_axis("blockint(rounding='stochastic')", axis="data", workers=4)
