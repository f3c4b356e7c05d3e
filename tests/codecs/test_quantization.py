"""Quantisers: worked examples, bounds, bytes on the wire, and what each claims beyond the conformance suite."""

from __future__ import annotations

import math
import re

import pytest
import torch

import gradwire
from gradwire.codecs.quantization._tables import magnitudes
from gradwire.conformance.inputs import cluster, normal, rng
from gradwire.core.errors import ConfigError
from gradwire.kernels.backend import plain_torch
from gradwire.kernels.powers import reference as powers_reference
from gradwire.tracing import trace


def encoded(spec, x):
    """The codec and the bytes of one row."""
    codec = gradwire.codec(spec)
    return codec, codec.encode(torch.as_tensor(x).reshape(1, -1), rng()).data[0]


def decoded(spec, x):
    codec, row = gradwire.codec(spec), torch.as_tensor(x).reshape(1, -1)
    return codec.decode(codec.encode(row, rng()), row.shape[1], rng())[0]


def draws(spec, x, count):
    """`count` independent results for the same input, in one call: as many rows."""
    codec, row = gradwire.codec(spec), torch.as_tensor(x).reshape(1, -1)
    payload = codec.encode(row.expand(count, -1).contiguous(), rng())
    return codec.decode(payload, row.shape[1], rng()).double()


def z_scores(sample, expected):
    spread = sample.std(0) / len(sample) ** 0.5
    return (sample.mean(0) - expected) / (spread + 1e-7 * expected.abs() + 1e-30)


def error_share(out, x):
    return float((out.double() - x.double()).square().sum() / x.double().square().sum())


WRONG = """eightbit(form='tree') eightbit(block=0) onebit(block=0) onebit(block=16777217) signum(beta=1.0)
    signum(beta=-0.1) lpc(bits=1) lpc(bits=17) lpc(clip=0) lpc(clip=1.5) lpc(block=0) natural(bits=7) terngrad(clip=0)
    terngrad(block=0) terngrad(packing='bytes') terngrad(share_scale=2) inceptionn(bound=0) inceptionn(bound=0.001)
    inceptionn(bound=True)"""


@pytest.mark.parametrize("spec", WRONG.split())
def test_wrong_parameters_name_themselves(spec):
    name, field, value = re.fullmatch(r"(\w+)\((\w+)=(.*)\)", spec).groups()
    with pytest.raises(ConfigError, match=rf"^{name}: `{field}` must be .*, got {re.escape(value)}$"):
        gradwire.codec(spec)


def test_eightbit_dynamic_by_hand():
    """S = 1. Cells of the top decade are 0.9/64 wide: 0.5 lies in cell 28, and 63 cells lie below that decade."""
    x = [1.0, -1.0, 0.5, 6e-7, 2e-7, -0.5]
    codec, data = encoded("eightbit", x)
    assert data.tolist() == [0, 0, 128, 63, 128, 255, 92, 1, 0, 220]  # 1.0 is 0x3F800000
    assert codec.payload_bytes(6) == 4 + 6
    assert gradwire.codec("eightbit(block=100)").payload_bytes(201) == 201 + 4 * 3
    expected = torch.tensor([1.0, -0.99296875, 0.50078125, 5.5e-7, 0.0, -0.50078125])
    torch.testing.assert_close(decoded("eightbit", x), expected, rtol=1e-6, atol=0)


