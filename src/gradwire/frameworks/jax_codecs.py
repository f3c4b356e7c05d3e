"""Codecs inside compiled JAX programs: bytes of the codec's size travel between the devices of a mesh axis.

    reduce = over_axis("blockint(bits=8)", axis="data", workers=4)     # an optax.GradientTransformation
    optimizer = optax.chain(reduce, optax.sgd(0.1))
    state = optimizer.init(parameters)
    specs = state_specs(state, "data")                                 # for shard_map's in_specs and out_specs

`update` belongs inside `jax.shard_map`, where each device has gradients of its own. Casts, block integers and top-k go
by scatter-reduce-gather (`all_to_all`, a sum in float32 by the owner of each shard, `all_gather`); PowerSGD by sums of
its factors. Blocks, rounding, selection and error feedback are those of the torch codecs under that strategy: the
deterministic ones give the same result bit for bit. What is kept is a pytree, `State`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import torch

from gradwire.codecs.baseline.bf16 import BF16
from gradwire.codecs.baseline.fp16 import FP16
from gradwire.codecs.baseline.none import NoCompression
from gradwire.codecs.lowrank.powersgd import PowerSGD
from gradwire.codecs.quantization.blockint import BlockInt
from gradwire.codecs.sparsification.topk import TopK
from gradwire.collectives.scatter_reduce_gather import shard_length
from gradwire.core.codec import Codec, codecs
from gradwire.core.errors import Incompatible
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.registry import to_spec
from gradwire.engine import Engine
from gradwire.frameworks.arrays import needed
from gradwire.frameworks.bridge import matrix_shape
from gradwire.kernels.grid import Rule
from gradwire.kernels.random import normal

jax, optax = needed("jax"), needed("optax")
jnp, lax, P = jax.numpy, jax.lax, jax.sharding.PartitionSpec

Array = Any  # of JAX


class State(NamedTuple):
    """What a reduction keeps: of each device its own row, the factors alike on all."""

    error: Array | None  # (workers, elements): what each worker has left out
    owner_error: Array | None  # (workers, shard): what the owner of each shard lost when it encoded the mean
    factors: tuple[Array, ...]  # PowerSGD's right factors, (width, rank) each


def over_axis(
    codec: str | Codec, *, axis: str, workers: int, memory: str = "default", tensors: str = "matrices", seed: int = 0
) -> Any:
    """An `optax.GradientTransformation` that replaces gradients by their mean over a mesh axis, compressed.

    Args:
        codec: `none`, `bf16`, `fp16`, `blockint` of 8, 4 or 2 bits, `topk` or `powersgd`, or a spec of one of these.
        axis: the name of the mesh axis, inside `shard_map`.
        workers: devices along it.
        memory: ``"default"`` (what the codec asks for) or ``"none"``.
        tensors: ``"matrices"`` sends vectors and tiny tensors as they are, but for casts; ``"all"`` compresses all.
        seed: of PowerSGD's first factors.
    """
    built = codecs.build(codec) if isinstance(codec, str) else codec
    wire = _wire(built)
    if isinstance(built, PowerSGD) and tensors != "matrices":
        raise Incompatible("over_axis: powersgd factors matrices, and sends all else as it is; use tensors='matrices'")
    strategy = "auto" if wire is None else "scatter_reduce_gather"
    engine = Engine(built, memory=memory, strategy=strategy, tensors=tensors, workers=workers)
    return _transformation(engine, built, wire, axis, seed)


def _transformation(engine: Engine, codec: Codec, wire: _Wire | None, axis: str, seed: int) -> Any:
    if to_spec(engine.memory) not in ("none", "error_feedback"):
        raise Incompatible(
            f"over_axis: memory {to_spec(engine.memory)!r} has no form in a compiled program; use 'default' or 'none'"
        )

    def init(parameters: Any) -> State:
        unit = _Unit.of(parameters, engine)
        keeps = engine.memory.has_state and unit.numel > 0
        error = jnp.zeros((engine.workers, unit.numel)) if keeps else None
        shard = shard_length(codec, unit.numel, engine.workers)
        owner_error = jnp.zeros((engine.workers, shard)) if keeps and wire is not None else None
        factors = _first_factors(unit.picked, codec, seed) if isinstance(codec, PowerSGD) else ()
        return State(error, owner_error, factors)

    def update(updates: Any, state: State, params: Any = None) -> tuple[Any, State]:
        unit = _Unit.of(updates, engine)
        _check(unit, state, axis, engine.workers)
        x = unit.read(updates)
        compensated = x if state.error is None else x + state.error[0]
        means = partial(_sum, axis=axis, share=1.0 / engine.workers)
        if wire is not None:
            mean, error, owner_error = _scatter_reduce_gather(wire, compensated, state, axis, engine.workers, codec)
            new = State(error, owner_error, ())
            rest = means(unit.rest(updates))
        elif isinstance(codec, PowerSGD):
            mean, rest, new = _powersgd(compensated, unit, updates, state, means)
        else:
            mean, rest, new = *_split(means(jnp.concatenate([x, unit.rest(updates)])), unit.numel), state
        finite = jnp.isfinite(mean).all() & jnp.isfinite(rest).all()
        return unit.build(updates, mean, rest), jax.tree.map(partial(jnp.where, finite), new, state)

    return optax.GradientTransformation(init, update)


def _check(unit: _Unit, state: State, axis: str, workers: int) -> None:
    """Refuse, while the program is compiled, what would give wrong means without a word."""
    try:
        devices = lax.axis_size(axis)
    except NameError:
        raise Incompatible(
            f"over_axis: there is no mesh axis {axis!r} here; call update inside jax.shard_map over a mesh that has it"
        ) from None
    if devices != workers:
        raise Incompatible(f"over_axis: the axis {axis!r} has {devices} devices, and workers={workers}; say {devices}")
    if state.error is not None and state.error.shape != (1, unit.numel):
        rows, numel = state.error.shape
        raise Incompatible(
            f"over_axis: a device has {rows} x {numel} elements of the state, and 1 x {unit.numel} were wanted. "
            "Make it with init of parameters with the gradients' shapes, outside of shard_map, and hand "
            "state_specs(state, axis) to in_specs and out_specs."
        )


def state_specs(state: Any, axis: str) -> Any:
    """Where the parts of an optimizer's state lie on the mesh: a `PartitionSpec` for each, as `shard_map` wants them.

    Args:
        state: of a transformation with `over_axis` in it; everything else in it is the same on all devices.
        axis: the name of the mesh axis.
    """

    def specs(part: Any) -> Any:
        if not isinstance(part, State):
            return P()
        error, owner_error = (None if rows is None else P(axis) for rows in (part.error, part.owner_error))
        return State(error, owner_error, tuple(P() for _ in part.factors))

    return jax.tree.map(specs, state, is_leaf=lambda part: isinstance(part, State))


# -------------------------------------------------------------------- a tree as one flat unit


@dataclass(frozen=True)
class _Unit:
    """Which leaves of a tree the codec gets, side by side, and which travel as they are."""

    picked: Layout
    chosen: tuple[int, ...]
    others: tuple[int, ...]

    @classmethod
    def of(cls, tree: Any, engine: Engine) -> _Unit:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
        split = engine.split(
            Layout.of((n, matrix_shape(a.shape, True)) for n, (_, a) in zip(names, leaves, strict=True))
        )
        chosen = tuple(i for i, name in enumerate(names) if name in split.picked.names)
        return cls(split.picked, chosen, tuple(i for i in range(len(names)) if i not in chosen))

    @property
    def numel(self) -> int:
        return self.picked.numel

    def read(self, tree: Any) -> Array:
        return _flat([jax.tree.leaves(tree)[i] for i in self.chosen])

    def rest(self, tree: Any) -> Array:
        return _flat([jax.tree.leaves(tree)[i] for i in self.others])

    def build(self, tree: Any, mean: Array, rest: Array) -> Any:
        leaves, spec = jax.tree.flatten(tree)
        for flat, places in ((mean, self.chosen), (rest, self.others)):
            at = 0
            for i in places:
                piece = flat[at : at + leaves[i].size]
                leaves[i], at = piece.reshape(leaves[i].shape).astype(leaves[i].dtype), at + leaves[i].size
        return jax.tree.unflatten(spec, leaves)


def _flat(arrays: Sequence[Array]) -> Array:
    return jnp.concatenate([jnp.zeros(0, jnp.float32), *(a.astype(jnp.float32).reshape(-1) for a in arrays)])


def _split(flat: Array, at: int) -> tuple[Array, Array]:
    return flat[:at], flat[at:]


def _sum(flat: Array, axis: str, share: float) -> Array:
    """The mean over the axis: shares are added, as the torch side does."""
    return lax.psum(flat * share, axis) if flat.size else flat


# -------------------------------------------------------------------- scatter-reduce-gather


@dataclass(frozen=True)
class _Wire:
    """Rows of float32 as they travel, and back: (rows, numel) <-> (rows, …)."""

    encode: Callable[[Array], Array]
    decode: Callable[[Array, int], Array]


def _scatter_reduce_gather(
    wire: _Wire, x: Array, state: State, axis: str, workers: int, codec: Codec
) -> tuple[Array, Array | None, Array | None]:
    """The mean, and the new errors of sender and owner; steps as in `collectives.scatter_reduce_gather`."""
    numel, shard = x.size, shard_length(codec, x.size, workers)
    if not numel:
        return x, state.error, state.owner_error
    rows = jnp.pad(x, (0, workers * shard - numel)).reshape(workers, shard)
    sent = wire.encode(rows)
    error, owner_error = state.error, state.owner_error
    if error is not None:
        error = (rows - _exactly(wire.decode(sent, shard))).reshape(1, -1)[:, :numel]
    received = lax.all_to_all(sent, axis, 0, 0)
    mean = _divided(_added(_exactly(wire.decode(received, shard))), workers)
    if owner_error is not None:
        mean = mean + owner_error
    again = wire.encode(mean)
    if owner_error is not None:
        inside = lax.axis_index(axis) * shard + jnp.arange(shard) < numel  # what lies behind the end is nobody's
        owner_error = jnp.where(inside, mean - _exactly(wire.decode(again, shard)), 0.0)
    gathered = lax.all_gather(again, axis, axis=0, tiled=True)
    return wire.decode(gathered, shard).reshape(-1)[:numel], error, owner_error


def _added(rows: Array) -> Array:
    """Their sum, one after the other: (1, numel)."""
    total = rows[:1]
    for i in range(1, len(rows)):
        total = total + rows[i : i + 1]
    return total


def _exactly(x: Array) -> Array:
    """Rounded to float32 before it is used: a compiler would keep a product exact in a sum, even behind a barrier."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return lax.bitcast_convert_type(bits ^ _zero(bits), jnp.float32)


