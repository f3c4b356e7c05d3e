"""Small matrices: bases span what those of QR do, and both back ends agree."""

from __future__ import annotations

import pytest
import torch

from gradwire.kernels.factors import cpu, reference

SHAPES = ((40, 4), (7, 2), (90, 4), (1, 1), (3, 3))
SCALES = (1.0, 1e-20, 1e15, 3.0, 0.1)
BACK_ENDS = pytest.mark.parametrize("back_end", [cpu, reference])


def matrices(rows=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts = [s * torch.randn(rows, h * w, generator=generator) for (h, w), s in zip(SHAPES, SCALES, strict=True)]
    return torch.cat(parts, 1)


@BACK_ENDS
def test_bases_span_what_those_of_qr_do(back_end):
    """All matrices at once, of several heights and ranks; the projection is the same, whatever the columns are."""
    flat = matrices()
    found = reference.pieces(back_end.orthonormal(flat, SHAPES), SHAPES)
    for base, matrix in zip(found, reference.pieces(flat, SHAPES), strict=True):
        wanted, base = torch.linalg.qr(matrix.double()).Q, base.double()
        torch.testing.assert_close(base @ base.mT, wanted @ wanted.mT, rtol=0, atol=1e-5)
        one = torch.eye(matrix.shape[-1], dtype=torch.float64)
        torch.testing.assert_close(base.mT @ base, one.expand(2, -1, -1), atol=1e-5, rtol=0)


@BACK_ENDS
def test_a_base_of_columns_that_depend_on_each_other_spans_no_more_than_they_do(back_end):
    column = torch.randn(30, 1, generator=torch.Generator().manual_seed(1))
    flat = torch.cat([column, 2 * column, 0 * column], 1).reshape(1, -1)
    (found,) = reference.pieces(back_end.orthonormal(flat, ((30, 3),)), ((30, 3),))
    torch.testing.assert_close(found[0] @ (found[0].mT @ column), column, rtol=1e-4, atol=1e-5)
    assert (found.mT @ found).diagonal(dim1=-2, dim2=-1).max() < 1 + 1e-5
    assert (back_end.orthonormal(torch.zeros(1, 10), ((5, 2),)) == 0).all()


def test_both_back_ends_find_the_same_bases_to_rounding():
    flat = matrices(seed=3)
    torch.testing.assert_close(cpu.orthonormal(flat, SHAPES), reference.orthonormal(flat, SHAPES), rtol=0, atol=3e-7)


@BACK_ENDS
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(back_end, bad):
    flat = matrices()
    flat[1, 5] = bad
    assert not back_end.orthonormal(flat, SHAPES)[1, :160].isfinite().all()
    assert not back_end.unit(flat, SHAPES)[0][1, :160].isfinite().all()
    assert back_end.unit(flat, SHAPES)[0][0].isfinite().all()


def test_units_are_the_same_bits():
    flat = matrices(seed=4)
    flat[0, :160] = 0.0
    (found, most), (wanted, largest) = cpu.unit(flat, SHAPES), reference.unit(flat, SHAPES)
    assert found.equal(wanted)
    assert most.equal(largest)
    assert (found[0, :160] == 0).all()
    assert all(m.abs().amax() == 1 for m in reference.pieces(found[1:], SHAPES))
