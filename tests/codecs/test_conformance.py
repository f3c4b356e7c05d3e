"""What every codec must satisfy, on 1 to 8 virtual workers. Driven by the registry and by traits, never by names."""

from __future__ import annotations

import json
import random
import warnings

import pytest
import torch
from cases import (
    CODECS,
    NASTY,
    ONE_SHOT,
    SHAPES,
    STRATEGIES,
    Ranks,
    agreed,
    cluster,
    normal,
    rng,
    same,
    sums_in_half,
    through,
)

import gradwire
from gradwire.collectives import trace as tracer
from gradwire.core.codec import Codec, Combine
from gradwire.core.exchange import Payload
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.engine import Engine
from gradwire.tracing import trace

each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.spec)
each_one_shot = pytest.mark.parametrize("codec", ONE_SHOT, ids=lambda c: c.spec)
each_strategy = pytest.mark.parametrize("codec, strategy", STRATEGIES, ids=[f"{c.spec}-{s}" for c, s in STRATEGIES])
STEPS = 12  # where losses would add up
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def gradients(workers, shapes=((40, 30), (17,), (25, 41)), scale=1.0, seed=0):
    return {
        f"p{i}": [scale * normal(*shape, seed=1000 * seed + 10 * i + w) for w in range(workers)]
        for i, shape in enumerate(shapes)
    }


def mean_of(tensors):
    return torch.stack([t.double() for t in tensors]).mean(0)


# -------------------------------------------------------------------- the face


@each_codec
def test_spec_and_config_build_the_same_codec_again(codec):
    assert gradwire.codec(codec.spec) == codec
    assert type(codec)(**json.loads(json.dumps(codec.config()))) == codec


@each_codec
def test_says_what_it_is(codec):
    assert codec.family in {"baseline", "quantization", "sparsification", "hybrid", "lowrank"}
    assert len(codec.paper) > 20
    assert (type(codec).__doc__ or "").strip()


@each_codec
def test_hyper_parameters_cannot_be_changed(codec):
    with pytest.raises(AttributeError):
        codec.name_of_nothing = 1


# -------------------------------------------------------------------- shapes, dtypes, values


@each_codec
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shape_and_dtype_come_back(codec, dtype):
    for shape in SHAPES:
        x = normal(*shape).to(dtype)
        out = cluster(codec).reduce({"w": [x, -x, 2 * x]})["w"]
        assert (out.shape, out.dtype) == (x.shape, x.dtype), shape


@each_codec
@pytest.mark.parametrize("kind", NASTY)
def test_finite_stays_finite(codec, kind):
    c = cluster(codec)
    for _ in range(3):
        assert c.reduce({"w": [NASTY[kind], 0.5 * NASTY[kind], -NASTY[kind]]})["w"].isfinite().all()


@each_strategy
def test_zero_comes_out_as_zero(codec, strategy):
    out = cluster(codec, strategy=strategy).reduce({"w": [torch.zeros(40, 10)] * 3})["w"]
    if codec.traits.is_mean:
        assert (out == 0).all()
    else:
        assert (out.abs() == 1).all()


@each_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_input_is_seen_by_all_and_remembered_by_none(codec, bad):
    c, ranks, grads = cluster(codec), Ranks(codec), gradients(3)
    c.reduce(grads)
    ranks.reduce(grads)
    before = [(n, workers, workers.memory(n)) for n in grads for workers in (c, ranks)]
    poisoned = {n: [t.clone() for t in ts] for n, ts in grads.items()}
    poisoned["p2"][1].view(-1)[-1] = bad
    for result in (c.reduce(poisoned), *ranks.reduce(poisoned)):
        assert any(not result[n].isfinite().all() for n in grads)
    for name, workers, kept in before:
        for old, new in zip(kept, workers.memory(name), strict=True):
            assert old is new is None or old.equal(new)
    for result in (c.reduce(grads), *ranks.reduce(grads)):
        assert all(out.isfinite().all() for out in result.values())


@each_codec
def test_non_contiguous_equals_contiguous(codec):
    x = normal(30, 40).t()
    assert through(codec, x).equal(through(codec, x.contiguous()))


# -------------------------------------------------------------------- purity


