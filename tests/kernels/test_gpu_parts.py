"""Parts of the GPU's kernels by themselves: shares of a scale, random tiles, trits."""

from __future__ import annotations

import pytest
import torch
from exact import same
from on_gpu import CUDA, DEVICE, here, needs_triton, on_gpu

from gradwire.core.random import Stream
from gradwire.kernels import trits
from gradwire.kernels.launch import launch
from gradwire.kernels.random import reference as random

pytestmark = needs_triton
COLUMNS = 1024
UNITS = {"alike": 1.0, "small": 2.0**-126, "subnormal": 2.0**-140, "large": 2.0**127}


def kernel(name):
    import parts

    return getattr(parts, name)


def patterns(seed, *shape):
    """Numbers of any bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, generator=generator).view(torch.float32)


def mantissas(seed, *shape):
    """Numbers from 1 to 2, of any bits, and next to both."""
    found, place = patterns(seed, *shape).view(torch.int32) & 0x007FFFFF, torch.arange(shape[0] * shape[1]).view(shape)
    found = torch.where(place % 8 == 0, place % 64 // 8, found)
    found = torch.where(place % 8 == 1, 0x007FFFFF - place % 64 // 8, found)
    return (found.to(torch.int32) | 0x3F800000).view(torch.float32)


@pytest.mark.parametrize("kind", ["any", *UNITS])
def test_shares_are_quotients_that_are_rounded_once(kind):
    """Their squares are, for all; those that are not tiny are themselves."""
    rows = 2000 if CUDA else 200
    if kind == "any":
        a, scale = patterns(1, rows, COLUMNS), patterns(2, rows, 1).abs()
    else:
        parts = torch.tensor([1, 0.5, -0.25, 2.0**-60]).repeat(COLUMNS // 4)
        a, scale = mantissas(1, rows, COLUMNS) * parts * UNITS[kind], mantissas(2, rows, 1) * UNITS[kind]
    a = torch.where(a.abs() <= scale, a, a / 2)
    a = torch.where(a.abs() <= scale, a, 0.0)
    out = here(torch.empty(rows, COLUMNS))
    with on_gpu():
        launch(kernel("shares"), rows, DEVICE, here(a), here(scale), out, columns=COLUMNS)
    found, wanted = out.cpu(), a / scale
    assert same(found.square(), wanted.square())
    there = wanted.abs() >= 2.0**-75
    assert same(found[there], wanted[there])
    assert there.float().mean() > (0.1 if kind == "any" else 0.7)


@pytest.mark.parametrize("first", [0, 6, 7, 2**33 - 64, 2**33 - 63, 2**40 + 1])
def test_a_tile_of_random_numbers(first):
    """From an even or an odd place on, and across the 32nd bit of a word's."""
    from gradwire.kernels.random.gpu import keys_of

    stream, out = Stream((2**63 - 5,), (first,)), here(torch.empty(2, 64))
    with on_gpu():
        launch(kernel("halves"), 1, DEVICE, *keys_of(stream, 1, DEVICE), out, rows=2, columns=64)
    assert same(out.cpu().view(1, -1), random.halves(stream, (1, 128), torch.device("cpu")))


@pytest.mark.parametrize("block, columns", [(64, 64), (61, 64), (7, 8)])
def test_trits_of_all_bytes(block, columns):
    """Four neighbours at a time, wherever they begin."""
    order = torch.randperm(486, generator=torch.Generator().manual_seed(1))
    data, numel = torch.arange(243).repeat(2)[order].to(torch.uint8), 16 * block
    out = here(torch.full((numel,), 9, dtype=torch.int32))
    with on_gpu():
        size = {"block": block, "rows": 16, "columns": columns}
        launch(kernel("load_trits"), 1, DEVICE, here(data), -(-numel // 5), out, **size)
    assert out.cpu().equal(trits.reference.unpack(data[None], numel)[0].int())


@pytest.mark.parametrize("numel", [1, 4, 19, 20, 5121, 10240])
def test_trits_are_packed_by_words_or_one_by_one(numel):
    codes = torch.randint(0, 3, (3, numel), dtype=torch.uint8, generator=torch.Generator().manual_seed(numel))
    wide = torch.nn.functional.pad(codes, (0, -numel % 4), value=2)  # what lies behind the end is not counted
    out = here(torch.zeros(3, 8 + -(-numel // 5), dtype=torch.uint8))
    with on_gpu():
        from gradwire.kernels.trits.gpu import pack_to

        pack_to(here(wide), numel, out, 8)
        assert trits.pack(here(codes)).cpu().equal(trits.reference.pack(codes))
    assert out.cpu()[:, 8:].equal(trits.reference.pack(codes))
    assert out.cpu()[:, :8].eq(0).all()
