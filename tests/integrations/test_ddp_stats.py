"""What `handle.stats()` reports: bytes, errors and norms, each computed a second way."""

from __future__ import annotations

import pytest
import torch
from given import SHAPES, buckets, gradients, owed, reduced, sample, sweep_unless, wrap
from ranks import Pool
from torch import Tensor

import gradwire
from gradwire.core.codec import Codec, codecs
from gradwire.tracing import trace

pytestmark = pytest.mark.dist
STEPS = 4


def count(rank: int, codec: str, mode: str) -> tuple[dict, list]:
    model = wrap()
    handle = gradwire.attach(model, codec, mode=mode)
    seen = []
    for step in range(STEPS):
        reduced(model, gradients(SHAPES, rank, step))
        seen.append(buckets(model))
    return handle.stats(), seen


@pytest.mark.parametrize("codec", [sweep_unless(name in sample(), name) for name in codecs.names()])
def test_sent_bytes_are_those_of_the_tracer_and_of_virtual_workers(pool: Pool, codec: str) -> None:
    sent, payload = 0, 0
    stats, units = pool.run(4, count, codec, "overlap")[0]
    cluster = gradwire.VirtualCluster(4, codec, tensors="matrices")
    for step in range(STEPS):
        given = [gradients(SHAPES, r, step) for r in range(4)]
        cluster.reduce({n: [g[n] for g in given] for n in SHAPES}, units=units[step])
        sent += cluster.sent_bytes
        payload += cluster.payload_bytes
    assert (stats["sent_bytes"], stats["payload_bytes"]) == (sent, payload)
    assert stats["sent_bytes_per_step"] == sent / STEPS
    if not codecs.build(codec).traits.fixed_size or codecs.build(codec).steady_from_step:
        return
    traced = [trace(codec, [(n, SHAPES[n]) for n in unit], workers=4) for step in units for unit in step]
    assert (stats["sent_bytes"], stats["payload_bytes"]) == (
        sum(t.sent_bytes for t in traced),
        sum(t.payload_bytes for t in traced),
    )


def always_smaller(codec: Codec) -> bool:
    """Not an oracle, not one whose absolute bound lets everything through, not before it has settled."""
    traits = codec.traits
    return not (traits.lossless or traits.oracle or codec.steady_from_step) and traits.homogeneous


SMALLER = [name for name in sample() if always_smaller(codecs.build(name))]


def raw_bytes() -> float:
    """What plain DDP sends in a ring."""
    return 2 * 3 / 4 * 4 * sum(torch.Size(s).numel() for s in SHAPES.values())


@pytest.mark.parametrize("mode", ["overlap", "after_backward"])
@pytest.mark.parametrize("codec", SMALLER)
def test_what_a_codec_sends_is_smaller_than_the_gradient(pool: Pool, codec: str, mode: str) -> None:
    for stats, _ in pool.run(4, count, codec, mode):
        assert 0 < stats["sent_bytes_per_step"] < raw_bytes()


def describe(rank: int) -> tuple[dict, dict]:
    model = wrap()
    handle = gradwire.attach(model, "topk(ratio=0.1)", memory="error_feedback(beta=0.5)", mode="after_backward")
    before = handle.stats()
    for step in range(STEPS):
        reduced(model, gradients(SHAPES, rank, step))
    return before, handle.stats()


def test_stats_name_the_set_up_and_count_steps(pool: Pool) -> None:
    for before, after in pool.run(3, describe):
        constant = {
            "codec": "topk(ratio=0.1)",
            "memory": "error_feedback(beta=0.5)",
            "mode": "after_backward",
            "workers": 3,
            "skipped_steps": 0,
            "nmse": None,
        }
        assert {k: before[k] for k in constant} == {k: after[k] for k in constant} == constant
        assert before.keys() == after.keys()
        assert (before["steps"], before["sent_bytes_per_step"], before["residual_norm"]) == (0, 0.0, None)
        assert before["residual_norms"] == {}
        assert after["steps"] == STEPS
        for seconds in ("encode_seconds", "communicate_seconds", "decode_seconds"):
            assert before[seconds] == 0
            assert after[seconds] > 0


def measure(rank: int, codec: str, nmse_every: int) -> list[dict]:
    model = wrap()
    handle = gradwire.attach(model, codec, strategy="all_gather", nmse_every=nmse_every)
    seen = []
    for step in range(STEPS + 1):
        reduced(model, gradients(SHAPES, rank, step))
        seen.append(handle.stats() | {"units": buckets(model), "owed": owed(handle, SHAPES)})
    return seen


