"""Keras 3, `model.fit` on TensorFlow, JAX or torch: what is there for compression is marked.

torchrun --standalone --nproc-per-node 2 examples/train_keras.py --backend jax
torchrun --standalone --nproc-per-node 4 examples/train_keras.py --model ncf --data-dir FOLDER

Models: a convolutional net on images (CIFAR-10 in FOLDER, else drawn ones), and neural collaborative filtering on
MovieLens-1M (in FOLDER, else drawn ratings). Each rank takes its share of every batch, so that with the codec `none`
any number of ranks trains as one does.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy
import torch
import torch.distributed as dist

BATCH = 64  # of all ranks together


def images(folder):
    if folder:
        from gradwire.laboratory.bench.data import cifar

        found = cifar.load("cifar10", Path(folder))
        return [found.train.numpy().astype("float32") / 64 - 2], found.train_labels.numpy()
    draw = numpy.random.default_rng(0)
    labels = draw.integers(0, 4, 512)
    pixels = 0.3 * draw.standard_normal((512, 12, 12, 3)).astype("float32")
    for i, label in enumerate(labels):  # a bright corner tells the class
        pixels[i, 6 * (label // 2) :, 6 * (label % 2) :] += 0.5
    return [pixels], labels


def ratings(folder):
    """Users and items that met, and as many that did not."""
    draw = numpy.random.default_rng(0)
    if folder:
        from gradwire.laboratory.bench.data import movielens

        found = movielens.load("ml1m", Path(folder))
        users, items = found.train.numpy().T
    else:
        users = draw.integers(0, 100, 1024)
        items = (users * 7 + draw.integers(0, 20, 1024)) % 200  # each user likes some neighbours
    known = numpy.stack([users, items])
    others = numpy.stack([users, draw.integers(0, items.max() + 1, len(items))])
    pairs, labels = numpy.concatenate([known, others], 1), numpy.repeat([1.0, 0.0], len(items))
    order = draw.permutation(len(labels))
    return [pairs[0, order].astype("int32"), pairs[1, order].astype("int32")], labels[order].astype("float32")


def convolutional(keras, x):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(x[0].shape[1:]),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


def collaborative(keras, x):
    layers = keras.layers
    inputs = [keras.Input(()) for _ in x]
    sizes = [int(column.max()) + 1 for column in x]
    user, item = (layers.Embedding(n, 16)(i) for n, i in zip(sizes, inputs, strict=True))
    hidden = layers.Dense(32, activation="relu")(layers.Concatenate()([user, item]))
    both = layers.Concatenate()([layers.Multiply()([user, item]), hidden])
    return keras.Model(inputs, layers.Flatten()(layers.Dense(1)(both)))


def share(array, rank, size):
    """This rank's rows of each batch."""
    whole = array[: len(array) // BATCH * BATCH].reshape(-1, BATCH, *array.shape[1:])
    return whole[:, rank::size].reshape(-1, *array.shape[1:])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--backend", choices=["tensorflow", "jax", "torch"], default="tensorflow")
    options.add_argument("--model", choices=["conv", "ncf"], default="conv")
    options.add_argument("--codec", default="bf16(sum='float32')", help="see: gradwire codecs")
    options.add_argument("--data-dir", default=None, help="folder of CIFAR-10 or MovieLens-1M; drawn data without it")
    options.add_argument("--examples", type=int, default=None, help="the first N only")
    options.add_argument("--epochs", type=int, default=8)
    options.add_argument("--seed", type=int, default=0, help="of the first weights")
    options.add_argument("--folder", default=None, help="go on from the checkpoint in it, if there is one, and save")
    told = options.parse_args()
    os.environ["KERAS_BACKEND"] = told.backend  # before Keras is loaded
    import keras

    from gradwire.frameworks.keras import distribute  # here

    dist.init_process_group("gloo")  # here
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = images(told.data_dir) if told.model == "conv" else ratings(told.data_dir)
    x, y = [column[: told.examples] for column in x], y[: told.examples]
    file = Path(told.folder or ".") / "model.keras"
    if told.folder and file.exists():
        model = keras.models.load_model(file)
    else:
        keras.utils.set_random_seed(1000 * told.seed + rank)  # each rank's own weights: they are made rank 0's
        model = (convolutional if told.model == "conv" else collaborative)(keras, x)
        if told.model == "conv":
            optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        else:
            optimizer, loss = keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
    bridge = distribute(model, told.codec)  # here
    if told.folder and file.exists():
        bridge.load(told.folder)  # here
    mine = [share(column, rank, size) for column in x]
    feed = mine if len(mine) > 1 else mine[0]
    model.fit(feed, share(y, rank, size), batch_size=BATCH // size, epochs=told.epochs, shuffle=False, verbose=0)
    if told.folder:
        if rank == 0:
            Path(told.folder).mkdir(parents=True, exist_ok=True)
            model.save(file)
        dist.barrier()
        bridge.save(told.folder)  # here
    loss = float(model.evaluate(x if len(x) > 1 else x[0], y, batch_size=512, verbose=0))
    weights = sum(float(numpy.abs(w.astype("float64")).sum()) for w in model.get_weights())
    if rank == 0:
        print(f"loss {loss:.6f}, weights {weights:.9f}, {bridge.stats()['sent_bytes_per_step']:.0f} bytes sent a step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
