"""Train a task on N virtual workers in one process: one model, and for each worker its batches and its memory.

A step is what N ranks under DDP with ``attach(..., mode="after_backward")`` do, computed in turn on one device:

1. every worker's gradient on its own batch, into a row of one buffer; normalisation layers keep worker 0's statistics,
   as DDP does by sending rank 0's to all;
2. one step of `VirtualCluster` over the rows: codec, memory and strategy are those of the distributed run;
3. one optimizer step with the result.

On a GPU the first part is captured once as a graph over all workers and replayed, images are channels-last, and the
forward pass runs in bfloat16 where the plan says so.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradwire.bench.tasks import task as find_task
from gradwire.bench.tasks.task import Batch, Carry, Data
from gradwire.bench.training import TURNS, History, Plan, optimizer, rate
from gradwire.cluster import VirtualCluster
from gradwire.core import wire
from gradwire.core.layout import Layout
from gradwire.memory.base import ERROR

WARM = 3  # rounds before a graph is captured, on a stream of their own
LANES = 8  # workers that a GPU computes at a time
OnEvaluation = Callable[[History], None]


class Gradients:
    """The gradients of all workers, as rows of one buffer."""

    def __init__(self, model: nn.Module, data: Data, workers: int, batch: int, autocast: bool) -> None:
        self.data, self.workers, self.autocast = data, workers, autocast
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.layout = Layout.of((name, p.shape) for name, p in named.items())
        self.parameters = list(named.values())
        self.device = self.parameters[0].device
        self.rows = torch.zeros(workers, self.layout.numel, device=self.device)
        self.losses = torch.zeros(workers, device=self.device)
        # worker 0's statistics are the model's; the others leave theirs in twins, one a stream
        lanes = min(workers, LANES) if self.device.type == "cuda" else 1
        twins = [_twin(model) for _ in range(lanes)]
        self._models = [model, *(twins[worker % lanes] for worker in range(1, workers))]
        self._places = [
            [piece.view_as(p) for piece, p in zip(self.layout.split(row), self.parameters, strict=True)]
            for row in self.rows
        ]
        self._carries: list[Carry] = [()] * workers
        self._batch, self._lanes = batch, lanes
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Batch] = []

    def begin_epoch(self) -> None:
        """Forget what workers hand from step to step."""
        fresh = [self.data.carry(self._batch) for _ in range(self.workers)]
        if self._graph is None:
            self._carries = fresh
        else:
            _copy(self._carries, fresh)

    def compute(self, batches: Sequence[Batch]) -> None:
        """Fill `rows` and `losses`."""
        if self.device.type != "cuda":
            for worker, batch in enumerate(batches):
                self._compute(worker, batch)
            return
        if self._graph is None:
            self._graph = self._captured(batches)
        _copy(self._inputs, batches)
        self._graph.replay()

    def _compute(self, worker: int, batch: Batch) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            loss, self._carries[worker] = self.data.loss(self._models[worker], batch, self._carries[worker])
        found = torch.autograd.grad(loss, self.parameters)
        torch._foreach_copy_(self._places[worker], list(found))
        self.losses[worker].copy_(loss.detach())

    def _compute_in_lanes(self) -> None:
        """All workers, several at a time: one alone leaves much of a GPU idle."""
        here = torch.cuda.current_stream(self.device)
        lanes = [torch.cuda.Stream(self.device) for _ in range(self._lanes)]  # type: ignore[no-untyped-call]
        for lane in lanes:
            lane.wait_stream(here)
        for worker, batch in enumerate(self._inputs):
            with torch.cuda.stream(lanes[worker % self._lanes]):
                self._compute(worker, batch)
        for lane in lanes:
            here.wait_stream(lane)

    def _captured(self, batches: Sequence[Batch]) -> torch.cuda.CUDAGraph:
        """A graph of all workers. The rounds that warm it up leave no trace: state and random numbers are put back."""
        self._inputs = [tuple(t.clone(memory_format=torch.preserve_format) for t in batch) for batch in batches]
        buffers = list(self._models[0].buffers())
        kept, noise = [b.clone() for b in buffers], torch.cuda.get_rng_state(self.device)
        starts = [tuple(t.clone() for t in carry) for carry in self._carries]
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                self._carries = list(starts)
                self._compute_in_lanes()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        held = [tuple(t.clone() for t in carry) for carry in starts]
        self._carries = list(held)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute_in_lanes()
            _copy(held, self._carries)
        self._carries = held
        _copy(held, starts)
        _copy([tuple(buffers)], [tuple(kept)])
        torch.cuda.set_rng_state(noise, self.device)
        return graph


def _twin(model: nn.Module) -> nn.Module:
    """The same parameters, and other buffers."""
    shared = {id(p): p for p in model.parameters()}
    return copy.deepcopy(model, shared)


def _copy(into: Sequence[Batch], source: Sequence[Batch]) -> None:
    """Tensor by tensor."""
    for a, b in zip(into, source, strict=True):
        for held, new in zip(a, b, strict=True):
            held.copy_(new)


class Trainer:
    """One run from its first step to its last."""

    def __init__(self, plan: Plan, data_dir: Path | None = None, data: Data | None = None) -> None:
        self.plan, self.task = plan, find_task(plan.task)
        device = torch.device(plan.device)
        torch.backends.cudnn.benchmark = device.type == "cuda"  # shapes never change
        self.data = data or (self.task.synthetic(device) if plan.synthetic else self.task.open(data_dir, device))
        self.recipe = plan.recipe
        self.model = self.task.model(plan.seed).to(device).train()
        self.gradients = Gradients(self.model, self.data, plan.workers, self.recipe.batch, plan.autocast)
        self.optimizer = optimizer(self.recipe, self.gradients.parameters)
        self.cluster = VirtualCluster(
            plan.workers,
            plan.codec,
            plan.memory,
            plan.strategy,
            plan.seed,
            controller=plan.controller,
            compress=plan.compress,
            nmse_every=plan.nmse_every,
        )
        for engine in self.cluster.engines:
            engine.begin(self.gradients.layout)
        self.history = History()
        self.steps = self.data.steps(plan.workers, self.recipe.batch)
        self._epoch = 0
        self._bytes = [0, 0]  # payload and sent
        self._seconds = 0.0
        self._squares = torch.zeros(2, device=device)  # of the error against the plain mean, and of that mean
        self._loss, self._rounds = torch.zeros((), device=device), 0  # since the last evaluation
        torch.manual_seed(plan.seed)  # dropout

    def run(self, on_evaluation: OnEvaluation = lambda history: None, checkpoint: Path | None = None) -> History:
        """Train to the end, or on from a checkpoint, which is written after every epoch."""
        if checkpoint is not None and checkpoint.exists():
            self._load(checkpoint)
        while self._epoch < self.recipe.epochs and not self._over():
            self._train_epoch(on_evaluation)
            self._epoch += 1
            if checkpoint is not None:
                self._save(checkpoint)
        return self.history

    def outcome(self) -> dict[str, Any]:
        """What the record tells."""
        controller = self.cluster.controller
        extra = {
            "clock": TURNS,
            "switches": [] if controller is None else [switch.to_json() for switch in controller.switches],
            "skipped_steps": self.cluster.engines[0].skipped_steps,
            "parameters": self.gradients.layout.numel,
            "tensors": len(self.gradients.parameters),
        }
        return self.history.outcome(self.task, extra)

    # ---------------------------------------------------------------- one epoch

    def _train_epoch(self, on_evaluation: OnEvaluation) -> None:
        plan, every = self.plan, self.plan.evaluate_every
        self.gradients.begin_epoch()
        settings = None if self.cluster.controller is None else self.cluster.controller.settings
        factor = 1 if settings is None else settings.batch_factor
        batches = self.data.epoch(plan.seed, self._epoch, plan.workers, self.recipe.batch)
        begun = time.perf_counter()
        for step, group in enumerate(_grouped(batches, factor)):
            rate_now = self._rate(step * factor) * (1.0 if settings is None else settings.rate_factor)
            self._step(group, rate_now)
            total = sum(self.history.rounds[-1:]) + self._rounds
            if every and total % every == 0:
                begun = self._evaluate(begun, self._epoch + (step + 1) * factor / self.steps, rate_now, factor)
                on_evaluation(self.history)
        if settings is not None:
            self.cluster.end_epoch(self._rate(self.steps - 1), rate(self.recipe, self._epoch + 1))
        if self._rounds:
            self._evaluate(begun, self._epoch + 1.0, rate_now, factor)
            on_evaluation(self.history)

    def _rate(self, step: int) -> float:
        return rate(self.recipe, self._epoch + step / self.steps)

    def _step(self, group: Sequence[Sequence[Batch]], rate_now: float) -> None:
        """One round: the micro-batches' gradients, the exchange, the optimizer."""
        self.gradients.compute(group[0])
        rows, losses = self.gradients.rows, self.gradients.losses.mean()
        if len(group) > 1:
            rows = rows.clone()
            for batches in group[1:]:
                self.gradients.compute(batches)
                rows, losses = rows + self.gradients.rows, losses + self.gradients.losses.mean()
            rows, losses = rows / len(group), losses / len(group)
        measured = self.plan.nmse_every and self.cluster.engines[0].step % self.plan.nmse_every == 0
        mean = rows.mean(0) if measured else None
        reduced = self.cluster.reduce_rows(rows, self.gradients.layout)
        self._count_bytes(bool(measured))
        if mean is not None:
            self._squares += torch.stack([(reduced - mean).square().sum(), mean.square().sum()])
        for parameter, piece in zip(self.gradients.parameters, self.gradients.layout.split(reduced), strict=True):
            parameter.grad = piece.view_as(parameter)
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.gradients.parameters, self.recipe.clip)
        for choice in self.optimizer.param_groups:
            choice["lr"] = rate_now
        self.optimizer.step()
        self._loss, self._rounds = self._loss + losses, self._rounds + 1

    def _count_bytes(self, measured: bool) -> None:
        """What the step sent, less the exact mean that travels where the error is measured."""
        payload, sent = self.cluster.payload_bytes, self.cluster.sent_bytes
        exact = 4 * self.cluster.engines[0].picked(self.gradients.layout).numel if measured else 0
        self._bytes[0] += payload - exact
        self._bytes[1] += sent - math.ceil(wire.reduced(exact, self.plan.workers)) if exact else sent

    # ---------------------------------------------------------------- evaluation

    def _evaluate(self, begun: float, epoch: float, rate_now: float, factor: int) -> float:
        """Write down where the run stands; returns when training goes on."""
        loss = float(self._loss / self._rounds)  # waits for the device, so the clock below is right
        self._seconds += time.perf_counter() - begun
        self.model.eval()
        device = self.gradients.device.type
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=self.plan.autocast):
            quality = float(self.data.evaluate(self.model))
        self.model.train()
        error, norm = self._squares.tolist()
        steering = self.cluster.engines[0].steering
        history = self.history
        history.add(
            rounds=sum(history.rounds[-1:]) + self._rounds,
            epochs=epoch,
            quality=quality,
            train_loss=loss if math.isfinite(loss) else None,
            nmse=_finite(self.cluster.nmse(forget=True)),
            nmse_gradient=_finite(error / norm if norm else None),
            payload_bytes=self._bytes[0],
            sent_bytes=self._bytes[1],
            residual_norm=self._residual_norm(),
            levels=None if steering is None else dict(Counter(steering.levels.values())),
            learning_rates=rate_now,
            batch_sizes=self.plan.workers * self.recipe.batch * factor,
            seconds=self._seconds,
        )
        self._squares.zero_()
        self._loss, self._rounds = torch.zeros_like(self._loss), 0
        return time.perf_counter()

    def _residual_norm(self) -> float | None:
        """Of what a worker owes, mean over the workers."""
        kept = [[e.tensor for e in engine.store.entries.get(ERROR, {}).values()] for engine in self.cluster.engines]
        if not kept[0]:
            return None
        return _finite(float(torch.stack([torch.stack(torch._foreach_norm(errors)).norm() for errors in kept]).mean()))

    def _over(self) -> bool:
        return bool(self.history.rounds) and self.history.ends(self.task, self.plan.patience)

    # ---------------------------------------------------------------- checkpoints

    def _save(self, path: Path) -> None:
        state = {
            "epoch": self._epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "workers": [engine.state_dict() for engine in self.cluster.engines],
            "history": vars(self.history),
            "bytes": self._bytes,
            "seconds": self._seconds,
            "noise": torch.get_rng_state(),
        }
        if self.gradients.device.type == "cuda":
            state["device_noise"] = torch.cuda.get_rng_state(self.gradients.device)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)

    def _load(self, path: Path) -> None:
        device = self.gradients.device
        state = torch.load(path, map_location=device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for engine, kept in zip(self.cluster.engines, state["workers"], strict=True):
            engine.load_state_dict(kept)
        self.history = History(**state["history"])
        self._epoch, self._bytes, self._seconds = state["epoch"], list(state["bytes"]), state["seconds"]
        torch.set_rng_state(state["noise"].cpu())
        if device.type == "cuda":
            torch.cuda.set_rng_state(state["device_noise"].cpu(), device)


def _grouped(steps: Iterator[list[Batch]], size: int) -> Iterator[list[list[Batch]]]:
    """Micro-batches of one round; the last may have fewer."""
    group: list[list[Batch]] = []
    for step in steps:
        group.append(step)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
