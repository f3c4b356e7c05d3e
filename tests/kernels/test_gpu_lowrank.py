"""The GPU's products and factors against plain torch: on a GPU, or in Triton's interpreter.

What is read, written and scaled is equal bit for bit. A sum of n products, in float32 and in any order, is within
(n + 2) u |a|ᵀ|b| of the exact one, with u = 2⁻²⁴: one rounding for each product and sum. Both back ends are, so they
are within twice that of each other. Factors are found in float64 and rounded once: within 2 u of each other, if their
matrix has a condition below some 10⁵.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from exact import awkward, normal, same
from on_gpu import CUDA, back, here, needs_triton, no_waiting, on_gpu

import gradwire
from gradwire.core.window import Feedback, Window
from gradwire.kernels import backend, factors, products
from gradwire.kernels.products import Matrices, reference, tiles

pytestmark = needs_triton
U = 2.0**-24
GAP = 5  # elements between matrices
KINDS = [(1, 1, 1), (1, 37, 1), (37, 1, 1), (3, 3, 3), (3, 3, 3), (11, 150, 4), (20, 9, 4)]  # height, width, rank
WIDE = [(1, 1, 1), (1, 5, 1), (5, 1, 1), (3, 3, 3), (5, 132, 9)]
FOURS = [(3, 8, 2), (9, 132, 4), (2, 8, 2), (5, 12, 3), (2, 3, 2), (18, 4, 4)]  # by fours, until one is in the way


@pytest.fixture
def small(monkeypatch):
    """Sums of few products are cut into parts."""
    monkeypatch.setattr(tiles, "STEPS", 1)
    monkeypatch.setattr(tiles, "PART", tiles.ROWS)
    monkeypatch.setattr(tiles, "WRITTEN", 2 * tiles.ROWS)
    tables = [tiles.for_times, tiles.for_transposed, tiles.for_write]
    for table in tables:
        table.cache_clear()
    yield
    for table in tables:
        table.cache_clear()


def laid_out(kinds, gap=GAP):
    """The matrices with a gap behind each, and the number of all elements."""
    places, gaps, at = [], [], 0
    for height, width, _ in kinds:
        places.append(at)
        gaps.append((at + height * width, at + height * width + gap))
        at = gaps[-1][1]
    return Matrices(tuple(places), tuple((h, w) for h, w, _ in kinds), tuple(r for *_, r in kinds), tuple(gaps)), at


def window(flat, matrices, whole, pad=3):
    """All of `flat`; or as spans of a larger buffer, cut before the third matrix and within a gap."""
    if whole:
        return Window.whole(here(flat))
    cuts = [0, matrices.places[2], matrices.between[3][0] + 2, flat.shape[1]]
    parts = [torch.nn.functional.pad(flat[:, a:b], (pad, 0)) for a, b in pairwise(cuts)]
    spans, at = [], 0
    for part in parts:
        spans.append((at + pad, at + part.shape[1]))
        at += part.shape[1]
    return Window(here(torch.cat(parts, 1)), tuple(spans))


def pieces(flat, places, shapes):
    ends = [(p, p + h * w) for p, (h, w) in zip(places, shapes, strict=True)]
    return [flat[:, a:b].double().reshape(-1, *shape) for (a, b), shape in zip(ends, shapes, strict=True)]


def starts(shapes):
    return [sum(h * w for h, w in shapes[:k]) for k in range(len(shapes))]


def near(found, shapes, pairs, more=None, places=None):
    """The products of pairs of matrices, to rounding; added to `more`, if there is that."""
    for k, (one, (a, b)) in enumerate(zip(pieces(found, places or starts(shapes), shapes), pairs, strict=True)):
        wanted, size = a @ b, a.abs() @ b.abs()
        if more is not None:
            wanted, size = more[k] - wanted, size + more[k].abs()
        assert bool(((one - wanted).abs() <= (a.shape[-1] + 3) * U * size).all()), shapes[k]


def feedback(kind, rows, numel):
    if kind is None:
        return None
    error = here(normal(rows, numel, 1)) if kind[0] is not None else None
    return Feedback(here(torch.full((rows, numel), torch.nan)), error, kind[0] or 1.0, kind[1])


CASES = [
    (2, False, (0.5, 2.0), torch.float32),
    (1, True, None, torch.float32),
    (1, False, (0.3, 0.7), torch.bfloat16),
    (1, False, None, torch.float32),
    (1, True, (None, 1.0), torch.float16),
    (2, False, None, torch.bfloat16),
]
SETS = {"thin": (KINDS, GAP), "in groups": (WIDE, GAP), "by fours": (FOURS, 4)}
SHORT = {("thin", 1), ("in groups", 3), ("by fours", 2)}


@pytest.mark.parametrize(
    ("name", "rows", "whole", "kind", "dtype"),
    [
        pytest.param(name, *case, marks=() if (name, i) in SHORT else pytest.mark.sweep)
        for name in SETS
        for i, case in enumerate(CASES)
    ],
)
def test_products(name, rows, whole, kind, dtype, small):
    kinds, gap = SETS[name]
    matrices, numel = laid_out(kinds, gap)
    x, pad = normal(rows, numel).to(dtype), gap - gap % 2
    source, kept, wanted = window(x, matrices, whole, pad), feedback(kind, rows, numel), feedback(kind, rows, numel)
    with backend.plain_torch():
        plain = reference.see(window(x, matrices, whole, pad), wanted, matrices).x
    if name == "by fours":
        assert len(tiles.for_write(matrices, source.spans, source.buffer.device).tiles[:, 0].unique()) == 2
    right, left = (normal(1, sum(h * w for h, w in s), 2) for s in (matrices.right, matrices.left))
    with on_gpu():
        seen = products.see(source, kept, matrices)
        assert type(seen).__name__ == "Tiled"
        first = seen.times(here(right))
        assert same(back(seen.x), back(plain))
        again, own = seen.times(here(right)), seen.transposed(here(left))
    assert same(back(first), back(again))
    of_x = pieces(back(seen.x), matrices.places, matrices.shapes)
    q = pieces(right, starts(matrices.right), matrices.right)
    p = pieces(left, starts(matrices.left), matrices.left)
    near(back(first), matrices.left, [(a, b.mT) for a, b in zip(of_x, q, strict=True)])
    near(back(own), matrices.right, [(b.mT, a) for a, b in zip(of_x, p, strict=True)])
    target = window(torch.full((1, numel), 7.0), matrices, whole, pad)
    target = Window(target.buffer.to(dtype), target.spans)
    with on_gpu():
        assert seen.write(here(left), here(right), target, None if kept is None else own) == 0
    written = back(target.read())
    if dtype == torch.float32:
        near(written, matrices.shapes, list(zip(p, q, strict=True)), places=matrices.places)
    else:
        exact = Window.whole(torch.full((1, numel), 7.0))
        reference.Stacked(torch.zeros(1, numel), None, matrices).write(left, right, exact)
        off = 2.0**-11 if dtype == torch.float16 else 2.0**-7  # the interpreter cuts bits off
        assert torch.allclose(written, exact.buffer, rtol=off, atol=1e-5)
    assert all((written[:, a:b] == 7).all() for a, b in matrices.between)
    if kept is not None:
        r = pieces(back(own), starts(matrices.right), matrices.right)
        near(back(kept.out), matrices.shapes, list(zip(p, r, strict=True)), of_x, matrices.places)
        assert all(same(kept.out[:, a:b], plain[:, a:b]) for a, b in matrices.between)


@pytest.mark.parametrize(
    ("bad", "factor"),
    [
        (torch.nan, "left"),
        (-torch.inf, "right"),
        *(
            pytest.param(*p, marks=pytest.mark.sweep)
            for p in ((torch.nan, "right"), (torch.inf, "left"), (-torch.inf, "left"))
        ),
    ],
)
def test_a_product_that_is_not_finite_is_flagged(bad, factor):
    matrices, numel = laid_out(KINDS)
    given = {name: normal(1, sum(h * w for h, w in getattr(matrices, name)), 2) for name in ("left", "right")}
    kept, target = Feedback(here(torch.zeros(1, numel))), Window.whole(here(torch.zeros(1, numel)))
    own = here(torch.full_like(given["right"], bad))  # nobody else sees it
    for place in (None, 0, len(given[factor][0]) - 1):
        if place is not None:
            given[factor][0, place] = bad
        found = []
        for where in (backend.plain_torch, on_gpu):
            with where():
                seen = products.see(Window.whole(here(torch.zeros(1, numel))), kept, matrices)
                found.append(float(seen.write(here(given["left"]), here(given["right"]), target, own)))
        assert found == [0, 0] if place is None else all(map(math.isnan, found))


@pytest.mark.parametrize("bad", [torch.nan, pytest.param(torch.inf, marks=pytest.mark.sweep)])
def test_what_is_not_finite_shows_where_it_does_in_plain_torch(bad, small):
    matrices, numel = laid_out(KINDS)
    x = normal(1, numel)
    x[0, matrices.places[5] + 151] = bad
    x[0, matrices.places[3] : matrices.places[4]] = 0.0
    right, left = (normal(1, sum(h * w for h, w in s), 2) for s in (matrices.right, matrices.left))
    with on_gpu():
        seen = products.see(Window.whole(here(x)), None, matrices)
        found = back(seen.times(here(right))), back(seen.transposed(here(left)))
    with backend.plain_torch():
        plain = products.see(Window.whole(x), None, matrices)
        wanted = plain.times(right), plain.transposed(left)
    for one, other in zip(found, wanted, strict=True):
        assert one.isfinite().equal(other.isfinite())
        assert (other == 0).any()
        assert (one[other == 0] == 0).all()


def test_vectors_alone():
    x, kept = normal(2, 2500), Feedback(here(torch.zeros(2, 2490)), here(torch.ones(2, 2490)))
    with on_gpu():
        seen = products.see(Window(here(x), ((5, 2105), (2110, 2500))), kept, Matrices((), (), (), ((0, 7), (7, 2490))))
        assert seen.times(kept.out[:1, :0]).shape == (2, 0)
        assert seen.transposed(kept.out[:1, :0]).shape == (2, 0)
    assert same(back(kept.out), torch.cat([x[:, 5:2105], x[:, 2110:]], 1) + 1)


def test_large_ranks_are_left_to_plain_torch():
    matrices, numel = laid_out([(40, 50, 33)])
    with on_gpu():
        seen = products.see(Window.whole(here(normal(1, numel))), None, matrices)
        assert type(seen) is reference.Stacked
        found = back(factors.orthonormal(here(normal(1, 40 * 33)), ((40, 33),))).view(40, 33)
    assert torch.allclose(found.T @ found, torch.eye(33), atol=1e-5)


SHAPES = ((40, 4), (7, 2), (1, 1), (3, 3), (600, 3), (1, 1))


@pytest.mark.parametrize("rows", [1, 2])
def test_units_are_the_same_bits(rows):
    shapes = (*SHAPES, (2, 5), (11, 300))
    numel = sum(h * w for h, w in shapes)
    for flat in (normal(rows, numel + 2)[:, 1:-1], awkward(rows, numel)):
        flat[0, :160] = 0.0
        for instead in (None, here(normal(1, numel, 3))):
            with on_gpu():
                found = factors.unit(here(flat), shapes, instead)
            with backend.plain_torch():
                wanted = factors.unit(here(flat), shapes, instead)
            assert same(back(found), back(wanted))
            compiled = factors.unit(flat, shapes, None if instead is None else instead.cpu())
            assert same(compiled, back(wanted))


@pytest.mark.parametrize("kind", ["orthonormal", "regressed", "turned"])
def test_factors(kind):
    shapes = tuple((w, h) for h, w in SHAPES) if kind == "turned" else SHAPES
    flat = normal(2, sum(h * w for h, w in shapes))
    flat[1, 160:174] = 0.0

    def solved(x):
        if kind == "orthonormal":
            return back(factors.orthonormal(x, shapes))
        return back(factors.regressed(x, shapes, 1e-4, kind == "turned"))

    with on_gpu():
        found = solved(here(flat))
    with backend.plain_torch():
        wanted = solved(here(flat))
    for one, other in zip(*(pieces(f, starts(shapes), shapes) for f in (found, wanted)), strict=True):
        assert ((one - other).abs() <= 8 * U * other.abs().amax((1, 2), keepdim=True)).all()
    assert (found[1, 160:174] == 0).all()
    flat[0, 3] = torch.nan
    with on_gpu():
        spoilt = solved(here(flat))
    with backend.plain_torch():
        wanted = solved(here(flat))
    assert (spoilt.isnan() | ~wanted.isnan()).all()
    assert spoilt[0, :160].isnan().any()
    assert same(spoilt[:, 160:], found[:, 160:])
    assert same(spoilt[1], found[1])


def test_columns_that_depend_on_each_other():
    """What they do not span is nearly zero: rounding, 1e-16, over the root of the shift, twice."""
    column = normal(30, 1)
    flat = torch.cat([column, 2 * column, 0 * column, column], 1).reshape(1, -1)
    with on_gpu():
        found = back(factors.orthonormal(here(flat), ((30, 4),))).view(30, 4)
    torch.testing.assert_close(found @ (found.T @ column), column, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[:, :1], column / column.norm(), rtol=0, atol=1e-6)
    assert found[:, 1:].abs().max() < 1e-3
    assert (found[:, 2] == 0).all()


def stepped(spec, tensors, workers):
    """The last of three steps."""
    cluster = gradwire.VirtualCluster(workers, spec)
    for step in range(3):
        drawn = {
            n: [here(normal(1, int(torch.Size(s).numel()), 10 * step + w + len(n)).view(s)) for w in range(workers)]
            for n, s in tensors.items()
        }
        found = cluster.reduce(drawn)
    return {name: back(value) for name, value in found.items()}


@pytest.mark.parametrize(
    ("spec", "workers"),
    [
        ("powersgd", 2),
        ("gradzip(ridge=0.01)", 1),
        pytest.param("powersgd(rank=2, iterations=2, warm=False)", 1, marks=pytest.mark.sweep),
        pytest.param("powersgd(rank=1)", 3, marks=pytest.mark.sweep),
    ],
)
def test_steps_are_those_of_plain_torch(spec, workers):
    tensors = {"a": (6, 40), "bb": (7,), "ccc": (3, 3), "dddd": (6, 40), "eeeee": (3,)}
    with backend.plain_torch():
        wanted = stepped(spec, tensors, workers)
    with on_gpu():
        found = stepped(spec, tensors, workers)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-4)  # rounding grows with each step


@pytest.mark.parametrize(("spec", "most"), [("powersgd", 8), pytest.param("gradzip", 11, marks=pytest.mark.sweep)])
def test_launches_do_not_grow_with_the_tensors(spec, most, monkeypatch):
    from gradwire.kernels.factors import gpu as of_factors
    from gradwire.kernels.products import gpu as of_products

    launched = []
    start = of_products.launch

    def counted(kernel, *args, **options):
        launched.append(kernel)
        start(kernel, *args, **options)

    monkeypatch.setattr(of_products, "launch", counted)
    monkeypatch.setattr(of_factors, "launch", counted)
    numbers = []
    for count in (1, 3):
        cluster = gradwire.VirtualCluster(1, spec)
        gradients = {f"{kind}{i}": [here(normal(6, 5 + i))] for i in range(count) for kind in "ab"}
        with on_gpu():
            cluster.reduce(gradients)
            launched.clear()
            cluster.reduce(gradients)
        numbers.append(len(launched))
    assert 0 < numbers[0] == numbers[1] <= most


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_a_step_does_not_wait_for_the_device():
    source, right = Window.whole(torch.randn(1, 4096, device="cuda")), torch.randn(1, 256, device="cuda")

    def step():
        kept = Feedback(torch.empty_like(source.buffer), None)
        seen = products.see(source, kept, Matrices((0,), ((64, 64),), (4,)))
        left = factors.orthonormal(seen.times(factors.unit(right, ((4, 64),), right)[0]), ((64, 4),))
        own = seen.transposed(left)
        seen.write(left, own, source, own)

    step()  # makes the tables, once
    with no_waiting():
        step()


@pytest.mark.sweep
@pytest.mark.parametrize("spec", ["powersgd", pytest.param("gradzip(rank=30)", marks=pytest.mark.sweep)])
def test_kernels_compile_for_a_gpu(spec):
    """For an H100 or H200, without one: the interpreter takes what the compiler refuses."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), spec]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    found = {line.partition(".")[2] for line in done.stdout.split()}
    assert found >= {"_times", "_transposed", "_write", "_added", "_largest", "_unit", "_gram", "_turn"}
