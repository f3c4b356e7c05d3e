"""Both back ends of the cast give the same bits."""

from __future__ import annotations

import pytest
import torch

from gradwire.core.window import Window
from gradwire.kernels.cast import cpu, from_half, one_pass, reference, to_half

EVERY_HALF = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)


def bits(x):
    return x.view(torch.int16 if x.dtype == torch.float16 else torch.int32)


def test_every_half_precision_number_comes_through_exactly():
    finite = EVERY_HALF[~EVERY_HALF.isnan()]
    assert bits(cpu.from_half(finite)).equal(bits(reference.from_half(finite)))
    assert bits(cpu.to_half(finite.float())).equal(bits(finite))


@pytest.mark.parametrize("scale", [1e-8, 1e-6, 1e-3, 1.0, 1e4, 1e6, 1e30])
def test_rounding_is_that_of_torch(scale):
    x = scale * torch.randn(20_001, generator=torch.Generator().manual_seed(0))
    assert bits(cpu.to_half(x)).equal(bits(reference.to_half(x)))


def test_ties_go_to_even_and_nan_stays_nan():
    x = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519.0, 65520.0, -1e9, float("nan"), 2.0**-25, 3 * 2.0**-26])
    wanted = [1.0, 1 + 2.0**-9, 65504.0, float("inf"), -float("inf"), float("nan"), 0.0, 2.0**-24]
    for back_end in (cpu, reference):
        assert str(back_end.to_half(x).tolist()) == str(wanted)


def test_shapes_strides_and_empty_tensors():
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).t()[:, ::2]
    assert to_half(x).equal(x.half())
    assert from_half(x.half()).equal(x.half().float())
    assert to_half(torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("spans", [((0, 20_001),), ((0, 7), (9, 15_000), (15_001, 20_001)), ((5, 6),)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_one_pass_over_a_window_is_what_torch_gives(spans, scale):
    x = scale * torch.randn(2, 20_001, generator=torch.Generator().manual_seed(2))
    source = Window(x, spans)
    halves = [torch.empty(2, source.numel, dtype=torch.float16) for _ in range(2)]
    for back_end, half in zip((one_pass, reference), halves, strict=True):
        back_end.half_from(source, 1 / 3, half)
    assert bits(halves[0]).equal(bits(halves[1]))
    results = [torch.full((1, 20_001), 7.0) for _ in range(2)]
    flags = [b.half_to(halves[0][:1], Window(r, spans)) for b, r in zip((one_pass, reference), results, strict=True)]
    assert bits(results[0]).equal(bits(results[1]))
    assert flags[0].isnan() == flags[1].isnan() == halves[0][:1].isinf().any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_pass_tells_what_is_not_finite(bad):
    half = torch.zeros(1, 100, dtype=torch.float16)
    for half_to in (one_pass.half_to, reference.half_to):
        half[0, 77] = 1.0
        assert half_to(half, Window.whole(torch.empty(1, 100))) == 0
        half[0, 77] = bad
        assert half_to(half, Window.whole(torch.empty(1, 100))).isnan()
