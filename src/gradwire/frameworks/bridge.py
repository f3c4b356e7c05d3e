"""The bridge: gradients of any framework are reduced over the ranks of a torch.distributed group, compressed.

    bridge = Bridge("topk(ratio=0.01)")        # in a process of torchrun, after init_process_group("gloo")
    parameters = bridge.broadcast(parameters)  # rank 0's, for all
    gradients = bridge(gradients)              # in each step: the mean, as arrays of the same framework

Trees go in and come out, see `trees`; arrays change hands without a copy where the framework allows, see `arrays`. The
arrays of a step are put side by side in units of compression, which is the one copy that is made; an array that fills a
unit alone is not copied at all. Inside `jax.jit` and `tf.function` the program calls back to Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire import checkpoint
from gradwire.collectives.channel import check_agreement
from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.core.gradient import check_gradient
from gradwire.core.layout import Layout
from gradwire.core.registry import to_spec
from gradwire.engine import Engine
from gradwire.frameworks.arrays import ALIGNMENT, as_it_is
from gradwire.frameworks.trees import Tree
from gradwire.memory.base import Memory
from gradwire.session import Session, group_of, warn_if_idle
from gradwire.trainers import rank_files

UNIT_BYTES = 25 << 20  # as DDP's buckets: one is encoded while another is on the wire


@dataclass(frozen=True)
class Kind:
    """What must not change from step to step: names, shapes and dtypes."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, names: Sequence[str], tensors: Sequence[Tensor]) -> Kind:
        return cls(tuple(names), tuple(tuple(t.shape) for t in tensors), tuple(t.dtype for t in tensors))

    def __str__(self) -> str:
        each = zip(self.names, self.shapes, self.dtypes, strict=True)
        return ", ".join(f"{n or 'the array'} {str(d).removeprefix('torch.')}{list(s)}" for n, s, d in each)


@dataclass(frozen=True)
class _Unit:
    """Arrays that are compressed together, by their places in the tree."""

    members: tuple[int, ...]
    layout: Layout


