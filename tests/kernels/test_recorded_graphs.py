"""CUDA graphs, recorded on the CPU: replays give what launches give, and what cannot be replayed is launched."""

from __future__ import annotations

import dataclasses
import gc
import warnings

import pytest
import torch
from on_gpu import needs_triton

import gradwire
from gradwire import checkpoint, graphs
from gradwire.collectives import trace
from gradwire.core.exchange import Payload, Reduction, as_answer, as_batch
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.kernels import backend
from gradwire.kernels.random import uniform

pytestmark = needs_triton
LAYOUT = Layout.of([("w", (32, 32)), ("b", (24,))])
OTHER = Layout.of([("v", (32, 32)), ("w", (32, 32))])
STEPS = 7  # the first has no memory; two that are launched, a capture for each buffer of a memory, and two replays
REPLAYS = STEPS - 3


def answered(program, workers):
    """As the tracer does, but answers are new tensors."""
    answer = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value
        answers = []
        for exchange in as_batch(request):
            if isinstance(exchange, Reduction):
                answers.append(exchange.tensor.clone())
            else:
                found = trace.echo(dataclasses.replace(exchange, into=None), workers)
                answers.append(Payload(found.data.clone(), found.lengths))
        answer = as_answer(request, answers)


def train(codec, captured, *, spoil=None, scales=None, moves=(), between=lambda engine, step: None, **options):
    """Results and memories of some steps of one of three workers; and how they were made."""
    from recorded_graphs import finish_step, recorded_graphs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine(codec, workers=3, graphs=captured, seed=5, **options)
    x, out = torch.empty(1, LAYOUT.numel), torch.empty(1, LAYOUT.numel)
    seen, kept = [], []
    with recorded_graphs() if captured else backend.plain_torch(), torch.no_grad():
        for step in range(STEPS):
            if step in moves:
                kept.append(x)  # so that the new one lies elsewhere
                x = torch.empty_like(x)
            scale = 1.0 if scales is None else scales[step]
            x.copy_(scale * torch.randn(x.shape, generator=torch.Generator().manual_seed(step)))
            if step == spoil:
                x[0, 70] = float("nan")
            between(engine, step)
            engine.begin_step(loss_scale=scale)
            finish_step(engine, answered(engine.reduce(x, LAYOUT, out), 3))
            seen.append(out.clone())
            for kind in sorted(engine.store.kinds):
                seen += [piece.entry.tensor.clone() for piece in engine.store.pieces(kind)]
            seen += [entry.tensor.clone() for kept in engine.store.named.values() for entry in kept.values()]
    return seen, engine


