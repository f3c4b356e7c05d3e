"""Block integers, THC and QSGD with shared norms: worked examples, bounds that are attained, and exact sums."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import gradwire
from gradwire.codecs.quantization._ranges import agree
from gradwire.conformance.inputs import Ranks, agreed, cluster, normal, rng, through
from gradwire.core.codec import reduce_and_encode
from gradwire.core.exchange import Max, Payload
from gradwire.core.window import Feedback
from gradwire.kernels.bitpack import unpack
from gradwire.tracing import trace

SRG = "scatter_reduce_gather"


def nmse(out, exact):
    return float((out.double() - exact.double()).square().sum() / exact.double().square().sum())


def error_of_mean(spec, grads, **options):
    out = cluster(spec, len(grads), memory="none", **options).reduce({"w": grads})["w"]
    return nmse(out, torch.stack(grads).mean(0))


def whole_numbers(*shape, seed=0):
    """From −7 to 7, and each row begins with a 7: the grid of 4 bits, if rows are blocks."""
    draws = (normal(*shape, seed=seed) * 4).round().clamp(-7, 7)
    draws[..., 0] = 7
    return draws


def assert_centred(samples, exact):
    """Sixteen projections of the samples' mean lie within five standard errors of the exact ones."""
    directions = normal(exact.numel(), 16, seed=1).double()
    projected = torch.stack([s.reshape(-1).double() for s in samples]) @ directions
    spread = projected.std(0) / len(samples) ** 0.5
    assert ((projected.mean(0) - exact.reshape(-1).double() @ directions) / spread).abs().max() < 5


# -------------------------------------------------------------------- blockint


def test_blockint_by_hand():
    """Largest magnitude 7, so the step is 1: 3.4 becomes 3, and 0.5 goes away from zero. The memory keeps the rest."""
    x = torch.tensor([7.0, -3.4, 0.5, 0.0, 0.14])
    c = cluster("blockint(bits=4, block=4)", 1)
    torch.testing.assert_close(c.reduce({"w": [x]})["w"], torch.tensor([7.0, -3.0, 1.0, 0.0, 0.14]))
    torch.testing.assert_close(c.memory("w")[0], torch.tensor([0.0, -0.4, -0.5, 0.0, 0.0]))
    data = gradwire.codec("blockint(bits=4, block=4)").encode(x[None], rng()).data
    torch.testing.assert_close(data[0, :8].clone().view(torch.float32), torch.tensor([7.0, 0.14]))
    assert unpack(data[:, 8:], 4, 5)[0].tolist() == [14, 4, 8, 7, 14]


def test_blockint_of_two_bits_has_three_levels():
    out = through("blockint(bits=2, block=8)", torch.tensor([-4.0, 1.9, 2.0, -1.0, 3.0, 0.0, -2.1, 0.1]))
    assert out.tolist() == [-4, 0, 4, 0, 4, 0, -4, 0]


@pytest.mark.parametrize("bits", [8, 6, 4, 2])
def test_blockint_bytes_follow_the_formula(bits):
    plain, rotated = (gradwire.codec(f"blockint(bits={bits}, block=64, rotate={r})") for r in (False, True))
    assert plain.payload_bytes(1001) == math.ceil(1001 * bits / 8) + 4 * 16
    assert rotated.payload_bytes(1001) == 1024 * bits // 8 + 4 * 16


def test_blockint_spreads_an_outlier_over_32_elements():
    """One element alone becomes 32 equal magnitudes, all of them on the grid; the other runs keep fine steps."""
    x = torch.zeros(4, 32)
    x[0, 5], x[1:] = 1.0, 0.02 * normal(3, 32).sign()
    spec = "blockint(bits=4, block=128, rotate={})"
    torch.testing.assert_close(through(spec.format(True), x)[0], x[0], rtol=0, atol=1e-6)
    assert nmse(through(spec.format(True), x)[1:], x[1:]) < 0.5
    assert (through(spec.format(False), x)[1:] == 0).all()