class Bridge:
    """Reduce gradients of NumPy, torch, JAX or TensorFlow over the ranks, through a codec and its memory.

    Args:
        codec: a codec or its spec, such as ``"topk(ratio=0.01)"``; all ranks must ask for the same.
        memory: ``"default"`` (what the codec asks for), ``"none"``, or a memory or its spec.
        strategy: ``"auto"``, or a strategy or its spec.
        tensors: ``"matrices"`` sends vectors and tiny tensors as they are; ``"all"`` compresses them too.
        seed: of all randomness, the same on all ranks.
        channels_last: whether the last dimension of a kernel counts its outputs; None: as the framework writes kernels.
        process_group: the ranks that train together; None for all.

    Example:
        >>> import numpy, torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # with torchrun: no arguments
        >>> bridge = Bridge("topk(ratio=0.01)")
        >>> bridge({"w": numpy.ones(3, "float32")})  # one rank: its own gradients are the mean
        {'w': array([1., 1., 1.], dtype=float32)}
        >>> bridge.rank, bridge.size, bridge.stats()["codec"]
        (0, 1, 'topk')
        >>> bridge.load_state_dict(bridge.state_dict())
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        codec: str | Codec,
        *,
        memory: str | Memory = "default",
        strategy: str | Strategy = "auto",
        tensors: str = "matrices",
        seed: int = 0,
        channels_last: bool | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self._group = group_of(process_group, "Bridge")
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self.engine = Engine(
            codec,
            memory=memory,
            strategy=strategy,
            tensors=tensors,
            seed=seed,
            ranks=(self.rank,),
            workers=self.size,
        )
        self._channels_last = channels_last
        self._kind: Kind | None = None  # known from the first gradients on
        self._units: tuple[_Unit, ...] = ()
        self._session: Session | None = None
        warn_if_idle(self.engine, "gradients come back as they are", stacklevel=2)

    # ---------------------------------------------------------------- a step

    def __call__(self, gradients: Any, *, learning_rate: float | None = None, loss_scale: Any = 1.0) -> Any:
        """Reduce the gradients of a step to their mean over the ranks. All ranks must call this alike.

        Args:
            gradients: arrays of one framework, in a list, tuple, dict or whatever JAX knows as a tree.
            learning_rate: what they will be multiplied by, for memories that follow it.
            loss_scale: what the loss was multiplied by: a number, or an array of the same framework that holds one.

        Returns:
            The same tree, of arrays of the same framework.
        """
        return as_it_is(self._mean)(gradients, learning_rate, loss_scale)

    def _mean(self, gradients: Any, learning_rate: float | None, loss_scale: Any) -> Any:
        if self.engine.memory.by_learning_rate and learning_rate is None:
            memory = to_spec(self.engine.memory)
            raise ConfigError(f"Bridge: memory {memory!r} follows the learning rate; pass learning_rate=...")
        tree = Tree.of(gradients, "Bridge")
        if self.size == 1:
            return tree.build(tree.arrays)  # rows that TensorFlow lists become arrays, as with more ranks

        count, framework = len(tree.arrays), tree.framework
        arrays = [*tree.arrays] if isinstance(loss_scale, int | float) else [*tree.arrays, loss_scale]

        def reduced(tensors: Sequence[Tensor]) -> list[Tensor]:
            rate = learning_rate if self.engine.memory.by_learning_rate else None
            scale = float(tensors[count]) if len(tensors) > count else loss_scale
            means = self._reduce(tree, tensors[:count], scale, 1.0 if rate is None else rate)
            return [*means, *tensors[count:]]

        if any(framework.is_traced(array) for array in arrays):
            return tree.build(framework.call(reduced, arrays)[:count])
        means = reduced([framework.to_torch(array) for array in arrays])
        return tree.build([framework.from_torch(mean) for mean in means[:count]])

    def _reduce(self, tree: Tree, tensors: Sequence[Tensor], loss_scale: float, learning_rate: float) -> list[Tensor]:
        session = self._ready(tree, tensors)
        session.begin_step(loss_scale, learning_rate)
        means = list(tensors)
        with torch.no_grad():
            for unit in self._units:
                pieces = [tensors[i].reshape(-1) for i in unit.members]
                flat = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
                out = flat if len(pieces) > 1 else torch.empty_like(flat)  # never the caller's memory
                session.reduce(flat, unit.layout, out, more=unit is not self._units[-1])
                for i, piece in zip(unit.members, unit.layout.split(out), strict=True):
                    means[i] = piece.view(tensors[i].shape)
            session.commit()
        session.wait()
        return means

    def _ready(self, tree: Tree, tensors: Sequence[Tensor]) -> Session:
        """The session; with the first gradients, the ranks agree on what they look like."""
        kind = Kind.of(tree.names, tensors)
        if self._session is None:
            for name, tensor in zip(tree.names, tensors, strict=True):
                check_gradient(name or "the array", tensor)
            devices = sorted({str(tensor.device) for tensor in tensors})
            if len(devices) > 1:
                raise Incompatible(f"Bridge: the arrays of a step must be on one device, and are on {devices}")
            last = tree.framework.channels_last if self._channels_last is None else self._channels_last
            self._kind, self._units = kind, _units(kind, last)
            self._check_names(self.state_dict())  # one that was loaded before
            device = tensors[0].device
            self._session = Session(self.engine, self._group, device, who="Bridge", set_up=f", gradients {kind}")
        elif kind != self._kind:
            raise Incompatible(
                f"Bridge: the gradients were {self._kind}, and are now {kind}. A bridge serves one model: make another "
                "for other gradients."
            )
        return self._session

    def broadcast(self, arrays: Any) -> Any:
        """Give all ranks the first rank's arrays, parameters say, of any dtypes; returns the same tree.

        Args:
            arrays: a tree of as many arrays, with the same shapes, on each rank; they are not changed.
        """
        tree = Tree.of(arrays, "broadcast")
        if self.size == 1:
            return arrays
        tensors = [tree.framework.to_torch(array) for array in tree.arrays]
        check_agreement(self._group, f"arrays {Kind.of(tree.names, tensors)}", "broadcast")
        # a copy of each in one row of bytes: gloo does not send all dtypes
        parts = [torch.nn.functional.pad(_bytes(t), (0, -t.nbytes % ALIGNMENT)) for t in tensors]
        row = torch.cat(parts)
        dist.broadcast(row, dist.get_global_rank(self._group, 0), group=self._group)
        pieces = zip(torch.split(row, [len(part) for part in parts]), tensors, strict=True)
        found = [piece[: t.nbytes].view(t.dtype).view(t.shape) for piece, t in pieces]
        return tree.build([tree.framework.from_torch(t) for t in found])

    def average(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """The mean of each metric over the ranks, as floats, alike on all of them. All ranks must call this alike.

        Args:
            metrics: numbers by name, such as the logs of an epoch.
        """
        names = sorted(metrics)
        values = torch.tensor([float(metrics[name]) for name in names], dtype=torch.float64)
        if self.size > 1:
            check_agreement(self._group, f"metrics {names}", "average")
            dist.all_reduce(values, group=self._group)
        return dict(zip(names, (values / self.size).tolist(), strict=True))

    # ---------------------------------------------------------------- state and statistics

    @property
    def units(self) -> list[list[str]]:
        """The names of the arrays in each unit of compression, in order; known after the first step."""
        return [list(unit.layout.names) for unit in self._units]

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain values, by the names of arrays. Save one file for each rank."""
        return checkpoint.save(self.engine)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state.

        Args:
            state: of this rank; or, after a change of the number of ranks, the list of all ranks' states.
        """
        for one in [state] if isinstance(state, Mapping) else state:
            self._check_names(one)
        checkpoint.load(self.engine, state)

    def _check_names(self, state: Mapping[str, Any]) -> None:
        if self._kind is not None:
            checkpoint.check_names(state, dict(zip(self._kind.names, self._kind.shapes, strict=True)))

    def save(self, folder: str | Path) -> None:
        """Save this rank's state in the folder of a checkpoint, as a file of its own; all ranks must call this.

        Args:
            folder: made if it is not there.
        """
        rank_files.save(self, folder)

    def load(self, folder: str | Path) -> None:
        """Continue from what all ranks have saved there, of this number or another.

        Args:
            folder: of the checkpoint.
        """
        rank_files.load(self, folder)

    def stats(self) -> dict[str, Any]:
        """Tell what has happened since this was made; see the handle of `attach`."""
        if self._session is None:
            about = {"codec": self.engine.codec.spec, "memory": to_spec(self.engine.memory), "workers": self.size}
            return about | {"steps": 0, "sent_bytes": 0, "sent_bytes_per_step": 0.0}
        return self._session.stats()


def matrix_shape(shape: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    """The shape that codecs see: a kernel whose last dimension counts outputs is a matrix of inputs × outputs.

    Args:
        shape: of an array.
        channels_last: whether the framework writes kernels so.

    Example:
        >>> matrix_shape((3, 3, 64, 128), True), matrix_shape((128, 64, 3, 3), False)
        ((576, 128), (128, 64, 3, 3))
    """
    if not channels_last or len(shape) < 3:
        return tuple(shape)
    return torch.Size(shape[:-1]).numel(), shape[-1]


def _units(kind: Kind, channels_last: bool) -> tuple[_Unit, ...]:
    """Arrays of one dtype side by side, up to a size. First those that leave what follows aligned: no copy for them."""
    sizes = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in zip(kind.shapes, kind.dtypes, strict=True)]
    units: list[list[int]] = []
    for dtype in dict.fromkeys(kind.dtypes):
        members = [i for i, d in enumerate(kind.dtypes) if d == dtype]
        full = UNIT_BYTES  # a new unit begins
        for i in sorted(members, key=lambda i: sizes[i] % ALIGNMENT != 0):
            if full + sizes[i] > UNIT_BYTES:
                units.append([])
                full = 0
            units[-1].append(i)
            full += sizes[i]
    shapes = [matrix_shape(shape, channels_last) for shape in kind.shapes]
    return tuple(_Unit(tuple(unit), Layout.of((kind.names[i], shapes[i]) for i in unit)) for unit in units)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
