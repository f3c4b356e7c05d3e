"""Products with thin factors: both back ends give what matrix products do, with and without error feedback."""

from __future__ import annotations

import pytest
import torch

from gradwire.core.window import Feedback, Window
from gradwire.kernels.products import Matrices, cpu, reference

BACK_ENDS = pytest.mark.parametrize("back_end", [cpu, reference])
ROWS, FIRST = 2, 3  # workers; elements of the buffer before the window, and between its spans
# (height, width, rank): wider than a block, of odd sizes, many of one shape; and a large one
SMALL = [(1, 1, 1), (5, 7, 3), (30, 41, 4), (30, 41, 4), (3, 9001, 3), (67, 300, 9)]
LARGE = [(600, 500, 4)]


def laid_out(kinds):
    """The matrices with a gap of 11 elements behind each, and the number of all elements."""
    places, gaps, at = [], [], 0
    for height, width, _ in kinds:
        places.append(at)
        gaps.append((at + height * width, at + height * width + 11))
        at = gaps[-1][1]
    shapes, ranks = tuple((h, w) for h, w, _ in kinds), tuple(r for _, _, r in kinds)
    return Matrices(tuple(places), shapes, ranks, tuple(gaps)), at


def window(flat, scratch=False):
    """The elements of `flat` as two spans of a larger buffer, cut at the first gap."""
    cut = flat.shape[1] if flat.shape[1] < 13 else 12
    buffer = torch.full((len(flat), flat.shape[1] + 2 * FIRST), torch.nan)
    spans = ((FIRST, FIRST + cut), (2 * FIRST + cut, 2 * FIRST + flat.shape[1]))
    buffer[:, spans[0][0] : spans[0][1]], buffer[:, spans[1][0] : spans[1][1]] = flat[:, :cut], flat[:, cut:]
    return Window(buffer, spans, scratch)


def pieces(flat, matrices, shapes=None):
    """The matrices in a flat row, in double precision: (rows, height, width)."""
    if shapes is None:
        return [
            flat[:, p : p + h * w].double().view(-1, h, w)
            for p, (h, w) in zip(matrices.places, matrices.shapes, strict=True)
        ]
    parts = torch.split(flat, [h * w for h, w in shapes], 1)
    return [part.double().view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


def drawn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


@BACK_ENDS
@pytest.mark.parametrize("kinds", [SMALL, SMALL + LARGE, LARGE])
@pytest.mark.parametrize("fed_back", [False, True])
def test_products_are_those_of_matrices(back_end, kinds, fed_back):
    matrices, numel = laid_out(kinds)
    x, error = drawn(ROWS, numel, seed=0), drawn(ROWS, numel, seed=1)
    feedback = Feedback(torch.full((ROWS, numel), torch.nan), error, decay=0.5, gain=2.0) if fed_back else None
    seen = back_end.see(window(x), feedback, matrices)
    wanted = 2.0 * x + 0.5 * error if fed_back else x
    right = drawn(1, sum(r * w for _, w, r in kinds), seed=2)
    left = seen.times(right)
    torch.testing.assert_close(seen.x, wanted)  # what lies between the matrices, too
    of_right, of_x = pieces(right, matrices, matrices.right), pieces(wanted, matrices)
    close(pieces(left, matrices, matrices.left), [m @ q.mT for m, q in zip(of_x, of_right, strict=True)])
    close(
        pieces(seen.times(right), matrices, matrices.left), pieces(left, matrices, matrices.left)
    )  # as often as asked
    shared = drawn(1, left.shape[1], seed=3)
    of_shared, own = pieces(shared, matrices, matrices.left), seen.transposed(shared)
    close(pieces(own, matrices, matrices.right), [p.mT @ m for m, p in zip(of_x, of_shared, strict=True)])
    if feedback is not None:
        target = Window.whole(torch.zeros(1, numel))
        assert seen.write(shared, right, target, own) == 0
        close(pieces(target.read(), matrices), [p @ q for p, q in zip(of_shared, of_right, strict=True)])
        of_own = pieces(own, matrices, matrices.right)
        close(pieces(feedback.out, matrices), [m - p @ q for m, p, q in zip(of_x, of_shared, of_own, strict=True)])
        for first, last in matrices.between:
            assert torch.equal(feedback.out[:, first:last], seen.x[:, first:last])


@BACK_ENDS
@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_written_where_the_matrix_lies(back_end, rows, dtype):
    matrices, numel = laid_out(SMALL + LARGE)
    seen = back_end.see(window(drawn(ROWS, numel, seed=0)), None, matrices)
    left = drawn(1, sum(h * r for h, _, r in SMALL + LARGE), seed=1)
    right = drawn(rows, sum(r * w for _, w, r in SMALL + LARGE), seed=2)
    target = window(torch.zeros(rows, numel))
    target = Window(target.buffer.to(dtype), target.spans)
    seen.write(left, right, target)
    of_left, of_right = pieces(left, matrices, matrices.left), pieces(right, matrices, matrices.right)
    wanted, found = [p @ q for p, q in zip(of_left, of_right, strict=True)], pieces(target.read(), matrices)
    if dtype == torch.float32:
        close(found, wanted)
    else:
        assert all(bool(((f - w).abs() <= 0.01 * w.abs() + 0.01).all()) for f, w in zip(found, wanted, strict=True))
    assert all((target.read()[:, first:last] == 0).all() for first, last in matrices.between)
    assert target.buffer[:, :FIRST].isnan().all()  # what is not in the window is left alone


@BACK_ENDS
def test_what_is_not_finite_stays_so(back_end):
    matrices, numel = laid_out(SMALL)
    x = drawn(1, numel, seed=0)
    x[0, matrices.places[2]] = torch.inf
    seen = back_end.see(Window.whole(x), None, matrices)
    left = pieces(seen.times(drawn(1, sum(r * w for _, w, r in SMALL), seed=1)), matrices, matrices.left)
    assert [bool(p.isfinite().all()) for p in left] == [True, True, False, True, True, True]


def test_nothing_to_factor():
    matrices = Matrices((), (), (), ((0, 5),))
    x, feedback = drawn(1, 5, seed=0), Feedback(torch.zeros(1, 5), torch.ones(1, 5))
    seen = cpu.see(Window.whole(x), feedback, matrices)
    assert seen.times(x[:, :0]).shape == seen.transposed(x[:, :0]).shape == (1, 0)
    assert torch.equal(seen.x, x + 1)


def test_small_matrices_must_come_first():
    with pytest.raises(ValueError, match="matrices of up to 10 elements come first"):
        Matrices((0, 20), ((4, 5), (2, 3)), (1, 1)).parted(10)
