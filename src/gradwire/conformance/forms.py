"""One meaning, several forms: workers as rows or as ranks, the simple form of a codec and its fast one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from gradwire.conformance.check import check, require
from gradwire.conformance.inputs import Ranks, agreed, cluster, gradients, same
from gradwire.conformance.memories import kept_by
from gradwire.core.codec import Codec

FAST = ("encode_own", "encode_from", "encode_part", "decode_to", "combine_to", "reduce_and_encode", "reduce_to")
SPREAD = ((40, 30), (17,), (120, 90), (300,), (33, 41))  # of "matrices" what is compressed lies in three places

Pairs = Iterable[tuple[Tensor | None, Tensor | None]]


def hold_together(codec: Codec, pairs: Pairs, problem: str) -> None:
    """Equal bit for bit; where products of matrices are involved, whose sums have no defined order, to rounding."""
    for one, other in pairs:
        if codec.family == "lowrank" and one is not None and other is not None:
            require(torch.allclose(one, other, rtol=1e-3, atol=1e-4), problem)
        else:
            require(same(one, other), problem)


@check("treat the rows of a call apart, and draw by rng alone, which knows whose rows they are", strategies=True)
def ranks_apart_compute_what_the_rows_of_one_engine_do(codec: Codec, strategy: str) -> None:
    """Under DDP, where a process has one row, results are those of a virtual cluster."""
    rows, ranks = cluster(codec, strategy=strategy, seed=2), Ranks(codec, strategy=strategy, seed=2)
    for step in range(3):
        given = gradients(seed=step)
        together, apart = rows.reduce(given), agreed(ranks.reduce(given))
        names, problem = list(given), f"in step {step} ranks and rows of one engine differ"
        hold_together(codec, ((together[name], apart[name]) for name in names), problem)
        hold_together(codec, zip(kept_by(rows, names), kept_by(ranks, names), strict=True), f"{problem}: memory")


def fast_forms(codec: Codec) -> list[str]:
    """What the codec's class writes beside the simple form. Without `reduce`, `reduce_to` is the simple form itself."""
    written = [name for name in FAST if getattr(type(codec), name) is not getattr(Codec, name)]
    return [n for n in written if n != "reduce_to" or type(codec).reduce is not Codec.reduce]


def memories_for(codec: Codec) -> list[str]:
    """Error feedback where it fits, and what the codec asks for."""
    fits = codec.traits.delta is not None or codec.traits.omega is not None
    return list(dict.fromkeys([*(["error_feedback"] if fits else []), codec.traits.memory]))


def three_steps(codec: Codec, strategy: str, memory: str) -> list[Tensor | None]:
    """What comes out and is owed. The loss scale changes before the last; another step is not finite, and skipped."""
    workers = cluster(codec, memory=memory, strategy=strategy, tensors="matrices")
    seen: list[Tensor | None] = []
    for step, scale in enumerate((1.0, 1.0, 1.0, 3.0)):
        grads = gradients(shapes=SPREAD, seed=step)
        if step == 2:
            grads["p2"][1][77, 5] = float("inf")
        workers.engine.begin_step(loss_scale=scale)
        results = workers.reduce(grads).values()
        finite = all(bool(r.isfinite().all()) for r in results)
        require(finite == (step != 2), f"step {step} is {'' if finite else 'not '}finite")
        seen += [*(results if step != 2 else ()), *kept_by(workers, list(grads))]
    return seen


@contextmanager
def _simple(codec: Codec, forms: list[str]) -> Iterator[None]:
    """The same codec without its fast form."""
    with ExitStack() as patches:
        for name in forms:
            patches.enter_context(patch.object(type(codec), name, getattr(Codec, name)))
        yield


@check("the fast form must give what encode, decode and combine give", lambda c: bool(fast_forms(c)), strategies=True)
def the_fast_form_is_the_simple_form(codec: Codec, strategy: str) -> None:
    """What reads and writes gradients in one pass gives what the simple form gives, memory included."""
    forms = fast_forms(codec)
    fast = {memory: three_steps(codec, strategy, memory) for memory in memories_for(codec)}
    with _simple(codec, forms):
        for memory, seen in fast.items():
            slow = three_steps(codec, strategy, memory)
            problem = f"with memory {memory}, {', '.join(forms)} and the simple form differ"
            hold_together(codec, zip(seen, slow, strict=True), problem)