def _divided(x: Array, number: float) -> Array:
    """x / number, rounded once: a compiler would multiply by the inverse of a number that all elements share."""
    bits = lax.bitcast_convert_type(jnp.full_like(x, number), jnp.int32)
    return x / lax.bitcast_convert_type(bits ^ _zero(lax.bitcast_convert_type(x, jnp.int32)), jnp.float32)


def _zero(bits: Array) -> Array:
    """Zero, but for one of the many NaN, which stays a NaN with another last bit: no compiler may leave it out."""
    return (bits == 0x7FC00001).astype(jnp.int32)


def _wire(codec: Codec) -> _Wire | None:
    """How the codec's rows travel; None for one that sends sums."""
    if isinstance(codec, BF16 | FP16):
        half = jnp.bfloat16 if isinstance(codec, BF16) else jnp.float16
        return _Wire(  # as bits: a CPU's compiler would send bfloat16 as float32
            lambda rows: lax.bitcast_convert_type(rows.astype(half), jnp.uint16),
            lambda sent, numel: lax.bitcast_convert_type(sent, half).astype(jnp.float32),
        )
    if isinstance(codec, BlockInt) and _plain(codec, "bits", "block") and codec.bits != 6:
        rule, bits = codec.rule(codec.block), codec.bits
        return _Wire(partial(_quantised, rule=rule, bits=bits), partial(_dequantised, rule=rule, bits=bits))
    if isinstance(codec, TopK) and _plain(codec, "ratio", "index"):
        return _Wire(partial(_selected, codec=codec), partial(_scattered, codec=codec))
    if isinstance(codec, NoCompression) or (isinstance(codec, PowerSGD) and _plain(codec, "rank")):
        return None
    raise Incompatible(
        f"over_axis: {codec.spec} has no form inside a compiled JAX program. There are none, bf16, fp16, blockint of "
        "8, 4 or 2 bits that rounds to nearest, topk of 32-bit values and powersgd of a rank; for others use "
        "gradwire.frameworks.bridge."
    )


