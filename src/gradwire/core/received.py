"""What comes from a peer is looked at before it is used.

A driver answers an exchange with as many rows, as long and of the type that were asked for: `guarded` holds it to that,
without a look at the data. Where sizes depend on the data, a peer says how long its row is: no row may be longer than
the codec allows, so that nobody makes room for what a corrupt length asks for (`Gather.most`, `Scatter.most`). What
readers of rows find wrong themselves, a count or an index, is a `CorruptPayload` without a name: `guarded` adds whose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from gradwire.core.errors import CorruptPayload
from gradwire.core.exchange import LENGTH_BYTES, Exchange, Gather, Payload, Program, Reduction, Scatter, as_batch

if TYPE_CHECKING:
    from gradwire.core.codec import Codec

R = TypeVar("R")
WHAT_TO_DO = (
    "Bytes were changed on the way, or the ranks run different versions; end all ranks, and start them again from the "
    "last checkpoint."
)


def longest_row(codec: Codec, numel: int, step: int) -> int | None:
    """Bytes that a row of a peer may have at most; None where all have one size, or in a warm-up, which may send more.

    Args:
        codec: that made it.
        numel: elements of the row.
        step: of training.
    """
    known = not codec.traits.fixed_size and step >= codec.steady_from_step
    return codec.payload_bytes(numel) - LENGTH_BYTES if known else None


def guarded(program: Program[R], codec: str, workers: int) -> Program[R]:
    """`program`, with every answer checked before it is handed on.

    Args:
        program: of one codec.
        codec: its name, for errors.
        workers: who take part.
    """
    answer: Any = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except CorruptPayload as problem:
            raise named(problem, codec, workers) from None
        answer = yield request
        try:
            answers = answer if isinstance(request, tuple) else (answer,)
            for exchange, one in zip(as_batch(request), answers, strict=True):
                if not isinstance(exchange, Reduction):
                    check(exchange, one)
        except CorruptPayload as problem:
            raise named(problem, codec, workers) from None


def check(exchange: Exchange, answer: Payload) -> None:
    """Refuse an answer that has not the form of the question."""
    assert not isinstance(exchange, Reduction)
    asked = exchange.payload
    if asked.lengths is None:
        wanted, came = (asked.data.shape[1:], asked.data.dtype), (answer.data.shape[1:], answer.data.dtype)
        if wanted != came or answer.lengths is not None:
            raise CorruptPayload(f"rows of {tuple(wanted[0])} {wanted[1]} were wanted, got {tuple(came[0])} {came[1]}")
        return
    if answer.lengths is None or answer.lengths.shape != (answer.rows,):
        raise CorruptPayload("rows came without their lengths")
    check_lengths(answer.lengths.tolist(), answer.data.shape[1], exchange)


def check_lengths(lengths: list[int], most: int | None, exchange: Exchange) -> None:
    """Refuse lengths that no row can have; `most`: bytes that there are, None: nothing has come yet.

    Args:
        lengths: of rows, as their senders tell.
        most: bytes of the longest row that is there.
        exchange: what was asked for.
    """
    allowed = exchange.most if isinstance(exchange, Gather | Scatter) else None
    limit = min((one for one in (most, allowed) if one is not None), default=None)
    for row, length in enumerate(lengths):
        if length < 0:
            raise CorruptPayload(f"a row of {length:,} bytes is announced, and none has fewer than 0", row)
        if limit is not None and length > limit:
            raise CorruptPayload(f"a row of {length:,} bytes is announced, and none has more than {limit:,}", row)


def named(problem: CorruptPayload, reader: str, workers: int) -> CorruptPayload:
    """The same, with who read what from whom, and what to do.

    Args:
        problem: that may know this already.
        reader: the codec, or whoever else read it.
        workers: who take part.
    """
    if problem.named:
        return problem
    who = "a worker" if problem.row is None else f"worker {problem.row % workers}"
    return CorruptPayload(f"{reader}: what {who} sent cannot be read: {problem}. {WHAT_TO_DO}", problem.row, named=True)
