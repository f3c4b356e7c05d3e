"""JAX with Optax, one process for each rank: what is there for compression is marked.

torchrun --standalone --nproc-per-node 2 examples/train_jax.py
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy
import optax
import torch.distributed as dist

from gradwire.frameworks.bridge import Bridge  # here
from gradwire.frameworks.optax_bridge import through  # here


def loss_of(parameters, x, y):
    hidden = jnp.tanh(x @ parameters["w1"] + parameters["b1"])
    scores = hidden @ parameters["w2"] + parameters["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--codec", default="bf16(sum='float32')", help="see: gradwire codecs")
    options.add_argument("--epochs", type=int, default=20)
    told = options.parse_args()

    dist.init_process_group("gloo")  # here
    bridge = Bridge(told.codec)  # here
    draw = numpy.random.default_rng(0)
    x = draw.standard_normal((512, 32)).astype("float32")
    y = x[:, :8].argmax(1)
    shapes = {"w1": (32, 64), "b1": (64,), "w2": (64, 8), "b2": (8,)}
    own = numpy.random.default_rng(bridge.rank)  # each rank begins with weights of its own
    parameters = {n: jnp.asarray(0.1 * own.standard_normal(s), jnp.float32) for n, s in shapes.items()}
    parameters = bridge.broadcast(parameters)  # here: and now with those of rank 0

    optimizer = optax.chain(through(bridge), optax.sgd(0.5))  # here
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters, state, x, y):
        updates, state = optimizer.update(jax.grad(loss_of)(parameters, x, y), state)
        return optax.apply_updates(parameters, updates), state

    for _ in range(told.epochs):
        for start in range(0, len(x), 64):
            mine = slice(start + bridge.rank, start + 64, bridge.size)  # here: a share of the batch
            parameters, state = step(parameters, state, x[mine], y[mine])
    loss = float(loss_of(parameters, x, y))
    weights = sum(float(numpy.abs(numpy.asarray(p, "float64")).sum()) for p in parameters.values())
    if bridge.rank == 0:
        sent = bridge.stats()["sent_bytes_per_step"]
        print(f"loss {loss:.6f}, weights {weights:.9f}, {sent:.0f} bytes sent a step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