def heavy(kind, count):
    if kind == "normal":
        return normal(count)
    if kind == "laplace":
        return normal(count).sign() * (normal(2, count, seed=1).square().sum(0) / 2)
    return normal(count) / (normal(3, count, seed=1).square().sum(0) / 3).sqrt()


@pytest.mark.parametrize(
    "spec, kind, expected",
    [
        ("bits=8, block=256", "normal", 4.9e-5),
        ("bits=8, block=256", "laplace", 1.0e-4),
        ("bits=6, block=32", "normal", 4.8e-4),
        ("bits=4, block=32", "normal", 0.0094),
        ("", "normal", 0.0138),
        ("", "laplace", 0.0256),
        ("", "student", 0.0510),
        ("rotate=True", "normal", 0.0137),
        ("rotate=True", "laplace", 0.0139),
        ("rotate=True", "student", 0.0135),
    ],
)
def test_blockint_error_for_one_rounding(spec, kind, expected):
    x = heavy(kind, 2**18)
    assert nmse(through(f"blockint({spec})", x), x) == pytest.approx(expected, rel=0.12 if kind == "student" else 0.04)


@pytest.mark.parametrize("bits, block", [(4, 128), (2, 16), (8, 7)])
def test_blockint_contraction_is_attained(bits, block):
    """One large element and the others at half a step, which round away from zero."""
    codec = gradwire.codec(f"blockint(bits={bits}, block={block})")
    x = torch.ones(block)
    x[0] = 2 * codec.rule(block).high
    assert nmse(through(codec, x), x) == pytest.approx(1 - codec.traits.delta, rel=1e-5)


@pytest.mark.parametrize("bits, block", [(4, 128), (2, 64)])
def test_blockint_stochastic_rounding_is_centred_and_its_variance_attained(bits, block):
    codec = gradwire.codec(f"blockint(bits={bits}, block={block}, rounding='stochastic')")
    others = 1 / (1 + math.sqrt(1 + (block - 1) / codec.rule(block).high ** 2))  # of a step: the worst case
    x = torch.full((block,), others)
    x[0] = codec.rule(block).high
    samples = [through(codec, x, seed) for seed in range(250)]
    assert_centred(samples, x)
    assert sum(nmse(s, x) for s in samples) / 250 == pytest.approx(codec.traits.omega, rel=0.06)


@pytest.mark.parametrize("strategy", ["all_gather", SRG])
def test_blockint_adds_up_rotated_values_and_turns_them_back_once(strategy):
    """With signs at the wrong place, the mean would be noise."""
    grads = [normal(1000, seed=w) for w in range(3)]
    assert error_of_mean("blockint(bits=8, block=32, rotate=True)", grads, strategy=strategy) < 2e-4


def test_blockint_rotates_anew_in_each_step():
    c, x = cluster("blockint(bits=2, rotate=True)", 1, memory="none"), normal(512)
    assert not c.reduce({"w": [x]})["w"].equal(c.reduce({"w": [x]})["w"])


# -------------------------------------------------------------------- thc


def one_step(aggregation, *workers):
    spec = f"thc(rotation='none', chunk=32, aggregation='{aggregation}')"
    grads = {"w": [torch.tensor(w) for w in workers]}
    return cluster(spec, len(workers), memory="none").reduce(grads)["w"]


def test_thc_by_hand():
    """On the grid of range 7 nothing is rounded. A ring of 4-bit sums stops at 7."""
    a, b = [7.0, -3.0, 0.0, 5.0, -7.0], [7.0, 1.0, 2.0, -5.0, -1.0]
    for aggregation in ("scatter", "sum"):
        torch.testing.assert_close(one_step(aggregation, a, b), torch.tensor([7.0, -1.0, 1.0, 0.0, -4.0]))
    torch.testing.assert_close(one_step("saturate", a, b), torch.tensor([3.5, -1.0, 1.0, 0.0, -3.5]))


