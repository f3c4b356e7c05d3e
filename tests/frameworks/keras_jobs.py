"""Jobs of ranks with Keras models, on any of its back ends: one a process."""

from __future__ import annotations

import os
import signal
import warnings

import numpy
import pytest
from steps import CODECS, SHAPES, STEPS, given, quietly

import gradwire


def keras_on(backend):
    """Keras; and what it warns of in a model's life is its own."""
    os.environ["KERAS_BACKEND"] = backend
    keras = quietly("keras")
    warnings.simplefilter("ignore")
    assert keras.backend.backend() == backend
    return keras


def model_of(keras, compiled=True, width=32):
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(width), keras.layers.Dense(4)])
    if compiled:
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "mse")
    return model


def of_given_gradients(keras, optimizer, eager=False):
    """A model whose loss is the product of weights and data: its gradients are the data of a step."""

    class Product(keras.layers.Layer):
        def build(self, shape):
            self.parts = [self.add_weight(shape=s, initializer="zeros") for s in SHAPES.values()]

        def call(self, x):
            flat = [keras.ops.reshape(part, (-1,)) for part in self.parts]
            return keras.ops.matmul(x, keras.ops.expand_dims(keras.ops.concatenate(flat), 1))

    model = keras.Sequential([keras.Input((sum(numpy.prod(s) for s in SHAPES.values()),)), Product()])
    model.compile(optimizer, loss=lambda wanted, found: found, run_eagerly=eager)
    return model


def step_of(model, ranks, step, change=lambda x: x):
    """Fit the gradients of ranks in a step, from weights of zero: with a rate of 1 they are the mean, negated."""
    rows = [[given(rank, step, name).ravel() for name in SHAPES] for rank in ranks]
    x = change(numpy.stack([numpy.concatenate(row) for row in rows]))
    model.set_weights([numpy.zeros(s, "float32") for s in SHAPES.values()])
    model.fit(x, numpy.zeros((len(x), 1), "float32"), batch_size=len(x), verbose=0)
    return {name: -weights for name, weights in zip(SHAPES, model.get_weights(), strict=True)}


def fitted(rank, backend, eager=False):
    """As `steps.reduced`, through `fit`."""
    keras = keras_on(backend)
    from gradwire.frameworks.keras import distribute

    found = {}
    for codec in CODECS:
        model = of_given_gradients(keras, keras.optimizers.SGD(1.0), eager)
        bridge = distribute(model, codec)
        assert model.run_eagerly == eager
        results = [step_of(model, [rank], step) for step in range(STEPS)]
        found[codec] = results, bridge.units, bridge.stats()["sent_bytes"]
    return found


def own_mean(rank, backend):
    """Whether `none` gives what Keras makes of both ranks' gradients in one batch, by itself."""
    keras = keras_on(backend)
    from gradwire.frameworks.keras import distribute

    ours, alone = (of_given_gradients(keras, keras.optimizers.SGD(1.0)) for _ in range(2))
    distribute(ours, "none")
    found, wanted = step_of(ours, [rank], 0), step_of(alone, [0, 1], 0)
    return all((found[name] == wanted[name]).all() for name in SHAPES)


def dying(rank, backend):
    """Rank 1 is killed between two steps of `fit`."""
    keras = keras_on(backend)
    from gradwire.frameworks.keras import distribute

    model = model_of(keras)
    distribute(model, "topk(ratio=0.1)")
    end = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: os.kill(os.getpid(), signal.SIGKILL))
    x, y = numpy.ones((8, 40), "float32"), numpy.ones((8, 4), "float32")
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[end] if rank == 1 else [])


def of_other_shapes(rank, backend):
    keras = keras_on(backend)
    from gradwire.frameworks.keras import distribute

    distribute(model_of(keras, width=32 + rank), "topk(ratio=0.1)")


def scaled(rank, backend):
    """Steps under a scaled loss and without: the second has an infinite gradient on rank 1."""
    keras = keras_on(backend)
    from gradwire.frameworks.keras import distribute

    def change(step):
        spoil = step == 1 and rank == 1
        return lambda x: numpy.where(numpy.arange(x.shape[1]) == 7, numpy.float32("inf"), x) if spoil else x

    plain = of_given_gradients(keras, keras.optimizers.SGD(1.0))
    distribute(plain, "topk(ratio=0.05)")
    wanted = [step_of(plain, [rank], step) for step in (0, 2)]
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=2.0**10)
    model = of_given_gradients(keras, optimizer)
    bridge = distribute(model, "topk(ratio=0.05)")
    found = [step_of(model, [rank], step, change(step)) for step in range(3)]
    skipped = all((array == 0).all() for array in found[1].values())
    same = all((mine[n] == theirs[n]).all() for mine, theirs in zip(wanted, found[::2], strict=True) for n in SHAPES)
    return same, skipped, bridge.stats()["skipped_steps"], float(optimizer.dynamic_scale)


def averaged(rank, backend):
    """The losses of an epoch that the ranks are told, and their own."""
    keras = keras_on(backend)
    from gradwire.frameworks.keras import average_metrics, distribute

    model, own = model_of(keras), []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: own.append(dict(logs)))
    bridge = distribute(model, "none")
    x, y = numpy.full((4, 40), 1.0 + rank, "float32"), numpy.full((4, 4), 2.0 + rank, "float32")
    callbacks = [note, average_metrics(bridge)]
    told = model.fit(x, y, validation_data=(x, y), epochs=2, batch_size=4, verbose=0, callbacks=callbacks).history
    return told, {name: [logs[name] for logs in own] for name in told}


def began(rank, backend):
    """Weights before and after, momenta that are shared too, and one step of a loop that calls the optimizer."""
    keras = keras_on(backend)
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


def refusals(rank, backend):
    """The sentences, and what comes when there is nothing to refuse."""
    keras = keras_on(backend)
    from gradwire.frameworks.keras import distribute

    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    unbuilt.compile("sgd", "mse")
    twice = model_of(keras)
    with pytest.warns(UserWarning, match="one rank"):
        distribute(twice, "topk")
    found = []
    for model in ("model", model_of(keras, compiled=False), unbuilt, twice):
        with pytest.raises(gradwire.Incompatible) as caught:
            distribute(model, "topk")
        found.append(str(caught.value))
    return found
