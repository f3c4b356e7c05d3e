"""Gradients that are reduced inside compiled programs: by the devices of one process, or by processes of one each."""

from __future__ import annotations

import os
import signal
import socket

import numpy
import torch.distributed as dist
from steps import SHAPES, STEPS, flat, given, tree_of

HEARTBEAT = 10  # seconds without a sign of life after which a process counts as dead


def reducer(codec, workers):
    """A compiled step, and its first state."""
    import jax

    from gradwire.frameworks import jax_codecs

    P = jax.sharding.PartitionSpec
    transformation = jax_codecs.over_axis(codec, axis="data", workers=workers)
    state = transformation.init(tree_of(lambda name: jax.numpy.zeros(SHAPES[name])))
    specs = jax_codecs.state_specs(state, "data")

    def step(gradients, state):
        return transformation.update(jax.tree.map(lambda g: g[0], gradients), state)

    mapped = jax.shard_map(
        step, mesh=mesh_of(workers), in_specs=(P("data"), specs), out_specs=(P(), specs), check_vma=False
    )
    return jax.jit(mapped), state


def mesh_of(workers):
    """The first devices of all processes."""
    import jax

    return jax.sharding.Mesh(numpy.array(jax.devices()[:workers]), ("data",))


def gradients(step, workers):
    """All workers', as one process holds them."""
    return tree_of(lambda name: numpy.stack([given(rank, step, name) for rank in range(workers)]))


def reduced(rank, codecs, dies=None):
    """For each codec the means of some steps, and what this process keeps. Rank `dies` is killed in the second step."""
    joined(rank)
    import jax

    workers = jax.process_count()
    assert len(jax.devices()) == workers
    rows = jax.sharding.NamedSharding(mesh_of(workers), jax.sharding.PartitionSpec("data"))
    found = {}
    for codec in codecs:
        step, state = reducer(codec, workers)
        means = []
        for number in range(STEPS):
            if number == 1 and rank == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            mine = tree_of(lambda name, n=number: given(rank, n, name)[None])
            whole = jax.tree.map(lambda x: jax.make_array_from_process_local_data(rows, x), mine)
            mean, state = step(whole, state)
            means.append({name: numpy.asarray(array) for name, array in flat(mean).items()})
        kept = [part for part in (state.error, state.owner_error) if part is not None]
        found[codec] = means, [numpy.asarray(part.addressable_shards[0].data)[0] for part in kept]
    return found


def joined(rank):
    """One device in this process; JAX knows the others from here on."""
    os.environ["XLA_FLAGS"] = ""
    import jax

    address = [None]
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = [f"127.0.0.1:{free.getsockname()[1]}"]
    dist.broadcast_object_list(address)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address[0], dist.get_world_size(), rank, heartbeat_timeout_seconds=HEARTBEAT)