def _plain(codec: Codec, *free: str) -> bool:
    """Whether all parameters but these are as they are by default."""
    return all(f.name in free or getattr(codec, f.name) == f.default for f in fields(codec))


def _as_bytes(x: Array) -> Array:
    """(rows, n) of any dtype -> (rows, bytes)."""
    return x if x.dtype == jnp.uint8 else lax.bitcast_convert_type(x, jnp.uint8).reshape(len(x), -1)


def _from_bytes(data: Array, dtype: Any) -> Array:
    return lax.bitcast_convert_type(data.reshape(len(data), -1, jnp.dtype(dtype).itemsize), dtype)


def _quantised(rows: Array, rule: Rule, bits: int) -> Array:
    """Scales of all blocks, then packed codes, as `kernels.grid` writes them."""
    numel, width = rows.shape[1], 8 // bits
    blocks = jnp.pad(rows, ((0, 0), (0, -numel % rule.block))).reshape(len(rows), -1, rule.block)
    scales = jnp.maximum(jnp.abs(blocks).max(2), rule.high * 2.0**-126)
    scaled = _exactly(blocks * (rule.high / scales)[..., None])
    codes = jnp.clip(jnp.copysign(jnp.floor(jnp.abs(scaled) + 0.5), scaled), -rule.low, rule.high) + rule.low
    codes = jnp.nan_to_num(codes).astype(jnp.uint8).reshape(len(rows), -1)[:, :numel]
    groups = jnp.pad(codes, ((0, 0), (0, -numel % width))).reshape(len(rows), -1, width)
    packed = groups[..., 0]
    for i in range(1, width):
        packed = packed | (groups[..., i] << (i * bits))
    return jnp.concatenate([_as_bytes(scales), packed], 1)


