"""The plain form of a codec under torch.compile: what a compiler makes of it, without kernels of ours."""

from __future__ import annotations

import torch

from gradwire.core.layout import Layout
from gradwire.engine import Engine

STRETCHES = ("encode_from", "encode_part", "reduce_and_encode", "combine_to", "decode_to")  # between two exchanges


def compiled(engine: Engine, layout: Layout) -> Engine:
    """The engine, whose codec is compiled, stretch by stretch, when a unit of this layout is first reduced.

    All its steps must be the first one: keys of random numbers are constants to the compiler.
    """
    codec = engine.fitted(layout).running
    for name in STRETCHES:
        # codecs are frozen; this one is the engine's own
        object.__setattr__(codec, name, torch.compile(getattr(codec, name), dynamic=False))
    return engine
