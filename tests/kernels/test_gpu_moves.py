"""Kernels of the GPU that only move numbers: casts, spans of a window, and what a step takes back."""

from __future__ import annotations

import pytest
import torch
from exact import awkward, normal, same
from on_gpu import CUDA, back, here, needs_triton, on_gpu

from gradwire.core.window import Window
from gradwire.kernels import backend, cast, commit, window

pytestmark = needs_triton
SPANS = ((1, 400), (401, 401), (600, 601), (700, 5000), (5001, 5007))
WHOLE = ((0, 5010),)
KINDS = [torch.float32, torch.float16, torch.bfloat16]


class Alike:
    """Runs the same in plain torch and by kernels."""

    def __init__(self, run):
        with backend.plain_torch():
            self.wanted = run()
        with on_gpu():
            self.found = run()


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("spans", [SPANS, WHOLE])
@pytest.mark.parametrize("values", [normal, awkward])
def test_halves(values, spans, dtype):
    source = Window(here(values(2, 5010).to(dtype)), spans)

    def there():
        out = here(torch.full((2, source.numel), 7.0)).half()
        cast.half_from(source, 0.3, out)
        return back(out)

    alike = Alike(there)
    assert same(alike.found, alike.wanted)
    half = here(values(1, source.numel, 3).half())

    def home():
        target = Window(here(torch.full((1, 5010), 9.0)).to(dtype), spans)
        flag = cast.half_to(half, target)
        return back(target.buffer), bool(flag.isnan())

    alike = Alike(home)
    assert alike.found[1] == alike.wanted[1]
    assert alike.found[1] == (not half.isfinite().all())
    if dtype == torch.bfloat16 and not CUDA:  # the interpreter cuts bits off
        assert torch.allclose(alike.found[0], alike.wanted[0], rtol=2.0**-7, equal_nan=True)
    else:
        assert same(alike.found[0], alike.wanted[0])


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("rows, given", [(1, 1), (3, 3), (3, 1)])
def test_spans_are_read_and_written_by_one_launch(rows, given, dtype):
    source = Window(here(awkward(rows, 5010)).to(dtype), SPANS)
    alike = Alike(lambda: back(window.read(source, dtype)))
    assert same(alike.found, alike.wanted)
    values = here(normal(given, source.numel, 4)).to(dtype)

    def written():
        target = Window(here(torch.full((rows, 5010), 9.0)).to(dtype), SPANS)
        window.write(target, values)
        return back(target.buffer)

    alike = Alike(written)
    assert same(alike.found, alike.wanted)
    assert not alike.found.eq(9.0).all()


def test_spans_of_another_dtype():
    source = Window(here(normal(2, 5010)).to(torch.float16), SPANS)
    alike = Alike(lambda: back(window.read(source)))
    assert same(alike.found, alike.wanted)


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("shape", [(3, 5000), (1, 0), (7,)])
def test_what_was_written_is_taken_back_unless_it_is_finite(shape, kept, finite):
    new, old = torch.full(shape, 2.0), torch.full(shape, 3.0)

    def run():
        written = here(new.clone())
        commit.take_back(written, here(old) if kept else None, here(torch.tensor(finite)))
        return back(written)

    alike = Alike(run)
    assert same(alike.found, alike.wanted)
    assert same(alike.found, new if finite else old if kept else torch.zeros(shape))


def test_what_does_not_lie_together_is_taken_back_too():
    wide = here(torch.full((3, 10), 2.0))
    with on_gpu():
        commit.take_back(wide[:, 2:5], None, here(torch.tensor(False)))
    assert wide[:, 2:5].eq(0).all()
    assert wide[:, 5:].eq(2).all()