def test_eightbit_static_by_hand():
    """S = 31: integers from 16 on, halves from 8 on, quarters from 4 on, … and 64ths below 0.5."""
    x = [31.0, 20.4, -9.3, 5.1, 0.3, 0.005, -31.0]
    expected = [31.0, 20.0, -9.5, 5.0, 19 / 64, 0.0, -31.0]
    torch.testing.assert_close(decoded("eightbit(form='static')", x), torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("form", ["dynamic", "static"])
def test_eightbit_takes_the_nearest_entry(form):
    x = normal(3000) * torch.exp(3 * normal(3000, seed=1))
    x[7] = 1.5 * x.abs().max()
    top = x[7].item()
    table = torch.tensor(magnitudes(form), dtype=torch.float64)
    nearest = top * (x.double().abs() / top - table[:, None]).abs().amin(0)
    out = decoded(f"eightbit('{form}', 4096)", x)
    torch.testing.assert_close((out.double() - x.double()).abs(), nearest, rtol=1e-3, atol=1e-6 * top)


@pytest.mark.parametrize("form", ["dynamic", "static"])
@pytest.mark.parametrize("block", [4, 128, 2048])
def test_eightbit_contraction_holds_where_rounding_is_worst(form, block):
    """Every element but one halfway between two entries: the largest relative errors, and the largest absolute ones."""
    codec, m = gradwire.codec(f"eightbit('{form}', {block})"), torch.tensor(magnitudes(form))
    x = -((m[1:] + m[:-1]) / 2)[:-1, None].repeat(1, block)
    x[:, 0] = -1.0
    out = codec.decode(codec.encode(x, rng()), block, rng())
    delta, worst = codec.traits.delta, max(map(error_share, out, x))
    assert 0 < worst <= 1 - delta
    assert 1 - delta < 8 * worst  # the bound is not idle


def test_eightbit_is_odd_but_for_a_missing_minus_one():
    x = normal(500)
    assert decoded("eightbit('static', 100)", -x).equal(-decoded("eightbit('static', 100)", x))
    plus, minus = decoded("eightbit", x), -decoded("eightbit", -x)
    largest = x.abs().argmax()
    differ = (plus != minus).nonzero().flatten().tolist()
    assert differ == [int(largest)]


def test_onebit_by_hand():
    """Blocks of 4: {1, 3, 0} has mean 4/3, {-2} is alone; then {5} and nothing negative. The memory keeps the rest."""
    x = torch.tensor([1.0, 3.0, -2.0, 0.0, 6.0, 4.0])
    c = cluster("onebit(block=4)", 1)
    torch.testing.assert_close(c.reduce({"w": [x]})["w"], torch.tensor([4 / 3, 4 / 3, -2.0, 4 / 3, 5.0, 5.0]))
    torch.testing.assert_close(c.memory("w")[0], torch.tensor([-1 / 3, 5 / 3, 0.0, -4 / 3, 1.0, -1.0]))
    codec, data = encoded("onebit(block=4)", x)
    assert data.numel() == codec.payload_bytes(6) == 2 * 8 + 1
    assert data[:16].clone().view(torch.float32).tolist() == pytest.approx([-2.0, 0.0, 4 / 3, 5.0])
    assert data[16] == 0b111011


@pytest.mark.parametrize("block", [5, 64, 500])
def test_onebit_is_a_projection(block):
    x = normal(1000) + 0.3
    y = decoded(f"onebit(block={block})", x)
    error = (x - y).double()
    assert abs(error @ y.double()) < 1e-5 * float(x.double() @ x.double())
    for low in range(0, 1000, block):
        part = slice(low, low + block)
        for members in (x[part] >= 0, x[part] < 0):
            assert float(error[part][members].sum()) == pytest.approx(0, abs=1e-4)
    torch.testing.assert_close(decoded(f"onebit(block={block})", y), y)


def test_onebit_contraction_is_attained_by_one_element_and_is_two_over_pi_for_a_gaussian():
    one = torch.zeros(50)
    one[7] = 3.0
    assert error_share(decoded("onebit(block=50)", one), one) == pytest.approx(1 - 1 / 50)
    assert gradwire.codec("onebit(block=50)").traits.delta == 1 / 50
    x = normal(400_000)
    assert error_share(decoded("onebit(block=4000)", x), x) == pytest.approx(1 - 2 / math.pi, abs=0.005)


def test_signum_by_hand():
    """beta = 1/2: m = (0.5, -0.5, 2), then (-1.25, -0.05, 0.5), where the gradient's signs are (-1, 1, -1)."""
    c = cluster("signum(beta=0.5)", 1)
    assert c.reduce({"w": [torch.tensor([1.0, -1.0, 4.0])]})["w"].tolist() == [1.0, -1.0, 1.0]
    assert c.reduce({"w": [torch.tensor([-3.0, 0.4, -1.0])]})["w"].tolist() == [-1.0, -1.0, 1.0]
    kept = c.engine.store.get("signum_momentum", "w").tensor
    torch.testing.assert_close(kept, torch.tensor([-1.25, -0.05, 0.5]))


def test_signum_is_a_majority_of_the_workers_own_momenta():
    """After the second step two of three momenta are positive in the first place, though all gradients are negative."""
    c = cluster("signum", 3)
    c.reduce({"w": [torch.tensor([40.0, 1.0]), torch.tensor([40.0, 1.0]), torch.tensor([-1.0, 1.0])]})
    out = c.reduce({"w": [torch.tensor([-1.0, 1.0])] * 3})["w"]
    assert out.tolist() == [1.0, 1.0]


def test_signum_without_momentum_is_signsgd():
    a, b = cluster("signum(beta=0.0)", 4), cluster("signsgd", 4)
    for step in range(3):
        grads = {"w": [normal(300, seed=10 * step + w).round() for w in range(4)]}  # many zeros and ties
        assert a.reduce(grads)["w"].equal(b.reduce(grads)["w"])
    assert a.payload_bytes == b.payload_bytes == math.ceil(300 / 8) + 1


def test_signum_keeps_its_momentum_in_todays_units():
    """The loss scale doubles, and the gradients with it: momentum goes on as if nothing had happened."""
    plain, scaled = cluster("signum", 1), cluster("signum", 1)
    g, h = normal(200), normal(200, seed=1) * 0.2
    for c in (plain, scaled):
        c.reduce({"w": [g]})
    scaled.engine.begin_step(loss_scale=8.0)
    out = plain.reduce({"w": [h]})["w"]
    assert out.equal(scaled.reduce({"w": [8 * h]})["w"])
    assert not out.equal(h.sign())  # momentum has decided some of them


def test_signum_forgets_a_step_that_is_not_finite():
    c = cluster("signum", 2)
    c.reduce({"w": [normal(20), normal(20, seed=1)]})
    before = c.engine.store.get("signum_momentum", "w").tensor.clone()
    assert c.reduce({"w": [torch.full((20,), torch.inf), normal(20)]})["w"].isnan().all()
    assert c.engine.store.get("signum_momentum", "w").tensor.equal(before)


def test_lpc_grid_points_are_kept_by_hand():
    """Three bits: -4 … 3 times the step. Without clipping the step is 3/3; at half of 6 it is 1 too."""
    assert decoded("lpc(bits=3)", [3.0, -3.0, 2.0, 0.0, -1.0]).tolist() == [3.0, -3.0, 2.0, 0.0, -1.0]
    assert decoded("lpc(bits=3, clip=0.5)", [6.0, -6.0, 2.0, -4.0, -3.0]).tolist() == [3.0, -4.0, 2.0, -4.0, -3.0]
    codec, data = encoded("lpc(bits=4)", [7.0, -7.0, 1.0])
    assert data.tolist() == [0, 0, 224, 64, 15 | 1 << 4, 9]  # scale 7.0, then codes + 8
    assert codec.payload_bytes(3) == 4 + 2
    assert gradwire.codec("lpc(bits=5, block=100)").payload_bytes(1001) == math.ceil(1001 * 5 / 8) + 4 * 11


@pytest.mark.parametrize("clip", [1.0, 0.6, 0.3])
def test_lpc_expects_the_clipped_vector(clip):
    x = torch.linspace(-5, 5, 60)
    step = clip * float(x.abs().max()) / 7
    sample = draws(f"lpc(clip={clip}, block=60)", x, 4000)
    assert z_scores(sample, x.double().clamp(-8 * step, 7 * step)).abs().max() < 5
    levels = sample / step
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)
    assert levels.round().min() >= -8
    assert levels.round().max() <= 7


