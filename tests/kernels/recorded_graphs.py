"""CUDA graphs without a GPU: what is launched on the CPU is recorded, and a replay launches it again, to the address.

Kernels are Triton's, in its interpreter. While a graph is captured nothing is executed on a GPU; here it is executed,
and then all that was there before becomes what it was. What a GPU does besides, such as streams, is for tests/gpu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from on_gpu import on_gpu
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import InterpretedFunction

from gradwire.engine import Engine
from gradwire.graphs import Graphs
from gradwire.kernels.recording import tensors_in
from gradwire.unit import UnitResult


class RecordedGraph:
    """In the place of torch.cuda.CUDAGraph."""

    capturing: RecordedGraph | None = None

    def __init__(self) -> None:
        self._work: list[Callable[[], object]] = []
        self._before: dict[int, tuple[Any, Any]] = {}  # storages that were there, and what they held
        self._made: dict[int, object] = {}  # storages that came with the capture; their tensors are held

    def pool(self) -> None:
        """Memory is torch's own here."""

    def capture_begin(self, **options: object) -> None:
        RecordedGraph.capturing = self
        self._mode = _Operations(self)
        self._mode.__enter__()

    def capture_end(self) -> None:
        self._mode.__exit__(None, None, None)
        RecordedGraph.capturing = None
        for storage, held in self._before.values():
            storage.copy_(held)

    def replay(self) -> None:
        for work in self._work:
            work()

    def writes(self, tensors: object) -> None:
        """These tensors are written to: note what they hold."""
        for tensor in tensors_in(tensors):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._made:
                self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))

    def made(self, found: object, given: object) -> bool:
        """Whether there are new tensors among the results."""
        old = {t.untyped_storage().data_ptr() for t in tensors_in(given)}
        fresh = {t.untyped_storage().data_ptr(): t for t in tensors_in(found)}
        self._made |= {place: t for place, t in fresh.items() if place not in old}
        return not fresh.keys() <= old


class _Operations(TorchDispatchMode):
    """Torch's operations, into a graph."""

    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, graph = kwargs or {}, self._graph
        given = [*args, *kwargs.values()]
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        graph.writes([named[name] for name in written if name in named])
        found = func(*args, **kwargs)
        new = graph.made(found, given)
        if written or (new and "empty" not in func.__name__):  # else it is a view, or holds nothing
            made = list(tensors_in(found))

            def again() -> None:
                for to, tensor in zip(made, tensors_in(func(*args, **kwargs)), strict=True):
                    if to.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
                        to.copy_(tensor)

            graph._work.append(again)
        return found


class _Torch:
    """Torch, as `gradwire.graphs` sees it."""

    class cuda:
        CUDAGraph = RecordedGraph
        Stream = staticmethod(lambda device: None)
        stream = staticmethod(lambda stream: nullcontext())
        synchronize = staticmethod(lambda device: None)
        current_device = staticmethod(lambda: 0)
        graph_pool_handle = staticmethod(lambda: None)

    device = staticmethod(lambda *where: torch.device("cpu"))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def recorded_graphs() -> Iterator[None]:
    """Inside, gradients on the CPU are treated as those on a GPU are, and graphs are captured and replayed."""
    run = InterpretedFunction.run

    def launched(function: Any, *args: Any, **options: Any) -> Any:
        graph = RecordedGraph.capturing
        if graph is None:
            return run(function, *args, **options)
        with _disable_current_modes():
            graph.writes(args)
            run(function, *args, **options)
        graph._work.append(lambda: run(function, *args, **options))
        return None

    with pytest.MonkeyPatch.context() as patch, on_gpu():
        patch.setattr("gradwire.graphs.torch", _Torch())
        patch.setattr(Graphs, "serve", lambda graphs, x: graphs.wanted and x.numel() > 0)
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(InterpretedFunction, "run", launched)
        yield


def finish_step(engine: Engine, result: UnitResult) -> None:
    """As on a GPU: what a bad step wrote is taken back there, and memories are turned in any case."""
    engine._on_device(result.flags, result.writes)
    for one in result.writes:
        one.commit(torch.tensor(True))
    engine._observed = {}
    engine.step += 1
