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


NAN = float("nan")


@pytest.mark.parametrize("flags", [(0.0,), (0.0, NAN), (NAN, 0.0, 0.0)])
@pytest.mark.parametrize("pairs", [0, 2, 3, 40])
def test_what_was_written_is_taken_back_unless_it_is_finite(pairs, flags, monkeypatch):
    shapes = [(3, 5000), (1, 0), (7,)]
    some = [(torch.full(shapes[i % 3], 2.0 + i), torch.full(shapes[i % 3], -1.0 * i)) for i in range(pairs)]
    each = [(new, None if i == 2 else old) for i, (new, old) in enumerate(some)]
    finite = flags == (0.0,)

    def run():
        written = [(here(new.clone()), old if old is None else here(old)) for new, old in each]
        skipped, kept = here(torch.tensor(4)), here(torch.tensor(0.5))
        found = commit.settle([here(torch.tensor(f)) for f in flags], written, skipped, kept, 8.0)
        return [back(t) for t in (found, skipped, kept, *(new for new, _ in written))]

    monkeypatch.setattr("gradwire.kernels.commit.gpu.PROGRAMS", 2)
    alike = Alike(run)
    assert all(same(f, w) for f, w in zip(alike.found, alike.wanted, strict=True))
    assert [t.item() for t in alike.found[:3]] == ([True, 4, 8.0] if finite else [False, 5, 0.5])
    for (new, old), found in zip(each, alike.found[3:], strict=True):
        assert same(found, new if finite else torch.zeros_like(new) if old is None else old)


def test_what_does_not_lie_together_is_taken_back_too():
    wide = here(torch.full((3, 10), 2.0))
    with on_gpu():
        flag, skipped = here(torch.tensor(NAN)), here(torch.tensor(0))
        commit.settle([flag], [(wide[:, 2:5], None)], skipped, here(torch.tensor(1.0)), 1.0)
    assert wide[:, 2:5].eq(0).all()
    assert wide[:, 5:].eq(2).all()
