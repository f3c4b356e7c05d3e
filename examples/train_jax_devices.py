"""JAX with Optax, the codec inside the compiled program: what is there for compression is marked.

python examples/train_jax_devices.py                                               # all devices of one process
python examples/train_jax_devices.py --coordinator localhost:9911 --processes 2 --process 0 &
python examples/train_jax_devices.py --coordinator localhost:9911 --processes 2 --process 1
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gradwire.frameworks.jax_codecs import over_axis, state_specs  # here

BATCH = 64  # of all devices together


def loss_of(parameters, x, y):
    hidden = jnp.tanh(x @ parameters["w1"] + parameters["b1"])
    scores = hidden @ parameters["w2"] + parameters["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--codec", default="blockint(bits=8)", help="none, bf16, blockint, topk or powersgd")
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--coordinator", help="host and port of process 0, the same for all processes")
    options.add_argument("--processes", type=int, default=1)
    options.add_argument("--process", type=int, default=0, help="the place of this one among them")
    told = options.parse_args()

    if told.processes > 1:  # before JAX computes anything
        jax.distributed.initialize(told.coordinator, told.processes, told.process, heartbeat_timeout_seconds=20)
    devices = len(jax.devices())  # of all processes; they must divide the batch
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()), ("data",))
    draw = numpy.random.default_rng(0)
    x = draw.standard_normal((512, 32)).astype("float32")
    y = x[:, :8].argmax(1)
    shapes = {"w1": (32, 64), "b1": (64,), "w2": (64, 8), "b2": (8,)}
    parameters = {n: jnp.asarray(0.1 * draw.standard_normal(s), jnp.float32) for n, s in shapes.items()}  # alike on all

    optimizer = optax.chain(over_axis(told.codec, axis="data", workers=devices), optax.sgd(0.5))  # here
    state = optimizer.init(parameters)
    specs = state_specs(state, "data")  # here: each device has a memory of its own

    def step(parameters, state, x, y):
        updates, state = optimizer.update(jax.grad(loss_of)(parameters, x, y), state)
        return optax.apply_updates(parameters, updates), state

    given, kept = (P(), specs, P("data"), P("data")), (P(), specs)
    step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=given, out_specs=kept, check_vma=False))

    def shares(array):
        """A batch, of which this process gives what its own devices need."""
        mine = array[told.process * BATCH // told.processes : (told.process + 1) * BATCH // told.processes]
        return jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), mine)

    for _ in range(told.epochs):
        for start in range(0, len(x), BATCH):
            batch = slice(start, start + BATCH)
            parameters, state = jax.block_until_ready(step(parameters, state, shares(x[batch]), shares(y[batch])))
    found = {name: numpy.asarray(p) for name, p in parameters.items()}
    weights = sum(float(numpy.abs(p.astype("float64")).sum()) for p in found.values())
    if told.process == 0:
        print(f"loss {float(loss_of(found, x, y)):.6f}, weights {weights:.9f}, on {devices} devices")


if __name__ == "__main__":
    main()