def check(codec, **options):
    """Results and memories are the same bits, launched or replayed; how often something was replayed, and why not."""
    (launched, plain), (replayed, engine) = (train(codec, captured, **options) for captured in (False, True))
    assert len(launched) == len(replayed)
    for one, other in zip(launched, replayed, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    assert plain.skipped_steps == engine.skipped_steps
    assert plain.graphs.summary() == {"captured": 0, "replays": 0, "launched": {}}
    return engine.graphs.summary()


CODEC = {"codec": "natural", "memory": "error_feedback"}  # draws random numbers, and keeps an error


TWO_STREAMS = {"codec": "blockint(bits=4, block=32, rounding='stochastic', rotate=True)"}  # of signs, and to round
CODECS = [CODEC, TWO_STREAMS, {"codec": "signum"}, {"codec": "efsignsgd(block=256)"}]


@pytest.mark.parametrize("options", CODECS, ids=str)
def test_replays_give_what_launches_give(options):
    assert check(**options) == {"captured": 1, "replays": REPLAYS, "launched": {}}


def test_a_bad_step_between_replays_leaves_no_trace():
    assert check(**CODEC, spoil=5)["replays"] == REPLAYS
    assert train(**CODEC, captured=True, spoil=5)[1].skipped_steps == 1


def test_a_new_loss_scale_is_followed():
    """Launches are told the scale as a number: what was captured under another is not replayed."""
    assert check("signum", scales=[4.0] * 5 + [2.0] * 2)["replays"] == 2


def test_the_end_of_a_step_follows_the_loss_scale_too():
    """The memory's units are written there, and the flags of two steps may lie at one place."""
    from recorded_graphs import recorded_graphs

    engine, flags = Engine("topk", workers=3), (torch.zeros(()),)
    with recorded_graphs():
        for scale in (4.0, 4.0, 4.0, 4.0, 2.0, 4.0):
            engine.begin_step(scale)
            engine._on_device(flags, [])
            assert float(engine.kept_scale) == scale


def test_gradients_that_move_are_launched():
    assert check(**CODEC, moves=range(STEPS))["replays"] == 0
    assert check(**CODEC, moves=[5])["replays"] == REPLAYS - 2


def resume(engine, step):
    """Continue from what was just saved: the same numbers, elsewhere."""
    if step == 5:
        checkpoint.load(engine, checkpoint.save(engine))


def rebuild(engine, step):
    """A step in which a tensor is in another unit, and its memory moves there."""
    if step == 5:
        from recorded_graphs import finish_step

        x = torch.full((1, OTHER.numel), 0.1)
        finish_step(engine, answered(engine.reduce(x, OTHER), 3))


@pytest.mark.parametrize("between", [resume, rebuild])
def test_memories_that_move_are_not_written_where_they_were(between):
    found = check(**CODEC, between=between)
    assert found["replays"] == (0 if between is resume else REPLAYS)  # the one begins anew, the other is captured anew


def test_what_only_one_step_is_told_is_launched():
    def observe(engine, step):
        if step == 5:
            engine.observe("squares", {"w": torch.ones(1, 1024)})

    assert check(**CODEC, between=observe)["replays"] == REPLAYS - 1
    assert check(**CODEC, nmse_every=6)["replays"] == REPLAYS - 1  # the error is measured in the last one
    assert check(WarmsUp(), memory="none")["replays"] == REPLAYS - 2
    assert check(Varies(), memory="none")["replays"] == 0


@pytest.mark.parametrize("value", ["off", "on"])
def test_the_environment_can_switch_graphs_off(monkeypatch, value):
    monkeypatch.setenv("GRADWIRE_GRAPHS", value)
    assert train(**CODEC, captured=True)[1].graphs.summary()["replays"] == (0 if value == "off" else REPLAYS)


# ---------------------------------------------------------------- programs that cannot be repeated


class Own(gradwire.Codec):
    """Sends all; what it does besides would be wrong, or different, in a repetition."""

    name, family, paper = "own", "baseline", "none"
    traits = gradwire.Traits(combine=gradwire.Combine.ROUNDS, propagates_nonfinite=True)

    def reduce(self, x, ctx):
        mean = yield gradwire.Sum(self.changed(x, ctx) / ctx.workers)
        return mean, x

    def changed(self, x, ctx):
        return x


class WarmsUp(Own):
    steady_from_step = 3

    def changed(self, x, ctx):
        return x if ctx.rng.step < 3 else x / 2


class Varies(Own):
    traits = dataclasses.replace(Own.traits, fixed_size=False)


class Counts(Own):
    def changed(self, x, ctx):
        count = ctx.state.get("count", "w")
        count = x.new_ones(1) if count is None else count + 1
        ctx.state.put("count", "w", count)
        return x * count


class Keeps(Own):
    def changed(self, x, ctx):
        ctx.state.put("largest", "w", x.amax(1))
        return x


class Waits(Own):
    def changed(self, x, ctx):
        return x * float(x.abs().max())


class Draws(Own):
    def changed(self, x, ctx):
        return x * uniform(ctx.rng.common("draw"), x.shape, x.device)


class Alternates(Own):
    def reduce(self, x, ctx):
        mean = yield gradwire.Sum(x / ctx.workers)
        if ctx.rng.step % 2 == 0:
            mean = yield gradwire.Max(x)
        return mean, x


class Ragged(Own):
    def reduce(self, x, ctx):
        data = x.contiguous().view(torch.uint8)
        rows = yield gradwire.Gather(gradwire.Payload(data, torch.tensor([data.shape[1]])))
        return rows.data.view(torch.float32).mean(0, keepdim=True), x


WHY = {
    Own: None,
    Counts: "state outside of slots",
    Keeps: "state outside of slots",
    Waits: "the host waits for a number",
    Draws: "random numbers are drawn by keys that the host knows",
    Alternates: "it does not exchange the same in each step",
    Ragged: "payloads of variable size",
}


@pytest.mark.parametrize("kind", WHY, ids=lambda kind: kind.__name__)
def test_what_cannot_be_repeated_is_launched_and_says_why(kind):
    found = check(kind(), memory="none")
    assert found["launched"] == ({} if WHY[kind] is None else {WHY[kind]: 1})
    assert (found["replays"] > 0) == (WHY[kind] is None)


def test_tensors_that_go_on_moving_are_captured_no_more():
    unit = graphs.Unit(captures=[object()] * graphs.MOST)
    assert unit.attempt(lambda: object()) is None
    assert (unit.captures, unit.refusal) == ([], "its tensors do not stay where they are")


@pytest.mark.parametrize("enabled", [True, False])
def test_nobody_looks_for_garbage_while_a_graph_is_captured(enabled):
    """What CUDA frees for it would end the capture."""
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with graphs._nothing_freed():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("failures, replays", [(1, REPLAYS - 1), (100, 0)])
def test_captures_that_fail_are_tried_again_and_then_no_more(monkeypatch, failures, replays):
    from recorded_graphs import RecordedGraph

    tries, capture_begin = [], RecordedGraph.capture_begin

    def fail(graph, **options):
        tries.append(1)
        if len(tries) <= failures:
            raise RuntimeError("out of memory")
        capture_begin(graph, **options)

    monkeypatch.setattr(RecordedGraph, "capture_begin", fail)
    assert check(Own(), memory="none")["replays"] == replays
    assert replays or len(tries) == graphs.TRIES