def test_lpc_claims_depend_on_clipping():
    whole, cut, coarse = (gradwire.codec(s).traits for s in ("lpc", "lpc(clip=0.5, block=64)", "lpc(bits=2, clip=0.9)"))
    assert (whole.unbiased, whole.omega, whole.delta) == (True, (math.sqrt(1 + 511 / 49) - 1) / 2, None)
    assert (cut.unbiased, cut.omega) == (False, None)
    assert cut.delta == pytest.approx(1 - 0.25 - 64 * (0.5 / 7) ** 2 / 4)
    assert (coarse.unbiased, coarse.omega, coarse.delta) == (False, None, None)


@pytest.mark.parametrize("kind", ["gauss", "heavy", "equal", "single"])
@pytest.mark.parametrize("spec", ["lpc(clip=0.5, block=64)", "lpc(bits=3, clip=0.25, block=64)"])
def test_lpc_contracts_under_heavy_clipping(spec, kind):
    x = {"gauss": normal(64), "heavy": normal(64) ** 5, "equal": torch.ones(64), "single": torch.eye(64)[3]}[kind]
    delta = gradwire.codec(spec).traits.delta
    assert 0 < delta < 1
    assert float((draws(spec, x, 400) - x).square().sum(1).mean() / x.square().sum()) <= 1 - delta + 1e-6


