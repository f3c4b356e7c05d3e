"""Bytes: what a codec says it sends is what leaves."""

from __future__ import annotations

import torch

from gradwire.collectives import trace as tracer
from gradwire.conformance.check import check, one_shot, require
from gradwire.conformance.inputs import cluster, gradients, normal, rng
from gradwire.core import contract
from gradwire.core.codec import Codec
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.tracing import trace


def fixed(codec: Codec) -> bool:
    """Whether sizes follow from the number of elements."""
    return codec.traits.fixed_size


@check(
    "count every part that encode puts into a row, rounded up to whole bytes", one_shot, numel=[1, 7, 64, 1001, 5000]
)
def payload_bytes_is_the_payload(codec: Codec, numel: int) -> None:
    """`payload_bytes` is what a row takes; of a codec without a fixed size, the most."""
    x = normal(3, numel)
    contract.encoded(codec, x, codec.encode(x, rng()))


@check("send nothing that payload_bytes or the exchanges do not count", fixed, strategies=True, workers=[2, 5])
def traced_bytes_are_the_bytes_that_leave(codec: Codec, strategy: str, workers: int) -> None:
    """What `gradwire size` counts is what workers send."""
    grads = gradients(workers)
    some = cluster(codec, workers, strategy=strategy)
    some.engine.step = codec.steady_from_step
    some.reduce(grads)
    shapes = [(n, tuple(ts[0].shape)) for n, ts in grads.items()]
    traced = trace(codec, shapes, workers=workers, strategy=strategy, tensors="all")
    require(
        (traced.payload_bytes, traced.sent_bytes) == (some.payload_bytes, some.sent_bytes),
        f"{some.sent_bytes} bytes leave a worker, and {traced.sent_bytes} were counted without data",
    )


@check("do without .item(), bool(tensor) and nonzero(), or claim fixed_size=False", fixed)
def no_step_depends_on_the_data_in_its_control_flow(codec: Codec) -> None:
    """It runs on tensors without data, so no GPU waits for the host."""
    layout = Layout.of([("a", (40, 30)), ("b", (17,))])
    engine = Engine(codec, memory=codec.traits.memory, tensors="all", workers=4)
    with torch.no_grad():
        for _ in range(2):
            _, result = tracer.run(engine.reduce(torch.empty(1, layout.numel, device="meta"), layout), 4)
            engine.finish_step([result])


@check("send less, or claim what it is for: delta=1.0 where nothing is lost, oracle=True for a comparison")
def a_large_matrix_gets_smaller_unless_nothing_is_lost(codec: Codec) -> None:
    """A matrix of a million elements takes fewer than 32 bits an element."""
    bits = trace(codec, [("w", (1024, 1024))], workers=8).bits_per_element
    require(bits < 32 or codec.traits.delta == 1 or codec.traits.oracle, f"it takes {bits:.3g} bits an element")