def sizes(shapes: dict, wanted: bool) -> list[str]:
    """The names that are compressed, or that are not."""
    return [n for n, s in shapes.items() if (len(s) > 1 and torch.Size(s).numel() >= 1024) is wanted]


@pytest.mark.parametrize("codec", ["topk", "efsignsgd", "qsgd"])
def test_nmse_is_the_error_against_the_mean_of_what_the_codec_was_given(pool: Pool, codec: str) -> None:
    every = 2
    seen = pool.run(3, measure, codec, every)
    cluster = gradwire.VirtualCluster(3, codec, strategy="all_gather", tensors="matrices")
    kept: dict[str, list[Tensor]] = {n: [torch.zeros(s)] * 3 for n, s in SHAPES.items()}
    error, exact = 0.0, 0.0
    for step in range(STEPS + 1):
        given = {n: [gradients(SHAPES, r, step)[n] for r in range(3)] for n in SHAPES}
        out = cluster.reduce(given, units=seen[0][step]["units"])
        if step % every == 0:
            for name in sizes(SHAPES, True):
                mean = torch.stack([g + k for g, k in zip(given[name], kept[name], strict=True)]).mean(0)
                error += float((out[name] - mean).square().sum())
                exact += float(mean.square().sum())
        if codec != "qsgd":
            kept = {n: cluster.memory(n) for n in SHAPES}
        for rank in seen:
            assert rank[step]["nmse"] == pytest.approx(error / exact, rel=1e-4)
    assert error > 0


def test_a_measured_step_sends_the_gradient_too(pool: Pool) -> None:
    measured = [s["sent_bytes"] for s in pool.run(3, measure, "topk", 2)[0]]
    plain = [s["sent_bytes"] for s in pool.run(3, measure, "topk", 0)[0]]
    exact = 2 * 2 / 3 * 4 * sum(torch.Size(SHAPES[n]).numel() for n in sizes(SHAPES, True))
    extra = [m - p for m, p in zip(measured, plain, strict=True)]
    assert extra == pytest.approx([exact, exact, 2 * exact, 2 * exact, 3 * exact], abs=10)


def test_residual_norm_is_that_of_all_memories(pool: Pool) -> None:
    for rank in pool.run(3, measure, "topk", 0):
        for step in rank:
            norm = torch.cat([t.flatten() for t in step["owed"].values()]).norm()
            assert step["residual_norm"] == pytest.approx(float(norm), rel=1e-5)
            each = {n: float(t.norm()) for n, t in step["owed"].items() if n in sizes(SHAPES, True)}
            assert step["residual_norms"] == pytest.approx(each, rel=1e-5)


# ---------------------------------------------------------------- memories that follow the learning rate


def follow_learning_rate(rank: int, by_learning_rate: bool) -> list[list[float]]:
    """Top-1 of four; each step has its learning rate and its gradient."""
    model = wrap({"w": (4,)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = f"error_feedback(by_learning_rate={by_learning_rate})"
    gradwire.attach(model, "topk(ratio=0.25)", memory=memory, tensors="all", optimizer=optimizer)
    out = []
    for rate, gradient in [
        (0.5, [4.0, 1.0, 0.0, 0.0]),  # sends 4; owes [0, 1, 0, 0]
        (0.25, [0.0, 0.0, 1.5, 0.0]),  # the rate halves, what is owed doubles: sends 2; owes [0, 0, 1.5, 0]
        (1.0, [0.5, 0.0, 0.0, 0.0]),  # it grows fourfold: owes 0.375; sends 0.5
        (1.0, [0.0, 0.0, 0.0, 0.0]),  # sends 0.375
    ]:
        optimizer.param_groups[0]["lr"] = rate
        out.append(reduced(model, {"w": torch.tensor(gradient)})["w"].tolist())
    return out


def test_what_is_owed_follows_the_learning_rate(pool: Pool) -> None:
    for result in pool.run(2, follow_learning_rate, True):
        assert result == [[4, 0, 0, 0], [0, 2, 0, 0], [0.5, 0, 0, 0], [0, 0, 0.375, 0]]


def test_what_is_owed_stays_as_it_is_unless_asked(pool: Pool) -> None:
    for result in pool.run(2, follow_learning_rate, False):
        assert result == [[4, 0, 0, 0], [0, 0, 1.5, 0], [0, 1, 0, 0], [0.5, 0, 0, 0]]
