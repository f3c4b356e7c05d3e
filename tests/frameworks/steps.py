"""Jobs that ranks of any framework carry out: the same gradients through a bridge, for comparison with a cluster."""

from __future__ import annotations

import importlib
import os
import signal
import warnings

import numpy
import torch
import torch.distributed as dist

import gradwire
from gradwire.frameworks.arrays import framework_of
from gradwire.frameworks.bridge import Bridge

# (name in the tree, shape as the framework holds it); odd sizes, a kernel of four dimensions, a vector, a tiny matrix
SHAPES = {"['a']": (33, 47), "['b']": (3, 3, 16, 24), "['c']": (40,), "['d']['e']": (64, 32), "['d']['f']": (2, 3)}
CODECS = (
    "none",
    "bf16",
    "fp16",
    "eightbit",
    "qsgd",
    "blockint(bits=4)",
    "blockint(bits=8, block=64)",
    "topk(ratio=0.05)",
    "efsignsgd",
    "terngrad",
    "powersgd(rank=2)",
    "randomk(ratio=0.1)",
)
STEPS = 3


def given(rank, step, name):
    """The gradient of a rank in a step."""
    seed = 1000 * rank + 10 * step + list(SHAPES).index(name)
    return numpy.random.default_rng(seed).standard_normal(SHAPES[name]).astype("float32")


def tree_of(make):
    return {"a": make("['a']"), "b": make("['b']"), "c": make("['c']"), "d": {k: make(f"['d']['{k}']") for k in "ef"}}


def flat(tree):
    return {"['a']": tree["a"], "['b']": tree["b"], "['c']": tree["c"]} | {f"['d']['{k}']": tree["d"][k] for k in "ef"}


def of_framework(name):
    """What makes an array of a framework, and a NumPy array of one."""
    if name == "numpy":
        return (lambda x: x), numpy.asarray
    if name == "torch":
        return torch.from_numpy, lambda x: x.numpy()
    module = quietly(name)
    if name == "jax":
        return module.numpy.asarray, numpy.asarray
    return module.constant, lambda x: x.numpy()


def quietly(module):
    """Imported; what frameworks warn of meanwhile is theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def reduced(rank, framework, codecs, compiled=False, options=None):
    """For each codec the results of some steps, by name, the units, and the bytes that were sent."""
    into, out = of_framework(framework)
    found = {}
    for codec in codecs:
        bridge = Bridge(codec, **(options or {}))
        reduce = compiled_by(framework, bridge) if compiled else bridge
        results = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(STEPS):
                answer = reduce(tree_of(lambda name, step=step: into(given(rank, step, name))))
                assert type(answer["a"]) is type(into(numpy.ones(1, "float32")))
                results.append({name: numpy.array(out(array)) for name, array in flat(answer).items()})
        found[codec] = results, bridge.units, bridge.stats()["sent_bytes"]
    return found


def of_cluster(codec, workers, units, channels_last, names=None, **options):
    """The same from virtual workers; `names` are those of the arrays in the bridge, where they are others."""
    names = names or {name: name for name in SHAPES}
    cluster = gradwire.VirtualCluster(workers, codec, tensors="matrices", **options)

    def shaped(rank, step, name):
        array = torch.from_numpy(given(rank, step, name))
        return array.flatten(0, -2) if channels_last and array.ndim > 2 else array

    steps = []
    for step in range(STEPS):
        gradients = {names[name]: [shaped(rank, step, name) for rank in range(workers)] for name in SHAPES}
        answer = cluster.reduce(gradients, units=units)
        steps.append({name: answer[names[name]].numpy().reshape(SHAPES[name]) for name in SHAPES})
    return steps


def compiled_by(framework, function):
    return quietly("jax").jit(function) if framework == "jax" else quietly("tensorflow").function(function)


def dying(rank, framework, compiled):
    """Rank 1 is killed in its second step."""
    into, out = of_framework(framework)
    bridge = Bridge("topk(ratio=0.1)")
    reduce = compiled_by(framework, bridge) if compiled else bridge
    for step in range(2):
        if step and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        out(reduce(tree_of(lambda name, step=step: into(given(rank, step, name))))["a"])


def of_other_shapes(rank, framework, compiled=False):
    into, out = of_framework(framework)
    bridge = Bridge("topk(ratio=0.1)")
    reduce = compiled_by(framework, bridge) if compiled else bridge
    out(reduce({"w": into(numpy.ones((64, 64 + rank), "float32"))})["w"])


def own_mean(rank, framework):
    """Whether `none` gives what the framework makes of all ranks' gradients by itself."""
    into, out = of_framework(framework)
    module = quietly(framework)
    answer = flat(Bridge("none")(tree_of(lambda name: into(given(rank, 0, name)))))
    everyone = {name: [into(given(r, 0, name)) for r in range(2)] for name in SHAPES}
    stack = module.numpy.stack if framework == "jax" else module.stack
    mean = (lambda x: module.reduce_mean(x, 0)) if framework == "tensorflow" else lambda x: stack(x).mean(0)
    return all((out(answer[name]) == out(mean(everyone[name]))).all() for name in SHAPES)