def test_natural_by_hand():
    """Powers of two are kept. 127 is the exponent field of 1."""
    x = [1.0, -2.0, 0.5, 0.0, -0.25]
    assert decoded("natural", x).tolist() == decoded("natural(bits=8)", x).tolist() == x
    assert encoded("natural", x)[1].tolist() == [127, 128, 126, 0, 125, 0b10010]
    assert encoded("natural(bits=8)", x)[1].tolist() == [109, 128 + 110, 108, 0, 128 + 107]
    assert gradwire.codec("natural").payload_bytes(1001) == math.ceil(1001 * 9 / 8)
    assert gradwire.codec("natural(bits=8)").payload_bytes(1001) == 1001


@pytest.mark.parametrize("bits, mantissa", [(9, 1), (9, 2_796_203), (8, 2**23 - 1)])
def test_natural_is_unbiased_to_the_last_draw(bits, mantissa, monkeypatch):
    """Each of the 2^23 draws once: the upper power comes out exactly as often as the mantissa says."""
    draws = (torch.arange(2**23) << 9).view(1, -1)
    monkeypatch.setattr(powers_reference, "quick_words", lambda stream, shape, device: draws.view(shape))
    with plain_torch():
        out = decoded(f"natural(bits={bits})", torch.full((2**23,), -1 - mantissa * 2.0**-23))
    assert int((out == -2).sum()) == mantissa
    assert int((out == -1).sum()) == 2**23 - mantissa


def test_natural_rounds_denormals_without_bias(monkeypatch):
    """3/8 of 2^-126; every eighth draw."""
    monkeypatch.setattr(
        powers_reference, "quick_words", lambda stream, shape, device: (torch.arange(2**20) << 12).view(shape)
    )
    with plain_torch():
        out = decoded("natural", torch.full((2**20,), 3 * 2.0**-129))
    assert set(out.tolist()) == {0.0, 2.0**-126}
    assert int((out > 0).sum()) == 3 * 2**20 // 8


def test_natural_at_the_ends_of_its_range():
    big, tiny = 3e38, 2.0**-108
    assert decoded("natural", [big, -big]).tolist() == [2.0**127, -(2.0**127)]
    out = decoded("natural(bits=8)", [tiny, -tiny, 0.999 * tiny, 1e-45, 2.0**17, -3e5, big])
    assert out.tolist() == [tiny, -tiny, 0.0, 0.0, 2.0**17, -(2.0**17), 2.0**17]


@pytest.mark.parametrize("bits", [9, 8])
def test_natural_shows_what_is_not_finite_and_only_that(bits):
    out = draws(f"natural(bits={bits})", [1.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 3e38], 300)
    assert out.isnan().all(0).tolist() == [False, True, True, True, True, False]
    assert out[:, [0, 5]].isfinite().all()


def test_terngrad_by_hand():
    """±s and 0 are kept; codes + 1 are 2 0 1 2 and a 1 behind the end: 2·81 + 0·27 + 1·9 + 2·3 + 1 = 178."""
    x = [2.0, -2.0, 0.0, 2.0]
    for packing, tail in (("trits", [178]), ("bits", [0b10010010])):
        spec = f"terngrad(clip=None, packing='{packing}')"
        assert decoded(spec, x).tolist() == x
        assert encoded(spec, x)[1].tolist() == [0, 0, 0, 64, *tail]  # 2.0 is 0x40000000


@pytest.mark.parametrize("block, blocks", [(64, 16), (None, 1), (2048, 1)])
def test_terngrad_bytes_and_that_packings_decode_alike(block, blocks):
    for packing, codes in (("trits", math.ceil(1001 / 5)), ("bits", math.ceil(1001 / 4))):
        codec, data = encoded(f"terngrad(block={block}, packing='{packing}')", normal(1001))
        assert data.numel() == codec.payload_bytes(1001) == codes + 4 * blocks
    x = normal(1003)
    assert decoded(f"terngrad(block={block})", x).equal(decoded(f"terngrad(block={block}, packing='bits')", x))


