"""The answer: one sentence, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.core.baselines import FP16, MAX_LOSS, WIN
from gradwire.core.units import format_milliseconds, format_rate
from gradwire.diagnosis import causes
from gradwire.diagnosis.causes import LEAST, NETWORK, NOTHING, UNKNOWN, Account, account, in_words
from gradwire.diagnosis.codecs import HALF_HOOKS, Gain, Gains, advised, gains
from gradwire.diagnosis.settings import costly
from gradwire.diagnosis.watch import Watch, placed
from gradwire.planner.profile import CodecCost

OWN_HOOK = "compress_hook"  # of `gradwire.attach`: its waits are known


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What ails a job. `dataclasses.asdict` makes it ready for JSON; as text it is the verdict and what led to it.

    `cause` is one of network, tiny buckets, straggler, uneven ranks, data loading, script, nothing and unknown.
    """

    cause: str
    verdict: str
    line: str | None = None  # what to add to the script
    account: Account | None = None
    headroom: float | None = None  # times as fast, if the exchange were free
    bits_per_second: float | None = None  # of the network, as it was seen
    codecs: tuple[Gain, ...] = ()
    also: tuple[str, ...] = ()  # causes that cost less
    settings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, outcome: Mapping[str, Any]) -> Diagnosis:
        """Read back from a record, where `dataclasses.asdict` wrote it."""
        books = outcome["account"]
        return cls(
            **{
                **outcome,
                "account": None if books is None else Account.of(books),
                "codecs": tuple(Gain(**gain) for gain in outcome["codecs"]),
            }
        )

    def __str__(self) -> str:
        lines = [self.verdict]
        if self.account is not None:
            told = ", ".join(f"{name} {format_milliseconds(s)}" for name, s in self.account.parts.items())
            lines.append(f"A step takes {format_milliseconds(self.account.step_seconds)}: {told}.")
        lines += [f"Estimated: {g.codec} {g.speedup:.2f} times as fast; {g.evidence}." for g in self.codecs]
        lines += [*self.also, *(f"Setting: {s}." for s in self.settings), *self.remarks]
        return "\n".join(lines)


def diagnose(
    watches: Sequence[Watch],
    costs: Mapping[str, CodecCost] | None = None,
    task: str | None = None,
    max_loss: float = MAX_LOSS,
    problems: Sequence[str] = (),
) -> Diagnosis:
    """The answer, from what ranks saw.

    Args:
        watches: of all ranks, or of those that could be asked.
        costs: of codecs on this machine, see `codecs.gains`.
        task: kind of task, for the evidence.
        max_loss: points that a codec may have lost in a training of ours.
        problems: why ranks could not be watched.
    """
    if problems and not watches:
        return Diagnosis(cause=UNKNOWN, verdict=f"No answer: the ranks could not be watched ({'; '.join(problems)}).")
    if not watches:
        return Diagnosis(
            cause=UNKNOWN,
            verdict="No answer: no Python process of the job wrapped a model in DistributedDataParallel and trained it "
            "to its end here.",
        )
    seen = min(len(w.steps) for w in watches)
    if seen < LEAST:
        return Diagnosis(
            cause=UNKNOWN,
            verdict=f"No answer: {seen} steps could be measured before the job ended, and {LEAST} are the least; "
            "let it run longer. A step ends with optimizer.step() of a torch.optim optimizer.",
        )
    watches = placed(watches)
    found, first = account(watches), watches[0]
    brought = gains(first, found, costs, task, max_loss)
    best = advised(brought)
    main = found.causes[0].kind if found.causes else NOTHING
    compress = best if main == NETWORK else None
    return Diagnosis(
        cause=main,
        verdict=_verdict(first, found, brought, best),
        line=compress.line if compress else None,
        account=found,
        headroom=found.headroom,
        bits_per_second=brought.bits_per_second,
        codecs=brought.codecs,
        also=tuple(in_words(cause, found, first.settings) for cause in found.causes[1:]),
        settings=tuple(costly(first, found, brought.bits_per_second)),
        remarks=(*_remarks(watches, found), brought.remark),
    )


def _verdict(watch: Watch, found: Account, brought: Gains, best: Gain | None) -> str:
    free = f"a free exchange would make a step {found.headroom:.2f} times as fast"
    if not found.causes:
        compute = f"{100 * found.share('compute'):.0f} % of a step is compute"
        if watch.ranks == 1:
            return f"Nothing is wrong: {compute}, and one rank has nothing to exchange. Do not compress."
        return f"Nothing is wrong: {compute}. Do not compress: {free}, at most."
    cause = found.causes[0]
    told = in_words(cause, found, watch.settings)
    if cause.kind == causes.BUCKETS:
        return told
    if cause.kind != NETWORK:
        return f"{told} Do not compress: {free}, at most."
    rate = "" if brought.bits_per_second is None else f" It carries about {format_rate(brought.bits_per_second)}."
    if best is not None:
        what = "DDP with torch's FP16 hook" if best.codec == FP16 else best.codec
        return f"{told}{rate} Compress: {what} is estimated to make a step {best.speedup:.2f} times as fast."
    if brought.codecs:
        return (
            f"{told}{rate} Do not compress: no safe codec is estimated to make a step {100 * (WIN - 1):.0f} % faster."
        )
    return f"{told}{rate} {free[0].upper()}{free[1:]}."


def _remarks(watches: Sequence[Watch], found: Account) -> list[str]:
    first, remarks = watches[0], []
    if len(watches) < first.ranks:
        seen = ", ".join(str(w.rank) for w in watches)
        remarks.append(
            f"Of {first.ranks} ranks, these were heard of: {seen}. What looks like the network may be a rank that is "
            "late and was not heard of; rank 0's machine has the answer of all."
        )
    wanted = first.wanted
    if found.steps < wanted // 2:
        remarks.append(f"{found.steps} steps were measured, {wanted} were wanted.")
    if first.micro_batches > 1:
        remarks.append(f"A step has {first.micro_batches} micro-batches; all are taken to compute like the last one.")
    if first.settings.hook not in (None, *HALF_HOOKS, OWN_HOOK):
        remarks.append(f"What the hook {first.settings.hook} waits for in the backward pass counts as compute.")
    if first.models > 1:
        remarks.append(f"{first.models} models were wrapped in DDP; the first one, {first.model}, was watched.")
    return remarks