def of_listed_rows(rank):
    """What becomes of rows that TensorFlow lists, one of them twice."""
    tf = quietly("tensorflow")
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0 + rank]]), tf.constant([2, 0, 2]), tf.constant([3, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Bridge("none")([rows])[0].numpy().ravel().tolist()


def changing(rank):
    bridge = Bridge("none")
    bridge([numpy.ones((2, 2), "float32")])
    bridge([numpy.ones((3, 2), "float32")])


def resumed(rank, framework, folder):
    """The third step of a run, and of one that was saved after the second and loaded before the third."""
    into, out = of_framework(framework)

    def step(bridge, number):
        answer = bridge(tree_of(lambda name: into(given(rank, number, name))))
        return {name: numpy.array(out(array)) for name, array in flat(answer).items()}

    first, second = Bridge("topk(ratio=0.05)"), Bridge("topk(ratio=0.05)")
    step(first, 0), step(first, 1)
    first.save(folder)
    dist.barrier()
    wanted = step(first, 2)
    second.load(folder)
    found = step(second, 2)
    assert first.stats()["residual_norm"] == second.stats()["residual_norm"] > 0
    return all((wanted[name] == found[name]).all() for name in wanted)


def started(rank, framework):
    """Rank 0's arrays, as other ranks get them: of several dtypes and shapes."""
    into, out = of_framework(framework)
    given = {"w": numpy.arange(6, dtype="float32").reshape(2, 3) + rank, "n": [numpy.array(7 + rank, "int32")]}
    tree = {"w": into(given["w"]), "n": [into(given["n"][0])]}
    answer = Bridge("none").broadcast(tree)
    return out(answer["w"]).tolist(), out(answer["n"][0]).tolist(), out(tree["w"]).tolist() == given["w"].tolist()


def addresses(rank, framework):
    """Of arrays, and of the tensors that they become; and of what comes back."""
    into, _ = of_framework(framework)
    array = into(numpy.ones((64, 64), "float32"))
    known = framework_of(array)
    tensor = known.to_torch(array)
    back = known.from_torch(tensor)
    odd = known.from_torch(torch.ones(100)[1:])
    assert bool((known.to_torch(odd) == 1).all())
    return address(array), tensor.data_ptr(), address(back)


def address(array):
    """As the framework tells it."""
    if hasattr(array, "unsafe_buffer_pointer"):
        return array.unsafe_buffer_pointer()
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    if hasattr(array, "ctypes"):
        return array.ctypes.data
    return array._numpy().ctypes.data  # TensorFlow: a view


def untouched(rank):
    """Results are not overwritten by the next step, nor gradients by their own."""
    bridge = Bridge("none")
    sent = numpy.full((4, 4), 1.0 + rank, "float32")
    first = bridge([sent])[0]
    bridge([sent * 100])
    return first.tolist() == [[1.5] * 4] * 4 and (sent == 1.0 + rank).all()
