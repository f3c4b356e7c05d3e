"""The time of a training step in JAX, TensorFlow or Keras on a real, shaped network: framework x codec x hosts x rate.

1. The model is three dense layers, the same in each framework. A step is compiled, as users do: `jax.jit`,
   `tf.function`, and what Keras makes of `train_on_batch` on each of its back ends; torch's is not compiled.
2. The gradients go through a `Bridge`, with each codec, and with `none`: uncompressed, on the same way. Beside them
   runs a step without exchange. All live in the same processes and take turns, as in `step`: so ratios are of one run.
3. What the way to torch and back costs alone: arrays of the gradients' shapes are handed over and back, as they are and
   inside a compiled program, beside a plain copy of as many bytes. Nothing is computed or sent meanwhile.
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
import torch.distributed as dist

from gradwire.core.baselines import COPIED, HANDED, HANDED_COMPILED, NOTHING
from gradwire.core.registry import Check
from gradwire.engine import Engine
from gradwire.frameworks.arrays import check_installed, framework_of, needed
from gradwire.frameworks.bridge import Bridge
from gradwire.frameworks.keras import distribute
from gradwire.laboratory.bench import step
from gradwire.laboratory.bench.launch import Rank, launch
from gradwire.laboratory.bench.sweep import Group, Measured, Place, Sweep

KIND = "frameworks"
CODECS = ("none", "bf16(sum='float32')", "blockint(bits=8)", "blockint(bits=4)", "topk(ratio=0.01)")
KERAS = "keras-"  # and the name of its back end
FRAMEWORKS = ("jax", "tensorflow", f"{KERAS}jax", f"{KERAS}tensorflow", f"{KERAS}torch")
WIDTH = 896  # about a million parameters
INPUTS, OUTPUTS, BATCH = 256, 10, 16
STEPS = 30


def sweep(
    *,
    frameworks: Sequence[str] = FRAMEWORKS,
    codecs: Sequence[str] = CODECS,
    width: int = WIDTH,
    hosts: Sequence[int] = (2,),
    rates: Sequence[str] = ("200mbit",),
    steps: int = STEPS,
) -> Sweep:
    """All combinations.

    Args:
        frameworks: of `FRAMEWORKS`.
        codecs: `none` among them is the uncompressed step.
        width: of the hidden layers.
        hosts: how many.
        rates: of every link.
        steps: of each configuration.
    """
    check = Check("bench frameworks")
    check.integer("width", width, 1)
    check.integer("steps", steps, step.LEAST)
    for name in frameworks:
        check.one_of("framework", name, FRAMEWORKS)
        for package in packages(name):
            check_installed(package)
    for codec in codecs:
        Engine(codec, workers=min(hosts))  # refused now, not in the middle
    words = [f"--framework {f}" for f in frameworks] if tuple(frameworks) != FRAMEWORKS else []
    words += [f'--codec "{c}"' for c in codecs] if tuple(codecs) != CODECS else []
    words += [f"--hosts {h}" for h in hosts] + [f"--rate {r}" for r in rates] + [f"--width {width} --steps {steps}"]
    return Sweep(
        kind=KIND,
        command=" ".join(["gradwire bench frameworks", *words]),
        unit="seconds a step, slowest rank",
        hosts=tuple(hosts),
        rates=tuple(rates),
        per_host=1,
        groups=tuple(_group(name, codecs, width, steps) for name in frameworks),
        measure=_measure,
    )


def packages(framework: str) -> list[str]:
    """What must be installed."""
    return ["keras", framework.removeprefix(KERAS)] if framework.startswith(KERAS) else [framework]


def _group(framework: str, codecs: Sequence[str], width: int, steps: int) -> Group:
    parameters = sum(int(numpy.prod(shape)) for shape in _shapes(width))
    common = {"framework": framework, "width": width, "parameters": parameters, "batch": BATCH}
    common |= {"steps": steps, "seconds": None}
    alone = (NOTHING,) if framework.startswith(KERAS) else (NOTHING, COPIED, HANDED, HANDED_COMPILED)
    plain, ours = ([{"configuration": name, **common} for name in names] for names in (alone, codecs))
    return Group(f"{framework}, {parameters / 1e6:.3g} million parameters", tuple(ours), tuple(plain))


def _measure(place: Place, settings: Sequence[Mapping[str, Any]]) -> list[Measured]:
    ranks = launch(train_all, place.workers, (tuple(settings),), step.TIMEOUT, hosts=place.namespaces)
    return [_merge(setting, shares) for setting, *shares in zip(settings, *ranks, strict=True)]


def _merge(setting: Mapping[str, Any], shares: Sequence[dict[str, Any]]) -> Measured:
    """One record's content from what each rank saw."""
    counted = shares[0]["sent_bytes"] is not None
    outcome = {
        "parts_seconds": {p: sum(s[p] for s in shares) / len(shares) if counted else None for p in step.PARTS},
        "sent_bytes": max(s["sent_bytes"] for s in shares) if counted else None,
        "interface_bytes": max(s["interface_bytes"] for s in shares),
        "dropped": shares[0]["dropped"],
    }
    return Measured(setting, tuple(max(t) for t in zip(*(s["samples"] for s in shares), strict=True)), outcome)


# -------------------------------------------------------------------- what each rank does


