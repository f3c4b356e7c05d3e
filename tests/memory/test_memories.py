"""Memories, by hand numbers and by the algorithm they stand for."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import gradwire
from gradwire import checkpoint
from gradwire.memory import ErrorFeedback, MomentumCorrection
from gradwire.memory.base import memories


def vector(*values):
    return {"w": [torch.tensor(values)]}


def test_error_feedback_by_hand():
    """beta = 1/2, gamma = 2: a = e/2 + 2g; top-1 of two."""
    c = gradwire.VirtualCluster(1, "topk(ratio=0.5)", memory="error_feedback(beta=0.5, gamma=2)")
    assert c.reduce(vector(1.0, 2.0))["w"].tolist() == [0.0, 4.0]
    assert c.memory("w")[0].tolist() == [2.0, 0.0]
    assert c.reduce(vector(1.5, 1.0))["w"].tolist() == [4.0, 0.0]
    assert c.memory("w")[0].tolist() == [0.0, 2.0]


def test_scale_of_the_gradient_carries_over_to_the_memory():
    """Loss scale doubled: what was kept counts double, as the gradients do."""
    c = gradwire.VirtualCluster(1, "topk(ratio=0.5)")
    c.reduce(vector(1.0, 2.0))
    c.engine.begin_step(loss_scale=2.0)
    assert c.reduce(vector(2.0, 3.0))["w"].tolist() == [4.0, 0.0]


def test_a_lower_learning_rate_lets_what_is_owed_count_more():
    """It was to be multiplied by the old rate, and will be by the new one: half of it."""
    c = gradwire.VirtualCluster(1, "topk(ratio=0.5)")
    c.engine.begin_step(learning_rate=0.5)
    c.reduce(vector(1.0, 2.0))
    c.engine.begin_step(learning_rate=0.25)
    assert c.reduce(vector(2.0, 3.0))["w"].tolist() == [4.0, 0.0]


def test_a_skipped_step_leaves_the_units_of_the_memory_as_they_were():
    """What was kept at a scale of 1 counts double at 2, whatever the scale of a step between them that was skipped."""
    c = gradwire.VirtualCluster(1, "topk(ratio=0.5)")
    c.reduce(vector(1.0, 2.0))
    c.engine.begin_step(loss_scale=8.0)
    c.reduce(vector(math.inf, 1.0))
    assert c.engine.skipped_steps == 1
    c.engine.begin_step(loss_scale=2.0)
    assert c.reduce(vector(2.0, 3.0))["w"].tolist() == [4.0, 0.0]


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_correction_of_everything_is_momentum_sgd(nesterov):
    """Without masking, a codec that sends all makes the sent values SGD's momentum updates."""
    memory = MomentumCorrection(momentum=0.9, nesterov=nesterov, masking=False)
    c = gradwire.VirtualCluster(2, "topk(ratio=1)", memory=memory)
    weight = torch.zeros(5, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=0.9, nesterov=nesterov)
    ours = torch.zeros(5)
    for step in range(10):
        grads = [torch.randn(5, generator=torch.Generator().manual_seed(10 * step + w)) for w in range(2)]
        weight.grad = torch.stack(grads).mean(0)
        sgd.step()
        ours -= c.reduce({"w": grads})["w"]
    torch.testing.assert_close(ours, weight.detach(), rtol=1e-5, atol=1e-5)


def test_momentum_correction_masks_what_was_sent():
    c = gradwire.VirtualCluster(1, "topk(ratio=0.5)", memory="momentum_correction(momentum=0.5)")
    assert c.reduce(vector(1.0, 3.0))["w"].tolist() == [0.0, 3.0]
    store = c.engine.store
    assert store.get("momentum", "w").tensor.tolist() == [1.0, 0.0]
    assert store.get("error", "w").tensor.tolist() == [1.0, 0.0]
    # u = 0.5·1 + 1 = 1.5, v = 1 + 1.5 = 2.5 beats 0.5·0 + 2
    assert c.reduce(vector(1.0, 2.0))["w"].tolist() == [2.5, 0.0]


def test_momentum_correction_clips_the_norm_of_the_unit():
    """Norm 5 above 2: [3, 4] becomes [1.2, 1.6]. Elements are not clamped one by one, and small gradients pass."""
    c = gradwire.VirtualCluster(1, "topk(ratio=1)", memory="momentum_correction(momentum=0, clip=2)")
    torch.testing.assert_close(c.reduce(vector(3.0, 4.0))["w"], torch.tensor([1.2, 1.6]))
    assert c.reduce(vector(1.0, -1.5))["w"].tolist() == [1.0, -1.5]
    assert c.reduce(vector(0.0, 0.0))["w"].tolist() == [0.0, 0.0]
    torch.testing.assert_close(c.reduce(vector(3e30, 4e30))["w"], torch.tensor([1.2, 1.6]))
    assert c.reduce(vector(math.inf, 1.0))["w"].isnan().any()


