"""Keras 3 on TensorFlow, JAX or torch: one line after `compile`, and `fit` trains on the mean gradient of all ranks.

    model.compile(optimizer="adam", loss=...)
    bridge = distribute(model, "topk(ratio=0.01)")
    model.fit(x[bridge.rank :: bridge.size], y[bridge.rank :: bridge.size], ...)

What is changed is the optimizer's `apply`, which custom loops call, too. Files of the model do not know of it:
`model.save` on one rank, `bridge.save` on all. Metrics are those of a rank's own data; `average_metrics` is a callback
that gives all ranks their mean.
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
    bridge = Bridge(
        codec,
        memory=memory,
        strategy=strategy,
        tensors=tensors,
        seed=seed,
        channels_last=True,  # on torch, too
        process_group=process_group,
    )
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    variables = [*model.weights, *optimizer.variables]
    values = bridge.broadcast([keras.ops.convert_to_numpy(variable) for variable in variables])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    _take_means(optimizer, bridge, keras)
    if keras.backend.backend() == "tensorflow":
        model.jit_compile = False  # XLA there has no way back to Python
    model.train_function = None  # one that was compiled before does not know
    return bridge


def average_metrics(bridge: Bridge) -> Any:
    """A callback for `fit`: the logs of each epoch become the means over the ranks, floats, alike on all.

    Put it first: callbacks behind it that stop early or lower the rate then decide alike on all ranks.

    Args:
        bridge: as `distribute` returned it.
    """

    class AverageMetrics(needed("keras").callbacks.Callback):  # type: ignore[misc]  # without keras: of any class
        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            if logs:
                logs.update(bridge.average(logs))

    return AverageMetrics()


def _take_means(optimizer: Any, bridge: Bridge, keras: Any) -> None:
    """Let the optimizer reduce the gradients that it is to apply.

    Under a scaled loss the optimizer looks at the means, not at a rank's own gradients, so all ranks skip the same
    steps. On JAX it does so in a method of its own.
    """
    apply, stateless_apply = optimizer.apply, optimizer.stateless_apply
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)

    def apply_mean(grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        scale = keras.ops.convert_to_tensor(optimizer.dynamic_scale) if scaled else 1.0
        apply(bridge(list(grads), loss_scale=scale), trainable_variables)

    def stateless_apply_mean(optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable: Sequence[Any]) -> Any:
        place = [variable is optimizer.dynamic_scale for variable in optimizer.variables].index(True)
        means = bridge(list(grads), loss_scale=optimizer_variables[place])
        return stateless_apply(optimizer_variables, means, trainable)

    optimizer.apply = apply_mean
    if scaled:
        optimizer.stateless_apply = stateless_apply_mean


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