def test_terngrad_clips_at_sigma():
    """Fifteen ones and a ten: sigma² = 115/16, so the ten is cut to 2.5 sigma = 6.7. Zeros do not count."""
    x = torch.cat([torch.ones(15), torch.tensor([-10.0]), torch.zeros(16)])
    limit = 2.5 * math.sqrt(115 / 16)
    out = draws("terngrad", x, 4000)
    torch.testing.assert_close(out[:, 15], torch.full((4000,), -limit).double())
    assert z_scores(out[:, :15], x[:15].double()).abs().max() < 5
    assert (out[:, 16:] == 0).all()


def test_terngrad_does_not_clip_what_is_constant_or_padded_or_tiny():
    """A constant is its own sigma about zero; a last block that is mostly padding keeps the scale of its elements."""
    x = torch.full((2100,), 0.5)
    out = cluster("terngrad(clip=1.0)", 3, strategy="scatter_reduce_gather").reduce({"w": [x] * 3})["w"]
    assert out.equal(x)
    assert decoded("terngrad", [0.5, -0.5, 0.5]).tolist() == [0.5, -0.5, 0.5]  # s is never above the maximum
    y = normal(300)
    assert decoded("terngrad", y * 2.0**-100).equal(decoded("terngrad", y) * 2.0**-100)  # squares would underflow


def test_terngrad_variance_bound_is_attained():
    """One element sqrt(B) + 1 times as large as the others: omega = (sqrt(B) - 1)/2 = 3.5 for B = 64."""
    x = torch.ones(64)
    x[5] = 9.0
    assert gradwire.codec("terngrad(clip=None, block=64)").traits.omega == 3.5
    for spec in ("terngrad", "terngrad(clip=None, block=None)", "terngrad(clip=None, share_scale=True)"):
        assert gradwire.codec(spec).traits.omega is None, spec
    share = (draws("terngrad(clip=None, block=64)", x, 4000) - x).square().sum(1) / x.square().sum()
    assert float(share.mean()) == pytest.approx(3.5, rel=0.03)


def test_terngrad_shared_scale_by_hand():
    """Both use s = 4. The sums are exact: (4 + 4)/2, (-4 + 0)/2, and 0."""
    c = cluster("terngrad(clip=None, share_scale=True)", 2)
    out = c.reduce({"w": [torch.tensor([4.0, -4.0, 0.0]), torch.tensor([4.0, 0.0, 0.0])]})["w"]
    assert out.tolist() == [4.0, -2.0, 0.0]
    assert c.payload_bytes == 4 + 4  # one scale, one word


def test_terngrad_shared_scale_is_unbiased_and_a_multiple_of_s_over_n():
    parts = [torch.linspace(-1 - w, 2, 40) for w in range(5)]
    out = cluster("terngrad(clip=None, block=None, share_scale=True)", 5).reduce({"w": [p.repeat(4000) for p in parts]})
    scale, sample = 5.0, out["w"].view(4000, 40).double()
    levels = sample * 5 / scale
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)
    assert z_scores(sample, torch.stack(parts).double().mean(0)).abs().max() < 5


@pytest.mark.parametrize("workers, fields", [(1, 16), (3, 10), (4, 8), (8, 6), (200, 3)])
def test_terngrad_shared_scale_bytes(workers, fields):
    """Sums reach 2n: fields of 2, 3, 4, 5 and 9 bits."""
    traced = trace("terngrad(share_scale=True, block=64)", [("w", (10, 100))], workers=workers, tensors="all")
    assert [e.kind for e in traced.exchanges] == ["max", "sum"]
    assert [e.payload_bytes for e in traced.exchanges] == [4 * 16, 4 * math.ceil(1000 / fields)]


def test_terngrad_shared_scale_sums_whatever_the_number_of_workers():
    """All codes +1, all −1: the extremes of a field, also of the one that holds a word's sign."""
    x = torch.tensor([1.0, -1.0]).repeat(40)
    for workers in (1, 2, 7, 8, 33):
        out = cluster("terngrad(share_scale=True, clip=None)", workers).reduce({"w": [x] * workers})["w"]
        assert out.equal(x), workers