def _dequantised(data: Array, numel: int, rule: Rule, bits: int) -> Array:
    start = 4 * -(-numel // rule.block)
    scales, packed = _from_bytes(data[:, :start], jnp.float32), data[:, start:]
    codes = jnp.stack([(packed >> (i * bits)) & ((1 << bits) - 1) for i in range(8 // bits)], 2)
    levels = codes.reshape(len(data), -1)[:, :numel].astype(jnp.float32) - rule.low
    blocks = jnp.pad(levels, ((0, 0), (0, -numel % rule.block))).reshape(len(data), -1, rule.block)
    return (blocks * _divided(scales, rule.high)[..., None]).reshape(len(data), -1)[:, :numel]


def _selected(rows: Array, codec: TopK) -> Array:
    """Values of the largest, then their places in 16 or 32 bits."""
    magnitude = lax.bitcast_convert_type(rows, jnp.int32) & 0x7FFFFFFF  # ordered as numbers are, NaN above all
    where = lax.top_k(jnp.minimum(magnitude, 0x7F800001), codec.count(rows.shape[1], Random()))[1]
    values = jnp.take_along_axis(rows, where, 1)
    return jnp.concatenate([_as_bytes(values), _as_bytes(where.astype(_places(rows.shape[1])))], 1)


def _scattered(data: Array, numel: int, codec: TopK) -> Array:
    stop = 4 * codec.count(numel, Random())
    values, where = _from_bytes(data[:, :stop], jnp.float32), _from_bytes(data[:, stop:], _places(numel))
    return jax.vmap(lambda v, w: jnp.zeros(numel, jnp.float32).at[w].set(v))(values, where.astype(jnp.int32))


def _places(numel: int) -> Any:
    return jnp.uint16 if numel <= 1 << 16 else jnp.uint32


# -------------------------------------------------------------------- PowerSGD


def _powersgd(
    x: Array, unit: _Unit, updates: Any, state: State, means: Callable[[Array], Array]
) -> tuple[Array, Array, State]:
    """One step of power iteration for each matrix; the rest travels with the first factors."""
    pieces = [x[at : at + n] for at, n in zip(unit.picked.offsets, unit.picked.sizes, strict=True)]
    matrices = [p.reshape(s.shape[0], -1) for p, s in zip(pieces, unit.picked.segments, strict=True)]
    left = [m @ _revived(q) for m, q in zip(matrices, state.factors, strict=True)]
    answer = means(jnp.concatenate([_flat(left), unit.rest(updates)]))
    sums, rest = _split(answer, sum(p.size for p in left))
    bases = [_orthonormal(p) for p in _like(sums, left)]
    own = [m.T @ p for m, p in zip(matrices, bases, strict=True)]
    shared = _like(means(_flat(own)), own)
    sent = _flat([p @ q.T for p, q in zip(bases, own, strict=True)])
    mean = _flat([p @ q.T for p, q in zip(bases, shared, strict=True)])
    error = None if state.error is None else (x - sent)[None]
    return mean, rest, State(error, state.owner_error, tuple(shared))


def _like(flat: Array, arrays: Sequence[Array]) -> list[Array]:
    """The pieces of a flat array, shaped as these."""
    ends = [sum(a.size for a in arrays[: i + 1]) for i in range(len(arrays))]
    return [flat[end - a.size : end].reshape(a.shape) for a, end in zip(arrays, ends, strict=True)]


def _revived(factor: Array) -> Array:
    """Columns scaled to a largest magnitude of 1; fixed dense ones take the place of zeros, which lead nowhere."""
    largest = jnp.abs(factor).max(0)
    waves, places = (jnp.arange(1.0, n + 1) for n in factor.shape[::-1])
    return jnp.where(largest == 0, jnp.cos(jnp.outer(places, waves)), factor / jnp.where(largest == 0, 1.0, largest))


def _orthonormal(left: Array) -> Array:
    """Gram and Schmidt, each column twice; one that the others span becomes zero."""
    columns: list[Array] = []
    for i in range(left.shape[1]):
        column, length = left[:, i], jnp.linalg.norm(left[:, i])
        for _ in range(2):
            for other in columns:
                column = column - other * (other @ column)
        found = jnp.linalg.norm(column)
        spanned = found <= 1e-6 * length
        columns.append(jnp.where(spanned, 0.0, column / jnp.where(spanned, 1.0, found)))
    return jnp.stack(columns, 1)


def _first_factors(picked: Layout, codec: PowerSGD, seed: int) -> tuple[Array, ...]:
    """As the torch codec begins, drawn by the parameter's name."""
    found = []
    for segment in picked.segments:
        height, width = segment.shape[0], segment.numel // segment.shape[0]
        shape, stream = (width, min(codec.rank, height, width)), Random(seed).shared(f"powersgd/{segment.name}")
        found.append(jnp.asarray(normal(stream, shape, torch.device("cpu")).numpy()))
    return tuple(found)
