"""What holds for a bridge of any framework."""

from __future__ import annotations

import numpy
import torch
from steps import CODECS, SHAPES, STEPS, given, of_cluster, reduced

import gradwire
from gradwire.engine import Engine

SENT_AS = {"bf16": torch.bfloat16, "fp16": torch.float16}  # in which sums are made; all others' are in float32


def check(pool, framework, workers, *, channels_last, compiled=False):
    """Ten codecs and more give what virtual workers give, and all ranks have the same."""
    agree(pool.run(workers, reduced, framework, CODECS, compiled, deadline=240), channels_last)


def agree(everyone, channels_last, names=None):
    """What ranks have found, by codec, is what virtual workers find; see `steps.reduced`."""
    workers = len(everyone)
    for codec in CODECS:
        answers, units, sent = everyone[0][codec]
        wanted = of_cluster(codec, workers, units, channels_last, names)
        for rank in everyone:
            for mine, theirs in zip(rank[codec][0], answers, strict=True):
                assert all((mine[n] == theirs[n]).all() for n in mine), f"{codec}: replicas differ"
        for step in range(STEPS):
            for name in SHAPES:
                error = numpy.abs(answers[step][name] - wanted[step][name])
                assert (error <= rounding(codec, workers, step, name)).all(), f"{codec}, step {step}, {name}"
        assert sent > 0


def rounding(codec, workers, step, name):
    """By how much sums of the ranks' gradients in two orders may differ, element by element.

    Two summands have one order, and what is gathered, small sums with it, is added in the order of the ranks: nothing.
    In a ring each of `workers` - 1 additions rounds by half a unit in the last place of a partial sum, which is at most
    the sum of the magnitudes, in either order (Higham: Accuracy and Stability of Numerical Algorithms, section 4.2).
    Four ranks of each framework came up to 0.57 of this bound, and eight of the twelve codecs to 0.
    """
    if workers == 2 or gradwire.codec(codec).traits.combine is not gradwire.Combine.SUM:
        return 0.0
    steps = range(step + 1) if Engine(codec, workers=workers).memory.has_state else [step]  # what was owed is sent, too
    magnitudes = sum(numpy.abs(given(rank, s, name)) for rank in range(workers) for s in steps) / workers
    half_ulp = torch.finfo(SENT_AS.get(codec, torch.float32)).eps / 2
    each = (workers - 1) * half_ulp / (1 - (workers - 1) * half_ulp)
    return 2 * each * magnitudes
