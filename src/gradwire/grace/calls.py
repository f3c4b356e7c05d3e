"""Foreign code that may exchange by itself: what it asks torch.distributed for becomes an exchange of ours.

A compressor may call ``torch.distributed.all_reduce`` inside ``compress``, as GRACE's PowerSGD does. On the default
process group that would meet DDP's own messages, and nobody would count it. So each worker's call runs in a thread of
its own, which runs only while we wait for it. In that thread a dispatch mode sees every collective, stops there, and
hands it to the generator of exchanges; the driver carries it out, as it does for codecs, and the call goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import FakeWork, ProcessGroup, ReduceOp, Work
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.core.errors import CodecError
from gradwire.core.exchange import Exchange, Gather, Max, Payload, Program, Sum

NAMES = {"SUM": "sum", "AVG": "mean", "MAX": "maximum", "MIN": "minimum"}  # of what an all-reduce does
_one_at_a_time = threading.Lock()  # of all foreign code: it draws from the global generator
CAN = "all_reduce (sum, mean, maximum, minimum), all_gather and all_gather_into_tensor can be run"


class _Dropped(BaseException):
    """Ends the thread of a call that nobody waits for any more."""


@dataclass(frozen=True)
class Wish:
    """A collective that one worker's call asks for.

    Args:
        name: of the collective, and of what it does with the tensors.
        tensor: what the worker hands in.
        outs: where the results belong: one place, or one for each worker.
    """

    name: str
    tensor: Tensor
    outs: Sequence[Tensor]

    def exchange(self, given: Sequence[Tensor]) -> Exchange:
        """The same in our terms, with what all workers of this process hand in."""
        rows = torch.stack([t.reshape(-1) for t in given])
        if self.name == "all_gather":
            return Gather(Payload(rows.contiguous().view(torch.uint8)))
        if self.name in ("sum", "mean"):
            return Sum(rows, in_ring=True)  # so that it rounds as torch's
        return Max(-rows if self.name == "minimum" else rows)

    def take(self, answer: Any, workers: int) -> None:
        """Put the answer where the call expects it."""
        if self.name == "all_gather":
            found = list(answer.data.view(self.tensor.dtype))
        else:
            row = answer[0]
            found = [row / workers if self.name == "mean" else -row if self.name == "minimum" else row]
        for out, values in zip(self.outs, found, strict=True):
            out.copy_(values.view(out.shape))


class Call(threading.Thread):
    """One worker's call. It runs only while `go` waits for it.

    Args:
        job: what is called.
        who: for messages.
        workers: how many there are.
        device: of the tensors.
    """

    def __init__(self, job: Callable[[], Any], who: str, workers: int, device: torch.device) -> None:
        super().__init__(name="gradwire-grace", daemon=True)
        self.who, self.workers = who, workers
        self.wish: Wish | None = None
        self.result: Any = None
        self._job = job
        self._error: BaseException | None = None
        self._device, self._random = device, list[Tensor]()
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._begun, self._dropped = False, False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)

    def go(self) -> None:
        """Let it run until it asks for a collective (`wish`) or ends. Global randomness outside is not touched."""
        cuda = [self._device] if self._device.type == "cuda" else []
        with _one_at_a_time, torch.random.fork_rng(cuda):
            _put_random(self._device, self._random)
            self.wish = None
            if self._begun:
                self._go.release()
            else:
                self._begun = True
                self.start()
            self._stopped.acquire()
            self._random = _random_state(self._device)
        if self._error is not None:
            raise self._error

    def drop(self) -> None:
        """End it: nobody waits for it any more."""
        self._dropped = True
        self._go.release()
        if self._begun:
            self.join()

    def ask(self, wish: Wish) -> None:
        """Stop, in the call's thread, until the wish is answered."""
        if not self._dropped:
            self.wish = wish
            self._stopped.release()
            self._go.acquire()
        if self._dropped:
            raise _Dropped

    def run(self) -> None:
        stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        try:
            with torch.no_grad(), stream, _Collectives(self):
                self.result = self._job()
        except BaseException as problem:
            self._error = problem
        self._stopped.release()


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of a call's thread, and takes the collectives."""

    def __init__(self, call: Call) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        name = str(func._schema.name).removeprefix("c10d::")
        if name == "allreduce_":
            ((tensor,), group, op) = args[:3]
            wish = Wish(self._named(ReduceOp.RedOpType(op.op()).name), tensor, [tensor])
        elif name == "allgather_":
            ((outs,), (tensor,), group) = args[:3]
            wish = Wish("all_gather", tensor, outs)
        elif name == "_allgather_base_":
            out, tensor, group = args[:3]
            wish = Wish("all_gather", tensor, list(out.view(-1, tensor.numel())))
        else:
            raise CodecError(f"{self._call.who}: asks torch.distributed for {name}; {CAN}")
        self._check(wish, ProcessGroup.unbox(group).size())
        self._call.ask(wish)
        return args[0], Work.boxed(FakeWork())

    def _named(self, kind: str) -> str:
        if kind not in NAMES:
            raise CodecError(f"{self._call.who}: asks torch.distributed for an all_reduce by {kind}; {CAN}")
        return NAMES[kind]

    def _check(self, wish: Wish, ranks: int) -> None:
        """Refuse a group that is not ours; that of a process with virtual workers has one rank."""
        n = self._call.workers
        if ranks not in (1, n) or (wish.name == "all_gather" and len(wish.outs) != n):
            raise CodecError(
                f"{self._call.who}: asks torch.distributed for a {wish.name} among {max(ranks, len(wish.outs))} ranks, "
                f"and {n} workers exchange here; leave its `group` out, and do not use it under hierarchical"
            )


def run_together(calls: Sequence[Call]) -> Program[list[Any]]:
    """Run the calls of all workers of this process, and exchange what they ask for; returns what each returned.

    Args:
        calls: one for each worker. They must ask for the same collectives in the same order.
    """
    try:
        while True:
            for call in calls:
                call.go()
            wishes = [call.wish for call in calls if call.wish is not None]
            if not wishes:
                return [call.result for call in calls]
            if len({(w.name, w.tensor.shape, w.tensor.dtype) for w in wishes}) > 1 or len(wishes) < len(calls):
                asked = [w and f"{w.name} of {list(w.tensor.shape)}" for w in (call.wish for call in calls)]
                raise CodecError(f"{calls[0].who}: its workers ask for different collectives: {asked}")
            answer = yield wishes[0].exchange([w.tensor for w in wishes])
            for wish in wishes:
                wish.take(answer, calls[0].workers)
    finally:
        for call in calls:
            call.drop()


def _random_state(device: torch.device) -> list[Tensor]:
    """Of the global generators that code on `device` draws from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _put_random(device: torch.device, state: Sequence[Tensor]) -> None:
    if state:
        torch.set_rng_state(state[0])
    if state[1:]:
        torch.cuda.set_rng_state(state[1], device)
