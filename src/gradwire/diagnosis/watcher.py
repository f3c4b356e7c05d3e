"""What one rank sees of its own DDP: DDP's clocks, the optimizer's steps, waits for the data loader.

DDP times its passes and its communication by itself, on GPUs by events, and tells on request. So nothing is put in the
way of gradients: no hook, no collective, and the numbers are those of the job. A step ends with `optimizer.step()`.
What DDP says of a step is there when the next forward pass has begun; on a GPU it waits for its events then, so it is
asked to look at its clocks every few steps only.

Ranks tell each other by the store of the process group, which waits for nobody, and never by a collective: a rank that
has ended, or takes other turns than the others, cannot make them hang.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from gradwire.diagnosis.surroundings import of_rank
from gradwire.diagnosis.watch import CPU, Settings, Step, Watch

STEPS = 30
SKIPPED = 5  # of the first: DDP rebuilds its buckets, memory is allocated, kernels are chosen
GPU_EVERY = 5  # steps after which DDP looks at its clocks on a GPU
DDP_EVERY = 100  # as it does by itself
NANO = 1e-9
ROUNDS = 50  # steps in which rank 0 listens to other hosts
PATIENCE = 3.0  # seconds for which a rank that leaves waits for others to tell
GLANCE = 0.05
FORWARD_SHARE = 1 / 3  # of a micro-batch of which DDP tells nothing

# watchers by process group: its ranks make theirs in the same order
_counts: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """What goes wrong with watching ends it, and not the job; a copy of the process (a fork) does not watch."""

    @wraps(method)
    def guarded(self: Watcher, *args: Any) -> None:
        if os.getpid() != self._process:
            return
        try:
            method(self, *args)
        except Exception as problem:
            self.done = True
            self._stop()
            print(f"gradwire doctor: rank {self.rank} is not watched any more: {problem!r}", file=sys.stderr)

    return guarded


class Watcher:
    """Watches one DDP model on this rank for some steps, and tells the others.

    Args:
        model: that is trained.
        steps: to be measured, after the first few.
        tell: called with what this rank saw; on rank 0, also with what it hears of ranks on other hosts.
        called: what the job calls, if not the model itself: a hook on a model that is compiled would be compiled, too.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        steps: int = STEPS,
        tell: Callable[[Watch], None] = lambda watch: None,
        called: nn.Module | None = None,
    ) -> None:
        self.steps, self._tell, self.models = steps, tell, 1
        self._model: Callable[[], Any] = weakref.ref(model)  # Any: DDP's clocks are not typed
        group = model.process_group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        store = dist.distributed_c10d._get_default_store()
        number = _counts[group] = _counts.get(group, 0) + 1
        self._store = PrefixStore(f"gradwire_doctor/{group.group_name}/{number}", store)
        self._parameters = {id(p) for p in model.parameters()}
        self._about = of_rank(model)
        self._gpu = self._about["settings"]["device"] != CPU
        self._seen: list[Step] = []
        self._clocks: tuple[int, ...] = ()  # what DDP said last
        self._unheard = set(range(self.ranks)) - {self.rank}
        self._rounds = self._count = self._forwards = 0
        self._micro = 1
        self._ended = self._began = 0.0  # the optimizer's last step, and the one under way
        self._last: tuple[float, float, float, float, float] | None = None  # a step of which DDP has not told yet
        self._spent = dict.fromkeys(("data", "optimizer", "buffers", "session"), 0.0)
        self._events: list[tuple[Any, Any]] = []  # of the optimizer's last two steps
        self._unused = 0
        self._loader: dict[str, Any] = {}
        self.done = False
        self._process = os.getpid()
        self._cleanups = list(self._start(model, model if called is None else called))

    def _start(self, model: Any, called: nn.Module) -> Iterator[Callable[[], None]]:
        model._set_ddp_runtime_logging_sample_rate(GPU_EVERY if self._gpu else 1)
        yield register_optimizer_step_pre_hook(self._before_optimizer).remove
        yield register_optimizer_step_post_hook(self._after_optimizer).remove
        yield called.register_forward_pre_hook(self._before_forward).remove
        yield _timed(dataloader._BaseDataLoaderIter, "__next__", self._loaded)
        if not self._gpu:
            yield _timed(DistributedDataParallel, "_sync_buffers", self._sent_buffers)
        atexit.register(self.end)

    # ---------------------------------------------------------------- what is seen

    @_harmless
    def _before_forward(self, module: Any, inputs: Any) -> None:
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self._forwards += 1

    @_harmless
    def _loaded(self, seconds: float, loader: Any) -> None:
        self._spent["data"] += seconds
        self._loader = {"loader_workers": loader._num_workers, "pin_memory": bool(loader._pin_memory)}

    def _sent_buffers(self, seconds: float, model: Any) -> None:
        self._spent["buffers"] += seconds if model is self._model() else 0.0

    def _waited(self, seconds: float, session: Any) -> None:
        self._spent["session"] += seconds

    @_harmless
    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._began = time.perf_counter()
        if self._gpu:
            event: Any = torch.cuda.Event
            self._events.append((event(enable_timing=True), event(enable_timing=True)))
            self._events[-1][0].record()

    @_harmless
    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._spent["optimizer"] += time.perf_counter() - self._began
        if self._gpu and self._events:
            self._events[-1][1].record()
            del self._events[:-2]
        if any(id(p) in self._parameters for group in optimizer.param_groups for p in group["params"][:1]):
            self._listen() if self.done else self._end_step()

    def _end_step(self) -> None:
        """A step has ended; DDP can tell of the one before."""
        model, now, before = self._model(), time.perf_counter(), self._ended
        if model is None:
            return
        if self._last is not None and self._count > SKIPPED:
            self._book(model._get_ddp_logging_data(), *self._last)
        self._ended, self._count = now, self._count + 1
        if self._count == 1:  # whoever compresses has attached by now
            self._watch_session()
        self._last = (now - before, *self._spent.values()) if before else None  # type: ignore[assignment]
        self._micro, self._forwards = max(1, self._forwards), 0
        self._spent = dict.fromkeys(self._spent, 0.0)
        if len(self._seen) >= self.steps:
            self._publish()

    def _watch_session(self) -> None:
        """Where gradwire compresses: DDP takes for computing what its hook waits for at the end of backward."""
        module = sys.modules.get("gradwire.session")  # not imported here: most jobs do without
        if module is not None and not self._gpu:
            self._cleanups.append(_timed(vars(module)["Session"], "wait", self._waited))

    def _book(
        self, told: dict[str, Any], seconds: float, data: float, optimizer: float, buffers: float, session: float
    ) -> None:
        names = ("forward_compute_time", "backward_compute_time", "backward_comm_time")
        clocks = tuple(told.get(name, 0) for name in names)
        if clocks == self._clocks or clocks[1] <= 0:  # DDP has not looked, or exchanged nothing
            return
        self._clocks = clocks
        forward, backward, exchange = (NANO * c for c in clocks)
        exposed = exchange - NANO * told["backward_compute_comm_overlap_time"] if self.ranks > 1 else 0.0
        # DDP tells of the last micro-batch, and buffers go around before each
        forward, exposed = max(0.0, forward - buffers / self._micro), max(0.0, exposed) + buffers + session
        backward = max(0.0, backward - session)
        if len(self._events) > 1 and self._events[0][1].query():
            optimizer = self._events[0][0].elapsed_time(self._events[0][1]) / 1e3
        left = seconds - forward - backward - exposed - optimizer - data
        more = min(max(0.0, left), (self._micro - 1) * (forward + backward))  # of other micro-batches
        self._unused = max(self._unused, told.get("unused_parameter_size", 0))
        self._seen.append(
            Step(
                seconds=seconds,
                forward=forward + FORWARD_SHARE * more,
                backward=backward + (1 - FORWARD_SHARE) * more,
                exposed=exposed,
                optimizer=optimizer,
                data=data,
            )
        )

    # ---------------------------------------------------------------- what is told

    def watch(self) -> Watch:
        """What was seen up to now."""
        model = self._model()
        told = {} if model is None else model._get_ddp_logging_data()
        sizes = told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or ""
        settings = Settings(
            **self._about["settings"],
            **self._loader,
            bucket_bytes=tuple(int(size) for size in sizes.split(",") if size.strip()),
            bucket_cap_bytes=told.get("bucket_cap_bytes", 0),
            find_unused_parameters=bool(told.get("find_unused_parameters")),
            gradient_as_bucket_view=bool(told.get("gradient_as_bucket_view")),
            hook=told.get("comm_hook") or None,
            unused_bytes=self._unused,
            anomaly_detection=torch.is_anomaly_enabled(),
        )
        own = {name: value for name, value in self._about.items() if name != "settings"}
        return Watch(
            **own,
            rank=self.rank,
            ranks=self.ranks,
            micro_batches=self._micro,
            wanted=self.steps,
            steps=tuple(self._seen),
            settings=settings,
            models=self.models,
        )

    def everyone(self, patience: float = PATIENCE) -> list[Watch]:
        """What all ranks saw, as far as they have told by now, or tell in a while."""
        found, until = {self.rank: self.watch()}, time.monotonic() + patience
        while len(found) < self.ranks:
            found |= {w.rank: w for w in self._told_by(set(range(self.ranks)) - set(found))}
            if time.monotonic() > until:
                break
            time.sleep(GLANCE if len(found) < self.ranks else 0.0)
        return [found[rank] for rank in sorted(found)]

    @_harmless
    def end(self) -> None:
        """Stop watching, and tell what was seen. A rank that leaves early does so by itself."""
        if not self.done:
            self._publish()
        if self._unheard and self._rounds < ROUNDS and self._hears():
            for watch in self.everyone():
                self._tell(watch)
        self._stop()

    def _publish(self) -> None:
        self.done = True
        watch = self.watch()
        with suppress(Exception):  # the store is gone with the rank that kept it
            self._store.set(str(self.rank), watch.to_json())
        self._tell(watch)
        if not self._hears():
            self._stop()

    def _hears(self) -> bool:
        """Whether this rank collects what others tell: rank 0, of other hosts."""
        return self.rank == 0 and self._about["local_ranks"] < self.ranks

    def _listen(self) -> None:
        """Once a step, for a while: the others have seen as many steps, so they have told, or will at once."""
        for watch in self._told_by(self._unheard):
            self._unheard.discard(watch.rank)
            self._tell(watch)
        self._rounds += 1
        if not self._unheard or self._rounds >= ROUNDS:
            self._stop()

    def _told_by(self, ranks: set[int]) -> Sequence[Watch]:
        found = []
        with suppress(Exception):  # the store is gone
            for rank in sorted(ranks):
                if self._store.check([str(rank)]):
                    found.append(Watch.from_json(self._store.get(str(rank))))
        return found

    def _stop(self) -> None:
        atexit.unregister(self.end)
        for cleanup in self._cleanups:
            cleanup()
        self._cleanups = []
        if (model := self._model()) is not None:
            model._set_ddp_runtime_logging_sample_rate(DDP_EVERY)


def _timed(cls: Any, name: str, told: Callable[[float, Any], None]) -> Callable[[], None]:
    """Time a method without arguments, `told` of the object too; returns what ends that."""
    original = getattr(cls, name)

    def timed(self: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(self)
        finally:
            told(time.perf_counter() - start, self)

    def restore() -> None:
        if getattr(cls, name) is timed:  # nobody has put something else there
            setattr(cls, name, original)

    setattr(cls, name, timed)
    return restore
