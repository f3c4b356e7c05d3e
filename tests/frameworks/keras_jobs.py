"""Jobs of ranks with Keras models."""

from __future__ import annotations

import os
import warnings

import numpy
import pytest
from steps import quietly

import gradwire

os.environ.setdefault("KERAS_BACKEND", "torch")  # the quickest to load


def model_of(keras, compiled=True):
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(32), keras.layers.Dense(4)])
    if compiled:
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "mse")
    return model


def began(rank):
    """Weights before and after, momenta that are shared too, and one step of a loop that calls the optimizer."""
    keras = quietly("keras")
    warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy, for Keras
    from gradwire.frameworks.keras import distribute

    keras.utils.set_random_seed(rank)
    model = model_of(keras)
    before = [w.copy() for w in model.get_weights()]
    distribute(model, "none")
    start = [w.copy() for w in model.get_weights()]
    gradients = [numpy.full(w.shape, 1.0 + rank, "float32") for w in start]
    model.optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], model.trainable_variables)
    moved = [old - new for old, new in zip(start, model.get_weights(), strict=True)]
    return before, start, moved


def refusals(rank):
    """The sentences, and what comes when there is nothing to refuse."""
    keras = quietly("keras")
    warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy, for Keras
    from gradwire.frameworks.keras import distribute

    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    unbuilt.compile("sgd", "mse")
    scaled = model_of(keras, compiled=False)
    scaled.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    twice = model_of(keras)
    with pytest.warns(UserWarning, match="one rank"):
        distribute(twice, "topk")
    found = []
    for model in ("model", model_of(keras, compiled=False), unbuilt, scaled, twice):
        with pytest.raises(gradwire.Incompatible) as caught:
            distribute(model, "topk")
        found.append(str(caught.value))
    return found