def test_thc_saturation_depends_on_the_order_of_the_ring():
    """7 + 7 − 7 is 0 where the shard starts at the first worker, and 7 where 7 − 7 come first."""
    out = one_step("saturate", [7.0] * 3, [7.0] * 3, [-7.0] * 3)
    torch.testing.assert_close(out, torch.tensor([0.0, 7 / 3, 7 / 3]))


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_thc_ring_is_the_saturating_sum_in_the_order_of_its_hops(workers):
    grads = [whole_numbers(19, 32, seed=w) for w in range(workers)]
    spec = "thc(rotation='none', chunk=32, aggregation='saturate')"
    out = cluster(spec, workers).reduce({"w": grads})["w"]
    flat, shard = [g.view(-1) for g in grads], math.ceil(19 * 32 / workers)
    wanted = torch.zeros(19 * 32)
    for start in range(workers):
        piece = slice(start * shard, (start + 1) * shard)
        for hop in range(workers):
            wanted[piece] = (wanted[piece] + flat[(start + hop) % workers][piece]).clamp(-7, 7)
    torch.testing.assert_close(out.view(-1), wanted / workers)
    assert agreed(Ranks(spec, workers).reduce({"w": grads}))["w"].equal(out)


@pytest.mark.parametrize("workers", [3, 16])
@pytest.mark.parametrize("rotation", ["partial", "none"])
def test_thc_sum_is_exactly_the_sum_of_the_codes(workers, rotation):
    grads = [normal(300, seed=w) for w in range(workers)]
    c = cluster(f"thc(rotation='{rotation}', chunk=64, aggregation='sum')", workers)
    out = c.reduce({"w": grads})["w"]
    shares = [g - left for g, left in zip(grads, c.memory("w"), strict=True)]
    torch.testing.assert_close(out, torch.stack(shares).mean(0), rtol=1e-5, atol=1e-6)
    if rotation == "none":
        step = torch.stack(grads).abs().amax(0)[:64].amax() / 7
        codes = torch.stack(shares)[:, :64] / step
        torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-4)
        assert codes.abs().max().round() == 7


@pytest.mark.parametrize("spec", ["thc(aggregation='sum', rotation='none')", "qsgd(share_norm=True)"])
def test_sums_of_the_largest_codes_do_not_spill_over(spec):
    for sign in (1.0, -1.0):
        x = torch.full((1001,), 3.0 * sign)
        for workers in (1, 2, 9):
            torch.testing.assert_close(cluster(spec, workers, memory="none").reduce({"w": [x] * workers})["w"], x)


@pytest.mark.parametrize(
    "spec, workers",
    [("thc(bits=3, chunk=64, aggregation='sum')", 2), ("thc(bits=3, chunk=64, aggregation='saturate')", 1)],
)
def test_thc_is_unbiased_before_anything_is_clamped(spec, workers):
    grads = [normal(150, seed=w) ** 3 for w in range(workers)]
    samples = [cluster(spec, workers, memory="none", seed=s).reduce({"w": grads})["w"] for s in range(160)]
    assert_centred(samples, torch.stack(grads).mean(0))


@pytest.mark.parametrize("rotation", ["partial", "full", "none"])
def test_thc_error_stays_below_its_bound(rotation):
    codec = gradwire.codec(f"thc(rotation='{rotation}', chunk=256)")
    for x in (normal(2048), normal(2048) ** 3, torch.eye(2048)[7] + 0.01):
        assert sum(nmse(through(codec, x, s), x) for s in range(10)) / 10 < codec.traits.omega


def test_thc_rotation_cuts_the_error_where_energy_is_local_and_partial_is_as_good_as_full():
    x = normal(512, 32) ** 3 * torch.exp(2 * normal(512, 1, seed=3))
    none, partial, full = (nmse(through(f"thc(rotation='{r}')", x), x) for r in ("none", "partial", "full"))
    assert none > 3 * partial
    assert partial < 1.1 * full


TABLE = [  # workers, correlation, NMSE of the mean: exact sum, saturation at each hop, scatter-reduce-gather
    (4, 0.0, 0.047, 0.062, 0.080),
    (4, 0.5, 0.019, 0.120, 0.054),
    (8, 0.0, 0.052, 0.125, 0.089),
    (8, 0.5, 0.011, 0.328, 0.047),
    (16, 0.0, 0.057, 0.252, 0.095),
]