def test_momentum_correction_clips_each_worker_by_the_root_of_their_number():
    """Four workers at clip 2: each gradient to norm 1, of all tensors together; the accumulators see clipped ones."""
    c = gradwire.VirtualCluster(4, "topk(ratio=1)", memory="momentum_correction(momentum=0.5, masking=False, clip=2)")
    grads = {"a": [torch.tensor([3.0])] * 4, "b": [torch.tensor([4.0])] * 4}
    for momentum in (1.0, 1.5):
        out = c.reduce(grads)
        torch.testing.assert_close(torch.cat((out["a"], out["b"])), momentum * torch.tensor([0.6, 0.8]))


def test_momentum_correction_without_clip_leaves_large_gradients_alone():
    c = gradwire.VirtualCluster(1, "topk(ratio=1)", memory="momentum_correction(momentum=0)")
    assert c.reduce(vector(3e30, 4e30))["w"].tolist() == torch.tensor([3e30, 4e30]).tolist()


def test_default_memory_is_the_codecs():
    for name in gradwire.codec_names():
        engine = gradwire.VirtualCluster(1, name).engine
        assert engine.memory == memories.build(gradwire.codec(name).traits.memory)


@pytest.mark.parametrize(
    "low, high, wanted",
    [
        ("none", "topk", "error_feedback"),
        ("fp16", "none", "none"),
        ("dgc", "topk", "momentum_correction"),
        ("topk", "dgc", "error_feedback"),
    ],
)
def test_default_memory_under_a_controller_is_the_first_that_a_level_asks_for(low, high, wanted):
    cluster = gradwire.VirtualCluster(1, controller=gradwire.Accordion(low, high))
    assert cluster.engine.memory.name == wanted


def test_none_keeps_nothing():
    c = gradwire.VirtualCluster(2, "topk", memory="none")
    c.reduce({"w": [torch.ones(100)] * 2})
    assert c.memory("w") == [None, None]


def test_a_codec_of_large_variance_is_scaled_and_says_so():
    omega = min(512 / 4, math.sqrt(512))
    message = (
        f"qsgd(levels=1, norm='l2'): error feedback over an unbiased codec of variance omega = {omega:.3g} >= 1 would "
        f"diverge, so its output is scaled by 1/(1+omega) = {1 / (1 + omega):.3g}"
    )
    with pytest.warns(UserWarning, match="would diverge") as caught:
        c = gradwire.VirtualCluster(1, "qsgd(levels=1, norm='l2')", memory="error_feedback")
    assert [str(w.message) for w in caught] == [message]
    for step in range(200):
        c.reduce({"w": [torch.randn(512, generator=torch.Generator().manual_seed(step))]})
    assert c.memory("w")[0].norm() < 40 * 512**0.5


def test_a_codec_of_small_variance_needs_no_scaling():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradwire.VirtualCluster(1, "qsgd(levels=127)", memory="error_feedback")


@pytest.mark.parametrize(
    "codec, memory, message",
    [
        (
            "signsgd",
            "error_feedback",
            "signsgd cannot run under error_feedback: it claims neither a contraction nor a bounded variance, so the "
            "memory would grow without bound. Use memory='none', or a contracting codec such as efsignsgd.",
        ),
        (
            "qsgd",
            "momentum_correction",
            "qsgd cannot run under momentum_correction: factor masking needs a sparse codec, whose sent elements are "
            "known. Use memory='error_feedback' or 'none', or a codec such as topk.",
        ),
        ("topk", "error_feedback(beta=2)", "error_feedback: `beta` must be a discount in [0, 1], got 2"),
        ("topk", "error_feedback(gamma=-1)", "error_feedback: `gamma` must be a factor of at least 0, got -1"),
        (
            "topk",
            "momentum_correction(momentum=3)",
            "momentum_correction: `momentum` must be a factor in [0, 1], got 3",
        ),
        ("topk", "momentum_correction(clip=-1)", "momentum_correction: `clip` must be a norm, or 0 for none, got -1"),
        (
            "topk",
            "error_feedback(alpha=1)",
            "error_feedback: has no parameter `alpha`; known: beta, bits, by_learning_rate, gamma",
        ),
    ],
)
def test_refusals_are_whole_sentences(codec, memory, message):
    with pytest.raises(gradwire.GradwireError) as caught:
        gradwire.VirtualCluster(2, codec, memory=memory)
    assert str(caught.value) == message


