"""Keras 3 on TensorFlow, JAX or torch: one line after `compile`, and `fit` trains on the mean gradient of all ranks.

    model.compile(optimizer="adam", loss=...)
    bridge = distribute(model, "topk(ratio=0.01)")
    model.fit(x[bridge.rank :: bridge.size], y[bridge.rank :: bridge.size], ...)

What is changed is the optimizer's `apply`, which custom loops call, too. Files of the model do not know of it:
`model.save` on one rank, `bridge.save` on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import Incompatible
from gradwire.frameworks.arrays import needed
from gradwire.frameworks.bridge import Bridge
from gradwire.memory.base import Memory


def distribute(
    model: Any,
    codec: str | Codec,
    *,
    memory: str | Memory = "default",
    strategy: str | Strategy = "auto",
    tensors: str = "matrices",
    seed: int = 0,
    process_group: dist.ProcessGroup | None = None,
) -> Bridge:
    """Train a Keras model on the mean of all ranks' gradients, compressed. Weights start as rank 0's.

    Each rank must take as many steps, with data of its own. The model must be compiled and have its weights. Dropout
    and statistics of batches stay those of each rank.

    Args:
        model: a `keras.Model`, compiled; all ranks must call this alike.
        codec: a codec or its spec, such as ``"topk(ratio=0.01)"``.
        memory: ``"default"`` (what the codec asks for), ``"none"``, or a memory or its spec.
        strategy: ``"auto"``, or a strategy or its spec.
        tensors: ``"matrices"`` sends vectors and tiny tensors as they are; ``"all"`` compresses them too.
        seed: of all randomness, the same on all ranks.
        process_group: the ranks that train together; None for all.

    Returns:
        The bridge: rank and size, statistics, and the state to save.
    """
    keras = needed("keras")
    _check(model, keras)
    bridge = Bridge(codec, memory=memory, strategy=strategy, tensors=tensors, seed=seed, process_group=process_group)
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    variables = [*model.weights, *optimizer.variables]
    values = bridge.broadcast([keras.ops.convert_to_numpy(variable) for variable in variables])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    apply = optimizer.apply

    def apply_mean(grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        apply(bridge(list(grads)), trainable_variables)

    optimizer.apply = apply_mean
    if keras.backend.backend() == "tensorflow":
        model.jit_compile = False  # XLA there has no way back to Python
    model.train_function = None  # one that was compiled before does not know
    return bridge


def _check(model: Any, keras: Any) -> None:
    if not isinstance(model, keras.Model):
        raise Incompatible(f"distribute: a keras.Model was wanted, got {type(model).__qualname__}")
    if getattr(model, "optimizer", None) is None:
        raise Incompatible("distribute: the model has no optimizer; call model.compile(...) first")
    if not model.built:
        raise Incompatible(
            "distribute: the model has no weights yet, so they cannot start alike; give it a keras.Input, or call "
            "model.build(input_shape) first"
        )
    if "apply" in vars(model.optimizer):
        raise Incompatible("distribute: the model is distributed already; compile it again with a new optimizer first")
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        raise Incompatible(
            "distribute: under float16 each rank would skip steps by itself, and ranks would wait for each other. Use "
            "the dtype policy 'mixed_bfloat16' or 'float32'."
        )