@pytest.mark.parametrize("workers, correlation, exact, hops, twice", TABLE)
def test_thc_by_sum_by_saturation_and_by_scatter(workers, correlation, exact, hops, twice):
    common, numel = normal(2**13, seed=99), 2**13
    grads = [
        math.sqrt(correlation) * common + math.sqrt(1 - correlation) * normal(numel, seed=w) for w in range(workers)
    ]
    added = error_of_mean("thc(aggregation='sum')", grads)
    saturated = error_of_mean("thc(aggregation='saturate')", grads)
    scattered = error_of_mean("thc", grads, strategy=SRG)
    assert added == pytest.approx(exact, rel=0.15)
    assert saturated == pytest.approx(hops, rel=0.15)
    assert scattered == pytest.approx(twice, rel=0.25)
    assert added < min(saturated, scattered)
    assert (scattered < saturated) == (workers >= 8 or correlation > 0)


def test_thc_full_rotation_of_shards_finds_its_signs_again():
    """Shards are padded to a power of two each, and their owners must still draw the same signs."""
    grads = [normal(1700, seed=w) for w in range(3)]  # shards of 576
    assert error_of_mean("thc(bits=8, rotation='full')", grads, strategy=SRG) < 5e-4


@pytest.mark.parametrize("workers, width", [(4, 6), (8, 7), (16, 8)])
def test_thc_bytes_follow_the_formulas(workers, width):
    numel, layer, ranges = 70_000, [("w", (700, 100))], 4 * 69
    packed = 69 * 1024 // 2
    assert gradwire.codec("thc").payload_bytes(numel) == ranges + packed
    words = 4 * math.ceil(69 * 1024 / (32 // width))
    assert trace("thc(aggregation='sum')", layer, workers=workers).payload_bytes == ranges + words
    ring = trace("thc(aggregation='saturate')", layer, workers=workers)
    assert ring.payload_bytes == ranges + packed
    twice = 2 * (workers - 1)
    assert ring.sent_bytes == math.ceil(twice * ranges / workers) + twice * packed // workers


def test_thc_pads_a_short_vector_to_the_next_power_of_two_only():
    assert gradwire.codec("thc").payload_bytes(100) == 4 + 64
    assert gradwire.codec("thc(rotation='none')").payload_bytes(100) == 4 + 50
    assert gradwire.codec("thc(rotation='full')").payload_bytes(5000) == 4 + 4096


def test_ranges_show_a_nan_to_backends_that_drop_it_from_a_maximum():
    program = agree(torch.tensor([[1.0, math.nan]]))
    request = next(program)
    assert isinstance(request, Max)
    assert request.tensor.tolist() == [[1.0, math.inf]]
    with pytest.raises(StopIteration) as done:
        program.send(torch.tensor([[2.0, math.inf]]))
    assert done.value.value[0, 0] == 2
    assert done.value.value[0, 1].isnan()


@pytest.mark.parametrize("spec", ["blockint", "qsgd", "qsgd(norm='l2')", "thc", "thc(aggregation='sum')"])
def test_steps_too_small_to_invert_are_raised(spec):
    """The inverse step of a block of denormals would be infinite, and infinity times zero is not a number."""
    x = torch.zeros(64)
    x[3] = 1e-40
    out = through(spec, x)
    assert out.abs().max() < 2.0**-125
    assert (through(spec, 0 * x) == 0).all()


# -------------------------------------------------------------------- qsgd with shared norms


def test_qsgd_with_a_shared_norm_by_hand():
    """s = 2 and norms 4 and 2: both workers round to {0, 2, 4}. The first is on the grid; the second's 1 is not."""
    a, b = torch.tensor([4.0, -2.0]), torch.tensor([2.0, 1.0])
    seen = set()
    for seed in range(40):
        c = cluster("qsgd(levels=2, block=2, share_norm=True)", 2, seed=seed)
        out = c.reduce({"w": [a, b]})["w"].tolist()
        assert out[0] == 3
        seen.add(out[1])
    assert seen == {-1.0, 0.0}


def test_qsgd_with_shared_norms_is_thc_without_rotation():
    grads = {"w": [normal(1000, seed=w) for w in range(5)]}
    a, b = "qsgd(levels=7, block=64, share_norm=True)", "thc(rotation='none', chunk=64, aggregation='sum')"
    torch.testing.assert_close(*(cluster(spec, 5, memory="none").reduce(grads)["w"] for spec in (a, b)))


def test_qsgd_with_shared_norms_sends_widened_fields():
    """8 workers, 15 codes each: sums up to 112 take 7 bits, four to a word."""
    traced = trace("qsgd(levels=7, block=100, share_norm=True)", [("w", (50, 40))], workers=8)
    assert traced.payload_bytes == 4 * 20 + 4 * 500


# -------------------------------------------------------------------- passes that do two things at once

FUSED = [
    "efsignsgd(block=64)",
    "qsgd(block=64)",
    "qsgd(block=64, norm='l2')",
    "blockint(bits=6, block=64)",
    "blockint(block=64, rounding='stochastic')",
    "blockint(block=64, rotate=True)",
    "thc(chunk=64)",
    "thc(rotation='full')",
    "thc(rotation='none', chunk=64)",
]


@pytest.mark.parametrize("spec", FUSED)
def test_own_share_of_one_pass_is_what_the_others_decode(spec):
    codec, x = gradwire.codec(spec), normal(3, 640)
    payload, own = codec.encode_own(x, rng())
    assert payload.data.equal(codec.encode(x, rng()).data)
    assert own.equal(codec.decode(payload, 640, rng()))


@pytest.mark.parametrize("remember", [False, True])
@pytest.mark.parametrize("spec", FUSED)
def test_owner_does_in_one_pass_what_it_would_do_step_by_step(spec, remember):
    codec, here, down = gradwire.codec(spec), rng().at(640), rng().fold("down").at(640)
    parts = [codec.encode(normal(1, 640, seed=w), replace(here, ranks=(w,))).data for w in range(4)]
    received = Payload(torch.cat(parts))
    fast, slow = (
        Feedback(torch.full((1, 640), 7.0), 0.1 * normal(1, 640, seed=9), 0.7) if remember else None for _ in range(2)
    )
    senders = here.of(range(4), (640,) * 4)
    result = codec.reduce_and_encode(received, 640, senders, down, fast, 1, 0.9)
    expected = reduce_and_encode(codec, codec, received, 640, senders, down, slow, 1, 0.9)
    assert result.data.equal(expected.data)
    if remember:
        assert fast.out.equal(slow.out)


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "spec, message",
    [
        ("blockint(bits=3)", "blockint: `bits` must be 8 or 6 or 4 or 2, got 3"),
        ("blockint(block=0)", "blockint: `block` must be a whole number of at least 1, got 0"),
        (
            "blockint(block=100, rotate=True)",
            "blockint: `block` must be a multiple of 32 with rotate=True, got 100",
        ),
        ("blockint(rounding='up')", "blockint: `rounding` must be 'nearest' or 'stochastic', got 'up'"),
        ("blockint(rotate='yes')", "blockint: `rotate` must be True or False, got 'yes'"),
        ("thc(bits=9)", "thc: `bits` must be a whole number from 2 to 8, got 9"),
        ("thc(chunk=1000)", "thc: `chunk` must be a power of two, got 1000"),
        ("thc(chunk=16)", "thc: `chunk` must be a whole number from 32 to 1073741824, got 16"),
        ("thc(rotation='half')", "thc: `rotation` must be 'partial' or 'full' or 'none', got 'half'"),
        ("thc(aggregation='ring')", "thc: `aggregation` must be 'scatter' or 'sum' or 'saturate', got 'ring'"),
        ("qsgd(share_norm=2)", "qsgd: `share_norm` must be True or False, got 2"),
    ],
)
def test_wrong_parameters_name_themselves(spec, message):
    with pytest.raises(gradwire.ConfigError) as refused:
        gradwire.codec(spec)
    assert str(refused.value) == message


def test_saturation_refuses_error_feedback():
    with pytest.raises(gradwire.Incompatible, match=r"^thc cannot run under error_feedback"):
        cluster("thc(aggregation='saturate')", memory="error_feedback")
