"""Reduce-scatter: each worker gets the mean of its own shard, and nothing else; what sharded training needs.

The gradient is n equal shards, worker r owns shard r. It is scatter-reduce-gather's first leg alone, so the mean stays
in full precision. Error feedback keeps what encoding lost of all shards.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.collectives.scatter_reduce_gather import ScatterReduceGather, scattered
from gradwire.core.codec import Codec
from gradwire.core.errors import Incompatible
from gradwire.core.exchange import Program
from gradwire.core.layout import Layout
from gradwire.core.state import Transaction
from gradwire.core.window import Window
from gradwire.engine import Engine
from gradwire.unit import UnitResult


def check_codec(engine: Engine, codec: Codec) -> None:
    """Refuse a codec that cannot run in a reduce-scatter."""
    problem = ScatterReduceGather().refusal(codec)
    if problem or engine.per_node > 1:
        why = problem or "its ranks are told apart by nodes"
        raise Incompatible(f"{codec.name} cannot run in a reduce-scatter: {why}. Use a codec such as blockint.")


def reduce_scatter(engine: Engine, x: Tensor, layout: Layout, out: Tensor) -> Program[UnitResult]:
    """The program that reduces `x`, (rows, n·shard), and leaves each worker its shard of the mean in `out`.

    Args:
        engine: whose codec, memory and state are used; a codec that can encode a shard by itself.
        x: the workers' gradients, all of them compressed.
        layout: the parameters in it.
        out: (rows, shard).
    """
    shard, left = divmod(x.shape[1], engine.workers)
    if left or out.shape != (x.shape[0], shard):
        raise Incompatible(
            f"reduce_scatter: {x.shape[1]} elements for {engine.workers} workers need an output of "
            f"{x.shape[1] / engine.workers:g} elements each, got {out.shape[1]}; pad the gradient to equal shards"
        )
    fitted = engine.fitted(layout)
    check_codec(engine, fitted.codec)
    writes = Transaction(engine.store, len(engine.ranks))
    source = Window.whole(x)
    ctx = engine.context(layout, 0, writes, None, source, engine.rescale())
    source, feedback = engine.memory.prepare(source, ctx)
    flag = yield from scattered(fitted.running, source, shard, out, feedback, ctx)
    if feedback is not None:
        engine.memory.keep(feedback, ctx)
    return UnitResult(out, (flag,), None, (writes,))