def train_all(rank: Rank, settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make all configurations' steps in turns; returns this rank's share of each. One framework a process."""
    framework = settings[0]["framework"]
    os.environ["KERAS_BACKEND"] = framework.removeprefix(KERAS)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it tells of the processor it was not built for
    warnings.simplefilter("ignore")  # frameworks warn of each other
    return step.turns([_run(setting) for setting in settings])


def _run(setting: Mapping[str, Any]) -> step.Run:
    framework, label = setting["framework"], setting["configuration"]
    arrays = _arrays(setting["width"])
    if label in (COPIED, HANDED, HANDED_COMPILED):
        return step.Run(setting, _timed(_passing(framework, label, arrays)), None)
    bridge = None
    if framework.startswith(KERAS):
        one, bridge = _keras(arrays, None if label == NOTHING else label)
    else:
        bridge = None if label == NOTHING else Bridge(label)
        one = (_jax if framework == "jax" else _tensorflow)(arrays, bridge)
    return step.Run(setting, _timed(one), bridge)


def _timed(one: Callable[[], None]) -> Callable[[], dict[str, float]]:
    def timed() -> dict[str, float]:
        start = time.perf_counter()
        one()
        return {"step": time.perf_counter() - start}

    return timed


def _shapes(width: int) -> list[tuple[int, ...]]:
    widths = (INPUTS, width, width, OUTPUTS)
    return [shape for a, b in itertools.pairwise(widths) for shape in ((a, b), (b,))]


def _arrays(width: int) -> list[Any]:
    """Weights, alike on all ranks."""
    draw = numpy.random.default_rng(0)
    return [draw.standard_normal(shape, "float32") / shape[0] ** 0.5 for shape in _shapes(width)]


def _batch() -> tuple[Any, Any]:
    """Others on each rank."""
    draw = numpy.random.default_rng(dist.get_rank())
    return draw.standard_normal((BATCH, INPUTS), "float32"), draw.standard_normal((BATCH, OUTPUTS), "float32")


def _jax(weights: Sequence[Any], bridge: Bridge | None) -> Callable[[], None]:
    jax = needed("jax")
    jnp, (x, y) = jax.numpy, _batch()

    def loss(w: Any) -> Any:
        hidden = jnp.tanh(jnp.tanh(x @ w[0] + w[1]) @ w[2] + w[3])
        return ((hidden @ w[4] + w[5] - y) ** 2).mean()

    def update(w: Any) -> Any:
        gradients = jax.grad(loss)(w)
        means = gradients if bridge is None else bridge(gradients)
        return [a - step.RATE * g for a, g in zip(w, means, strict=True)]

    compiled, held = jax.jit(update), [jnp.asarray(a) for a in weights]

    def one() -> None:
        held[:] = jax.block_until_ready(compiled(held))

    return one


def _tensorflow(weights: Sequence[Any], bridge: Bridge | None) -> Callable[[], None]:
    tf = needed("tensorflow")
    variables, (x, y) = [tf.Variable(a) for a in weights], map(tf.constant, _batch())

    @tf.function  # type: ignore[untyped-decorator, unused-ignore]
    def update() -> None:
        with tf.GradientTape() as tape:
            w = variables
            hidden = tf.tanh(tf.tanh(x @ w[0] + w[1]) @ w[2] + w[3])
            loss = tf.reduce_mean((hidden @ w[4] + w[5] - y) ** 2)
        gradients = tape.gradient(loss, variables)
        means = gradients if bridge is None else bridge(gradients)
        for variable, gradient in zip(variables, means, strict=True):
            variable.assign_sub(step.RATE * gradient)

    def one() -> None:
        update()

    return one


def _keras(weights: Sequence[Any], codec: str | None) -> tuple[Callable[[], None], Bridge | None]:
    keras = needed("keras")
    layers = [keras.layers.Dense(len(bias), activation="tanh") for bias in weights[1:-2:2]]
    model = keras.Sequential([keras.Input((INPUTS,)), *layers, keras.layers.Dense(OUTPUTS)])
    model.set_weights(weights)
    model.compile(keras.optimizers.SGD(step.RATE), "mse")
    bridge, (x, y) = None if codec is None else distribute(model, codec), _batch()

    def one() -> None:
        model.train_on_batch(x, y)

    return one, bridge


def _passing(framework: str, label: str, arrays: Sequence[Any]) -> Callable[[], None]:
    """What hands arrays over to torch and back, or copies as many bytes."""
    if label == COPIED:
        tensors = [torch.from_numpy(a) for a in arrays]
        copies = [torch.empty_like(t) for t in tensors]
        return lambda: torch._foreach_copy_(copies, tensors)
    module = needed(framework)
    given = [module.numpy.asarray(a) if framework == "jax" else module.constant(a) for a in arrays]
    known = framework_of(given[0])

    def passed(arrays: Sequence[Any]) -> list[Any]:
        if label == HANDED_COMPILED:
            return known.call(lambda tensors: tensors, arrays)
        return [known.from_torch(known.to_torch(a)) for a in arrays]

    program: Callable[[Sequence[Any]], list[Any]] = passed
    if label == HANDED_COMPILED:
        program = module.jit(passed) if framework == "jax" else module.function(passed, autograph=False)

    def one() -> None:
        found = program(given)
        if framework == "jax":
            module.block_until_ready(found)

    return one