def test_memories_can_be_given_as_objects():
    c = gradwire.VirtualCluster(1, "topk", memory=ErrorFeedback(beta=0.5))
    assert c.engine.memory == ErrorFeedback(beta=0.5)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_correction_gives_momentum_to_what_is_not_compressed(nesterov):
    """A vector travels as it is; the optimizer's own momentum is 0, so it must get it here."""
    spec = f"dgc(ratio=1, momentum=0.5, masking=False, nesterov={nesterov})"
    c = gradwire.VirtualCluster(2, spec, tensors="matrices")
    weight = torch.nn.Parameter(torch.zeros(3))
    plain = torch.optim.SGD([weight], lr=1.0, momentum=0.5, nesterov=nesterov)
    mine = torch.zeros(3)
    for step in range(4):
        grads = [torch.randn(3, generator=torch.Generator().manual_seed(2 * step + w)) for w in range(2)]
        mine -= c.reduce({"w": [torch.ones(40, 40)] * 2, "b": grads})["b"]
        weight.grad = torch.stack(grads).mean(0)
        plain.step()
        torch.testing.assert_close(mine, weight.detach())


def descended(memory, steps=100):
    """Two workers with halves of a least-squares problem, under top-k: how far the weights are from its solution."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(2, 64, 40, generator=generator)
    wanted = torch.randn(40, 8, generator=generator)
    targets = data @ wanted
    weights = torch.zeros(40, 8)
    cluster = gradwire.VirtualCluster(2, "topk(ratio=0.02)", memory=memory)
    for _ in range(steps):
        grads = [x.mT @ (x @ weights - y) / 64 for x, y in zip(data, targets, strict=True)]
        weights -= 0.05 * cluster.reduce({"w": grads})["w"]
    return float((weights - wanted).norm() / wanted.norm()), cluster


def test_a_memory_of_8_bits_converges_as_a_full_one_does_and_takes_a_quarter():
    full, kept = descended("error_feedback")
    packed, kept_in_8 = descended("error_feedback(bits=8)")
    without, _ = descended("none")
    assert packed < 1.1 * full < without / 2

    def held(cluster):
        slots = [slot for kinds in cluster.engine.store._slots.values() for slot in kinds.values()]
        return sum(t.nbytes for slot in slots for t in (slot.current, slot._spare))

    assert held(kept) == 2 * 2 * 4 * 320  # two workers, two buffers
    assert held(kept_in_8) == 2 * 2 * (320 + 320 // 64)


def test_a_memory_of_8_bits_loses_nothing_but_rounding():
    """What was sent, and what is owed, add up to the gradients; single elements are off by noise without a drift."""
    cluster = gradwire.VirtualCluster(1, "topk(ratio=0.1)", memory="error_feedback(bits=8)")
    gradient = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    steps = 200
    sent = sum(cluster.reduce({"w": [gradient]})["w"] for _ in range(steps))
    lost = sent + cluster.memory("w")[0] - steps * gradient
    largest = float(cluster.memory("w")[0].abs().max())
    assert float(lost.abs().max()) < math.sqrt(steps) * largest / 63.5  # a random walk of steps that small
    assert abs(float(lost.mean())) < math.sqrt(steps) * largest / 63.5 / math.sqrt(1000)


def test_a_state_of_8_bits_goes_on_bit_for_bit_and_a_full_memory_takes_it():
    memory = {"memory": "error_feedback(bits=8)", "tensors": "all"}
    first, second = (gradwire.VirtualCluster(2, "topk(ratio=0.1)", **memory) for _ in range(2))
    draws = torch.randn(6, 2, 999, generator=torch.Generator().manual_seed(0))
    for step in range(3):
        first.reduce({"w": list(draws[step])})
    saved = [checkpoint.save(first.engine, rank) for rank in range(2)]
    checkpoint.load(second.engine, saved)
    for step in range(3, 6):
        grads = {"w": list(draws[step])}
        assert torch.equal(first.reduce(grads)["w"], second.reduce(grads)["w"])
    full = gradwire.VirtualCluster(2, "topk(ratio=0.1)", tensors="all")
    checkpoint.load(full.engine, saved)
    for rank in range(2):
        wanted = saved[rank]["state"]["error"]["w"]["tensor"]
        assert torch.equal(checkpoint.owed(full.engine, "w", (999,), rank), wanted)


def test_a_step_that_is_not_finite_leaves_a_memory_of_8_bits_as_it_was():
    cluster = gradwire.VirtualCluster(1, "topk(ratio=0.5)", memory="error_feedback(bits=8)")
    cluster.reduce(vector(1.0, 2.0))
    cluster.reduce(vector(math.inf, 1.0))
    assert cluster.memory("w")[0].tolist() == [1.0, 0.0]