def test_inceptionn_by_hand():
    """E = 1/1024: codes 0, 1, 102, 512, (raw), -129, so tags 0 1 1 2 | 3 2; 25 bytes of 100 tags alone for zeros."""
    x = [0.0004, 0.001, 0.1, 0.5, 40.0, -0.126]
    codec, data = encoded("inceptionn", x)
    assert data.tolist() == [148, 11, 1, 102, 0, 2, 127, 255, 0, 0, 32, 66]  # 40.0 is 0x42200000
    assert decoded("inceptionn", x).tolist() == [0.0, 1 / 1024, 102 / 1024, 0.5, 40.0, -129 / 1024]
    assert codec.payload_bytes(6) == 2 + 24 + 8
    assert encoded("inceptionn", torch.zeros(100))[1].numel() == 25


@pytest.mark.parametrize("bound", [2.0**-10, 2.0**-6, 4.0])
def test_inceptionn_error_is_at_most_half_the_bound_and_at_most_the_element(bound):
    x = normal(20_000) * torch.exp(4 * normal(20_000, seed=1)) * bound * 100
    edges = torch.tensor([0.5, 0.500001, 1.5, 127.4, 127.5, 127.6, 128.5, 32767.4, 32767.5, 32767.6, 32768.5]) * bound
    x = torch.cat([x, edges, -edges])
    error = (decoded(f"inceptionn(bound={bound})", x) - x).abs()
    assert error.max() <= bound / 2
    assert (error <= x.abs()).all()
    assert error[x.abs() >= 32768 * bound].max() == 0


def test_inceptionn_rows_have_their_own_lengths():
    codec = gradwire.codec("inceptionn")
    x = torch.stack([torch.zeros(50), 0.01 * normal(50), 100 * normal(50, seed=1), torch.full((50,), torch.nan)])
    x[3, :2] = torch.tensor([torch.inf, -torch.inf])
    payload = codec.encode(x, rng())
    assert payload.lengths[0] == math.ceil(50 / 4)
    assert payload.lengths[3] == math.ceil(50 / 4) + 4 * 50
    assert payload.data.shape[1] == int(payload.lengths.max())
    out = codec.decode(payload, 50, rng())
    for i in range(4):
        alone = codec.encode(x[i : i + 1], rng())
        assert alone.lengths.tolist() == [int(payload.lengths[i])]
        assert alone.data[0].equal(payload.data[i, : payload.lengths[i]])
        torch.testing.assert_close(codec.decode(alone, 50, rng())[0], out[i], equal_nan=True, rtol=0, atol=0)
    assert not payload.data[0, payload.lengths[0] :].any()
    torch.testing.assert_close(out[3], x[3], equal_nan=True)  # what is not finite comes back as it is


# -------------------------------------------------------------------- one bound for one quantiser


@pytest.mark.parametrize("levels, block", [(7, 128), (7, 512), (127, 2048), (1, 64)])
def test_codecs_of_one_quantiser_claim_one_bound(levels, block):
    """Stochastic block integers and QSGD give the same bytes, so they have the same variance."""
    qsgd = gradwire.codec(f"qsgd(levels={levels}, block={block})")
    bits = (2 * levels).bit_length()
    others = [f"lpc(bits={bits}, block={block})"] if bits > 1 else []
    others += [f"blockint(bits={bits}, block={block}, rounding='stochastic')"] if bits in (2, 4, 6, 8) else []
    others += [f"terngrad(clip=None, block={block})"] if levels == 1 else []
    for spec in others:
        assert gradwire.codec(spec).traits.omega == pytest.approx(qsgd.traits.omega)


def test_the_bound_is_attained():
    """One large element, and all others a share of a step from zero: the measured variance is the claimed one."""
    levels, block = 7, 512
    codec = gradwire.codec(f"qsgd(levels={levels}, block={block})")
    share = 1 / (1 + (1 + (block - 1) / levels**2) ** 0.5)
    x = torch.full((400, block), share / levels)
    x[:, 0] = 1.0
    source = rng(3)
    error = (codec.decode(codec.encode(x, source), block, source) - x).double().square().sum(1).mean()
    assert float(error / x[0].double().square().sum()) == pytest.approx(codec.traits.omega, rel=0.03)


def test_error_feedback_scales_default_qsgd_by_what_is_safe():
    with pytest.warns(UserWarning, match=r"scaled by 1/\(1\+omega\) = 0\.457"):
        gradwire.VirtualCluster(2, "qsgd", "error_feedback")
