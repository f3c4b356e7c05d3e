"""What holds for a bridge of any framework."""

from __future__ import annotations

import numpy
from steps import CODECS, of_cluster, reduced

import gradwire


def check(pool, framework, workers, *, channels_last, compiled=False):
    """Ten codecs and more give what virtual workers give, and all ranks have the same."""
    everyone = pool.run(workers, reduced, framework, CODECS, compiled, deadline=240)
    for codec in CODECS:
        answers, units, sent = everyone[0][codec]
        wanted = of_cluster(codec, workers, units, channels_last)
        # a ring adds in an order of its own, and from three ranks on that shows in sums of floats
        built = gradwire.codec(codec)
        exact = workers == 2 or built.traits.combine is gradwire.Combine.GATHER
        rounding = 2.0**-6 if codec in ("bf16", "fp16") else 1e-5
        for rank in everyone:
            for mine, theirs in zip(rank[codec][0], answers, strict=True):
                assert all((mine[n] == theirs[n]).all() for n in mine), f"{codec}: replicas differ"
        for step, (found, expected) in enumerate(zip(answers, wanted, strict=True)):
            for name in expected:
                close = 0 if exact and expected[name].size >= 1024 else rounding
                error = numpy.abs(found[name] - expected[name]).max() / numpy.abs(expected[name]).max()
                assert error <= close, f"{codec}, step {step}, {name}"
        assert sent > 0
