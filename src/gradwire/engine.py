"""The one file where codec, memory and strategy meet. Read it first.

An `Engine` is one worker. For each unit of compression (a flat gradient and its layout) `reduce` returns a program,
a generator of exchanges, that any driver can carry out:

1. split the unit: vectors and tiny tensors go as they are, in one sum that travels beside the codec's first exchange;
2. add what the memory kept; make one non-finite element visible in the whole unit;
3. let the codec reduce it over the workers;
4. let the memory keep what this worker's own share left behind;
5. put both parts together, in the gradient's own dtype.

State written by the units of a step is committed by `finish_step`, and only if all results are finite: a step that a
loss scaler will skip leaves the memories as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gradwire.collectives.choose import check, choose, parse
from gradwire.collectives.scatter_reduce_gather import OWNER_ERROR
from gradwire.core.codec import Codec, Context, Strategy, codecs
from gradwire.core.errors import ConfigError, Incompatible, StateMismatch
from gradwire.core.exchange import Exchange, Program, Sum, together
from gradwire.core.layout import Layout, Segment
from gradwire.core.random import Random
from gradwire.core.registry import to_spec
from gradwire.core.state import Entry, Store, Transaction
from gradwire.kernels.finite import poisoned, zero_or_nan
from gradwire.memory.base import ERROR, Memory, memories

FORMAT_VERSION = 1
TINY = 1024  # elements; a smaller tensor costs more in headers and scales than it saves


class Engine:
    """One worker's compression: codec, memory, strategy and state.

    Args:
        codec: a codec or its spec.
        memory: ``"default"`` (what the codec asks for), ``"none"``, or a memory or its spec.
        strategy: ``"auto"``, or a strategy or its spec.
        compress: ``"matrices"`` leaves tensors of fewer than two dimensions or 1024 elements as they are;
            ``"all"`` gives the codec everything.
        seed: of all randomness; the same on all workers.
        track_unused: parameters without a gradient on all workers keep their memory and get a zero result.
        nmse_every: measure the normalised error against the exact mean every so many steps (0: never). Such a step
            sends the uncompressed gradient too.
    """

    def __init__(
        self,
        codec: str | Codec,
        *,
        memory: str | Memory = "default",
        strategy: str | Strategy = "auto",
        compress: str = "matrices",
        seed: int = 0,
        rank: int = 0,
        workers: int = 1,
        track_unused: bool = False,
        nmse_every: int = 0,
    ) -> None:
        if compress not in ("matrices", "all"):
            raise ConfigError(f"gradwire: `compress` must be 'matrices' or 'all', got {compress!r}")
        if nmse_every < 0:
            raise ConfigError(f"gradwire: `nmse_every` must be 0 (never) or a number of steps, got {nmse_every!r}")
        self.codec = codecs.build(codec) if isinstance(codec, str) else codec
        wanted = self.codec.traits.memory if memory == "default" else memory
        self.memory = memories.build(wanted) if isinstance(wanted, str) else wanted
        self._running = self.memory.fit(self.codec)  # the codec as it runs under this memory
        self._shows = self.codec.traits.shows or self.codec.traits.elementwise
        self.strategy = parse(strategy)
        check(self.codec, self.strategy)
        self.compress = compress
        self.seed, self.rank, self.workers = seed, rank, workers
        self.track_unused = track_unused and self.memory.keeps
        self.nmse_every = nmse_every
        self.step = 0
        self._skipped = torch.zeros((), dtype=torch.int64)
        self.store = Store()
        self.gradient_scale = 1.0  # loss scale over learning rate: the units of today's gradient
        self._kept_scale: float | Tensor = 1.0  # the units of what the memories hold
        self._transaction = Transaction(self.store)
        self._observed: dict[str, dict[str, Tensor]] = {}
        self._finite: list[Tensor] = []
        self._squares: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)  # of measured errors, and of exact means
        self._split = cache(self._split_uncached)

    # ---------------------------------------------------------------- one unit

    def reduce(self, x: Tensor, layout: Layout) -> Program[Tensor]:
        """The program that reduces the flat gradient `x` to its mean over the workers. `x` is not changed."""
        picked, rest = self._split(layout)
        parts = dict(zip(layout.names, layout.split(x), strict=True))
        gradient = x if not rest.segments else _join(x, parts, picked)
        if not self.codec.traits.lossless:
            gradient = gradient.float()
        ctx = self._context(picked, gradient)
        sent = self._repay(self.memory.compensate(gradient, ctx), ctx)
        sent = sent if self._shows else poisoned(sent)
        beside = self._beside(x, parts, picked, rest, sent)
        main = self._codec_program(sent, ctx)
        (mean, own), sums = yield from together(main, tuple(beside.values()))
        answers = dict(zip(beside, sums, strict=True))
        dense = answers.get("dense", x.new_empty(0))
        if "exact" in answers:
            self._compare(mean, answers["exact"])
        if own is not None:
            if self.track_unused and picked.segments:
                mean, own = self._hold_unused(mean, own, dense[rest.numel :], ctx)
            self.memory.update(sent, own, ctx)
        if rest.segments:
            plain = self.memory.uncompressed(dense[: rest.numel], replace(ctx, layout=rest))
            out = self._merge(x, layout, picked, mean, rest, plain)
        else:
            out = mean.to(x.dtype)
        self._finite.append(zero_or_nan(out) == 0)
        return out

    def _codec_program(self, sent: Tensor, ctx: Context) -> Program[tuple[Tensor, Tensor | None]]:
        if not sent.numel():
            return sent, sent if ctx.wants_own else None
        return (yield from self._running.reduce(sent, ctx))

    def _context(self, layout: Layout, gradient: Tensor) -> Context:
        return Context(
            layout=layout,
            state=self._transaction,
            rng=Random(self.seed, self.step, layout.id, self.rank),
            rank=self.rank,
            workers=self.workers,
            strategy=self.strategy_for(layout),
            gradient=gradient,
            observed=self._observed,
            rescale=self.gradient_scale / self._kept_scale,
            wants_own=self.memory.keeps,
            owner_memory=self.memory.keeps and self.codec.traits.averages,
        )

    def strategy_for(self, layout: Layout) -> Strategy | None:
        """What carries a unit; None for a codec that runs its own rounds."""
        return choose(self.codec, self.strategy, layout.numel, self.workers)

    def _split_uncached(self, layout: Layout) -> tuple[Layout, Layout]:
        """What the codec gets, and what travels as it is."""
        if self.compress == "all" or self.codec.traits.lossless:
            return layout, Layout(())
        return layout.partition(lambda s: len(s.shape) >= 2 and s.numel >= TINY)

    def _beside(
        self, x: Tensor, parts: Mapping[str, Tensor], picked: Layout, rest: Layout, sent: Tensor
    ) -> dict[str, Exchange]:
        """What travels beside the codec's first exchange: the dense part, with flags of use, and the exact mean."""
        dense = [parts[name] for name in rest.names]
        if self.track_unused:
            dense += [parts[name].ne(0).any().to(x.dtype).view(1) for name in picked.names]
        share = 1.0 / self.workers
        beside: dict[str, Exchange] = {"dense": Sum(torch.cat(dense) * share)} if dense else {}
        if self.nmse_every > 0 and self.step % self.nmse_every == 0 and picked.numel:
            beside["exact"] = Sum(sent * share)
        return beside

    def _merge(self, x: Tensor, layout: Layout, picked: Layout, mean: Tensor, rest: Layout, dense: Tensor) -> Tensor:
        """The result in the order and dtype of the unit."""
        values = dict(zip(picked.names, picked.split(mean), strict=True))
        values |= dict(zip(rest.names, rest.split(dense), strict=True))
        out = torch.empty_like(x)
        torch._foreach_copy_(list(layout.split(out)), [values[name] for name in layout.names])
        return out

    # ---------------------------------------------------------------- memories in special cases

    def _repay(self, sent: Tensor, ctx: Context) -> Tensor:
        """Owners' errors for elements that another worker owns by now go into this worker's gradient.

        Shards move when DDP rebuilds its buckets or the number of workers changes. The owner's error counts fully in
        the mean and a worker's gradient only by 1/n, hence the factor.
        """
        if not self.store.entries.get(OWNER_ERROR):
            return sent
        held = self._held(ctx)
        moved = self.store.outside(OWNER_ERROR, ctx.layout, held)
        if not moved:
            return sent
        sent = sent.clone()
        offsets = dict(zip(ctx.layout.names, ctx.layout.offsets, strict=True))
        for piece, error in moved:
            first = offsets[piece.name] + piece.start
            sent[first : first + piece.numel] += self.workers * ctx.rescale * error
            if piece.name not in held.names:
                self._transaction.forget(OWNER_ERROR, piece.name)
        return sent

    def _hold_unused(self, mean: Tensor, own: Tensor, used: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """DDP drops the result of parameters that no worker used: send nothing of theirs, keep their memory."""
        flags = (used != 0).to(mean.dtype)
        mask = torch.cat([flag.expand(size) for flag, size in zip(flags, ctx.layout.sizes, strict=True)])
        held = self._held(ctx)
        if self._transaction.wrote(OWNER_ERROR, held):
            new, old = self._transaction.written(OWNER_ERROR, held), self.store.flat(OWNER_ERROR, held)
            kept = torch.cat([_piece(mask, ctx.layout, segment) for segment in held.segments])
            self._transaction.put_flat(
                OWNER_ERROR, held, torch.where(kept > 0, new, 0.0 if old is None else ctx.rescale * old)
            )
        return mean * mask, own * mask

    def _held(self, ctx: Context) -> Layout:
        """The pieces of the unit whose owner this worker is."""
        if ctx.strategy is None:
            return Layout(())
        return ctx.strategy.held(self.codec, ctx.layout, self.rank, self.workers)

    # ---------------------------------------------------------------- one step

    def observe(self, kind: str, values: Mapping[str, Tensor]) -> None:
        """Tell the codec something about the coming step that gradients do not show, parameter by parameter.

        The codec `variance`, for one, asks for "squares": the sum of the squares of per-example gradients.
        """
        self._observed.setdefault(kind, {}).update(values)

    def finish_step(self) -> None:
        """All units of this step are reduced: commit what they wrote, if all of it is finite."""
        if self._finite:
            finite = torch.stack(self._finite).all()
            self._transaction.commit(finite)
            self._skipped = self._skipped.to(finite.device) + finite.logical_not()
            if finite.device.type != "cpu":  # decided there, so that the host never waits
                self._kept_scale = torch.where(finite, self.gradient_scale, self._kept_scale)
            elif bool(finite):
                self._kept_scale = self.gradient_scale
        self._finite.clear()
        self._observed = {}
        self.step += 1

    @property
    def skipped_steps(self) -> int:
        """Steps whose result was not finite, and which left the memories as they were."""
        return int(self._skipped)

    def abandon_step(self) -> None:
        """Something failed in the middle: forget what this step wrote."""
        self._transaction.drop()
        self._finite.clear()

    def _compare(self, mean: Tensor, exact: Tensor) -> None:
        error, norm = self._squares
        self._squares = error + (mean - exact).square().sum(), norm + exact.square().sum()

    def nmse(self) -> float | None:
        """Normalised squared error of all measured results against the exact mean of what the codecs were given."""
        error, norm = (float(s) for s in self._squares)
        return error / norm if norm else None

    # ---------------------------------------------------------------- state

    def owed(self, name: str, shape: Sequence[int]) -> Tensor | None:
        """What this worker still owes for one parameter, owner's error included at n-fold weight.

        The mean of this over the workers is what separates the results so far from the sum of mean gradients.
        """
        if not self.memory.keeps:
            return None
        error, owner = self.store.get(ERROR, name), self.store.get(OWNER_ERROR, name)
        owed = torch.zeros(Segment(name, tuple(shape)).numel)
        if error is not None:
            owed = error.tensor.reshape(-1).clone()
        if owner is not None:
            owed = owed.to(owner.tensor.device)
            owed[owner.start : owner.stop] += self.workers * owner.tensor
        return owed.view(tuple(shape))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values only, keyed by parameter name. It belongs to this rank: save one file a rank."""
        kept = {
            kind: {name: {"tensor": e.tensor.clone(), "start": e.start} for name, e in entries.items()}
            for kind, entries in self.store.entries.items()
        }
        return {
            "format_version": FORMAT_VERSION,
            "codec": self.codec.spec,
            "memory": to_spec(self.memory),
            "seed": self.seed,
            "rank": self.rank,
            "workers": self.workers,
            "step": self.step,
            "skipped_steps": self.skipped_steps,
            "scale": float(self._kept_scale),
            "state": kept,
        }

    def load_state_dict(self, saved: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state: this rank's own, or the list of all ranks' after the world size changed."""
        states = [saved] if isinstance(saved, Mapping) else list(saved)
        if not states:
            raise StateMismatch("gradwire: load_state_dict was given an empty list; pass the state dicts of all ranks")
        for state in states:
            self._check_state(state)
        first = states[0]
        mine = next((s for s in states if (s["rank"], s["workers"]) == (self.rank, self.workers)), None)
        if mine is None and sorted(s["rank"] for s in states) != list(range(first["workers"])):
            raise StateMismatch(
                f"gradwire: this state was saved by rank {first['rank']} of {first['workers']}, and this is rank "
                f"{self.rank} of {self.workers}. Memories belong to a rank: load this rank's own file, or, after a "
                f"change of the number of workers, pass the list of all {first['workers']} ranks' state dicts."
            )
        self.abandon_step()
        self.store = _restore(mine["state"]) if mine is not None else _averaged(states, self.rank)
        self._transaction = Transaction(self.store)
        self.seed, self.step = first["seed"], first["step"]
        self._skipped, self._kept_scale = torch.tensor(first["skipped_steps"]), first["scale"]

    def _check_state(self, state: Mapping[str, Any]) -> None:
        if state.get("format_version") != FORMAT_VERSION:
            raise StateMismatch(
                f"gradwire: this state has format {state.get('format_version')!r}, and this version reads "
                f"{FORMAT_VERSION}; load it with the version that wrote it"
            )
        name = state["codec"].partition("(")[0]
        if name != self.codec.name or state["memory"].partition("(")[0] != self.memory.name:
            raise StateMismatch(
                f"gradwire: this state belongs to {state['codec']} with memory {state['memory']}, and this run uses "
                f"{self.codec.spec} with memory {to_spec(self.memory)}; attach with the saved ones, or start without it"
            )


def check_gradient(name: str, tensor: Tensor) -> None:
    """Refuse a gradient that no codec can treat, with the reason."""
    if tensor.layout != torch.strided:
        raise sparse_gradient(name)
    if tensor.is_complex():
        raise Incompatible(
            f"gradwire: {name!r} is complex ({tensor.dtype}), and codecs work on real numbers. Store it as a real "
            "parameter (torch.view_as_real) or train it without compression."
        )
    if not tensor.is_floating_point():
        raise Incompatible(f"gradwire: {name!r} is of {tensor.dtype}; gradients must be floating point")


def sparse_gradient(name: str) -> Incompatible:
    """The refusal of a sparse gradient."""
    return Incompatible(
        f"gradwire: the gradient of {name!r} is sparse, and codecs work on dense gradients. Build the embedding "
        "with sparse=False, or keep this parameter out of the compressed model."
    )


def _join(x: Tensor, parts: Mapping[str, Tensor], layout: Layout) -> Tensor:
    return torch.cat([parts[name] for name in layout.names]) if layout.segments else x.new_empty(0)


def _piece(flat: Tensor, layout: Layout, piece: Segment) -> Tensor:
    """The elements of `flat` that lie in `piece`, a cut of one of the layout's segments."""
    first = layout.offsets[layout.names.index(piece.name)] + piece.start
    return flat[first : first + piece.numel]


def _restore(state: Mapping[str, Any]) -> Store:
    store = Store()
    for kind, entries in state.items():
        for name, entry in entries.items():
            store.put(kind, name, Entry(entry["tensor"].clone(), entry["start"]))
    return store


def _averaged(states: Sequence[Mapping[str, Any]], rank: int) -> Store:
    """One store for every rank of a new world size: each gets the mean, so the sum that is owed stays the same.

    Owners' errors count fully in the mean of the workers, wherever they lie. They join the error of that mean, or, if
    the workers keep none, go to the first rank, which hands on what it will not own.
    """
    store = Store()
    for kind in {k for s in states for k in s["state"]} - {OWNER_ERROR}:
        for name in {n for s in states for n in s["state"].get(kind, {})}:
            tensors = [s["state"][kind][name]["tensor"] for s in states if name in s["state"].get(kind, {})]
            store.put(kind, name, Entry(torch.stack(tensors).sum(0) / len(states)))
    pieces = [(n, e["start"], e["tensor"]) for s in states for n, e in s["state"].get(OWNER_ERROR, {}).items()]
    for name in {n for n, _, _ in pieces}:
        into = store.get(ERROR, name)
        if into is None:
            stop = max(start + piece.numel() for n, start, piece in pieces if n == name)
            into = Entry(torch.zeros(stop))
            if rank == 0:
                store.put(OWNER_ERROR, name, into)
        for _, start, piece in (p for p in pieces if p[0] == name):
            into.tensor.view(-1)[start : start + piece.numel()] += piece
    return store
