"""Spans of a buffer read and written in one call: what `Window` itself does, span by span."""

from __future__ import annotations

import pytest
import torch

from gradwire.core.window import Feedback, Window
from gradwire.kernels.window import cpu, read, write

SPANS = ((1, 4), (6, 7), (9, 9), (12, 20))


def buffer(rows):
    return torch.arange(rows * 24.0).view(rows, 24)


def test_a_window_by_hand():
    """Elements 1 to 3, 6, and 12 to 19 of the buffer, one after the other."""
    window = Window(buffer(2), SPANS)
    places = [1, 2, 3, 6, *range(12, 20)]
    assert window.read()[1].tolist() == [24 + place for place in places]
    assert window.at(0, 3)[0].tolist() == [1, 2, 3]
    assert window.at(2, 3)[0].tolist() == [3]
    assert window.at(3, 4)[0].tolist() == [6]  # the first behind a run
    assert window.at(4, 6)[0].tolist() == [12, 13]
    with pytest.raises(IndexError, match="a window of 12 elements ends before element 12"):
        window.at(12, 13)
    out = Feedback(torch.empty(2, 12), torch.full((2, 12), 100.0)).compensated(window)
    assert out[0].tolist() == [100 + place for place in places]
    window.write_(-torch.arange(1.0, 13)[None])
    kept = [-1.0 - places.index(i) if i in places else float(i) for i in range(24)]
    assert window.buffer[0].tolist() == kept
    assert window.buffer[1, :4].tolist() == [24, -1, -2, -3]


@pytest.mark.parametrize("rows", [1, 3])
def test_reading_is_that_of_the_window(rows):
    window = Window(buffer(rows), SPANS)
    assert torch.equal(cpu.read(window), window.read())
    assert torch.equal(read(window), window.read())
    assert torch.equal(read(window, torch.bfloat16), window.read(torch.bfloat16))


@pytest.mark.parametrize("rows, given", [(1, 1), (3, 3), (3, 1)])
@pytest.mark.parametrize("function", [cpu.write, write])
def test_writing_is_that_of_the_window_and_leaves_the_rest(function, rows, given):
    values = -torch.arange(1.0, given * 12 + 1).view(given, 12)
    wanted, found = Window(buffer(rows), SPANS), Window(buffer(rows), SPANS)
    wanted.write_(values)
    function(found, values)
    assert torch.equal(found.buffer, wanted.buffer)
    assert not torch.equal(found.buffer, buffer(rows))


@pytest.mark.parametrize("feedback", [None, (1.0, 1.0), (0.3, 1.0), (0.3, 0.7)])
def test_a_single_element_is_that_of_the_tile(feedback):
    window = Window(buffer(1) * 0.1, SPANS)
    numel, kept = window.numel, None
    if feedback is not None:
        decay, gain = feedback
        kept = Feedback(torch.empty(1, numel), torch.arange(1.0, numel + 1)[None] / 7, decay, gain)
    spans, memory, tile = cpu.spans_of(window), cpu.memory_of(kept, 0)[0], torch.empty(numel).numpy()
    cpu.load(window.buffer[0].numpy(), spans, memory, 0, tile)
    found = [cpu.element(window.buffer[0].numpy(), spans, memory, i) for i in range(numel)]
    assert found == tile.tolist()
    assert len(set(found)) == numel


def test_other_dtypes_are_left_to_the_window():
    window = Window(buffer(1).to(torch.bfloat16), SPANS)
    write(window, torch.zeros(1, 12))
    assert (window.read() == 0).all()
    assert read(window, torch.bfloat16).dtype == torch.bfloat16
