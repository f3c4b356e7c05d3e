"""GRACE's six helper functions."""

from __future__ import annotations

import doctest

import pytest
import torch

import gradwire
from gradwire import grace
from gradwire.grace import vocabulary

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_examples_of_the_docstring():
    assert doctest.testmod(vocabulary).failed == 0


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (33, 17), (5, 4, 3)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantize_and_back_within_half_a_step(bits, shape, dtype):
    x = normal(*shape).to(dtype)
    codes, ctx = grace.quantize(x, bits, block=64)
    assert codes.dtype == torch.uint8
    assert codes.numel() == x.numel()
    assert (codes <= 2**bits - 2).all()
    back = grace.dequantize(codes, ctx)
    assert (back.shape, back.dtype) == (x.shape, x.dtype)
    if x.numel():
        step = x.float().abs().max() / (2 ** (bits - 1) - 1)
        assert (back.float() - x.float()).abs().max() <= step * 0.51 + 1e-2 * (dtype != torch.float32)


def test_quantize_with_a_seed_has_no_bias():
    x = normal(50)
    mean = torch.stack([grace.dequantize(*grace.quantize(x, 3, seed=s)) for s in range(2000)]).mean(0)
    assert (mean - x).abs().max() < 5 * (x.abs().max() / 3 / 2) / 2000**0.5


@pytest.mark.parametrize("bits, numel", [(1, 9), (3, 5), (4, 7), (8, 3), (12, 10)])
def test_pack_and_back(bits, numel):
    codes = torch.arange(numel) * 37 % 2**bits
    data = grace.pack(codes, bits)
    assert (data.dtype, data.numel()) == (torch.uint8, -(-numel * bits // 8))
    assert grace.unpack(data, bits, numel).tolist() == codes.tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sparsify_by_share_by_bound_and_by_choice(dtype):
    x = torch.tensor([[5.0, -1.0, 0.5], [-4.0, 2.0, 0.0]], dtype=dtype)
    for options, kept in [
        ({"ratio": 0.4}, [0, 3, 4]),
        ({"threshold": 1.0}, [0, 3, 4]),
        ({"indices": torch.tensor([1, 5])}, [1, 5]),
        ({"threshold": 9}, []),
    ]:
        (values, indices), ctx = grace.sparsify(x, **options)
        assert indices.tolist() == kept
        back = grace.desparsify((values, indices), ctx)
        assert (back.shape, back.dtype) == (x.shape, dtype)
        assert back.flatten()[kept].equal(x.flatten()[kept])
        assert int((back != 0).sum()) == int((x.flatten()[kept] != 0).sum())


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: grace.quantize(x, 9), "^quantize: `bits` must be a whole number from 2 to 8, got 9$"),
        (lambda x: grace.quantize(x, block=0), "^quantize: `block` must be"),
        (lambda x: grace.sparsify(x), "^sparsify: give one of"),
        (lambda x: grace.sparsify(x, ratio=0.1, threshold=1), "^sparsify: give one of"),
        (lambda x: grace.sparsify(x, ratio=2), "^sparsify: `ratio` must be the share kept"),
        (lambda x: grace.pack(x, 0), "^pack: `bits` must be"),
    ],
)
def test_wrong_parameters_name_themselves(call, message):
    with pytest.raises(gradwire.ConfigError, match=message):
        call(normal(4))
