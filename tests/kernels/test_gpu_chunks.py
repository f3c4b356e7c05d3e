"""Chunks, energies and momentum on a GPU, or in Triton's interpreter, against plain torch."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from exact import awkward, normal, same
from on_gpu import back, here, mostly, needs_triton, on_gpu

import gradwire
from gradwire.core.window import Feedback, Window
from gradwire.kernels import backend, blockwise, chunks, momentum

pytestmark = needs_triton
SPANS = ((1, 400), (401, 401), (600, 601), (700, 1900), (1901, 1907))
WHOLE = ((0, 1910),)


def both(run):
    """What plain torch and the kernels make of the same."""
    with backend.plain_torch():
        wanted = run()
    with on_gpu():
        return run(), wanted


@pytest.mark.parametrize("block", mostly(7, 128, 1, 16, 2048, always=2))
@pytest.mark.parametrize("spans", [SPANS, WHOLE])
def test_energies_and_the_compensated_gradient(spans, block):
    source = Window(here(awkward(2, 1910)), spans)
    numel = source.numel
    for kept in (None, (None, 1.0), (normal(2, numel), 0.3)):
        out = here(torch.full((2, numel), 9.0))
        given = None if kept is None else Feedback(out, kept[0] if kept[0] is None else here(kept[0]), kept[1])
        with on_gpu():
            assert blockwise.in_one_pass(block, source, given)
            found = back(blockwise.square_sum_from(source, given, block))
        x = source.read() if kept is None else given.compensated(source).clone()
        with backend.plain_torch():
            assert same(found, back(blockwise.square_sum(x, block)))
        if kept is not None:
            with on_gpu():
                given.out.fill_(9.0)
                blockwise.square_sum_from(source, given, block)
            assert same(back(given.out), back(x))


@pytest.mark.parametrize("number", mostly(9, 1500, 1, 2, 1024, always=2))
def test_what_all_workers_know_of_their_chunks(number):
    """Ties, zeros, subnormal numbers, infinities and NaN; numbers of workers that are powers of two, or not."""
    energies = normal(1, number).square().to(torch.bfloat16)
    if number > 2:
        energies[0, ::3] = energies[0, 1]
    for largest in (0.0, 1e-40, 2.0**-130, 2.0**-126, 0.24, 0.25, 1.0, 3.9, 4.0, 3e38, math.inf, math.nan):
        given = torch.where(energies > largest, 0, energies)
        given[0, number // 2] = largest
        given = given.float() if 0 < largest < 2.0**-126 else given  # the interpreter loses subnormal ones of 16 bits
        for count, workers in ((1, 3), (-(-number // 3), 4), (number, 6)):
            found, wanted = both(lambda given=given, many=(count, workers): chunks.agree(here(given), *many))
            assert same(tuple(map(back, found[:3])), tuple(map(back, wanted[:3])))
            slots = torch.full((number,), -1, dtype=torch.int32)
            slots[wanted.kept.cpu()] = torch.arange(count, dtype=torch.int32)
            assert back(found.slots).equal(slots)
            assert back(found.zero) == 0


def test_the_scale_of_any_energy():
    """Bits say what the logarithm says, for all positive numbers of 16 bits."""
    energy = torch.arange(1, 0x7F80, dtype=torch.int16).view(torch.bfloat16).float()
    power = torch.frexp(energy.double()).exponent - 1
    wanted = torch.exp2((13 - power.div(2, rounding_mode="floor")).float())
    assert same(chunks.reference._power_of_two(energy), wanted)


@pytest.mark.parametrize("values", [normal, awkward])
@pytest.mark.parametrize("spans", [SPANS, WHOLE])
@pytest.mark.parametrize("chunk", [7, 16, 128, pytest.param(1, marks=pytest.mark.sweep), 1500])
def test_chunks_are_taken_and_put(chunk, spans, values):
    source = Window(here(values(2, 1910)), spans)
    numel = source.numel
    number = -(-numel // chunk)
    kept = sorted({0, number // 3, number - 1})
    slots = torch.full((number,), -1, dtype=torch.int32)
    slots[kept] = torch.arange(len(kept), dtype=torch.int32)

    def agreed():
        numbers = torch.tensor(kept), torch.tensor(3.0), torch.tensor(7.0), slots, torch.zeros(())
        return chunks.Agreed(*map(here, numbers))

    def taken(memory):
        held = None
        if memory:
            held = Feedback(here(values(2, numel, 3)), momentum=here(normal(2, numel, 4)) if memory == 2 else None)
        mine = chunks.take_from(source, held, agreed(), chunk)
        rest = () if held is None else (held.out, *(() if held.momentum is None else (held.momentum,)))
        return tuple(back(t) for t in (mine, *rest))

    for memory in (0, 1, 2):
        found, wanted = both(lambda memory=memory: taken(memory))
        assert same(found, wanted)
    sent = here(values(1, len(kept) * chunk, 5).half().view(1, len(kept), chunk))

    def put():
        target = Window(here(torch.full((1, 1910), 9.0)), spans)
        flag = chunks.put_to(sent, agreed(), chunk, target)
        return back(target.buffer), bool(flag.isnan())

    found, wanted = both(put)
    assert same(found[0], wanted[0])
    if values is normal:  # what stands behind the end is in nobody's result
        assert not found[1]
        assert not wanted[1]
    else:
        assert found[1] == (not found[0].isfinite().all())


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("kept", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("spans", [SPANS, WHOLE])
def test_momentum(spans, kept, nesterov):
    source = Window(here(awkward(3, 1910)), spans)
    numel = source.numel
    for scale in (1.0, 0.3, here(torch.tensor(0.3))):

        def run(scale=scale):
            old = tuple(here(normal(3, numel, i)) if held else None for i, held in enumerate(kept))
            new = tuple(here(torch.full((3, numel), 9.0)) for _ in range(2))
            momentum.accumulate(source, old, new, scale, 0.9, nesterov)
            return tuple(map(back, new))

        assert same(*both(run))


@pytest.mark.parametrize("spec", mostly("topkc(ratio=0.2, chunk=16)", "topkc(ratio=0.3)"))
@pytest.mark.parametrize("memory", ["error_feedback", "none", "momentum_correction"])
def test_whole_steps_are_those_of_plain_torch(spec, memory):
    shapes = {"a": (40, 30), "b": (17,), "c": (70, 41), "d": (9,), "e": (5,), "f": (33, 41)}

    def run():
        cluster = gradwire.VirtualCluster(3, spec, memory, tensors="matrices", seed=3)
        seen = []
        for step in range(2):
            gradients = {
                name: [here(normal(1, math.prod(shape), 10 * step + worker).view(shape)) for worker in range(3)]
                for name, shape in shapes.items()
            }
            seen += cluster.reduce(gradients).values()
            seen += [kept for name in shapes for kept in cluster.memory(name) if kept is not None]
        return tuple(back(tensor) for tensor in seen)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert same(*both(run))
