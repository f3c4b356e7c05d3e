"""Optax over the bridge: one process for each rank, any codec, inside `jax.jit` or not.

    bridge = Bridge("topk(ratio=0.01)")
    optimizer = optax.chain(through(bridge), optax.adam(1e-3))

The bridge keeps what the codec owes: save it beside the optimizer's state (`bridge.save`). For codecs inside the
compiled program, on several devices, see `jax_codecs`.
"""

from __future__ import annotations

from typing import Any

from gradwire.frameworks.arrays import needed
from gradwire.frameworks.bridge import Bridge


def through(bridge: Bridge) -> Any:
    """An `optax.GradientTransformation` that replaces gradients by their mean over the ranks.

    Args:
        bridge: that reduces them; all ranks must call `update` alike.
    """
    optax = needed("optax")

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return bridge(updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