@each_codec
def test_input_and_global_randomness_are_left_alone(codec):
    grads = gradients(3)
    before = {n: [t.clone() for t in ts] for n, ts in grads.items()}
    states = torch.get_rng_state(), random.getstate()
    c = cluster(codec)
    c.reduce(grads)
    c.reduce(grads)
    assert all(a.equal(b) for n in grads for a, b in zip(grads[n], before[n], strict=True))
    assert torch.get_rng_state().equal(states[0])
    assert random.getstate() == states[1]


@each_codec
def test_same_seed_same_result_and_steps_differ_if_random(codec):
    grads = gradients(3)
    runs = [
        [c.reduce(grads)["p0"] for _ in range(2)] for c in (cluster(codec, memory="none", seed=5) for _ in range(2))
    ]
    assert runs[0][0].equal(runs[1][0])
    assert runs[0][1].equal(runs[1][1])
    if codec.traits.stochastic:
        assert not runs[0][0].equal(runs[0][1])
        other = cluster(codec, memory="none", seed=6).reduce(grads)["p0"]
        assert not other.equal(runs[0][0])


@each_one_shot
def test_workers_round_independently(codec):
    """What a codec loses for certain, by selecting or clipping, is alike on all workers; the rest must not be."""
    if not codec.traits.stochastic:
        return
    numel = 1 << 15  # so that even a codec of few elements draws some hundred numbers
    x, sources = normal(1, numel), [Random(ranks=(rank,)) for rank in range(24)]
    outs = torch.cat([codec.decode(codec.encode(x, r), numel, r) for r in sources])
    spread = outs - outs.mean(0)
    assert spread.any()
    assert spread.corrcoef()[0, 1].abs() < 0.2


# -------------------------------------------------------------------- bytes


@each_one_shot
@pytest.mark.parametrize("numel", [1, 7, 64, 1001, 5000])
def test_payload_bytes_is_the_payload(codec, numel):
    payload = codec.encode(normal(3, numel), rng())
    said, sent = codec.payload_bytes(numel), payload.row_bytes(0)
    assert payload.rows == 3
    assert said == sent if codec.traits.fixed_size else said >= sent
    if codec.traits.combine is Combine.GATHER:
        assert payload.data.dtype == torch.uint8


@each_strategy
@pytest.mark.parametrize("workers", [2, 5])
def test_traced_bytes_are_the_bytes_that_leave(codec, strategy, workers):
    if not codec.traits.fixed_size:
        return
    grads = gradients(workers)
    c = cluster(codec, workers, strategy=strategy)
    c.engine.step = codec.steady_from_step
    c.reduce(grads)
    shapes = [(n, ts[0].shape) for n, ts in grads.items()]
    traced = trace(codec, shapes, workers=workers, strategy=strategy, tensors="all")
    assert (traced.payload_bytes, traced.sent_bytes) == (c.payload_bytes, c.sent_bytes)


@each_codec
def test_no_step_depends_on_the_data_in_its_control_flow(codec):
    """Meta tensors have no data: a host synchronisation or a data-dependent branch fails here."""
    if not codec.traits.fixed_size:
        return  # the host must know how much to send
    layout = Layout.of([("a", (40, 30)), ("b", (17,))])
    memory = codec.traits.memory
    engine = Engine(codec, memory=memory, tensors="all", workers=4)
    with torch.no_grad():
        for _ in range(2):
            _, result = tracer.run(engine.reduce(torch.empty(1, layout.numel, device="meta"), layout), 4)
            engine.finish_step([result])


@each_codec
def test_a_large_matrix_gets_smaller_unless_nothing_is_lost(codec):
    traced = trace(codec, [("w", (1024, 1024))], workers=8)
    sends_all = codec.traits.delta == 1 or codec.traits.oracle
    assert traced.bits_per_element < 32 or sends_all


# -------------------------------------------------------------------- claims


def draws(codec, x, count):
    """Independent results: rows of one call draw numbers of their own, unless all draw the shared ones."""
    rows = 30 if codec.traits.stochastic else 1
    given = x.reshape(1, -1).expand(rows, -1).contiguous()
    outs = [codec.decode(codec.encode(given, rng(i)), given.shape[1], rng(i)) for i in range(count // rows)]
    return torch.cat(outs).double()


@each_one_shot
@pytest.mark.parametrize("kind", ["heavy_tail", "negative", "constant"])
def test_unbiased_and_within_its_variance_if_it_says_so(codec, kind):
    if not codec.traits.unbiased:
        assert codec.traits.omega is None, "omega is the variance of an unbiased codec"
        return
    x = NASTY[kind]
    sample = draws(codec, x, 600)
    true = x.reshape(-1).double()
    directions = normal(x.numel(), 16, seed=1).double()
    projected, expected = sample @ directions, true @ directions
    spread = projected.std(0) / len(sample) ** 0.5 + 1e-9 * expected.abs()
    assert ((projected.mean(0) - expected) / spread).abs().max() < 5
    variance = (sample - true).square().sum(1).mean() / true.square().sum()
    assert variance <= codec.traits.omega * 1.15 + 1e-12


@each_codec
@pytest.mark.parametrize("kind", ["heavy_tail", "negative", "constant", "one_hot"])
def test_contracts_as_it_says(codec, kind):
    delta = codec.traits.delta
    if delta is None:
        return
    x = NASTY[kind].double().float()
    random_support = codec.traits.combine is Combine.SUM and codec.traits.sparse
    tries = 60 if codec.traits.stochastic or random_support else 1
    error = torch.stack([(through(codec, x, seed) - x).square().sum() for seed in range(tries)]).mean()
    slack = 0.06 if random_support else 1e-5
    assert error <= (1 - delta + slack) * x.square().sum()


@each_one_shot
def test_sums_of_payloads_decode_to_sums_if_it_says_so(codec):
    if codec.traits.combine is not Combine.SUM:
        return
    parts = [codec.encode(normal(1, 400, seed=s), rng(9)) for s in range(4)]
    total = Payload(sum(p.data for p in parts))
    apart = sum(codec.decode(p, 400, rng(9)) for p in parts)
    torch.testing.assert_close(codec.decode(total, 400, rng(9)), apart, rtol=2e-2, atol=3e-2)


@each_one_shot
def test_sparse_codecs_send_values_as_they_are_and_nothing_else(codec):
    if not codec.traits.sparse:
        return
    x = normal(1, 400)
    y = codec.decode(codec.encode(x, rng()), 400, rng())
    sent = y != 0
    assert 0 < sent.sum() <= 400
    torch.testing.assert_close(y[sent], x[sent], rtol=1e-3, atol=0)


@each_codec
def test_elements_do_not_depend_on_each_other_if_it_says_so(codec):
    """Only then may the engine leave it to the codec to show a non-finite element."""
    x, y = normal(500), normal(500, seed=1)
    y[::7] = x[::7]
    alike = through(codec, x)[::7].equal(through(codec, y)[::7])
    assert alike or not codec.traits.elementwise
    x[3] = float("nan")
    if codec.traits.elementwise:
        assert through(codec, x).isnan().nonzero().tolist() == [[3]]


@each_codec
def test_a_bad_element_shows_wherever_it_is_if_it_says_so(codec):
    """Only then may the engine leave the rest of the unit as it is."""
    if not codec.traits.propagates_nonfinite:
        return
    for place in range(0, 500, 25):
        x = normal(500, seed=place)
        x[place] = float("nan") if place % 2 else -float("inf")
        assert not through(codec, x, seed=place).isfinite().all(), place


@each_one_shot
def test_a_shard_can_be_encoded_by_itself_if_it_says_so(codec):
    if not codec.traits.shards:
        with pytest.raises(gradwire.Incompatible):
            cluster(codec, strategy="scatter_reduce_gather")
        return
    assert codec.alignment >= 1
    rows = normal(4, codec.alignment * 3)
    whole = codec.decode(codec.encode(rows, rng()), rows.shape[1], rng())
    first = codec.decode(codec.encode(rows[:1], rng()), rows.shape[1], rng())
    assert whole[:1].equal(first)


# -------------------------------------------------------------------- symmetry


@each_strategy
def test_sign_flips_with_the_gradient_if_it_says_so(codec, strategy):
    if not codec.traits.odd:
        return
    grads = gradients(3)
    flipped = {n: [-t for t in ts] for n, ts in grads.items()}
    a, b = (cluster(codec, strategy=strategy).reduce(g) for g in (grads, flipped))
    for name in grads:
        torch.testing.assert_close(a[name], -b[name], rtol=1e-5, atol=1e-7)


@each_strategy
def test_result_scales_with_the_gradient_if_it_says_so(codec, strategy):
    if not codec.traits.homogeneous:
        return
    grads = gradients(3, scale=1.0)
    a, b = (cluster(codec, strategy=strategy).reduce(g) for g in (grads, gradients(3, scale=0.25)))
    for name in grads:
        factor = 0.25 if codec.traits.is_mean else 1.0
        torch.testing.assert_close(b[name], factor * a[name], rtol=1e-3, atol=1e-6)


@each_strategy
def test_workers_with_the_same_gradient_get_what_one_alone_would(codec, strategy):
    """Catches sums that should be means."""
    if codec.traits.stochastic or strategy == "scatter_reduce_gather" or not codec.traits.is_mean:
        return
    x = normal(40, 30)
    alone = cluster(codec, 1, strategy=strategy).reduce({"w": [x]})["w"]
    torch.testing.assert_close(
        cluster(codec, 4, strategy=strategy).reduce({"w": [x] * 4})["w"], alone, rtol=1e-2, atol=1e-3
    )


@each_strategy
def test_the_average_over_many_steps_is_the_mean(codec, strategy):
    """Without memory. (With one, this follows from what is owed: it is exact and does not grow.)"""
    traits = codec.traits
    if not traits.is_mean or not (traits.unbiased or (traits.elementwise and traits.memory == "none")):
        return
    grads = {"w": [normal(40, 30, seed=w) + 1 for w in range(3)]}
    c, steps = cluster(codec, memory="none", strategy=strategy), 40
    outs = torch.stack([c.reduce(grads)["w"].double() for _ in range(steps)])
    exact = mean_of(grads["w"])
    if traits.unbiased and traits.omega is None:  # no bound for all shapes: then by its own spread
        slack = 3 * (outs.var(0).sum() / steps).sqrt() / exact.norm()
    else:
        slack = 2 * ((traits.omega or 0.0) * (2 + (traits.omega or 0.0)) / steps) ** 0.5
    assert (outs.mean(0) - exact).norm() / exact.norm() < 0.01 + slack


# -------------------------------------------------------------------- replicas and memories


@each_strategy
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_replicas_agree_bit_for_bit(codec, strategy, workers):
    ranks, grads = Ranks(codec, workers, strategy=strategy), gradients(workers)
    for _ in range(3):
        first, *others = ranks.reduce(grads)
        assert all(first[name].equal(other[name]) for other in others for name in grads)


@each_strategy
def test_error_feedback_loses_nothing_over_many_steps(codec, strategy):
    """Sum of results + mean of what is owed = sum of mean gradients."""
    traits = codec.traits
    if traits.delta is None and traits.omega is None:
        with pytest.raises(gradwire.Incompatible, match=f"^{codec.name} cannot run under error_feedback"):
            cluster(codec, memory="error_feedback", strategy=strategy)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codecs of large variance are scaled, and say so
        c = cluster(codec, memory="error_feedback", strategy=strategy)
    shapes = ((40, 30), (17,), (25, 41))
    sent = {f"p{i}": torch.zeros(s, dtype=torch.float64) for i, s in enumerate(shapes)}
    wanted = {n: t.clone() for n, t in sent.items()}
    for step in range(STEPS):
        grads = gradients(3, shapes, seed=step)
        for name, out in c.reduce(grads).items():
            sent[name] += out.double()
            wanted[name] += mean_of(grads[name])
    coarse = STEPS * 2e-3 if sums_in_half(codec, strategy) else 0  # it rounds on the way, and nobody remembers that
    for name in sent:
        owed = mean_of(c.memory(name))
        assert owed.isfinite().all()
        torch.testing.assert_close(sent[name] + owed, wanted[name], rtol=1e-5, atol=2e-3 + coarse)


@each_codec
def test_memory_does_not_grow_without_bound(codec):
    if codec.traits.memory == "none":
        return
    c, sizes = cluster(codec, 2), []
    for step in range(60):
        c.reduce({n: [normal(*s, seed=step * 2 + w) for w in range(2)] for n, s in (("w", (32, 32)), ("b", (60,)))})
        sizes.append(float(mean_of(c.memory("w")).norm() + 4 * mean_of(c.memory("b")).norm()))
    assert sizes[-1] <= 2.5 * max(sizes[25:30])  # what diverges grows by a factor a step


@each_codec
def test_state_survives_being_saved(codec, tmp_path):
    grads = gradients(3)
    straight, resumed = cluster(codec), cluster(codec)
    for _ in range(3):
        straight.reduce(grads)
        resumed.reduce(grads)
    fresh = cluster(codec)
    for rank, state in enumerate(resumed.state_dicts()):
        torch.save(state, tmp_path / f"state{rank}.pt")
    fresh.load_state_dicts([torch.load(tmp_path / f"state{rank}.pt", weights_only=True) for rank in range(3)])
    for _ in range(3):
        a, b = straight.reduce(grads), fresh.reduce(grads)
        assert all(a[n].equal(b[n]) for n in grads)


@each_strategy
def test_regrouping_the_units_keeps_what_is_owed(codec, strategy):
    """DDP rebuilds its buckets after the first step: memories follow the parameters."""
    if codec.traits.memory == "none":
        return
    c = cluster(codec, memory="error_feedback", strategy=strategy)
    shapes = ((40, 30), (17,), (25, 41))
    sent = {f"p{i}": torch.zeros(s, dtype=torch.float64) for i, s in enumerate(shapes)}
    wanted = {n: t.clone() for n, t in sent.items()}
    groupings = [None, [["p2"], ["p1", "p0"]], [["p2", "p0"], ["p1"]], [["p0"], ["p1"], ["p2"]], None]
    for step, units in enumerate(groupings):
        grads = gradients(3, shapes, seed=step)
        for name, out in c.reduce(grads, units=units).items():
            sent[name] += out.double()
            wanted[name] += mean_of(grads[name])
    for name in sent:
        torch.testing.assert_close(sent[name] + mean_of(c.memory(name)), wanted[name], rtol=1e-5, atol=1e-2)


def kept_by(workers, grads):
    """What is owed, by name and worker."""
    return [m for name in grads for m in workers.memory(name)]


def hold_together(codec, pairs):
    """Equal bit for bit; where products of matrices are involved, whose sums have no defined order, to rounding."""
    for one, other in pairs:
        if codec.family == "lowrank" and one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        else:
            assert same(one, other)


@each_strategy
def test_ranks_apart_compute_what_the_rows_of_one_engine_do(codec, strategy):
    """Under torch.distributed each worker is an engine of one row; in a virtual cluster all are rows of one."""
    rows, ranks = (kind(codec, 3, strategy=strategy, seed=2) for kind in (cluster, Ranks))
    for step in range(3):
        given = gradients(3, seed=step)
        together, apart = rows.reduce(given), agreed(ranks.reduce(given))
        hold_together(codec, [(together[name], apart[name]) for name in given])
        hold_together(codec, zip(kept_by(rows, given), kept_by(ranks, given), strict=True))


FAST = ("encode_own", "encode_from", "encode_part", "decode_to", "combine_to", "reduce_and_encode", "reduce_to")
SPREAD = ((40, 30), (17,), (120, 90), (300,), (33, 41))  # of "matrices" what is compressed lies in three places


def fast_forms(codec):
    """What the codec's class writes beside the simple form. Without `reduce`, `reduce_to` is the simple form itself."""
    written = [name for name in FAST if getattr(type(codec), name) is not getattr(Codec, name)]
    return [n for n in written if n != "reduce_to" or type(codec).reduce is not Codec.reduce]


def memories_for(codec):
    """Error feedback where it fits, and what the codec asks for."""
    fits = codec.traits.delta is not None or codec.traits.omega is not None
    return dict.fromkeys([*(["error_feedback"] if fits else []), codec.traits.memory])


def three_steps(codec, strategy, memory):
    """What comes out and is owed. The loss scale changes before the last; another step is not finite, and skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codecs of large variance are scaled, and say so
        c = cluster(codec, memory=memory, strategy=strategy, tensors="matrices")
    seen = []
    for step, scale in enumerate((1.0, 1.0, 1.0, 3.0)):
        grads = gradients(3, SPREAD, seed=step)
        if step == 2:
            grads["p2"][1][77, 5] = float("inf")
        c.engine.begin_step(loss_scale=scale)
        results = c.reduce(grads).values()
        assert all(r.isfinite().all() for r in results) == (step != 2)
        seen += [*(results if step != 2 else ()), *kept_by(c, grads)]
    return seen


@each_strategy
def test_the_fast_form_is_the_simple_form(codec, strategy, monkeypatch):
    """What reads and writes gradients in one pass gives what encoding, decoding and combining give one by one."""
    forms = fast_forms(codec)
    if not forms:
        return
    fast = {memory: three_steps(codec, strategy, memory) for memory in memories_for(codec)}
    for name in forms:
        monkeypatch.setattr(type(codec), name, getattr(Codec, name))
    for memory, seen in fast.items():
        hold_together(codec, zip(seen, three_steps(codec, strategy, memory), strict=True))
